//! Key accesses of requests, shared by the checks before consensus, at apply and of reads.
//!
//! | request | needs |
//! |---|---|
//! | range, compare | READ of the range |
//! | put | WRITE of the key; READ with `prev_kv`; then WRITE of all keys of the lease that it attaches |
//! | delete | WRITE of the range; READ with `prev_kv` |
//! | revoke of a lease | WRITE of all its keys |
//! | transaction | all of the above, for compares and both branches, at every depth |
//!
//! The decoder bounds nesting, so recursion is safe.

use api::Error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use mvcc::KeyRange;

use crate::command::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "etcd's terms")]
pub enum KeyAccess {
    Read,
    Write,
}

/// An access that requires permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Keys(KeyAccess, KeyRange),
    KeysOfLease(KeyAccess, i64),
}

/// Callback for each need. The first error stops the iteration.
pub type Visit<'a> = dyn FnMut(Need) -> Result<(), Error> + 'a;

pub fn of_range(request: &RangeRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    visit(Need::Keys(KeyAccess::Read, KeyRange::new(request.key.clone(), request.range_end.clone())))
}

pub fn of_put(request: &PutRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    let key = || KeyRange::one(request.key.clone());
    visit(Need::Keys(KeyAccess::Write, key()))?;
    if request.prev_kv && !base::mutant("unchecked-previous") {
        visit(Need::Keys(KeyAccess::Read, key()))?;
    }
    if request.lease != 0 { visit(Need::KeysOfLease(KeyAccess::Write, request.lease)) } else { Ok(()) }
}

pub fn of_delete_range(request: &DeleteRangeRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    let keys = || KeyRange::new(request.key.clone(), request.range_end.clone());
    visit(Need::Keys(KeyAccess::Write, keys()))?;
    if request.prev_kv { visit(Need::Keys(KeyAccess::Read, keys())) } else { Ok(()) }
}

/// Visits the needs of a transaction, including both branches.
pub fn of_txn(request: &TxnRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    for compare in &request.compare {
        let keys = KeyRange::new(compare.key.clone(), compare.range_end.clone());
        visit(Need::Keys(KeyAccess::Read, keys))?;
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(request)) => of_range(request, visit)?,
            Some(Request::RequestPut(request)) => of_put(request, visit)?,
            Some(Request::RequestDeleteRange(request)) => of_delete_range(request, visit)?,
            Some(Request::RequestTxn(_)) if base::mutant("unchecked-nested") => {}
            Some(Request::RequestTxn(request)) => of_txn(request, visit)?,
            None => {}
        }
    }
    Ok(())
}

pub fn of_lease_keys(access: KeyAccess, lease: i64, visit: &mut Visit<'_>) -> Result<(), Error> {
    visit(Need::KeysOfLease(access, lease))
}

/// Visits the needs of a command. Commands without keys have no needs here.
pub(crate) fn of_command(kind: &Kind, visit: &mut Visit<'_>) -> Result<(), Error> {
    match kind {
        Kind::Put(request) => of_put(request, visit),
        Kind::DeleteRange(request) => of_delete_range(request, visit),
        Kind::Txn(request) => of_txn(request, visit),
        Kind::LeaseRevoke(request) => of_lease_keys(KeyAccess::Write, request.id, visit),
        Kind::Compact(_) | Kind::Alarm(_) | Kind::PublishMember(_) | Kind::LeaseGrant(_) => Ok(()),
        Kind::LeaseExpire(_) | Kind::LeaseRenew(_) | Kind::Auth(_) | Kind::MemberChange(_) => Ok(()),
        Kind::SetDowngrade(_) | Kind::RaiseLevel(_) => Ok(()),
    }
}
