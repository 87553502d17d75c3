//! Memory of responses that are created during apply: previous values, and ranges in writing transactions.
//!
//! After the commit such a response can neither be rejected nor wait, so its memory is admitted before the
//! proposal. The required size is determined by reading the data in advance. Concurrent writes can change
//! it, so it is exact only for the moment before the proposal. Members without a waiting caller create no
//! response.

use std::sync::Arc;

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use prost::Message;
use state_machine::Failure;
use tonic::Status;

use crate::member::Member;
use admission::{ClientId, PAIR_BYTES, Pass, SMALL_BYTES};

/// Responses up to this size are not counted: the command and its bookkeeping take as much.
const UNCOUNTED_BYTES: u64 = 4 << 10;

pub fn of_put(request: &PutRequest) -> Vec<RangeRequest> {
    request.prev_kv.then(|| pairs(&request.key, &Bytes::new())).into_iter().collect()
}

pub fn of_delete(request: &DeleteRangeRequest) -> Vec<RangeRequest> {
    request.prev_kv.then(|| pairs(&request.key, &request.range_end)).into_iter().collect()
}

/// Returns the reads of both branches, since only apply knows which of them is executed.
pub fn of_txn(request: &TxnRequest) -> Vec<RangeRequest> {
    let mut reads = Vec::new();
    let mut rest: Vec<&RequestOp> = request.success.iter().chain(&request.failure).collect();
    while let Some(op) = rest.pop() {
        match &op.request {
            Some(Op::RequestRange(range)) => reads.push(range.clone()),
            Some(Op::RequestPut(put)) => reads.extend(of_put(put)),
            Some(Op::RequestDeleteRange(delete)) => reads.extend(of_delete(delete)),
            Some(Op::RequestTxn(txn)) => rest.extend(txn.success.iter().chain(&txn.failure)),
            None => {}
        }
    }
    reads
}

fn pairs(key: &Bytes, range_end: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), range_end: range_end.clone(), ..RangeRequest::default() }
}

/// Admits memory for a response that consists of these reads. Rejects more than `bytes_max`.
pub async fn admit(
    member: &Arc<Member>,
    client: ClientId,
    reads: Vec<RangeRequest>,
    bytes_max: usize,
) -> Result<Option<Pass>, Status> {
    if reads.is_empty() {
        return Ok(None);
    }
    if let Some(bytes) = bound(member, &reads) {
        if bytes <= UNCOUNTED_BYTES {
            return Ok(None);
        }
        let pass = member.admission.answers.enter(client, bytes).await;
        return pass.map(Some).map_err(|_| grpc_errors::reads_exhausted());
    }
    let store = member.store.clone();
    let read = move |meter: &dyn mvcc::Meter| {
        reads.iter().try_fold(0, |bytes, read| match state_machine::range(&store, read, meter) {
            Ok(answer) => Ok(bytes + answer.encoded_len()),
            // Apply decides on the rejection, based on the state at that time.
            Err(Failure::Refused(_)) => Ok(bytes),
            Err(failure) => Err(failure),
        })
    };
    let (bytes, pass) = member.admission.read(client, 0, read).await?;
    match bytes > bytes_max {
        true => Err(grpc_errors::answer_too_large(bytes_max as u64)),
        false => Ok(Some(pass)),
    }
}

/// Returns an upper bound for a few keys, from the index and the block directory; `None` if they have to be
/// read.
fn bound(member: &Member, reads: &[RangeRequest]) -> Option<u64> {
    let mut bytes = 0;
    for read in reads {
        if !read.range_end.is_empty() || read.revision > 0 {
            return None;
        }
        bytes += member.store.pair_bytes_max(&read.key) + PAIR_BYTES;
        if bytes > SMALL_BYTES {
            return None;
        }
    }
    Some(bytes)
}
