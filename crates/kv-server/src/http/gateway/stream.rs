//! A call with many answers: one line of JSON each, as they come. Its requests are the objects of the body.
//!
//! The requests end with the body, or with the first object that is malformed, as etcd's do. The call goes
//! on until the services end it or the client is gone.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::answers::{AnswerMessage, CallAnswers, lost};
use super::head::head;
use super::values::Values;
use super::write::{BodyWriter, Slow};
use super::{GatewayCall, refusal, write};
use grpc_server::inner;

impl GatewayCall {
    /// A call with one request.
    pub(super) async fn server_stream(self, request: Request) -> Response {
        match self.begin(request).await {
            Ok(answer) => self.lines(answer, JoinSet::new()).await,
            Err(status) => refusal::status(&status),
        }
    }

    /// A call with many requests.
    pub(super) async fn stream(self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let head = match head(self.method.path(), &parts.headers) {
            Ok(head) => head,
            Err(text) => return refusal::status(&Status::invalid_argument(text)),
        };
        match self.inner.call(head).await {
            Ok((answer, requests)) => {
                let mut forwarding = JoinSet::new();
                forwarding.spawn(forward(self.clone(), self.values(body), requests));
                self.lines(answer, forwarding).await
            }
            Err(error) => refusal::status(&lost(&error)),
        }
    }

    /// The response, once the first answer is there. `forwarding` is aborted when the call ends.
    async fn lines(self, answer: ResponseFuture, forwarding: JoinSet<()>) -> Response {
        let mut answers = match answer.await {
            Ok(response) => CallAnswers::new(response),
            Err(error) => return refusal::stream_status(&lost(&error)),
        };
        let first = match answers.next(&self.budget).await {
            Ok(message) => message,
            Err(status) if status.code() == Code::Ok => return Response::new(Body::empty()),
            Err(status) => return refusal::stream_status(&status),
        };
        let (writer, lines) = write::pieces();
        tokio::spawn(async move {
            let _forwarding = forwarding;
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

    /// Writes answers until the last.
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

async fn forward(call: GatewayCall, mut values: Values, mut requests: SendStream<Bytes>) {
    while let Ok(Some(value)) = values.next(&call.budget).await {
        let Ok(message) = call.message(value).await else { break };
        if inner::send(&mut requests, message, false).await.is_err() {
            return;
        }
    }
    // Only fails when the call has ended.
    drop(requests.send_data(Bytes::new(), true));
}
