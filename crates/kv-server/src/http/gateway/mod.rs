//! The JSON gateway: every method of etcd's API as POST with a JSON body, under `/v3/`.
//!
//! ```text
//!   body ──▶ Values ──object──▶ JsonForm::request ──▶ Inner ══ the services of this process
//!   response ◀──JSON──────────── JsonForm::response ◀── Answers ◀══╝
//! ```
//!
//! * A call is made to the services like a call of any client, with the metadata that its headers carry.
//!   Limits, tokens and counters are those of gRPC.
//! * Paths, field names, numbers and codes are etcd's. The texts of malformed JSON are serde_json's.
//! * At most [`CALLS_MAX`] calls are open at one time, and [`Inner`] bounds those of one connection. Calls
//!   come on a part of the HTTP/1 connections only: others are left to probes.
//! * An answer of more than [`budget::FREE_BYTES`] is held in memory as a whole while it is written. Such
//!   answers and requests share one [`Budget`]; an answer that would take all of it is refused.
//! * A client that takes an answer slower than [`write::PACE_BYTES_MIN`] in a second loses its connection.

mod budget; // bytes that calls hold
mod paths; // the path of each method

mod answers; // messages of the services
mod values; // JSON objects of a body

mod head; // metadata and timeouts
mod refusal; // errors as JSON
mod write; // bytes to the client

mod stream; // many answers
mod unary; // one answer

mod turns; // clients that send without end
mod websocket; // calls of browsers

use std::sync::Arc;

use api::{JsonForm, Kind};
use axum::extract::Request;
use axum::response::Response;
use http::Method;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use admission::blocking;
use budget::Budget;
use grpc_server::inner::Inner;
use refusal::refused;

pub(crate) use head::is_upgrade;

/// Calls open at one time, streams included. One more is refused. Each may have 64 KiB of answers unread.
const CALLS_MAX: usize = 2048;
/// Websockets open at one time. Each may hold a message that is not complete.
const WEBSOCKETS_MAX: usize = 128;

/// JSON of more bytes is read and written where it delays no other task: 3 MB of empty objects take 200 ms.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;
/// Such conversions at one time. 3 MB of empty objects take 300 MB while they are read.
const CONVERSIONS_MAX: usize = 2;

/// What the calls of the gateway share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway {
    budget: Arc<Budget>,
    calls: Arc<Semaphore>,
    websockets: Arc<Semaphore>,
    conversions: Arc<Semaphore>,
    message_bytes_max: usize,
}

/// One call, with what it needs.
#[derive(Clone)]
struct Call {
    method: api::Method,
    form: JsonForm,
    inner: Inner,
    gateway: Gateway,
    /// Counts the call until its last part is dropped.
    _turns: Arc<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)>,
}

impl Gateway {
    /// Requests may have `message_bytes_max` bytes when they are encoded.
    pub fn new(message_bytes_max: usize) -> Gateway {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        let websockets = Arc::new(Semaphore::new(WEBSOCKETS_MAX));
        let conversions = Arc::new(Semaphore::new(CONVERSIONS_MAX));
        Gateway { budget: Arc::default(), calls, websockets, conversions, message_bytes_max }
    }

    /// What `convert` makes of a message of `bytes`.
    async fn converted<T: Send + 'static>(
        &self,
        bytes: usize,
        convert: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if bytes <= AT_ONCE_BYTES_MAX {
            return convert();
        }
        // Never closed. The turn is given back when the work is done, also when its caller has gone.
        let turn = Arc::clone(&self.conversions).acquire_owned().await.ok();
        let work = move || {
            let _turn = turn;
            convert()
        };
        blocking(work).await?
    }

    /// Whether a path is one of the gateway's.
    pub fn has(path: &str) -> bool {
        path.starts_with("/v3/") || path.starts_with("/v3beta/")
    }

    /// Answers a request on a path of the gateway's.
    pub async fn answer(self, request: Request) -> Response {
        if is_upgrade(request.headers()) { self.websocket(request) } else { self.call(request).await }
    }

    async fn call(self, request: Request) -> Response {
        let Some(method) = paths::method(request.uri().path()) else {
            return refused(Code::NotFound, "Not Found");
        };
        if request.method() != Method::POST {
            return refused(Code::Unimplemented, "Method Not Allowed");
        }
        let Some(inner) = request.extensions().get::<Inner>().cloned() else {
            return refused(Code::Internal, "the gateway has no connection to the services");
        };
        let too_many = || refused(Code::ResourceExhausted, "etcdserver: too many requests");
        if !inner.enter() {
            return too_many();
        }
        // First that of the connection: who waits for it takes none of what all connections share.
        let of_connection = inner.turn().await;
        let Ok(of_all) = Arc::clone(&self.calls).try_acquire_owned() else { return too_many() };
        let _turns = Arc::new((of_all, of_connection));
        let call = Call { _turns, method, form: JsonForm::of_method(method), inner, gateway: self };
        match method.kind() {
            Kind::Unary => call.unary(request).await,
            Kind::ServerStream => call.server_stream(request).await,
            Kind::ClientStream | Kind::BidiStream => call.stream(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_message_is_converted_where_it_delays_no_other_task() {
        let (gateway, here) = (Gateway::new(1), std::thread::current().id());
        for (bytes, is_here) in [(AT_ONCE_BYTES_MAX, true), (AT_ONCE_BYTES_MAX + 1, false)] {
            let thread = gateway.converted(bytes, || Ok(std::thread::current().id())).await.unwrap();
            assert_eq!(thread == here, is_here, "{bytes}");
        }
        assert_eq!(gateway.conversions.available_permits(), CONVERSIONS_MAX);
        let _all = gateway.conversions.acquire_many(CONVERSIONS_MAX as u32).await.unwrap();
        let waits = gateway.converted(AT_ONCE_BYTES_MAX + 1, || Ok(()));
        assert!(futures_util::FutureExt::now_or_never(waits).is_none(), "a bounded number at one time");
    }
}
