//! The JSON gateway: every method of etcd's API as POST with a JSON body, under `/v3/`.
//!
//! ```text
//!   body ──▶ Values ──object──▶ JsonForm::request ──▶ Dispatcher
//!   response ◀──JSON──────────── JsonForm::response ◀── CallAnswers ◀──╯
//! ```
//!
//! * A call is dispatched like a gRPC client's call, with the metadata of its headers. Limits, tokens and
//!   counters are shared with gRPC.
//! * Paths, field names, numbers and codes are etcd's. The texts of malformed JSON are serde_json's.
//! * At most [`CALLS_MAX`] calls are open at one time. [`LocalConnection`] bounds the calls per connection.
//! * A response of more than [`budget::FREE_BYTES`] is held in memory as a whole while it is written. Such
//!   responses and requests share one [`Budget`]; a response that would take all of it is rejected.
//! * A client that reads a response slower than [`write::PACE_BYTES_MIN`] per second is disconnected.

mod budget; // memory held by calls
mod paths; // the path of each method

mod answers; // messages of a call
mod values; // JSON objects of a body

mod head; // metadata and timeouts
mod refusal; // errors as JSON
mod write; // bytes to the client

mod stream; // many responses
mod unary; // one response

mod turns; // fairness between clients
mod websocket; // calls from browsers

use std::sync::Arc;

use api::{CallKind, JsonForm};
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, Method};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Status};

use crate::rpc::Dispatcher;
use admission::{Admission, ClientId, Gate, Places, Share, Shares};
use budget::Budget;
use grpc_server::http2::CallHandler;
use grpc_server::local::LocalConnection;
use refusal::refused;

pub(crate) use head::is_upgrade;

/// Maximum number of open calls, streams included, shared between clients. Further ones are rejected. Each
/// may have 64 KiB of unread responses.
const CALLS_MAX: usize = 2048;
/// Part of them that each connection may always use.
const CALLS_ALWAYS: usize = 4;
/// Websockets open at one time. Each may hold an incomplete message. Beyond it, a new websocket displaces
/// one without any message yet, or is rejected.
const WEBSOCKETS_MAX: usize = 128;

/// JSON above this size is converted on a blocking thread.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// State shared by the calls of the gateway. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway {
    budget: Arc<Gate>,
    calls: Arc<Shares>,
    websockets: Arc<Places>,
    admission: Arc<Admission>,
    dispatcher: Dispatcher,
    message_bytes_max: usize,
    txn_ops_max: usize,
    client_of: Arc<ClientOf>,
}

/// Returns the identity for quotas: the user in the headers, if authenticated, in place of the address.
pub(crate) type ClientOf = dyn Fn(ClientId, &HeaderMap) -> ClientId + Send + Sync;

/// One call and its resources.
#[derive(Clone)]
struct GatewayCall {
    method: api::Method,
    form: JsonForm,
    connection: LocalConnection,
    gateway: Gateway,
    client: ClientId,
    budget: Budget,
    /// Counts the call until its last part is dropped.
    _turns: Arc<(Share, OwnedSemaphorePermit)>,
}

impl GatewayCall {
    /// Returns the dispatcher for calls of this connection.
    fn dispatcher(&self) -> Dispatcher {
        self.gateway.dispatcher.of(self.connection.connection(), self.connection.holder())
    }

    /// Runs a conversion of a message of `bytes`.
    async fn converted<T: Send + 'static>(
        &self,
        bytes: usize,
        convert: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if bytes <= AT_ONCE_BYTES_MAX {
            return convert();
        }
        self.gateway.admission.convert(self.client, convert).await?
    }
}

impl Gateway {
    /// Returns the gateway. Encoded requests may have `message_bytes_max` bytes, and the lists of a
    /// transaction `txn_ops_max` operations.
    pub fn new(
        dispatcher: Dispatcher,
        admission: Arc<Admission>,
        message_bytes_max: usize,
        txn_ops_max: usize,
        client_of: Arc<ClientOf>,
    ) -> Gateway {
        Gateway {
            budget: budget::gate(),
            calls: Shares::new(CALLS_MAX, CALLS_ALWAYS),
            websockets: Places::new(WEBSOCKETS_MAX),
            admission,
            dispatcher: dispatcher.with_answers_of(budget::ANSWER_BYTES_MAX),
            message_bytes_max,
            txn_ops_max,
            client_of,
        }
    }

    /// Reports whether a path belongs to the gateway.
    pub fn has(path: &str) -> bool {
        path.starts_with("/v3/") || path.starts_with("/v3beta/")
    }

    /// Serves a request on a path of the gateway.
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
        let Some(connection) = request.extensions().get::<LocalConnection>().cloned() else {
            return refused(Code::Internal, "the gateway has no connection to the services");
        };
        let too_many = || refused(Code::ResourceExhausted, "etcdserver: too many requests");
        let client = (self.client_of)(connection.client(), request.headers());
        // The connection's permit comes first: waiting for it does not use shared permits.
        let Some(of_connection) = connection.turn().await else { return too_many() };
        let Some(of_all) = self.calls.take(client, 1) else { return too_many() };
        let (_turns, form) = (Arc::new((of_all, of_connection)), JsonForm::of_method(method));
        let budget = Budget::new(&self.budget, client);
        let call = GatewayCall { _turns, client, budget, method, form, connection, gateway: self };
        match method.kind() {
            CallKind::Unary => call.unary(request).await,
            CallKind::ServerStream => call.server_stream(request).await,
            CallKind::ClientStream | CallKind::BidiStream => call.stream(request).await,
        }
    }
}
