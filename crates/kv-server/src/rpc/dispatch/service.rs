//! tonic's services: every method that is not served in the connection's task, and hot methods for calls
//! that only tonic can decode.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{CallKind, Error, Method};
use futures_util::future::OptionFuture;
use http::{HeaderMap, Request, Response};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::super::guard::KnownFields;
use super::bodies::{EarlyEnd, KeptRequest, OpenCall, RequestBody};
use super::{Call, Dispatcher};
use crate::member::LeaderLoss;
use grpc_errors::RequestForm;
use grpc_server::methods::{self, IntactRule};

impl Service<Request<Body>> for Dispatcher {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // There is no shared capacity to wait for.
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = match resolve(request.uri().path()) {
            Ok(method) => method,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        // Each service checks its metadata itself, since learners serve some methods.
        let known = KnownFields::of(request.headers());
        let call = self.begin(method, request.headers(), &known, None, Ok(()));
        let message_bytes_max = self.member().limits.message_bytes_max();
        // A call with a malformed timeout is rejected without an audit line.
        let line = call.deadline.as_ref().ok().and_then(|_| call.asker.audited(self.member(), method));
        let audited = line.map(|line| (line, KeptRequest::new(method, message_bytes_max)));
        let kept = audited.as_ref().map(|(_, kept)| kept.clone());
        let open = OpenCall::new(self.count(&call), method, audited);
        request.extensions_mut().insert(call.asker.clone());
        let metrics = Arc::clone(&self.shared.metrics);
        let request = request.map(|body| Body::new(RequestBody { body, metrics, method, kept }));
        let dispatcher = self.clone();
        Box::pin(async move {
            let answering = dispatcher.service(&call, request);
            let response = match method.kind() {
                CallKind::Unary => {
                    dispatcher.shared.slow.watch(method, None, call.span.clone(), answering).await
                }
                _ => answering.await,
            };
            Ok(match response {
                Ok(response) => {
                    let end = dispatcher.early_end(&call);
                    open.followed(response, end)
                }
                Err(status) => open.followed(status.into_http(), None),
            })
        })
    }
}

impl Dispatcher {
    async fn service(&self, call: &Call, request: Request<Body>) -> Result<Response<Body>, Status> {
        let mut routes = self.shared.routes.clone();
        let answering = async { routes.call(request).await.map_err(|never| match never {}) };
        call.deadline()?;
        call.metadata.map_err(grpc_errors::refused)?;
        let response = self.guarded(call, answering).await?;
        match translated(response.headers(), reading(call.method)) {
            Some(status) => Err(status),
            None => Ok(response),
        }
    }

    /// Returns the future that completes the body of a response early: at the deadline, when a stream loses
    /// a required leader, or when the state is found to be corrupt.
    fn early_end(&self, call: &Call) -> Option<EarlyEnd> {
        let deadline = call.deadline.as_ref().ok().copied().flatten();
        let is_stream = call.method.kind() != CallKind::Unary;
        let loss = (is_stream && call.needs_leader).then(|| self.member().leader_loss.clone());
        let reads_state = is_stream && methods::of(call.method).state == IntactRule::Intact;
        // Created now, because the fence may be lowered again before the body is polled.
        let raised = reads_state.then(|| self.member().fence.raised());
        if deadline.is_none() && loss.is_none() && raised.is_none() {
            return None;
        }
        Some(Box::pin(early(deadline, loss, raised)))
    }
}

async fn early(
    deadline: Option<Instant>,
    loss: Option<LeaderLoss>,
    raised: Option<impl Future<Output = ()>>,
) -> Status {
    // Absent futures never complete.
    tokio::select! {
        biased;
        Some(()) = OptionFuture::from(raised) => grpc_errors::refused(Error::Corrupt),
        Some(()) = OptionFuture::from(loss.as_ref().map(LeaderLoss::lost)) => {
            grpc_errors::refused(Error::NoLeader)
        }
        Some(()) = OptionFuture::from(deadline.map(sleep_until)) => grpc_errors::deadline_exceeded(),
        else => std::future::pending().await,
    }
}

/// Translates an error that tonic returned before a method was reached into the text of etcd's server. The
/// status is in the headers then, unlike for successful calls.
fn translated(headers: &HeaderMap, reading: RequestForm) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    grpc_errors::as_grpc_go(&status, reading)
}

/// Returns the method for `path`, or an error that names the unknown service or method.
fn resolve(path: &str) -> Result<Method, Status> {
    Method::of_path(path).ok_or_else(|| unknown(path))
}

/// Returns the error for a path that is not part of the API.
fn unknown(path: &str) -> Status {
    let Some((service, name)) = path.strip_prefix('/').unwrap_or(path).rsplit_once('/') else {
        return grpc_errors::malformed_path(path);
    };
    if Method::ALL.iter().any(|method| method.service() == service) {
        grpc_errors::unknown_method(service, name)
    } else {
        grpc_errors::unknown_service(service)
    }
}

/// Returns the form of a method's request. A server stream reads its request as a message of a stream.
fn reading(method: Method) -> RequestForm {
    match method.kind() {
        CallKind::Unary => RequestForm::Unary,
        CallKind::ClientStream | CallKind::ServerStream | CallKind::BidiStream => RequestForm::Stream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Fence;
    use futures_util::FutureExt;
    use tonic::Code;

    #[test]
    fn an_answer_ends_that_was_not_looked_at_while_its_member_was_fenced() {
        let fence = Fence::default();
        let mut end = Box::pin(early(None, None, Some(fence.raised())));
        fence.set(true);
        fence.set(false);
        assert_eq!(end.as_mut().now_or_never().map(|status| status.code()), Some(Code::DataLoss));
        assert!(Box::pin(early(None, None, Some(fence.raised()))).now_or_never().is_none());
    }

    #[test]
    fn a_path_is_answered_or_refused_by_name() {
        for (path, text) in [
            ("/etcdserverpb.KV/Put", ""),
            ("/etcdserverpb.Maintenance/Snapshot", ""),
            ("/etcdserverpb.Watch/Watch", ""),
            ("/etcdserverpb.Lease/LeaseGrant", ""),
            ("/v3lockpb.Lock/Unlock", ""),
            ("/etcdserverpb.Auth/UserGet", ""),
            ("/etcdserverpb.KV/range", "unknown method range for service etcdserverpb.KV"),
            ("/etcdserverpb.Lease/Nothing", "unknown method Nothing for service etcdserverpb.Lease"),
            ("/etcdserverpb.Nothing/Range", "unknown service etcdserverpb.Nothing"),
            ("/peer.Peer/Probe", "unknown service peer.Peer"),
            ("/KV/Range", "unknown service KV"),
            ("/a/b/c", "unknown service a/b"),
            ("/health", "malformed method name: \"/health\""),
        ] {
            match resolve(path) {
                Ok(method) => assert_eq!((text, method.path()), ("", path)),
                Err(status) => assert_eq!((status.code(), status.message()), (Code::Unimplemented, text)),
            }
        }
    }
}
