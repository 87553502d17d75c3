//! One call with a stream of requests and a stream of answers, in the task of its connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use http::HeaderMap;
use tonic::Status;

use super::super::shared::ConnectionShared;
use super::super::wire::{BodyReader, StreamWriter};
use super::local::{AnswerSink, RequestSource, StreamEnds};
use super::replies::{Outgoing, Replies};
use super::requests::{RequestStream, Requests};

/// The methods whose calls are streams in both directions.
pub trait StreamMethods: Clone + Send + 'static {
    /// One call: its method, and what its headers ask for.
    type Call: Send;

    /// The call of a path such as `/etcdserverpb.Watch/Watch`, if it is one of these methods.
    fn find(&self, path: &str, headers: &HeaderMap) -> Option<Self::Call>;

    /// Serves a call until it ends by itself, with this status. The future is dropped when the client is gone
    /// or the member stops.
    fn serve(
        &self,
        call: Self::Call,
        requests: Requests,
        replies: Replies,
    ) -> impl Future<Output = Status> + Send;
}

/// Serves one call.
pub(crate) async fn serve<T: StreamMethods>(
    methods: T,
    call: T::Call,
    body: BodyReader,
    writer: StreamWriter,
    shared: &ConnectionShared,
) {
    let stream = StreamEnds { source: RequestSource::Wire(body), sink: AnswerSink::Wire(writer) };
    serve_stream(methods, call, stream, shared).await;
}

/// Serves one call whose requests and answers may come by another way.
pub async fn serve_stream<T: StreamMethods>(
    methods: T,
    call: T::Call,
    StreamEnds { source, sink }: StreamEnds,
    shared: &ConnectionShared,
) {
    let incoming = RequestStream::new(source, &shared.account, shared.limits.message_bytes_max);
    let requests = Requests::new(&incoming);
    let is_local = matches!(sink, AnswerSink::Local(_));
    let outgoing = Outgoing::new(sink);
    let replies = Replies::new(&outgoing, &shared.account);
    let ended = {
        let mut serving = pin!(methods.serve(call, requests, replies));
        let mut stopped = pin!(shared.stopped());
        poll_fn(|context| {
            if is_local {
                shared.account.begin_turn(); // There is no task of a connection that does.
            }
            if outgoing.lock().poll_reset(context).is_ready() {
                return Poll::Ready(None);
            }
            if stopped.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(grpc_errors::stopped()));
            }
            // Also while the method does not read: it may wait for its client to take answers.
            if let Err(status) = incoming.lock().take_frames(context) {
                return Poll::Ready(Some(status));
            }
            serving.as_mut().poll(context).map(Some)
        })
        .await
    };
    if let Some(status) = ended {
        outgoing.lock().end(status);
    }
}

/// No such methods.
#[derive(Clone, Copy, Debug)]
pub struct NoStreams;

impl StreamMethods for NoStreams {
    type Call = Infallible;

    fn find(&self, _path: &str, _headers: &HeaderMap) -> Option<Infallible> {
        None
    }

    async fn serve(&self, call: Infallible, _requests: Requests, _replies: Replies) -> Status {
        match call {}
    }
}
