//! Calls with many responses, sent as one line of JSON each. The requests are the objects of the body.
//!
//! Reading requests stops at the end of the body, or at the first malformed object, as in etcd. The call
//! continues until the services complete it or the client disconnects.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::answers::{AnswerMessage, CallAnswers};
use super::head::metadata;
use super::values::Values;
use super::write::{BodyWriter, Slow};
use super::{GatewayCall, refusal, write};
use grpc_server::http2::{BegunCall, CallHandler};

impl GatewayCall {
    /// Makes a call with one request, and many responses.
    pub(super) async fn server_stream(self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let metadata = match metadata(&parts.headers) {
            Ok(metadata) => metadata,
            Err(text) => return refusal::status(&Status::invalid_argument(text)),
        };
        let message = match self.one_message(body).await {
            Ok(message) => message,
            Err(status) => return refusal::status(&status),
        };
        let (sender, requests) = mpsc::channel(1);
        sender.try_send(message).expect("the channel has capacity for one message");
        drop(sender);
        self.stream_of(&metadata, requests, JoinSet::new()).await
    }

    /// Makes a call with many requests and responses.
    pub(super) async fn stream(self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let metadata = match metadata(&parts.headers) {
            Ok(metadata) => metadata,
            Err(text) => return refusal::status(&Status::invalid_argument(text)),
        };
        let (sender, requests) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(forward(self.clone(), self.values(body), sender));
        self.stream_of(&metadata, requests, tasks).await
    }

    async fn stream_of(
        self,
        metadata: &HeaderMap,
        requests: mpsc::Receiver<Bytes>,
        mut tasks: JoinSet<()>,
    ) -> Response {
        let dispatcher = self.dispatcher();
        let call = match dispatcher.begin(self.method.path(), metadata, None) {
            Ok(BegunCall::Stream(call)) => call,
            Ok(BegunCall::Unary(_)) => unreachable!("a method with many responses is a stream"),
            Err(status) => return refusal::stream_status(&status),
        };
        let (answers, serving) = self.connection.stream(dispatcher, call, requests);
        let answers = CallAnswers::new(answers, &self.connection.shared);
        tasks.spawn(serving);
        self.lines(answers, tasks).await
    }

    /// Returns the HTTP response once the first message is available. `tasks` are aborted when the call
    /// completes.
    async fn lines(self, mut answers: CallAnswers, tasks: JoinSet<()>) -> Response {
        let first = match answers.next(&self.budget).await {
            Ok(message) => message,
            Err(status) if status.code() == Code::Ok => return Response::new(Body::empty()),
            Err(status) => return refusal::stream_status(&status),
        };
        let (writer, lines) = write::pieces();
        tokio::spawn(async move {
            let _tasks = tasks;
            let copied = tokio::select! {
                biased;
                () = writer.gone() => Err(Slow),
                copied = self.copy(first, answers, &writer) => copied,
            };
            if copied.is_ok() {
                writer.end();
            }
        });
        write::answer(lines)
    }

    async fn copy(
        &self,
        first: AnswerMessage,
        mut answers: CallAnswers,
        writer: &BodyWriter,
    ) -> Result<(), Slow> {
        let mut next: Result<AnswerMessage, Status> = Ok(first);
        loop {
            let line = match next {
                Ok(AnswerMessage { bytes, held }) => self.line(bytes).await.map(|line| (line, held)),
                Err(status) => Err(status),
            };
            match line {
                Ok((line, _held)) => writer.write(line).await?,
                Err(status) if status.code() == Code::Ok => return Ok(()),
                Err(status) => return writer.write(refusal::last_line(&status).into()).await,
            }
            next = answers.next(&self.budget).await;
        }
    }

    async fn line(&self, message: Bytes) -> Result<Bytes, Status> {
        let json = self.json(message).await?;
        Ok([&b"{\"result\":"[..], &json, b"}\n"].concat().into())
    }
}

async fn forward(call: GatewayCall, mut values: Values, requests: mpsc::Sender<Bytes>) {
    while let Ok(Some(value)) = values.next(&call.budget).await {
        let Ok(message) = call.message(value).await else { break };
        // The object counts until the call has taken it, and no other is read before.
        if requests.send(message).await.is_err() || requests.reserve().await.is_err() {
            return;
        }
    }
}
