//! Divides the requests of an HTTP/2 connection between gRPC and plain HTTP, by their content type as etcd
//! does.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{Request, Response};
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::http2::GrpcService;
use super::inner::Inner;

/// gRPC services, with a router for other requests if there is one, and the connection for its calls.
#[derive(Clone)]
pub struct ByContentType<G> {
    pub grpc: G,
    pub http: Option<(axum::Router, Inner)>,
}

impl<G: GrpcService> Service<Request<Body>> for ByContentType<G> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.grpc.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        match &self.http {
            Some((router, inner)) if !content_type.starts_with(b"application/grpc") => {
                request.extensions_mut().insert(inner.clone());
                let answering = router.clone().oneshot(request);
                Box::pin(async move { Ok(answering.await?.map(Body::new)) })
            }
            Some(_) | None => Box::pin(self.grpc.call(request)),
        }
    }
}
