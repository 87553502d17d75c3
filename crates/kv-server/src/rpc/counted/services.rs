//! Counts the calls that ordinary gRPC services answer, by watching their bodies go past.
//!
//! A message is counted by its frame: tonic hands out one frame per message unless the message is large.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{Kind, Method};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::auth::Origin;
use crate::metrics::{CallInProgress, Metrics, SlowCalls};
use crate::net::client_port::PerConnection;
use crate::net::http2::GrpcService;

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
        let call = CallInProgress::begin(&self.metrics, method);
        let metrics = Arc::clone(&self.metrics);
        let request =
            request.map(|body| Body::new(Observed { body, observer: Incoming { metrics, method } }));
        let answering = self.inner.call(request);
        if method.kind() == Kind::Unary {
            let answering = self.slow.watch(method, None, answering);
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
    response.map(|body| Body::new(Observed { body, observer: call }))
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

/// What happens to a body as its frames go past.
trait FrameObserver: Send + Unpin + 'static {
    fn data(&mut self, bytes: usize);
    /// Trailers, an error or the plain end came, in which the call ended with `code`.
    fn ended(&mut self, code: Code);
}

/// A request's messages: counted, nothing more.
struct Incoming {
    metrics: Arc<Metrics>,
    method: Method,
}

impl FrameObserver for Incoming {
    fn data(&mut self, bytes: usize) {
        self.metrics.calls.received(self.method, bytes);
    }

    fn ended(&mut self, _code: Code) {} // The end of a request is not the end of its call.
}

/// A response's messages, and how the call ended.
impl FrameObserver for CallInProgress {
    fn data(&mut self, bytes: usize) {
        CallInProgress::sent(self, bytes);
    }

    fn ended(&mut self, code: Code) {
        self.end(code);
    }
}

/// A body that passes on every frame and lets an observer see it.
struct Observed<W> {
    body: Body,
    observer: W,
}

impl<W: FrameObserver> Observed<W> {
    fn see(&mut self, frame: Option<&Result<Frame<Bytes>, Status>>) {
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.observer.data(data.len());
                } else if let Some(code) = frame.trailers_ref().and_then(code_in) {
                    self.observer.ended(code);
                }
            }
            Some(Err(status)) => self.observer.ended(status.code()),
            None => self.observer.ended(Code::Ok),
        }
    }
}

impl<W: FrameObserver> http_body::Body for Observed<W> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.see(frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
