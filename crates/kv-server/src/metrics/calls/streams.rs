//! Counts the calls that ordinary gRPC services answer, by watching their bodies go past.
//!
//! A message is counted by its frame: tonic hands out one frame per message unless the message is large.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

use super::{Call, CallMetrics, MethodId};
use crate::front::GrpcService;
use crate::metrics::Metrics;

/// gRPC services with their calls counted.
#[derive(Clone)]
pub struct CountedServices<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> CountedServices<S> {
    pub fn new(inner: S, metrics: Arc<Metrics>) -> Self {
        CountedServices { inner, metrics }
    }
}

impl<S: GrpcService> tower::Service<Request<Body>> for CountedServices<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(id) = CallMetrics::find(request.uri().path()) else {
            return Box::pin(self.inner.call(request));
        };
        let call = Call::begin(&self.metrics, id);
        let metrics = Arc::clone(&self.metrics);
        let request = request.map(|body| Body::new(Incoming { body, metrics, id }));
        let answering = self.inner.call(request);
        Box::pin(async move { Ok(counted(answering.await?, call)) })
    }
}

fn counted(response: Response<Body>, mut call: Call) -> Response<Body> {
    // An answer without a body has its status among the headers.
    if let Some(code) = code_in(response.headers()) {
        call.end(code);
        return response;
    }
    response.map(|body| Body::new(Outgoing { body, call }))
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

struct Incoming {
    body: Body,
    metrics: Arc<Metrics>,
    id: MethodId,
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.metrics.calls.received(self.id, data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Outgoing {
    body: Body,
    call: Call,
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.call.metrics.calls.sent(self.call.id, data.len());
                } else if let Some(code) = frame.trailers_ref().and_then(code_in) {
                    self.call.end(code);
                }
            }
            Some(Err(status)) => {
                let code = status.code();
                self.call.end(code);
            }
            None => self.call.end(Code::Ok),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
