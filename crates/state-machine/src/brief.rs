//! Brief commands: they name a few keys, so applying them takes microseconds.
//!
//! An estimate from the command alone. It only decides which thread applies a command, and errs on the safe
//! side.

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use mvcc::Fetch;

use crate::auth::{Need, of_command as needs_of_command};
use crate::command::{Decoded, Kind};
use crate::kv::{compare, range};

/// Maximum number of keys in a brief command, in both branches of its transactions.
const KEYS_MAX: usize = 16;

/// Whether a command names at most 16 single keys, and copies no stored value into a new record. It may read
/// stored values only if `values_are_near`: they are usually in memory.
pub(crate) fn is_brief((kind, caller): &Decoded, values_are_near: bool) -> bool {
    // The caller needs permission for each key of the lease, of which there may be any number.
    let keys = match caller.is_some() && attaches(kind) {
        true => None,
        false => of_kind(kind, values_are_near),
    };
    keys.is_some_and(|keys| keys <= KEYS_MAX)
}

/// Whether a command attaches keys to a lease.
fn attaches(kind: &Kind) -> bool {
    let mut attaches = false;
    let walked = needs_of_command(kind, &mut |need| {
        attaches |= matches!(need, Need::KeysOfLease(..));
        Ok(())
    });
    walked.is_err() || attaches
}

fn of_kind(kind: &Kind, values_are_near: bool) -> Option<usize> {
    match kind {
        Kind::Put(put) => of_put(put, values_are_near),
        Kind::DeleteRange(delete) => of_delete(delete, values_are_near),
        Kind::Txn(txn) => of_txn(txn, values_are_near),
        Kind::LeaseGrant(_) => Some(1),
        Kind::LeaseRenew(renew) => Some(renew.ids.len()),
        // A lease may have any number of keys.
        Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) => None,
        // Rare, and not only keys.
        Kind::Compact(_) | Kind::Alarm(_) | Kind::PublishMember(_) | Kind::Auth(_) => None,
        Kind::MemberChange(_) | Kind::SetDowngrade(_) => None,
    }
}

/// One key, if no value is read or values are near; `None` if the command is not brief.
fn one_key(reads_value: bool, values_are_near: bool) -> Option<usize> {
    (!reads_value || values_are_near).then_some(1)
}

fn of_put(put: &PutRequest, near: bool) -> Option<usize> {
    if put.ignore_value { None } else { one_key(put.prev_kv || put.ignore_lease, near) }
}

fn of_delete(delete: &DeleteRangeRequest, near: bool) -> Option<usize> {
    if delete.range_end.is_empty() { one_key(delete.prev_kv, near) } else { None }
}

fn of_range(range: &RangeRequest, near: bool) -> Option<usize> {
    let reads = range::fetch(range) == Fetch::Full;
    if range.range_end.is_empty() { one_key(reads, near) } else { None }
}

fn of_compare(compare: &Compare, near: bool) -> Option<usize> {
    let reads = compare::fetch(compare) == Fetch::Full;
    if compare.range_end.is_empty() { one_key(reads, near) } else { None }
}

fn of_txn(txn: &TxnRequest, near: bool) -> Option<usize> {
    let compares = txn.compare.iter().map(|compare| of_compare(compare, near));
    let ops = txn.success.iter().chain(&txn.failure).map(|op| of_op(op, near));
    compares.chain(ops).sum()
}

fn of_op(op: &RequestOp, near: bool) -> Option<usize> {
    match op.request.as_ref()? {
        Request::RequestRange(range) => of_range(range, near),
        Request::RequestPut(put) => of_put(put, near),
        Request::RequestDeleteRange(delete) => of_delete(delete, near),
        Request::RequestTxn(txn) => of_txn(txn, near),
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::CompactionRequest;
    use api::etcdserverpb::compare::CompareTarget;
    use bytes::Bytes;

    use super::*;
    use crate::command;
    use crate::tests::World;

    const KEY: Bytes = Bytes::from_static(b"k");

    fn put() -> PutRequest {
        PutRequest { key: KEY, value: KEY, ..PutRequest::default() }
    }

    fn delete() -> DeleteRangeRequest {
        DeleteRangeRequest { key: KEY, ..DeleteRangeRequest::default() }
    }

    fn range() -> RangeRequest {
        RangeRequest { key: KEY, ..RangeRequest::default() }
    }

    fn compare(target: CompareTarget) -> Compare {
        Compare { key: KEY, target: target as i32, ..Compare::default() }
    }

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn txn(compare: Vec<Compare>, success: Vec<RequestOp>) -> TxnRequest {
        TxnRequest { compare, success, failure: Vec::new() }
    }

    #[test]
    fn what_is_brief_and_for_what_values_must_be_near() {
        #[derive(Debug, PartialEq)]
        enum Brief {
            Always,
            Near,
            Never,
        }
        use Brief::{Always, Near, Never};
        let puts = |count| vec![op(Request::RequestPut(put())); count];
        let cases = [
            (Kind::Put(put()), Always),
            (Kind::Put(PutRequest { prev_kv: true, ..put() }), Near),
            (Kind::Put(PutRequest { ignore_lease: true, ..put() }), Near),
            (Kind::Put(PutRequest { ignore_value: true, ..put() }), Never),
            (Kind::DeleteRange(delete()), Always),
            (Kind::DeleteRange(DeleteRangeRequest { prev_kv: true, ..delete() }), Near),
            (Kind::DeleteRange(DeleteRangeRequest { range_end: KEY, ..delete() }), Never),
            (Kind::Txn(txn(vec![compare(CompareTarget::Mod)], puts(1))), Always),
            (Kind::Txn(txn(vec![compare(CompareTarget::Value)], puts(1))), Near),
            (Kind::Txn(txn(vec![Compare { range_end: KEY, ..Compare::default() }], puts(1))), Never),
            (
                Kind::Txn(TxnRequest {
                    failure: vec![op(Request::RequestRange(range()))],
                    ..txn(vec![], puts(1))
                }),
                Near,
            ),
            (
                Kind::Txn(txn(
                    vec![],
                    vec![op(Request::RequestRange(RangeRequest { keys_only: true, ..range() }))],
                )),
                Always,
            ),
            (
                Kind::Txn(txn(
                    vec![],
                    vec![op(Request::RequestRange(RangeRequest { range_end: KEY, ..range() }))],
                )),
                Never,
            ),
            (Kind::Txn(txn(vec![], puts(KEYS_MAX))), Always),
            (Kind::Txn(txn(vec![], puts(KEYS_MAX + 1))), Never),
            (Kind::Txn(txn(vec![], vec![op(Request::RequestTxn(txn(vec![], puts(KEYS_MAX + 1))))])), Never),
            (Kind::Txn(txn(vec![], vec![RequestOp { request: None }])), Never),
            (Kind::Compact(CompactionRequest::default()), Never),
        ];
        let mut machine = World::new().asked;
        let mut is_brief = |command: &Bytes, values_are_near| machine.is_brief(command, values_are_near);
        for (kind, expected) in cases {
            let command = command::encode(kind.clone());
            let seen = match (is_brief(&command, false), is_brief(&command, true)) {
                (true, true) => Always,
                (false, true) => Near,
                (false, false) => Never,
                (true, false) => panic!("nearer values made it longer: {kind:?}"),
            };
            assert_eq!(seen, expected, "{kind:?}");
        }
        assert!(!is_brief(&Bytes::from_static(b"\xff\xff"), true), "no command");
    }
}
