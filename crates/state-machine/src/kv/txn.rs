//! Transactions: compares, then one of two branches, as a single revision.
//!
//! ```text
//!   choose the path (all compares, nested ones too, on the state before) ─▶ check the taken branch ─▶ change
//! ```
//!
//! * A failed check leaves the state unchanged. After the checks, changes cannot fail with a
//!   request error.
//! * All changes share one revision. A later operation sees the earlier ones.
//! * A path has one bool per entered transaction, in order. Choosing, checking and changing visit
//!   transactions in the same order.
//!
//! The decoder bounds nesting ([`crate::command::TXN_LEVELS_MAX`]), so recursion is safe.

use api::Error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use mvcc::{Meter, RevisionWriter, Store};

use super::view::{PinnedStore, ReadView};
use super::{compare, range, validate, write};
use crate::failure::{Answer, Failure, header};
use crate::lease::Leases;

/// Executes a read-only transaction on a consistent state of the store. `meter` may interrupt it.
/// Request errors: `Compacted`, `FutureRev`. Panics if `validate::is_read_only` is false.
pub fn read_txn(store: &Store, request: &TxnRequest, meter: &dyn Meter) -> Result<TxnResponse, Failure> {
    assert!(validate::is_read_only(request), "a transaction that writes must be proposed");
    let held = meter.held();
    loop {
        meter.release_to(held);
        let view = PinnedStore::newest(store, meter);
        match read_pinned(store, &view, request) {
            // A compaction overtook the pinned revision between two reads, so retry. A request for
            // a compacted revision then fails.
            Err(Failure::Refused(Error::Compacted)) if view.is_overtaken() => {}
            answered => return answered,
        }
    }
}

fn read_pinned(store: &Store, view: &PinnedStore<'_>, request: &TxnRequest) -> Result<TxnResponse, Failure> {
    let succeeded = compare::all_hold(view, &request.compare)?;
    let ops = branch(request, succeeded);
    let compact_revision = store.compact_revision();
    for request in ranges(ops) {
        check_range(view.revision(), compact_revision, request)?;
    }
    let mut responses = Vec::with_capacity(ops.len());
    for request in ranges(ops) {
        let response = range::execute(view, request)?;
        responses.push(ResponseOp { response: Some(Response::ResponseRange(response)) });
    }
    Ok(TxnResponse { header: header(view.revision()), succeeded, responses })
}

/// Applies a transaction that may write. On error the state is unchanged.
pub(crate) fn apply(
    writer: &mut RevisionWriter<'_>,
    before: Before<'_>,
    request: TxnRequest,
    answer: Answer,
) -> Result<TxnResponse, Failure> {
    let revision_before = writer.revision();
    let mut path = Vec::new();
    choose(writer, &request, &mut path)?;
    let mut steps = path.iter().copied();
    if answer == Answer::Unwanted && base::mutant("local-refusal") {
        steps.by_ref().for_each(drop);
    } else {
        check(writer, before, &request, &mut steps)?;
    }
    assert!(steps.next().is_none(), "checking left a transaction out");
    assert_eq!(writer.revision(), revision_before, "a check changed the store");
    let mut steps = path.iter().copied();
    let mut response = change(writer, request, &mut steps, answer)?;
    assert!(steps.next().is_none(), "changing left a transaction out");
    response.header = header(writer.revision());
    Ok(response)
}

#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    pub leases: &'a Leases,
    pub compact_revision: i64,
}

fn choose(view: &RevisionWriter<'_>, request: &TxnRequest, path: &mut Vec<bool>) -> Result<(), Failure> {
    let taken = compare::all_hold(view, &request.compare)?;
    path.push(taken);
    for op in branch(request, taken) {
        if let Some(Request::RequestTxn(child)) = &op.request {
            choose(view, child, path)?;
        }
    }
    Ok(())
}

fn check(
    writer: &RevisionWriter<'_>,
    before: Before<'_>,
    request: &TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> Result<(), Failure> {
    for op in branch(request, next_step(path)) {
        match &op.request {
            Some(Request::RequestRange(range)) => {
                check_range(writer.revision(), before.compact_revision, range)?
            }
            Some(Request::RequestPut(put)) => write::check_put(writer, before.leases, put)?,
            Some(Request::RequestDeleteRange(delete)) => validate::delete_range(delete)?,
            Some(Request::RequestTxn(child)) => check(writer, before, child, path)?,
            None => return Err(Error::KeyNotFound.into()),
        }
    }
    Ok(())
}

/// Checks the revision of a range in a transaction, in the state before it. 0 is always accepted.
fn check_range(revision: i64, compact_revision: i64, request: &RangeRequest) -> Result<(), Failure> {
    validate::range(request)?;
    match request.revision {
        0 => Ok(()),
        wanted if wanted > revision => Err(Error::FutureRev.into()),
        wanted if wanted < compact_revision => Err(Error::Compacted.into()),
        _ => Ok(()),
    }
}

fn change<I: Iterator<Item = bool>>(
    writer: &mut RevisionWriter<'_>,
    request: TxnRequest,
    path: &mut I,
    answer: Answer,
) -> Result<TxnResponse, Failure> {
    let succeeded = next_step(path);
    let ops = if succeeded { request.success } else { request.failure };
    let mut responses = Vec::with_capacity(ops.len());
    for op in ops {
        let response = match op.request.expect("checked: every operation has content") {
            Request::RequestRange(range) => Response::ResponseRange(read(writer, &range, answer)?),
            Request::RequestPut(put) => Response::ResponsePut(write::put(writer, put, answer)?),
            Request::RequestDeleteRange(delete) => {
                Response::ResponseDeleteRange(write::delete_range(writer, delete, answer)?)
            }
            Request::RequestTxn(child) => Response::ResponseTxn(change(writer, child, path, answer)?),
        };
        responses.push(ResponseOp { response: Some(response) });
    }
    // The header of a nested transaction is present and empty. `apply` sets that of the outermost
    // one.
    Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
}

/// Executes a range in a write transaction. Skipped if no client of this member waits for the
/// response.
fn read(
    writer: &RevisionWriter<'_>,
    request: &RangeRequest,
    answer: Answer,
) -> Result<RangeResponse, Failure> {
    match answer {
        Answer::Wanted => range::execute(writer, request),
        Answer::Unwanted => Ok(RangeResponse::default()),
    }
}

fn branch(request: &TxnRequest, success: bool) -> &[RequestOp] {
    if success { &request.success } else { &request.failure }
}

fn ranges(ops: &[RequestOp]) -> impl Iterator<Item = &RangeRequest> {
    ops.iter().map(|op| match &op.request {
        Some(Request::RequestRange(request)) => request,
        _ => unreachable!("a read-only transaction holds ranges only"),
    })
}

fn next_step(path: &mut impl Iterator<Item = bool>) -> bool {
    path.next().expect("choosing entered every transaction that is entered later")
}
