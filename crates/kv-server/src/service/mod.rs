//! The services: etcd's gRPC methods over one [`Member`].
//!
//! ```text
//!   front ──hot unary──▶ Hot ──────────────┐
//!      └───anything else──▶ Grpc ──▶ kv, maintenance, cluster, health ──▶ Member
//!                              └──▶ unbuilt: names what is not there
//! ```
//!
//! Order of checks in every method, as clients see it by which error comes first: the message can be decoded, the
//! client's metadata, quota, validation, consensus or read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;

use crate::front::HotMethods;
use crate::member::Member;

/// Everything that is not hot, and the hot methods once more for callers that go through tonic.
#[derive(Clone)]
pub struct Grpc {
    routes: Routes,
}

impl Grpc {
    pub fn new(_member: Arc<Member>) -> Self {
        Grpc { routes: Routes::default() }
    }
}

impl tower::Service<Request<Body>> for Grpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(tower::Service::call(&mut self.routes, request))
    }
}

/// The hot methods: Put, Range, Txn, DeleteRange.
#[derive(Clone)]
pub struct Hot {
    _member: Arc<Member>,
}

impl Hot {
    pub fn new(member: Arc<Member>) -> Self {
        Hot { _member: member }
    }
}

/// Names one hot method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotMethod {
    Put,
    Range,
    Txn,
    DeleteRange,
}

impl HotMethods for Hot {
    type Method = HotMethod;

    fn find(&self, path: &str) -> Option<HotMethod> {
        match path {
            "/etcdserverpb.KV/Put" => Some(HotMethod::Put),
            "/etcdserverpb.KV/Range" => Some(HotMethod::Range),
            "/etcdserverpb.KV/Txn" => Some(HotMethod::Txn),
            "/etcdserverpb.KV/DeleteRange" => Some(HotMethod::DeleteRange),
            _ => None,
        }
    }

    async fn call(&self, _method: HotMethod, _headers: HeaderMap, _message: Bytes) -> Result<Bytes, Status> {
        Err(Status::unavailable("not yet"))
    }
}
