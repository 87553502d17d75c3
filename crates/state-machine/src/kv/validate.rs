//! Stateless checks of requests, before consensus.
//!
//! ```text
//!   request ─▶ shape (keys, enums, flags, number of operations) ─▶ duplicate rule ─▶ read or write? ─▶ cost
//! ```
//!
//! * The order matters, because a client sees only the first error: compares, then the success
//!   branch, then the failure branch, depth first. The duplicate rule comes last.
//! * Pure functions of the request. Apply checks revisions, leases and existing keys.

use api::Error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

use super::duplicates;
use super::range::{has_revision_filters, is_default_order};

/// Overhead of a stored record besides key and value, for the quota.
const RECORD_OVERHEAD_BYTES: u64 = 256;

/// Rejects an empty key and an unknown sort.
pub fn range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let known =
        SortOrder::try_from(request.sort_order).is_ok() && SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(Error::InvalidSortOption) }
}

/// Reason for rejecting a streamed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRefusal {
    Refused(Error),
    /// Chunks are in key order. Another order would need all of them first.
    CustomSort,
    /// A filter may drop entire chunks, so a limit could not be applied while streaming.
    RevisionFilter,
}

/// Rejects a streamed range that sorts or filters.
pub fn range_stream(request: &RangeRequest) -> Result<(), StreamRefusal> {
    range(request).map_err(StreamRefusal::Refused)?;
    if !is_default_order(request) {
        return Err(StreamRefusal::CustomSort);
    }
    if has_revision_filters(request) { Err(StreamRefusal::RevisionFilter) } else { Ok(()) }
}

/// Rejects an empty key, and a value or lease combined with the flag that ignores it.
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

pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Rejects too many operations, invalid operations, and transactions that change a key twice.
/// `ops_max` bounds the longest of the three lists; a nested transaction may use the remainder.
pub fn txn(request: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    txn_shape(request, ops_max)?;
    duplicates::check(&request.success)?;
    duplicates::check(&request.failure)
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

/// Reports whether neither branch can write, so that consensus is not needed. A nested transaction
/// always counts as a write.
pub fn is_read_only(request: &TxnRequest) -> bool {
    branches(request).all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Reports whether every operation of both branches is a range that may be served from local state.
/// Compares do not count: a transaction without operations is serializable.
pub fn is_serializable(request: &TxnRequest) -> bool {
    branches(request)
        .all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

/// Estimates the bytes of a put, for the quota.
pub fn put_cost(request: &PutRequest) -> u64 {
    RECORD_OVERHEAD_BYTES + request.key.len() as u64 + request.value.len() as u64
}

/// Estimates the bytes of the larger branch of a transaction. 0 means that neither branch has a
/// put.
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
