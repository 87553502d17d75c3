//! What requests do with keys: the one walk that checks before consensus, at apply and of reads use.
//!
//! | request | needs |
//! |---|---|
//! | range, compare | READ of the range |
//! | put | WRITE of the key; READ with `prev_kv`; then WRITE of all keys of the lease that it attaches |
//! | delete | WRITE of the range; READ with `prev_kv` |
//! | revoke of a lease | WRITE of all its keys |
//! | transaction | all of that, of compares and both branches, at every depth |
//!
//! The decoder bounds nesting, so recursion is safe.

use api::Error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use mvcc::KeyRange;

use crate::command::Kind;

/// How a request uses keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "etcd's terms")]
pub enum KeyAccess {
    Read,
    Write,
}

/// One thing that a request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// To use each key of a range.
    Keys(KeyAccess, KeyRange),
    /// To use each key that is attached to a lease.
    KeysOfLease(KeyAccess, i64),
}

/// Receives each need. The first error ends the walk.
pub type Visit<'a> = dyn FnMut(Need) -> Result<(), Error> + 'a;

/// The needs of a range.
pub fn of_range(request: &RangeRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    visit(Need::Keys(KeyAccess::Read, KeyRange::new(request.key.clone(), request.range_end.clone())))
}

/// The needs of a put.
pub fn of_put(request: &PutRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    let key = || KeyRange::one(request.key.clone());
    visit(Need::Keys(KeyAccess::Write, key()))?;
    if request.prev_kv && !base::mutant("unchecked-previous") {
        visit(Need::Keys(KeyAccess::Read, key()))?;
    }
    if request.lease != 0 { visit(Need::KeysOfLease(KeyAccess::Write, request.lease)) } else { Ok(()) }
}

/// The needs of a delete.
pub fn of_delete_range(request: &DeleteRangeRequest, visit: &mut Visit<'_>) -> Result<(), Error> {
    let keys = || KeyRange::new(request.key.clone(), request.range_end.clone());
    visit(Need::Keys(KeyAccess::Write, keys()))?;
    if request.prev_kv { visit(Need::Keys(KeyAccess::Read, keys())) } else { Ok(()) }
}

/// The needs of a transaction, whichever branch it takes.
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

/// The needs of a use of all keys of a lease.
pub fn of_lease_keys(access: KeyAccess, lease: i64, visit: &mut Visit<'_>) -> Result<(), Error> {
    visit(Need::KeysOfLease(access, lease))
}

/// The needs of a command. Those that use no keys need nothing here.
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
