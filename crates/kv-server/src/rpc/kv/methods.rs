//! KV: Range, RangeStream, Put, DeleteRange, Txn, Compact.
//!
//! * A write: permissions, quota, validation, encoding of the command, proposal, result. A caller without
//!   permission uses no memory and raises no alarm. With authentication enabled, validation comes first, as
//!   in etcd.
//! * A read: validation, a read point unless it is serializable, the store.
//! * Requests that may touch many keys, or hold much memory, are admitted first and read on a blocking
//!   thread: [`admission`].
//! * A large response to a range is not held in memory: [`super::large`].
//!
//! One put: the command is encoded once; no lock, no task.
//!
//! The future of a call is stored once per open call, and moved before its first poll. So rarely awaited
//! futures are boxed, to keep the future of every other call small.
//!
//! # Where reads run
//!
//! The amount of data touched by a read is estimated without reading it, and determines where it runs.
//!
//! ```text
//!   few keys in memory ──▶ the calling task
//!   many keys ───────────▶ admitted, on a blocking thread
//!   a large response ────▶ the same, piece by piece while it is sent
//! ```
//!
//! A wrong estimate costs time, not memory: a read in the calling task stops at its bound, and moves to a
//! thread. A large read on a thread stops at its bound too, and is streamed if possible.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use admission::{ClientId, CountedAnswer, PAIR_BYTES, Pass, SMALL_BYTES, Small};
use api::Error;
use api::etcdserverpb::kv_server::Kv as KvMethods;
use api::etcdserverpb::range_request::SortTarget;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use auth::Caller;
use futures_util::stream::{self, Stream};
use grpc_server::http2::Room;
use mvcc::{Fetch, KeyRange, RangeOptions};
use parking_lot::Mutex;
use prost::Message;
use state_machine::{
    Failure, LargeRange, Need, RangeStream, get, is_get, needs_of_delete_range, needs_of_put, needs_of_range,
    needs_of_txn, read_txn, validate,
};
use tonic::{Request, Response as Reply, Status};

use super::answers;
use super::large::LargeAnswer;
use crate::member::{Command, Member};
use crate::rpc::guard::{self, ServedCall};
use crate::rpc::reply;
use ::auth::Requester;

pub async fn put(
    member: &Arc<Member>,
    requester: &Requester,
    request: PutRequest,
) -> Result<CountedAnswer<PutResponse>, Status> {
    let valid = validate::put(&request);
    let caller = permitted(member, requester, valid, |visit| needs_of_put(&request, visit)).await?;
    check_quota(member, validate::put_cost(&request)).await?;
    valid.map_err(grpc_errors::refused)?;
    member.metrics.keys.puts.inc();
    let memory = match request.prev_kv {
        true => {
            Box::pin(answers::admit(member, requester.client(), answers::of_put(&request), usize::MAX))
                .await?
        }
        false => None,
    };
    let mut response = propose(member, requester, caller, request).await?;
    member.fill_header(&mut response.header);
    Ok(CountedAnswer { response, memory })
}

pub async fn delete_range(
    member: &Arc<Member>,
    requester: &Requester,
    request: DeleteRangeRequest,
) -> Result<CountedAnswer<DeleteRangeResponse>, Status> {
    validate::delete_range(&request).map_err(grpc_errors::refused)?;
    let caller = permitted(member, requester, Ok(()), |visit| needs_of_delete_range(&request, visit)).await?;
    member.metrics.keys.deletes.inc();
    let memory = match request.prev_kv {
        true => {
            let reads = answers::of_delete(&request);
            Box::pin(answers::admit(member, requester.client(), reads, requester.connection.answer_bytes_max))
                .await?
        }
        false => None,
    };
    let mut response = propose(member, requester, caller, request).await?;
    member.fill_header(&mut response.header);
    Ok(CountedAnswer { response, memory })
}

/// Rejects an invalid transaction, and one whose keys the caller may not use, before anything is proposed.
pub async fn check_txn(member: &Member, requester: &Requester, request: &TxnRequest) -> Result<(), Status> {
    validate::txn(request, member.limits.txn_ops_max).map_err(grpc_errors::refused)?;
    permitted(member, requester, Ok(()), |visit| needs_of_txn(request, visit)).await.map(drop)
}

/// Like [`valid_txn`], for a request that is not validated yet.
pub async fn txn(
    member: &Arc<Member>,
    requester: &Requester,
    request: TxnRequest,
    room: Option<Room<'_>>,
) -> Result<CountedAnswer<TxnResponse>, Status> {
    validate::txn(&request, member.limits.txn_ops_max).map_err(grpc_errors::refused)?;
    valid_txn(member, requester, request, room).await
}

/// Executes a validated transaction. `room` is the connection's response memory, if the caller does not
/// wait for it.
pub async fn valid_txn(
    member: &Arc<Member>,
    requester: &Requester,
    request: TxnRequest,
    room: Option<Room<'_>>,
) -> Result<CountedAnswer<TxnResponse>, Status> {
    let caller = permitted(member, requester, Ok(()), |visit| needs_of_txn(&request, visit)).await?;
    check_quota(member, validate::txn_cost(&request)).await?;
    member.metrics.keys.txns.inc();
    let mut answered = if validate::is_read_only(&request) {
        read_only_txn(member, requester, request, room).await?
    } else {
        let reads = answers::of_txn(&request);
        let memory = match reads.is_empty() {
            true => None,
            // Its response may be smaller than its reads, which only apply knows.
            false => Box::pin(answers::admit(member, requester.client(), reads, usize::MAX)).await?,
        };
        CountedAnswer { response: propose(member, requester, caller, request).await?, memory }
    };
    member.fill_header(&mut answered.response.header);
    Ok(answered)
}

async fn read_only_txn(
    member: &Arc<Member>,
    requester: &Requester,
    request: TxnRequest,
    room: Option<Room<'_>>,
) -> Result<CountedAnswer<TxnResponse>, Status> {
    if !validate::is_serializable(&request) {
        member.read_point().await.map_err(grpc_errors::read_point)?;
    }
    if let Some(room) = room {
        room.wait().await;
    }
    let caller = member.caller(requester).await?;
    needs_of_txn(&request, &mut |need| caller.check(&member.store, need)).map_err(grpc_errors::refused)?;
    let meter = Small::default();
    if is_quick_txn(&request, quick_keys(member), |range| count(member, range, &meter)) {
        match read_txn(&member.store, &request, &Small::default()) {
            Err(Failure::Interrupted) => {} // More than the calling task may read.
            answer => {
                check_unchanged(member, &caller)?;
                return answer.map(CountedAnswer::small).map_err(grpc_errors::read);
            }
        }
    }
    let store = member.store.clone();
    let read = move |meter: &dyn mvcc::Meter| read_txn(&store, &request, meter);
    let (response, memory) = Box::pin(member.admission.read(requester.client(), 0, read)).await?;
    check_unchanged(member, &caller)?;
    Ok(CountedAnswer { response, memory: Some(memory) })
}

/// Executes a range. `room` is as in [`valid_txn`].
pub async fn range(
    member: &Arc<Member>,
    requester: &Requester,
    request: RangeRequest,
    room: Option<Room<'_>>,
) -> Result<CountedAnswer<RangeResponse>, Status> {
    let caller = admit_range(member, requester, &request).await?;
    if let Some(room) = room {
        room.wait().await;
    }
    let width = width(member, &request);
    let answered = read_range(member, requester, &request, width, None).await?;
    check_unchanged(member, &caller)?;
    answered.ok_or_else(|| member.admission.too_large())
}

/// The response to a range, if a large one can be streamed.
pub enum RangedRequest {
    Whole(CountedAnswer<RangeResponse>),
    /// Boxed to keep the enum small.
    Large(Box<LargeAnswer>),
}

/// Like [`range`], but does not start a large response, and any other only once there is `room` for it.
pub async fn range_or_large(
    member: &Arc<Member>,
    requester: &Requester,
    request: RangeRequest,
    room: Room<'_>,
) -> Result<RangedRequest, Status> {
    let caller = admit_range(member, requester, &request).await?;
    room.wait().await;
    let keys = match width(member, &request) {
        Width::Large { keys } => keys,
        width => {
            let in_parts = LargeRange::serves(&request);
            let bytes_max = in_parts.then_some(HELD_BYTES_MAX);
            if let Some(answered) = read_range(member, requester, &request, width, bytes_max).await? {
                check_unchanged(member, &caller)?;
                return Ok(RangedRequest::Whole(answered));
            }
            if !in_parts {
                return Err(member.admission.too_large());
            }
            keys_given(&request, count(member, &request, &Small::default()))
        }
    };
    let answer =
        LargeAnswer::new(Arc::clone(member), requester.client(), caller, request, keys, room.for_parts());
    Ok(RangedRequest::Large(Box::new(answer)))
}

/// Performs the checks before accessing the store.
async fn admit_range(
    member: &Member,
    requester: &Requester,
    request: &RangeRequest,
) -> Result<Caller, Status> {
    if !request.serializable {
        guard::check_voter(member).map_err(grpc_errors::refused)?;
    }
    validate::range(request).map_err(grpc_errors::refused)?;
    member.metrics.keys.ranges.inc();
    if !request.serializable {
        member.read_point().await.map_err(grpc_errors::read_point)?;
    }
    let caller = member.caller(requester).await?;
    check_range(member, &caller, request).map_err(grpc_errors::refused)?;
    Ok(caller)
}

/// Checks whether a caller may read a range. Without authentication, the keys are not evaluated.
pub(super) fn check_range(member: &Member, caller: &Caller, request: &RangeRequest) -> Result<(), Error> {
    match caller {
        Caller::Unchecked => Ok(()),
        Caller::Unnamed | Caller::User { .. } => {
            needs_of_range(request, &mut |need| caller.check(&member.store, need))
        }
    }
}

/// Checks after a read that permissions have not changed since its start.
fn check_unchanged(member: &Member, caller: &Caller) -> Result<(), Status> {
    caller.check_unchanged(member.auth.table.revision()).map_err(grpc_errors::refused)
}

/// Reads a range from the store, and counts the time. None as of `Admission::read_up_to`.
async fn read_range(
    member: &Arc<Member>,
    requester: &Requester,
    request: &RangeRequest,
    width: Width,
    bytes_max: Option<u64>,
) -> Result<Option<CountedAnswer<RangeResponse>>, Status> {
    let began = Instant::now();
    let read = read_of_width(member, requester, request, width, bytes_max).await;
    member.metrics.calls.ranged(began.elapsed(), read.is_ok());
    read
}

async fn read_of_width(
    member: &Arc<Member>,
    requester: &Requester,
    request: &RangeRequest,
    width: Width,
    bytes_max: Option<u64>,
) -> Result<Option<CountedAnswer<RangeResponse>>, Status> {
    let wide = |estimate| Box::pin(read_wide(member, requester, request, bytes_max, estimate));
    let small = |response| Some(CountedAnswer::small(response));
    let mut answered = match width {
        Width::One if is_get(request) => {
            let mut response = RangeResponse::default();
            get(&member.store, request, &mut response).map_err(grpc_errors::read)?;
            small(response)
        }
        Width::One => small(state_machine::range(&member.store, request, &()).map_err(grpc_errors::read)?),
        Width::Narrow => match state_machine::range(&member.store, request, &Small::default()) {
            Err(Failure::Interrupted) => wide(2 * SMALL_BYTES).await?,
            answer => small(answer.map_err(grpc_errors::read)?),
        },
        Width::Wide { bytes } => wide(bytes).await?,
        Width::Large { .. } => wide(WHOLE_BYTES_MAX).await?,
    };
    if let Some(answered) = &mut answered {
        member.fill_header(&mut answered.response.header);
    }
    Ok(answered)
}

async fn read_wide(
    member: &Arc<Member>,
    requester: &Requester,
    request: &RangeRequest,
    bytes_max: Option<u64>,
    estimate: u64,
) -> Result<Option<CountedAnswer<RangeResponse>>, Status> {
    let (store, request) = (member.store.clone(), request.clone());
    let read = move |meter: &dyn mvcc::Meter| state_machine::range(&store, &request, meter);
    let answered = member.admission.read_up_to(bytes_max, requester.client(), estimate, read).await?;
    Ok(answered.map(|(response, memory)| CountedAnswer { response, memory: Some(memory) }))
}

pub async fn compact(
    member: &Member,
    requester: &Requester,
    request: CompactionRequest,
) -> Result<CompactionResponse, Status> {
    let mut finished = member.checkpoints.compacted();
    let CompactionRequest { revision, physical } = request;
    let caller = member.caller(requester).await?;
    let mut response = propose(member, requester, caller, request).await?;
    if physical {
        // The sender is dropped with the store thread, which exits with the process.
        let done = finished.wait_for(|finished| *finished >= revision).await;
        done.map_err(|_| grpc_errors::refused(Error::Stopped))?;
    }
    member.fill_header(&mut response.header);
    Ok(response)
}

/// Returns the caller, if it may use the keys of a `valid` request. Keys of leases are checked in apply,
/// where everything is checked again.
async fn permitted(
    member: &Member,
    requester: &Requester,
    valid: Result<(), Error>,
    needs: impl Fn(&mut dyn FnMut(Need) -> Result<(), Error>) -> Result<(), Error>,
) -> Result<Caller, Status> {
    let caller = member.caller(requester).await;
    if matches!(caller, Ok(Caller::Unchecked)) {
        return caller;
    }
    valid.map_err(grpc_errors::refused)?;
    let caller = caller?;
    caller.check_named().map_err(grpc_errors::refused)?;
    let check = |caller: &Caller| {
        needs(&mut |need| match need {
            Need::Keys(..) => caller.check(&member.store, need),
            Need::KeysOfLease(..) => Ok(()),
        })
    };
    if check(&caller).is_ok() {
        return Ok(caller);
    }
    // This member may lag: permissions granted before the call started must be respected.
    Box::pin(member.read_point()).await.map_err(grpc_errors::read_point)?;
    let caller = member.caller(requester).await?;
    check(&caller).map_err(grpc_errors::refused)?;
    Ok(caller)
}

/// Proposes a command. Apply checks whether its caller may execute it.
async fn propose<C: Command>(
    member: &Member,
    requester: &Requester,
    caller: Caller,
    command: C,
) -> Result<C::Response, Status> {
    let caller = match caller {
        Caller::Unchecked => caller,
        // Permissions may have changed while the call waited.
        Caller::Unnamed | Caller::User { .. } => member.caller(requester).await?,
    };
    let command = member.encode(&caller, command)?;
    // Held until the response: it counts proposed commands, like the budget of proposals.
    let _room = member.admission.command(requester.client(), command.bytes.len()).await?;
    Ok(member.propose_encoded(command).await?)
}

/// Rejects a request that exceeds the quota, after raising the alarm.
pub async fn check_quota(member: &Member, cost: u64) -> Result<(), Status> {
    if member.has_room(cost) {
        return Ok(());
    }
    Box::pin(member.raise_no_space()).await.map_err(Status::from)?;
    Err(grpc_errors::refused(Error::NoSpace))
}

/// Returns the chunks of a streamed range, each read when the client can take it. The memory of a chunk is
/// admitted before it is read, and released when the next one is requested, since the client has taken it
/// by then. After the last chunk no memory is held.
fn chunks(
    member: Arc<Member>,
    client: ClientId,
    caller: Caller,
    chunks: RangeStream,
) -> impl Stream<Item = Result<RangeStreamResponse, Status>> {
    // The permissions are checked before the first chunk leaves, and not again.
    let begin = (member, Arc::new(Mutex::new(chunks)), Some(caller), None::<Pass>);
    stream::unfold(Some(begin), move |state| async move {
        let (member, chunks, mut caller, sent) = state?;
        if chunks.lock().is_finished() {
            return None;
        }
        // Estimated from the previous chunk: pairs and their encoded form.
        let estimate = sent.map_or(0, |sent| 2 * sent.weight());
        let reading = Arc::clone(&chunks);
        let read = move |meter: &dyn mvcc::Meter| {
            let chunk = reading.lock().next_metered(meter)?;
            Ok((chunk.encoded_len() as u64, chunk))
        };
        match member.admission.read(client, estimate, read).await {
            Ok(((bytes, mut chunk), mut pass)) => {
                pass.shrink_to(bytes);
                if let Some(caller) = caller.take()
                    && let Err(status) = check_unchanged(&member, &caller)
                {
                    return Some((Err(status), None));
                }
                if chunk.header.is_some() {
                    member.fill_header(&mut chunk.header);
                }
                let chunk = RangeStreamResponse { range_response: Some(chunk) };
                Some((Ok(chunk), Some((member, chunks, None, Some(pass)))))
            }
            Err(status) => Some((Err(status), None)),
        }
    })
}

/// The methods of the service.
pub struct Kv {
    pub call: ServedCall,
    /// Memory of a transaction that is not short, until its response. Boxed to keep the future of every other
    /// call small.
    pub txn_memory: Option<Box<Pass>>,
}

#[tonic::async_trait]
impl KvMethods for Kv {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Reply<RangeResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        match range_or_large(&self.call.member, requester, request, self.call.room()).await? {
            RangedRequest::Whole(answered) => Ok(reply(answered)),
            RangedRequest::Large(answer) => Ok(answer.reply()),
        }
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Reply<Self::RangeStreamStream>, Status> {
        let (ServedCall { member, requester, .. }, request) = (&self.call, request.into_inner());
        validate::range_stream(&request).map_err(grpc_errors::stream)?;
        // Without an order, etcd sorts each chunk by the target, and repeats keys. So this is one chunk.
        if request.sort_target != SortTarget::Key as i32 {
            let CountedAnswer { response, memory } =
                range(member, requester, request, Some(self.call.room())).await?;
            let chunk = RangeStreamResponse { range_response: Some(response) };
            let response: Self::RangeStreamStream = Box::pin(stream::iter([Ok(chunk)]));
            return Ok(reply(CountedAnswer { response, memory }));
        }
        member.metrics.keys.ranges.inc();
        if !request.serializable {
            member.read_point().await.map_err(grpc_errors::read_point)?;
        }
        let caller = member.caller(requester).await?;
        needs_of_range(&request, &mut |need| caller.check(&member.store, need))
            .map_err(grpc_errors::refused)?;
        let bytes = request.key.len() + request.range_end.len();
        let share = member.admission.stream_keys(requester.client(), bytes)?;
        let chunk_bytes = member.limits.request_bytes_max.min(CHUNK_BYTES_MAX);
        let stream = RangeStream::new(member.store.clone(), request, chunk_bytes);
        let stream: Self::RangeStreamStream =
            Box::pin(chunks(Arc::clone(member), requester.client(), caller, stream));
        let mut reply = Reply::new(stream);
        // Held until the last chunk was taken, like each chunk's memory.
        reply.extensions_mut().insert(Arc::new(share));
        Ok(reply)
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Reply<PutResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        put(&self.call.member, requester, request).await.map(reply)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Reply<DeleteRangeResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        delete_range(&self.call.member, requester, request).await.map(reply)
    }

    /// Executes a transaction that was validated while it was decoded.
    async fn txn(&self, request: Request<TxnRequest>) -> Result<Reply<TxnResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        // Calls with admitted memory have waited for capacity before.
        let room = self.txn_memory.is_none().then(|| self.call.room());
        valid_txn(&self.call.member, requester, request, room).await.map(reply)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Reply<CompactionResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        compact(&self.call.member, requester, request).await.map(Reply::new)
    }
}

/// Maximum number of keys for a read in the calling task if their blocks are in memory: about 300 µs, while
/// a separate thread would cost as much again. Enough for a page of a thousand keys, and the next key,
/// which shows whether there are more.
const KEYS_IN_TASK_MAX: i64 = 1024;
/// The same if a block may have to be decompressed for each: about 40 µs per key.
const COLD_KEYS_IN_TASK_MAX: i64 = 32;
/// Responses up to about this size are built in memory, 60,000 keys with values of 256 bytes: they are read
/// once, large ones twice or more.
const WHOLE_BYTES_MAX: u64 = 32 << 20;
/// Memory of such a response: pairs, and their encoded form.
const HELD_BYTES_MAX: u64 = 2 * WHOLE_BYTES_MAX;

/// Target size of the chunks of a stream. One may take 16 times as much, and [`PAIR_BYTES`] for each of
/// 220,000 pairs: together less than the 128 MiB of one response.
const CHUNK_BYTES_MAX: usize = 3 << 20;

/// Amount of data touched by a range, estimated without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// One pair: read in the calling task.
    One,
    /// A few keys, or only a count: read in the calling task unless values are large or many deleted keys
    /// are in between.
    Narrow,
    /// Admitted and read on a blocking thread.
    Wide { bytes: u64 },
    /// Too large to be held in memory, and of a kind that can be streamed.
    Large { keys: u64 },
}

/// Returns the number of keys of a range, or an upper bound: the number of records in the store, if `meter`
/// does not permit to count them. Returns 0 for a rejected revision.
fn count(member: &Member, request: &RangeRequest, meter: &Small) -> i64 {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let options = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
    match member.store.range_metered(&keys, request.revision.max(0), &options, meter) {
        Ok(counted) => counted.count,
        Err(mvcc::Error::Interrupted) => i64::try_from(member.store.records()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}

/// Returns the number of existing keys that a range reads.
fn keys_of_range(request: &RangeRequest, there: impl FnOnce() -> i64) -> i64 {
    if is_narrow(request) {
        1
    } else if request.revision > 0 {
        i64::MAX // Keys of an older revision are found by checking all of them.
    } else {
        state_machine::keys_read(request, there())
    }
}

/// Reports whether a read-only transaction touches at most `keys_max` keys in either branch. Stops counting
/// beyond that, since a small request may contain hundreds of ranges.
fn is_quick_txn(request: &TxnRequest, keys_max: i64, count: impl Fn(&RangeRequest) -> i64) -> bool {
    let compared =
        request.compare.iter().map(|compare| if compare.range_end.is_empty() { 1 } else { i64::MAX });
    let ops = request.success.iter().chain(&request.failure).flat_map(|op| &op.request);
    let read = ops.map(|op| match op {
        Op::RequestRange(range) => keys_of_range(range, || count(range)),
        _ => i64::MAX,
    });
    let within = |sum: i64, keys: i64| Some(sum.saturating_add(keys)).filter(|sum| *sum <= keys_max);
    compared.chain(read).try_fold(0, within).is_some()
}

/// Returns the number of keys that can be read in less time than a thread takes to wake and respond.
fn quick_keys(member: &Member) -> i64 {
    if member.store.fits_in_cache() { KEYS_IN_TASK_MAX } else { COLD_KEYS_IN_TASK_MAX }
}

fn width(member: &Member, request: &RangeRequest) -> Width {
    if request.range_end.is_empty() {
        return Width::One;
    }
    if is_narrow(request) {
        return Width::Narrow;
    }
    let keys = count(member, request, &Small::default());
    let given = keys_given(request, keys);
    let bytes = given.saturating_mul(member.store.record_bytes() + PAIR_BYTES);
    if bytes > WHOLE_BYTES_MAX && LargeRange::serves(request) {
        Width::Large { keys: given }
    } else if keys_of_range(request, || keys) <= quick_keys(member) {
        Width::Narrow
    } else {
        Width::Wide { bytes }
    }
}

/// Returns the number of existing keys in an unfiltered response.
fn keys_given(request: &RangeRequest, there: i64) -> u64 {
    if request.limit > 0 { there.min(request.limit) } else { there }.unsigned_abs()
}

/// Reports whether the request by itself touches few keys.
fn is_narrow(request: &RangeRequest) -> bool {
    let one_key = request.range_end.is_empty();
    let counts_newest = request.count_only && request.revision <= 0;
    one_key || counts_newest
}

#[cfg(test)]
mod tests;
