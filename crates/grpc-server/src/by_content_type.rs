//! Divides the requests of an HTTP/2 connection between gRPC and plain HTTP, by their content type as etcd
//! does. What is neither is refused as grpc-go refuses it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::http2::{GrpcService, is_call};
use super::inner::Inner;

/// gRPC services, with a router for other requests if there is one, and the connection for its calls. Without
/// that, outside of TLS where etcd has no router, it answers GET alone, for probes.
#[derive(Clone)]
pub struct ByContentType<G> {
    pub grpc: G,
    pub http: Option<(axum::Router, Option<Inner>)>,
}

impl<G: GrpcService> Service<Request<Body>> for ByContentType<G> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.grpc.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if is_call(request.headers()) {
            return Box::pin(self.grpc.call(request));
        }
        match &self.http {
            Some((router, inner)) if inner.is_some() || request.method() == Method::GET => {
                let host = request.uri().authority().and_then(|host| host.as_str().parse().ok());
                if let Some(host) = host {
                    request.headers_mut().entry(HOST).or_insert(host);
                }
                if let Some(inner) = inner {
                    request.extensions_mut().insert(inner.clone());
                }
                let answering = router.clone().oneshot(request);
                Box::pin(async move { Ok(answering.await?.map(Body::new)) })
            }
            Some(_) | None => {
                let given = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let text = format!("invalid gRPC request content-type {:?}", given.unwrap_or_default());
                let mut refusal = Status::invalid_argument(text).into_http();
                *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Box::pin(std::future::ready(Ok(refusal)))
            }
        }
    }
}
