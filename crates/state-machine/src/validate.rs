//! What can be said about a request without looking at any state: the checks that come before consensus.
//!
//!   request ──▶ shape (keys, enums, flags, number of operations) ──▶ duplicate rule ──▶ read or write? ──▶ cost
//!
//! * Order matters: a client sees the first complaint only. Compares come first, then the success branch, then the
//!   failure branch, depth first; the duplicate rule comes last.
//! * Pure functions of the request. What depends on the store (revisions, leases, existing keys) is apply's.

use api::Error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

use crate::overlap;
use crate::range::{has_revision_filters, is_default_order};

/// What a stored record costs beyond its key and value, in bytes, when a request is held against the quota.
const RECORD_OVERHEAD_BYTES: u64 = 256;

/// A range is refused for an empty key or an unknown sort.
pub fn range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let known =
        SortOrder::try_from(request.sort_order).is_ok() && SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(Error::InvalidSortOption) }
}

/// Why a streamed range is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRefusal {
    /// Any range would be refused so.
    Refused(Error),
    /// Chunks come in key order; another order would need all of them first.
    CustomSort,
    /// A filter may drop whole chunks, so that a limit could not be kept while streaming.
    RevisionFilter,
}

/// A streamed range may neither sort nor filter.
pub fn range_stream(request: &RangeRequest) -> Result<(), StreamRefusal> {
    range(request).map_err(StreamRefusal::Refused)?;
    // Without an order etcd would take a target other than the key, sort each chunk by it, and repeat keys.
    if !is_default_order(request) || request.sort_target != SortTarget::Key as i32 {
        return Err(StreamRefusal::CustomSort);
    }
    if has_revision_filters(request) { Err(StreamRefusal::RevisionFilter) } else { Ok(()) }
}

/// A put is refused for an empty key, or for giving what it asks to keep.
pub fn put(request: &PutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

/// A delete is refused for an empty key.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// A transaction is refused for too many operations, for any operation that alone would be refused, and for changing
/// a key twice. `ops_max` bounds the longest of its three lists; what it leaves over bounds each nested transaction.
pub fn txn(request: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    txn_shape(request, ops_max)?;
    overlap::check(&request.success)?;
    overlap::check(&request.failure)
}

fn txn_shape(request: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(ops_left) = ops_max.checked_sub(ops) else {
        return Err(Error::TooManyOps);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    branches(request).try_for_each(|op| op_shape(op, ops_left))
}

fn op_shape(op: &RequestOp, ops_left: usize) -> Result<(), Error> {
    match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => txn_shape(request, ops_left),
        None => Err(Error::KeyNotFound),
    }
}

/// True if neither branch can change anything, so that no consensus is needed. A nested transaction always counts as
/// a write, even one that only reads.
pub fn is_read_only(request: &TxnRequest) -> bool {
    branches(request).all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// True if every operation of both branches is a range that may be answered from local state. Compares do not count:
/// a transaction without any operation is serializable.
pub fn is_serializable(request: &TxnRequest) -> bool {
    branches(request)
        .all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

/// Bytes that a put is held to need, for the quota.
pub fn put_cost(request: &PutRequest) -> u64 {
    RECORD_OVERHEAD_BYTES + request.key.len() as u64 + request.value.len() as u64
}

/// Bytes that the dearer branch of a transaction is held to need. 0 means that nothing is put, whichever is taken.
pub fn txn_cost(request: &TxnRequest) -> u64 {
    branch_cost(&request.success).max(branch_cost(&request.failure))
}

fn branch_cost(ops: &[RequestOp]) -> u64 {
    ops.iter()
        .map(|op| match &op.request {
            Some(Request::RequestPut(request)) => put_cost(request),
            Some(Request::RequestTxn(request)) => txn_cost(request),
            Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
        })
        .sum()
}

fn branches(request: &TxnRequest) -> impl Iterator<Item = &RequestOp> {
    request.success.iter().chain(&request.failure)
}
