//! Counts the calls that ordinary gRPC services answer, by watching their bodies go past.
//!
//! A message is counted by its frame: tonic hands out one frame per message unless the message is large.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{CallKind, Method};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::rpc::observed::{FrameObserver, ObservedBody};
use auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::GrpcService;
use telemetry::metrics::{CallInProgress, Metrics, SlowCalls};

/// gRPC services with their calls counted.
#[derive(Clone)]
pub struct CountedServices<S> {
    inner: S,
    metrics: Arc<Metrics>,
    slow: SlowCalls,
}

impl<S> CountedServices<S> {
    pub fn new(inner: S, metrics: Arc<Metrics>, slow: SlowCalls) -> Self {
        CountedServices { inner, metrics, slow }
    }
}

impl<S: PerConnection> PerConnection for CountedServices<S> {
    fn of(&self, origin: &Origin) -> Self {
        CountedServices {
            inner: self.inner.of(origin),
            metrics: Arc::clone(&self.metrics),
            slow: self.slow.clone(),
        }
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
        let Some(method) = Method::of_path(request.uri().path()) else {
            return Box::pin(self.inner.call(request));
        };
        let span = self.metrics.traces.begin(method, request.headers());
        let call = CallInProgress::begin(&self.metrics, method, span.clone());
        let metrics = Arc::clone(&self.metrics);
        let request = request
            .map(|body| Body::new(ObservedBody { body, observer: CountedRequest { metrics, method } }));
        let answering = self.inner.call(request);
        if method.kind() == CallKind::Unary {
            let answering = self.slow.watch(method, None, span, answering);
            return Box::pin(async move { Ok(counted(answering.await?, call)) });
        }
        Box::pin(async move { Ok(counted(answering.await?, call)) })
    }
}

fn counted(response: Response<Body>, mut call: CallInProgress) -> Response<Body> {
    // An answer without a body has its status among the headers.
    if let Some(code) = code_in(response.headers()) {
        call.end(code);
        return response;
    }
    response.map(|body| Body::new(ObservedBody { body, observer: call }))
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

/// A request's messages: counted, nothing more. The end of a request is not the end of its call.
struct CountedRequest {
    metrics: Arc<Metrics>,
    method: Method,
}

impl FrameObserver for CountedRequest {
    fn data(&mut self, data: &Bytes) {
        self.metrics.calls.received(self.method, data.len());
    }
}

/// A response's messages, and how the call ended.
impl FrameObserver for CallInProgress {
    fn data(&mut self, data: &Bytes) {
        self.sent(data.len());
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(code) = code_in(trailers) {
            self.end(code);
        }
    }

    fn ended(&mut self, error: Option<&Status>) {
        self.end(error.map_or(Code::Ok, Status::code));
    }
}
