//! The dispatcher: takes every call from its headers to its status.
//!
//! ```text
//! path ─▶ row of `methods` ─▶ Call: counted, traced, deadline, metadata, caller, permission
//!    ├─▶ unary: decode ─▶ the method of tonic's service trait ─▶ encode
//!    └─▶ stream: of responses, likewise; in both directions, message by message
//! ```
//!
//! Calls of gRPC clients and of the gateway are the same. All run in the task of their connection.

mod stream; // streams of requests or responses
mod unary; // one request, one response

mod long; // responses that are produced while they are sent

use std::pin::{Pin, pin};
use std::sync::Arc;

use ::auth::Connection;
use admission::Holder;
use api::etcdserverpb::ResponseHeader;
use api::grpc::PREFIX_BYTES;
use api::{CallKind, Error, Method};
use bytes::Bytes;
use grpc_errors::RequestForm;
use grpc_server::http2::{Answer, BegunCall, CallHandler, PartRoom, Replies, Requests, Room, SendNow};
use http::HeaderMap;
use process::shutdown::Stop;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use telemetry::metrics::{CallInProgress, MessageCounter, Metrics, SlowCalls};
use telemetry::traces::CallSpan;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::concurrency::{self, WaitingPlaces};
use super::guard::{self, CallMetadata, KnownFields, ServedCall};
use super::{deadline, kv, lease};
use crate::audit::{AuditSubject, AuditedCall};
use crate::member::Member;
use crate::methods::{self, Access};
use crate::peer::LeaseService;
use ::auth::Requester;
use long::LongCall;

/// Request bytes retained for the audit log until a call completes that may take hours. Of a longer request
/// only the audit subject is retained.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Serves the calls of one connection. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    connection: Connection,
    /// The holder of the connection's place.
    holder: Arc<Holder>,
}

/// State shared by all connections.
struct Shared {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    slow: SlowCalls,
    leases: LeaseService,
    /// Permits of locks and elections.
    waiting: WaitingPlaces,
}

/// A call with parsed headers.
#[derive(Debug)]
pub struct Call {
    method: Method,
    deadline: Option<Instant>,
    metadata: CallMetadata,
    requester: Requester,
    span: Option<Arc<CallSpan>>,
}

impl Dispatcher {
    pub fn new(member: Arc<Member>, leases: LeaseService, slow: SlowCalls, stop: Stop) -> Dispatcher {
        let (metrics, waiting) = (Arc::clone(&member.metrics), WaitingPlaces::new(stop));
        let shared = Shared { member, metrics, slow, leases, waiting };
        Dispatcher { shared: Arc::new(shared), connection: Connection::default(), holder: Holder::new() }
    }

    /// Returns the dispatcher with another maximum size of responses.
    pub fn with_answers_of(self, answer_bytes_max: usize) -> Dispatcher {
        Dispatcher { connection: Connection { answer_bytes_max, ..self.connection }, ..self }
    }

    fn member(&self) -> &Arc<Member> {
        &self.shared.member
    }

    /// Returns `call` for the implementation of its method.
    fn served(&self, call: &Call, room: PartRoom) -> ServedCall {
        ServedCall { member: Arc::clone(self.member()), requester: call.requester.clone(), room }
    }

    fn key_space(&self, call: &Call, room: PartRoom) -> kv::Kv {
        kv::Kv { call: self.served(call, room), txn_memory: None }
    }

    fn leases(&self, call: &Call, room: PartRoom) -> lease::LeaseCalls {
        lease::LeaseCalls { call: self.served(call, room), leases: self.shared.leases.clone() }
    }

    fn locks(&self, call: &Call, room: PartRoom) -> concurrency::Lock {
        concurrency::Lock::new(self.served(call, room), self.shared.waiting.clone())
    }

    fn elections(&self, call: &Call, room: PartRoom) -> concurrency::Election {
        concurrency::Election::new(self.served(call, room), self.shared.waiting.clone())
    }

    /// Keeps the place of the connection for as long as it lives, from the first call of a known user on. While
    /// permissions are not checked every call is one, unless its method needs no permission.
    fn note_use(&self, method: Method, requester: &Requester) {
        if self.holder.is_kept() {
            return;
        }
        let needs_permission = methods::of(method).access != Access::Open;
        if requester.user().is_some() || (needs_permission && !self.member().auth.is_enabled()) {
            self.holder.keep();
        } else {
            self.holder.note_open();
        }
    }

    /// Starts the metrics of a call.
    fn count(&self, call: &Call) -> CallInProgress {
        CallInProgress::begin(&self.shared.metrics, call.method, call.span.clone())
    }

    /// Checks whether this member can serve the call now. The message of a unary call may follow its headers
    /// much later.
    fn check(&self, call: &Call) -> Result<(), Error> {
        guard::check(self.member(), call.method, call.metadata)
    }

    /// Runs `work` if the caller may make the call, until its deadline. `work` is pinned by the caller,
    /// because each function that awaits a future passed by value stores it once more.
    async fn guarded<T>(
        &self,
        call: &Call,
        work: Pin<&mut impl Future<Output = Result<T, Status>>>,
    ) -> Result<T, Status> {
        let permitted = pin!(async {
            match methods::of(call.method).access {
                Access::Open | Access::Keys => {} // Checked by the method itself, if necessary.
                // Boxed to keep the future of a hot call small.
                access @ (Access::User | Access::Root) => Box::pin(self.authorize(call, access)).await?,
            }
            work.await
        });
        deadline::within(call.deadline, permitted).await
    }

    async fn authorize(&self, call: &Call, access: Access) -> Result<(), Status> {
        let permitted = guard::authorize(self.member(), &call.requester, access).await;
        // Streams are audited when they have a message, and a rejected one has none.
        if let Err(status) = &permitted
            && call.method.kind() != CallKind::Unary
            && let Some(audited) = self.member().audited(&call.requester, call.method)
        {
            audited.end(Err(status));
        }
        permitted
    }

    /// Starts the call's line in the audit log, if that is enabled.
    fn audited(&self, call: &Call, message: &Bytes) -> Option<Box<AuditedCall>> {
        let line = self.member().audited(&call.requester, call.method)?;
        let is_short =
            matches!(call.method, Method::KvPut | Method::KvRange | Method::KvTxn | Method::KvDeleteRange);
        Some(Box::new(if is_short {
            line.with_request(message.clone())
        } else if message.len() <= KEPT_BYTES_MAX {
            // A copy: the message is a part of a receive buffer, which it would retain.
            line.with_request(Bytes::copy_from_slice(message))
        } else {
            // These methods name one range at most, so a rejection needs no search for it.
            line.with_subject(AuditSubject::of(call.method, message.clone(), None))
        }))
    }
}

impl CallHandler for Dispatcher {
    type Call = Call;
    type Long = LongCall;

    fn of(&self, connection: &Connection, holder: &Arc<Holder>) -> Self {
        let answer_bytes_max = self.connection.answer_bytes_max;
        let connection = Connection { answer_bytes_max, ..connection.clone() };
        Dispatcher { shared: Arc::clone(&self.shared), connection, holder: Arc::clone(holder) }
    }

    /// Rejects calls to unknown methods, calls with a malformed deadline, and compressed ones.
    fn begin(
        &self,
        path: &str,
        headers: &HeaderMap,
        timeout: Option<&[u8]>,
    ) -> Result<BegunCall<Call>, Status> {
        let method = resolve(path)?;
        let (member, metrics) = (self.member(), &self.shared.metrics);
        let known = KnownFields::of(headers);
        metrics.calls.named_version(method, known.client_version.map(|version| version.as_bytes()));
        let requester = member.auth.requester(&self.connection, headers, known.token, known.authorization);
        self.note_use(method, &requester);
        let span = metrics.traces.begin(method, headers);
        let deadline = deadline::of(&known, timeout).and_then(|deadline| match known.compression() {
            Some(encoding) => Err(grpc_errors::compressed(encoding)),
            None => Ok(deadline),
        });
        let deadline = deadline.inspect_err(|status| {
            CallInProgress::begin(metrics, method, span.clone()).end(status.code());
        })?;
        let call = Call { method, deadline, metadata: known.metadata(), requester, span };
        Ok(match method.kind() {
            CallKind::Unary => BegunCall::Unary(call),
            CallKind::ClientStream | CallKind::ServerStream | CallKind::BidiStream => BegunCall::Stream(call),
        })
    }

    fn deadline(call: &Call) -> Option<Instant> {
        call.deadline
    }

    fn user(call: &Call) -> Option<u64> {
        call.requester.user()
    }

    /// Serves a serializable range of one key. Audited, sampled and traced calls are left to `unary`.
    fn answer_now(&self, call: &Call, message: &Bytes, send: &mut SendNow<'_>) -> bool {
        let member = self.member();
        let may_be_now = call.method == Method::KvRange
            && call.span.is_none()
            && member.audit.is_none()
            && member.usage.is_none()
            && self.check(call).is_ok();
        let began = Instant::now();
        if !may_be_now || call.deadline.is_some_and(|deadline| deadline <= began) {
            return false;
        }
        let mut answer_bytes = 0;
        let answered = kv::range_now(member, &call.requester, message, &mut |answer| {
            answer_bytes = answer.len().saturating_sub(PREFIX_BYTES);
            send(answer)
        });
        if answered.is_some() {
            let took = began.elapsed();
            self.shared.metrics.calls.answered(call.method, [message.len(), answer_bytes], took);
            self.shared.metrics.calls.ranged(took, true);
            self.shared.slow.ended(call.method, Some(message.len()), took);
        }
        answered.is_some()
    }

    async fn unary(&self, call: Call, message: Bytes, room: Room<'_>) -> Result<Answer<LongCall>, Status> {
        let mut counted = self.count(&call);
        let calls = &self.shared.metrics.calls;
        calls.received(call.method, message.len());
        let (method, request_bytes, span) = (call.method, Some(message.len()), call.span.clone());
        let answering = self.recorded(&call, message, room);
        match self.shared.slow.watch(method, request_bytes, span, answering).await {
            Ok(Answer::Long(mut inner)) => {
                inner.deadline = call.deadline;
                Ok(Answer::Long(Box::new(LongCall::new(*inner, counted))))
            }
            Ok(Answer::Whole(frame)) => {
                calls.sent(method, frame.len().saturating_sub(PREFIX_BYTES));
                counted.end(Code::Ok);
                Ok(Answer::Whole(frame))
            }
            Ok(Answer::WithMetadata(metadata, frame)) => {
                calls.sent(method, frame.len().saturating_sub(PREFIX_BYTES));
                counted.end(Code::Ok);
                Ok(Answer::WithMetadata(metadata, frame))
            }
            Err(status) => {
                counted.end(status.code());
                Err(status)
            }
        }
    }

    async fn stream(&self, call: Call, mut requests: Requests, mut replies: Replies) -> Status {
        let mut counted = self.count(&call);
        let messages = MessageCounter::new(&self.shared.metrics, call.method);
        requests.counted_by(messages.clone());
        replies.counted_by(messages);
        let status = self.streamed(&call, requests, replies).await;
        counted.end(status.code());
        status
    }
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

/// Decodes a request.
fn decoded<T: Message + Default>(message: Bytes, form: RequestForm) -> Result<T, Status> {
    T::decode(message).map_err(|_| grpc_errors::malformed(form))
}

/// Returns the revision in the header of an encoded response with its prefix. The header is its first
/// field. None if it is absent, or incomplete.
pub fn revision_in(framed: &[u8]) -> Option<i64> {
    let mut message = framed.get(PREFIX_BYTES..)?;
    let (number, kind) = decode_key(&mut message).ok()?;
    if (number, kind) != (1, WireType::LengthDelimited) {
        return None;
    }
    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
    let header = ResponseHeader::decode(message.get(..length)?).ok()?;
    (header.revision != 0).then_some(header.revision)
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::PutResponse;

    use super::*;

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

    #[test]
    fn the_revision_of_an_encoded_answer_is_found() {
        let header = ResponseHeader { cluster_id: 7, revision: 300, raft_term: 2, ..Default::default() };
        let answer = PutResponse { header: Some(header), prev_kv: None };
        let framed = [&[0; PREFIX_BYTES][..], &answer.encode_to_vec()].concat();
        assert_eq!(revision_in(&framed), Some(300));
        for cut in 0..framed.len() {
            assert_eq!(revision_in(&framed[..cut]), None, "{cut} bytes");
        }
    }
}
