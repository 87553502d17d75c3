//! KV: Range, RangeStream, Put, DeleteRange, Txn, Compact.
//!
//! * A write: quota, validation, one encoding of the command, one proposal, its outcome.
//! * A read: validation, a read point unless it is serializable, the store.
//! * What may touch many keys is read on a blocking thread, so that it delays nobody else on this connection.
//! * A range whose answer is large is not held as a whole: [`super::large`].
//!
//! One put: the command is encoded once; no lock, no task.

use std::pin::Pin;
use std::sync::Arc;

use api::Error;
use api::etcdserverpb::kv_server::Kv as KvMethods;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use futures_util::stream::{self, Stream};
use mvcc::{Fetch, KeyRange, RangeOptions};
use state_machine::command::Kind;
use state_machine::{Failure, LargeRange, RangeStream, Response, read_txn, validate};
use tonic::{Request, Response as Reply, Status};

use super::large::LargeAnswer;
use super::{errors, guard, header};
use crate::member::Member;

/// A read of at most so many keys is answered in the calling task if their blocks are in memory: some 300 µs, where a thread of its
/// own would cost as much again. A page of a thousand keys, and the one behind it that tells whether there is more.
const KEYS_IN_TASK_MAX: i64 = 1024;
/// And if a block may have to be unpacked for each: some 40 µs a key.
const COLD_KEYS_IN_TASK_MAX: i64 = 32;
/// An answer of about so much is made as a whole, 60,000 keys with values of 256 bytes: it is read once, a large one twice or more.
const WHOLE_BYTES_MAX: u64 = 32 << 20;
/// What a pair takes in memory beside its key and value while it is read and encoded.
const PAIR_BYTES: u64 = 256;

pub async fn put(member: &Member, request: PutRequest) -> Result<PutResponse, Status> {
    hold_against_quota(member, validate::put_cost(&request)).await?;
    validate::put(&request).map_err(errors::refused)?;
    member.metrics.keys.puts.inc();
    match propose(member, Kind::Put(request)).await? {
        Response::Put(mut response) => {
            header::fill(member, &mut response.header);
            Ok(response)
        }
        other => unreachable!("a put was answered with {other:?}"),
    }
}

pub async fn delete_range(
    member: &Member,
    request: DeleteRangeRequest,
) -> Result<DeleteRangeResponse, Status> {
    validate::delete_range(&request).map_err(errors::refused)?;
    member.metrics.keys.deletes.inc();
    match propose(member, Kind::DeleteRange(request)).await? {
        Response::DeleteRange(mut response) => {
            header::fill(member, &mut response.header);
            Ok(response)
        }
        other => unreachable!("a delete was answered with {other:?}"),
    }
}

pub async fn txn(member: &Arc<Member>, request: TxnRequest) -> Result<TxnResponse, Status> {
    hold_against_quota(member, validate::txn_cost(&request)).await?;
    validate::txn(&request, member.limits.txn_ops_max).map_err(errors::refused)?;
    member.metrics.keys.txns.inc();
    let mut response = if validate::is_read_only(&request) {
        read_only_txn(member, request).await?
    } else {
        match propose(member, Kind::Txn(request)).await? {
            Response::Txn(response) => response,
            other => unreachable!("a transaction was answered with {other:?}"),
        }
    };
    header::fill(member, &mut response.header);
    Ok(response)
}

async fn read_only_txn(member: &Arc<Member>, request: TxnRequest) -> Result<TxnResponse, Status> {
    if !validate::is_serializable(&request) {
        member.read_point().await.map_err(errors::read_point)?;
    }
    if is_quick(member, keys_of_txn(member, &request)) {
        return read_txn(&member.store, &request).map_err(errors::read);
    }
    let store = member.store.clone();
    blocking(move || read_txn(&store, &request)).await
}

pub async fn range(member: &Arc<Member>, request: RangeRequest) -> Result<RangeResponse, Status> {
    admit_range(member, &request).await?;
    let width = width(member, &request);
    read_range(member, request, width).await
}

/// What a range is answered with where a large answer can be sent as it is made.
pub enum Ranged {
    Whole(RangeResponse),
    Large(LargeAnswer),
}

/// As `range`, but a large answer is not even begun.
pub async fn range_or_large(member: &Arc<Member>, request: RangeRequest) -> Result<Ranged, Status> {
    admit_range(member, &request).await?;
    match width(member, &request) {
        Width::Large => Ok(Ranged::Large(LargeAnswer::new(Arc::clone(member), request))),
        width => read_range(member, request, width).await.map(Ranged::Whole),
    }
}

/// What comes before the store is looked at.
async fn admit_range(member: &Member, request: &RangeRequest) -> Result<(), Status> {
    validate::range(request).map_err(errors::refused)?;
    member.metrics.keys.ranges.inc();
    if !request.serializable {
        member.read_point().await.map_err(errors::read_point)?;
    }
    Ok(())
}

async fn read_range(
    member: &Arc<Member>,
    request: RangeRequest,
    width: Width,
) -> Result<RangeResponse, Status> {
    let mut response = match width {
        Width::Narrow => state_machine::range(&member.store, &request).map_err(errors::read)?,
        Width::Wide | Width::Large => {
            let store = member.store.clone();
            blocking(move || state_machine::range(&store, &request)).await?
        }
    };
    header::fill(member, &mut response.header);
    Ok(response)
}

/// How much a range touches, as far as can be told without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// Read in the calling task.
    Narrow,
    /// Read on a thread where it delays nobody.
    Wide,
    /// Too large to be held in memory as a whole, and of a kind that need not be.
    Large,
}

/// Keys of the newest revision: cheap, and about what any revision holds.
fn count(member: &Member, request: &RangeRequest) -> i64 {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let counted = member.store.range(&keys, 0, &RangeOptions { limit: 0, fetch: Fetch::CountOnly });
    counted.map_or(i64::MAX, |counted| counted.count)
}

/// How many keys a range reads, of those that are there.
fn keys_of_range(request: &RangeRequest, there: impl FnOnce() -> i64) -> i64 {
    if is_narrow(request) {
        1
    } else if request.revision > 0 {
        i64::MAX // Keys of an older revision are found by looking at all.
    } else {
        state_machine::keys_read(request, there())
    }
}

/// How many keys a transaction that only reads may touch, whichever branch it takes.
fn keys_of_txn(member: &Member, request: &TxnRequest) -> i64 {
    let compared =
        request.compare.iter().map(|compare| if compare.range_end.is_empty() { 1 } else { i64::MAX });
    let ops = request.success.iter().chain(&request.failure).flat_map(|op| &op.request);
    let read = ops.map(|op| match op {
        Op::RequestRange(range) => keys_of_range(range, || count(member, range)),
        _ => i64::MAX,
    });
    compared.chain(read).fold(0, i64::saturating_add)
}

/// Whether so many keys are read in less time than a thread takes to wake and answer.
fn is_quick(member: &Member, keys: i64) -> bool {
    keys <= if member.store.fits_in_cache() { KEYS_IN_TASK_MAX } else { COLD_KEYS_IN_TASK_MAX }
}

fn width(member: &Member, request: &RangeRequest) -> Width {
    if is_narrow(request) {
        return Width::Narrow;
    }
    let keys = count(member, request);
    let wanted = if request.limit > 0 { keys.min(request.limit) } else { keys };
    let pair_bytes = member.store.record_bytes() + PAIR_BYTES;
    let bytes = wanted.unsigned_abs().saturating_mul(pair_bytes);
    if bytes > WHOLE_BYTES_MAX && LargeRange::serves(request) {
        Width::Large
    } else if is_quick(member, keys_of_range(request, || keys)) {
        Width::Narrow
    } else {
        Width::Wide
    }
}

/// True if the request alone says that it touches few keys.
fn is_narrow(request: &RangeRequest) -> bool {
    let one_key = request.range_end.is_empty();
    let counts_newest = request.count_only && request.revision <= 0;
    one_key || counts_newest
}

pub async fn compact(member: &Member, request: CompactionRequest) -> Result<CompactionResponse, Status> {
    let mut finished = member.checkpoints.compacted();
    let CompactionRequest { revision, physical } = request;
    let Response::Compact(mut response) = propose(member, Kind::Compact(request)).await? else {
        unreachable!("a compaction was answered with something else");
    };
    if physical {
        // The sender ends with the store thread, and that with the process.
        let done = finished.wait_for(|finished| *finished >= revision).await;
        done.map_err(|_| errors::refused(Error::Stopped))?;
    }
    header::fill(member, &mut response.header);
    Ok(response)
}

async fn propose(member: &Member, kind: Kind) -> Result<Response, Status> {
    member.propose(kind).await.map_err(errors::propose)
}

/// Refuses what does not fit any more, after telling the cluster so.
async fn hold_against_quota(member: &Member, cost: u64) -> Result<(), Status> {
    if member.has_room(cost) {
        return Ok(());
    }
    member.raise_no_space().await.map_err(errors::propose)?;
    Err(errors::refused(Error::NoSpace))
}

pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(read).await {
        Ok(answer) => answer.map_err(errors::read),
        Err(error) => Err(errors::task(&error)),
    }
}

/// The chunks of a streamed range, each read when the client has room for it.
fn chunks(
    member: Arc<Member>,
    chunks: RangeStream,
) -> impl Stream<Item = Result<RangeStreamResponse, Status>> {
    stream::unfold(Some((member, chunks)), async |state| {
        let (member, mut chunks) = state?;
        let read = tokio::task::spawn_blocking(move || (chunks.next(), chunks)).await;
        match read {
            Ok((None, _)) => None,
            Ok((Some(Ok(mut chunk)), chunks)) => {
                if chunk.header.is_some() {
                    header::fill(&member, &mut chunk.header);
                }
                Some((Ok(RangeStreamResponse { range_response: Some(chunk) }), Some((member, chunks))))
            }
            Ok((Some(Err(failure)), _)) => Some((Err(errors::read(failure)), None)),
            Err(error) => Some((Err(errors::task(&error)), None)),
        }
    })
}

/// The methods as tonic calls them.
pub struct Kv(pub Arc<Member>);

impl Kv {
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        guard::check(&self.0, request.metadata().as_ref()).map_err(errors::refused)?;
        Ok(request.into_inner())
    }
}

#[tonic::async_trait]
impl KvMethods for Kv {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Reply<RangeResponse>, Status> {
        range(&self.0, self.admit(request)?).await.map(Reply::new)
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Reply<Self::RangeStreamStream>, Status> {
        let request = self.admit(request)?;
        validate::range_stream(&request).map_err(errors::stream)?;
        self.0.metrics.keys.ranges.inc();
        if !request.serializable {
            self.0.read_point().await.map_err(errors::read_point)?;
        }
        let stream = RangeStream::new(self.0.store.clone(), request, self.0.limits.request_bytes_max);
        Ok(Reply::new(Box::pin(chunks(Arc::clone(&self.0), stream))))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Reply<PutResponse>, Status> {
        put(&self.0, self.admit(request)?).await.map(Reply::new)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Reply<DeleteRangeResponse>, Status> {
        delete_range(&self.0, self.admit(request)?).await.map(Reply::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Reply<TxnResponse>, Status> {
        txn(&self.0, self.admit(request)?).await.map(Reply::new)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Reply<CompactionResponse>, Status> {
        compact(&self.0, self.admit(request)?).await.map(Reply::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_range_reads_is_known_before() {
        let page = RangeRequest { range_end: "z".into(), limit: 1000, ..RangeRequest::default() };
        let cases = [
            (RangeRequest { range_end: Vec::new().into(), ..page.clone() }, 1),
            (RangeRequest { count_only: true, ..page.clone() }, 1),
            (RangeRequest { limit: 0, ..page.clone() }, 5000),
            (RangeRequest { revision: 7, ..page.clone() }, i64::MAX),
            (page, 1001),
        ];
        for (request, read) in cases {
            assert_eq!(keys_of_range(&request, || 5000), read, "{request:?}");
        }
    }
}
