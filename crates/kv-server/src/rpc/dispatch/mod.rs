//! The dispatcher: takes every call from its headers to its status.
//!
//! ```text
//! path ─▶ row of `grpc_server::methods` ─▶ Call: counted, traced, deadline, metadata, caller, permission
//!    ├─▶ hot: one message for another, in the connection's task
//!    ├─▶ stream: messages both ways, in the connection's task
//!    └─▶ service: tonic's services, by HTTP bodies; hot methods too that only tonic can read
//! ```
//!
//! A method is implemented once: hot methods and `stream` call the functions that the services call.

mod stream; // messages both ways

mod bodies; // metrics and completion of service bodies
mod service; // tonic's services

use std::pin::pin;
use std::sync::Arc;

use ::auth::Origin;
use admission::{CountedAnswer, Holder, Pass, charged};
use api::etcdserverpb::TxnRequest;
use api::etcdserverpb::auth_server::AuthServer;
use api::etcdserverpb::cluster_server::ClusterServer;
use api::etcdserverpb::kv_server::KvServer;
use api::etcdserverpb::lease_server::LeaseServer;
use api::etcdserverpb::maintenance_server::MaintenanceServer;
use api::grpc::PREFIX_BYTES;
use api::health::health_server::HealthServer;
use api::kvserver::repair_server::RepairServer;
use api::v3electionpb::election_server::ElectionServer;
use api::v3lockpb::lock_server::LockServer;
use api::{CallKind, Error, Method};
use base::ClientId;
use bytes::Bytes;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::{HotAnswer, HotMethods, LongAnswer, Part, Room, SendNow, framed};
use grpc_server::methods::{self, Access, CLUSTER_BYTES_MAX, HotMethod, Serving};
use http::HeaderMap;
use process::shutdown::Stop;
use prost::Message;
use state_machine::command::{self, DecodeError, SHORT_TXN_FIELDS_MAX};
use state_machine::validate;
use telemetry::metrics::{CallInProgress, Metrics, SlowCalls};
use telemetry::traces::CallSpan;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::{Code, Status};

use super::guard::{self, Asker, KnownFields};
use super::{auth, cluster, concurrency, deadline, health, kv, lease, maintenance, repair};
use crate::member::Member;
use crate::peer::LeaseService;

/// Serves the calls of one connection. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    origin: Origin,
    /// The holder of the connection's place.
    holder: Arc<Holder>,
    answer_bytes_max: usize,
}

/// State shared by all connections.
struct Shared {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    slow: SlowCalls,
    leases: LeaseService,
    routes: Routes,
}

impl PerConnection for Dispatcher {
    fn of(&self, origin: &Origin, holder: &Arc<Holder>) -> Self {
        let (shared, holder) = (Arc::clone(&self.shared), Arc::clone(holder));
        Dispatcher { shared, origin: origin.clone(), holder, ..*self }
    }
}

/// A call with parsed headers.
#[derive(Debug)]
pub struct Call {
    method: Method,
    /// Deadline of the call, or the error in its timeout.
    deadline: Result<Option<Instant>, Box<Status>>,
    /// Reports whether this member can satisfy its metadata.
    metadata: Result<(), Error>,
    /// True for calls that fail when the leader is lost, if they are streams.
    needs_leader: bool,
    asker: Asker,
    span: Option<Arc<CallSpan>>,
}

impl Dispatcher {
    pub fn new(member: Arc<Member>, leases: LeaseService, slow: SlowCalls, stop: Stop) -> Dispatcher {
        let (metrics, routes) = (Arc::clone(&member.metrics), routes(&member, &leases, stop));
        let shared = Shared { member, metrics, slow, leases, routes };
        let (origin, holder) = (Origin::default(), Holder::new());
        Dispatcher { shared: Arc::new(shared), origin, holder, answer_bytes_max: usize::MAX }
    }

    /// Returns the dispatcher with another maximum size of responses.
    pub fn with_answers_of(self, answer_bytes_max: usize) -> Dispatcher {
        Dispatcher { answer_bytes_max, ..self }
    }

    fn member(&self) -> &Arc<Member> {
        &self.shared.member
    }

    /// Returns the call of `method` with these headers; `metadata` is the result of checking them.
    /// `timeout` is a `grpc-timeout` that is not among them.
    fn begin(
        &self,
        method: Method,
        headers: &HeaderMap,
        known: &KnownFields<'_>,
        timeout: Option<&[u8]>,
        metadata: Result<(), Error>,
    ) -> Call {
        let member = self.member();
        let version = known.client_version.map(|version| version.as_bytes());
        self.shared.metrics.calls.named_version(method, version);
        let asker = Asker::new(member, &self.origin, headers, known).with_answers_of(self.answer_bytes_max);
        self.note_use(method, &asker);
        Call {
            method,
            deadline: deadline::of(known, timeout).map_err(Box::new),
            metadata: metadata.and_then(|()| guard::check_intact(member, method)),
            needs_leader: guard::needs_leader(known),
            asker,
            span: self.shared.metrics.traces.begin(method, headers),
        }
    }

    /// Keeps the place of the connection for as long as it lives, from the first call of a known user on. While
    /// permissions are not checked every call is one, unless its method needs no permission.
    fn note_use(&self, method: Method, asker: &Asker) {
        if self.holder.is_kept() {
            return;
        }
        let needs_permission = methods::of(method).access != Access::Open;
        if asker.user().is_some() || (needs_permission && !self.member().auth.is_enabled()) {
            self.holder.keep();
        } else {
            self.holder.note_open();
        }
    }

    /// Starts the metrics of a call.
    fn count(&self, call: &Call) -> CallInProgress {
        CallInProgress::begin(&self.shared.metrics, call.method, call.span.clone())
    }

    /// Runs `work` if the caller may make the call, until its deadline.
    async fn guarded<T>(
        &self,
        call: &Call,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let permitted = pin!(async {
            match methods::of(call.method).access {
                Access::Open | Access::Keys => {} // Checked by the method itself, if necessary.
                // In a box, so that the future of a hot call stays small.
                access @ (Access::User | Access::Root) => Box::pin(self.authorize(call, access)).await?,
            }
            work.await
        });
        deadline::within(call.deadline()?, permitted).await
    }

    async fn authorize(&self, call: &Call, access: Access) -> Result<(), Status> {
        let permitted = guard::authorize(self.member(), &call.asker, access).await;
        // Streams are audited per message, and a rejected one has none.
        if let Err(status) = &permitted
            && call.method.kind() == CallKind::BidiStream
            && let Some(audited) = call.asker.audited(self.member(), call.method)
        {
            audited.end(Err(status));
        }
        permitted
    }
}

/// Returns the services of a member.
fn routes(member: &Arc<Member>, leases: &LeaseService, stop: Stop) -> Routes {
    let bytes_max = member.limits.message_bytes_max();
    let of = || Arc::clone(member);
    let waiting = concurrency::WaitingPlaces::new(stop);
    let lease = lease::LeaseCalls { member: of(), leases: leases.clone() };
    let lock = concurrency::Lock::new(of(), waiting.clone());
    let election = concurrency::Election::new(of(), waiting);
    let cluster_bytes_max = bytes_max.min(CLUSTER_BYTES_MAX);
    Routes::new(KvServer::new(kv::Kv(of())).max_decoding_message_size(bytes_max))
        .add_service(
            MaintenanceServer::new(maintenance::Maintenance(of())).max_decoding_message_size(bytes_max),
        )
        .add_service(LeaseServer::new(lease).max_decoding_message_size(bytes_max))
        .add_service(AuthServer::new(auth::AuthCalls { member: of() }).max_decoding_message_size(bytes_max))
        .add_service(
            ClusterServer::new(cluster::ClusterCalls(of())).max_decoding_message_size(cluster_bytes_max),
        )
        .add_service(LockServer::new(lock).max_decoding_message_size(bytes_max))
        .add_service(ElectionServer::new(election).max_decoding_message_size(bytes_max))
        .add_service(RepairServer::new(repair::Repair(of())))
        .add_service(HealthServer::new(health::Health(of())).max_decoding_message_size(bytes_max))
        .prepare()
}

impl Call {
    fn deadline(&self) -> Result<Option<Instant>, Status> {
        self.deadline.as_ref().copied().map_err(|status| (**status).clone())
    }
}

/// Size up to which a short transaction is decoded in the calling task. Larger ones use a blocking thread,
/// since they may have thousands of operations. Other messages have few fields.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;

/// A call with an undecoded message.
#[derive(Debug)]
pub struct HotCall {
    which: HotMethod,
    call: Call,
}

impl HotMethods for Dispatcher {
    type Call = HotCall;
    type Long = LongCall;

    /// Leaves compressed requests to the services, which respond with UNIMPLEMENTED and the accepted
    /// encodings.
    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<HotCall> {
        let method = Method::of_path(path)?;
        let Serving::Hot(which) = methods::of(method).serving else { return None };
        let known = KnownFields::of(headers);
        if known.compression().is_some() {
            return None;
        }
        let metadata = match which {
            HotMethod::Range => guard::check_any(self.member(), &known), // The rest depends on the request.
            HotMethod::Put | HotMethod::Txn | HotMethod::DeleteRange => {
                guard::check_known(self.member(), &known)
            }
        };
        Some(HotCall { which, call: self.begin(method, headers, &known, timeout, metadata) })
    }

    fn deadline(HotCall { call, .. }: &HotCall) -> Option<Instant> {
        call.deadline.as_ref().ok().copied().flatten()
    }

    fn user(HotCall { call, .. }: &HotCall) -> Option<u64> {
        call.asker.user()
    }

    fn user_of(&self, headers: &HeaderMap) -> Option<u64> {
        Asker::new(self.member(), &self.origin, headers, &KnownFields::of(headers)).user()
    }

    /// Serves a serializable range of one key. Audited, sampled and traced calls are left to `call`.
    fn answer_now(&self, HotCall { which, call }: &HotCall, message: &Bytes, send: &mut SendNow<'_>) -> bool {
        let member = self.member();
        let may_be_now = *which == HotMethod::Range
            && call.metadata.is_ok()
            && call.span.is_none()
            && member.audit.is_none()
            && member.usage.is_none();
        let Some(Ok(deadline)) = may_be_now.then_some(call.deadline.as_ref()) else { return false };
        let began = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= began) {
            return false;
        }
        let mut answer_bytes = 0;
        let answered = kv::range_now(member, &call.asker, message, &mut |answer| {
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

    async fn call(
        &self,
        HotCall { which, call }: HotCall,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<LongCall>, Status> {
        let mut counted = self.count(&call);
        self.shared.metrics.calls.received(call.method, message.len());
        let (method, request_bytes, span) = (call.method, Some(message.len()), call.span.clone());
        let answering = self.audited(which, &call, message, room);
        match self.shared.slow.watch(method, request_bytes, span, answering).await {
            Ok(HotAnswer::Whole(bytes)) => {
                self.shared.metrics.calls.sent(method, bytes.len().saturating_sub(PREFIX_BYTES));
                counted.end(Code::Ok);
                Ok(HotAnswer::Whole(bytes))
            }
            Ok(HotAnswer::Long(mut inner)) => {
                inner.deadline = call.deadline()?;
                Ok(HotAnswer::Long(Box::new(LongCall { inner: *inner, counted, bytes: 0 })))
            }
            Err(status) => {
                counted.end(status.code());
                Err(status)
            }
        }
    }
}

impl Dispatcher {
    /// Serves a call with auditing and usage sampling.
    async fn audited(
        &self,
        which: HotMethod,
        call: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<kv::LargeAnswer>, Status> {
        let member = self.member();
        call.deadline()?;
        let audited = call.asker.audited(member, call.method).map(|line| line.with_request(message.clone()));
        let usage = member.usage.as_ref();
        let sampled = usage.and_then(|usage| usage.sample(call.method, &message));
        let answer = self.guarded(call, self.answer(which, call, message, room)).await;
        if let Some(line) = audited {
            line.end(match &answer {
                Ok(HotAnswer::Whole(bytes)) => Ok(bodies::revision_in(bytes)),
                Ok(HotAnswer::Long(_)) => Ok(None),
                Err(status) => Err(status),
            });
        }
        if let Some(sample) = sampled {
            let frame = if let Ok(HotAnswer::Whole(frame)) = &answer { Some(frame) } else { None };
            sample.end(&self.client(&call.asker), frame);
        }
        answer
    }

    /// Returns the name of the caller: its user, or its address.
    fn client(&self, asker: &Asker) -> String {
        let caller = self.member().auth.user_of(&asker.credential);
        let address = || asker.address.map_or_else(String::new, |address| address.ip().to_string());
        caller.user().map_or_else(address, str::to_owned)
    }

    async fn answer(
        &self,
        which: HotMethod,
        Call { metadata, asker, .. }: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<kv::LargeAnswer>, Status> {
        let (member, metadata) = (self.member(), *metadata);
        let frame = match which {
            HotMethod::Put => frame(kv::put(member, asker, admit(metadata, message)?).await?),
            HotMethod::Range => {
                match kv::range_or_large(member, asker, admit(metadata, message)?, room).await? {
                    kv::RangedRequest::Whole(answered) => frame(answered),
                    kv::RangedRequest::Large(answer) => return Ok(HotAnswer::Long(answer)),
                }
            }
            HotMethod::Txn => {
                let (request, memory) = admit_txn(member, asker.client, metadata, message, room).await?;
                // Calls with admitted memory have waited for capacity before.
                let room = memory.is_none().then_some(room);
                frame(kv::valid_txn(member, asker, request, room).await?)
            }
            HotMethod::DeleteRange => {
                frame(kv::delete_range(member, asker, admit(metadata, message)?).await?)
            }
        };
        frame.map(HotAnswer::Whole)
    }
}

/// Decodes the request, then checks its metadata: in this order, as in etcd.
fn admit<T: Message + Default>(metadata: Result<(), Error>, message: Bytes) -> Result<T, Status> {
    let request = T::decode(message).map_err(|_| grpc_errors::malformed(grpc_errors::RequestForm::Unary))?;
    metadata.map_err(grpc_errors::refused)?;
    Ok(request)
}

/// A transaction, and its validation result.
type ReadTxn = Result<(TxnRequest, Result<(), Error>), DecodeError>;

/// Memory of a transaction that is not short, until its response. Boxed to keep the future of every other
/// call small.
type TxnMemory = Option<Box<Pass>>;

/// Like [`admit`], with apply's decoder, which limits nesting. It rejects too many operations while
/// decoding; etcd does after checking the metadata.
async fn admit_txn(
    member: &Member,
    client: ClientId,
    metadata: Result<(), Error>,
    message: Bytes,
    room: Room<'_>,
) -> Result<(TxnRequest, TxnMemory), Status> {
    let here = match message.len() <= DECODED_HERE_BYTES_MAX {
        true => read_txn(message.clone(), member.limits.txn_ops_max, SHORT_TXN_FIELDS_MAX),
        false => Err(DecodeError::TooMany),
    };
    let (read, memory) = match here {
        Err(DecodeError::TooMany) => Box::pin(convert_txn(member, client, message, room)).await?,
        here => (here, None),
    };
    if !matches!(read, Err(DecodeError::Malformed(_) | DecodeError::Field)) {
        metadata.map_err(grpc_errors::refused)?;
    }
    let (request, valid) = read.map_err(|error| grpc_errors::undecodable(&error))?;
    valid.map_err(grpc_errors::refused)?;
    Ok((request, memory))
}

fn read_txn(message: Bytes, ops_max: usize, fields_max: usize) -> ReadTxn {
    let request = command::decode_short_txn(message, ops_max, fields_max)?;
    let valid = validate::txn(&request, ops_max);
    Ok((request, valid))
}

/// Decodes a transaction on a blocking thread. If it has many fields, they are only counted there at first,
/// and it waits for memory in its encoded form.
async fn convert_txn(
    member: &Member,
    client: ClientId,
    message: Bytes,
    room: Room<'_>,
) -> Result<(ReadTxn, TxnMemory), Status> {
    let (admission, ops_max) = (&member.admission, member.limits.txn_ops_max);
    let first = message.clone();
    let read_or_count = move || match read_txn(first.clone(), ops_max, SHORT_TXN_FIELDS_MAX) {
        // If it cannot be counted, the error is the decoder's.
        Err(DecodeError::TooMany) => {
            let fields = command::txn_fields(first.clone(), ops_max);
            fields.map_err(|_| read_txn(first, ops_max, usize::MAX))
        }
        read => Err(read),
    };
    let fields = match admission.convert(client, read_or_count).await? {
        Ok(fields) => fields,
        Err(read) => return Ok((read, None)),
    };
    // Its client may read responses slowly, which should not delay other transactions.
    room.wait().await;
    let memory = admission.txn(client, fields).await?;
    // The memory is held until decoding finishes, even if the call is cancelled.
    let read = move || (read_txn(message, ops_max, usize::MAX), Some(Box::new(memory)));
    admission.convert(client, read).await
}

/// Returns the framed response, which holds its memory until it was sent.
fn frame<T: Message>(answered: CountedAnswer<T>) -> Result<Bytes, Status> {
    let CountedAnswer { response, memory } = answered;
    let frame = framed(&response)?;
    drop(response);
    Ok(charged(frame, memory))
}

/// A call that completes when the last bytes of its response are produced.
pub struct LongCall {
    inner: kv::LargeAnswer,
    counted: CallInProgress,
    /// Size of the whole message with its prefix; 0 before it starts.
    bytes: u64,
}

impl LongAnswer for LongCall {
    async fn begin(&mut self) -> Result<u64, Status> {
        let begun = self.inner.begin().await;
        match &begun {
            Ok(bytes) => self.bytes = *bytes,
            Err(status) => self.counted.end(status.code()),
        }
        begun
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        let part = self.inner.part(position).await;
        match &part {
            Ok(part) if position + part.len() as u64 == self.bytes => {
                let bytes = usize::try_from(self.bytes).expect("a message is at most 4 GiB");
                self.counted.sent(bytes.saturating_sub(PREFIX_BYTES));
                self.counted.end(Code::Ok);
            }
            Ok(_) => {}
            Err(status) => self.counted.end(status.code()),
        }
        part
    }

    async fn room(&self) {
        self.inner.room().await;
    }

    fn counted(&self, sent: Bytes) -> Bytes {
        self.inner.counted(sent)
    }

    fn is_wanted(&self) -> bool {
        self.inner.is_wanted()
    }

    fn unread(&mut self) {
        self.counted.end(Code::Cancelled);
        self.inner.unread();
    }
}
