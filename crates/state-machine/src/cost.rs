//! Cost of applying a command: the number of keys, and whether it reads stored values.
//!
//! A conservative estimate from the command itself. It does not affect state: it only decides which
//! thread applies a command (`raft-node`: `node/apply.rs`).

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use base::Cost;
use mvcc::Fetch;

use crate::auth::{Need, of_command as needs_of_command};
use crate::command::{DecodedCommand, Kind};
use crate::kv::{compare, range};

/// Returns the cost of a command on single keys that copies no stored value into a new record.
pub(crate) fn cost_of((kind, caller): &DecodedCommand) -> Option<Cost> {
    // Attaching requires permission for each key of the lease, and their number is unbounded.
    if caller.is_some() && attaches(kind) { None } else { of_kind(kind) }
}

fn attaches(kind: &Kind) -> bool {
    let mut attaches = false;
    let walked = needs_of_command(kind, &mut |need| {
        attaches |= matches!(need, Need::KeysOfLease(..));
        Ok(())
    });
    walked.is_err() || attaches
}

fn of_kind(kind: &Kind) -> Option<Cost> {
    match kind {
        Kind::Put(put) => of_put(put),
        Kind::DeleteRange(delete) => of_delete(delete),
        Kind::Txn(txn) => of_txn(txn),
        Kind::LeaseGrant(_) => Some(Cost { keys: 1, reads_values: false }),
        Kind::LeaseRenew(renew) => Some(Cost { keys: renew.ids.len(), reads_values: false }),
        // A lease may have any number of keys.
        Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) => None,
        // Rare, and not limited to keys.
        Kind::Compact(_) | Kind::Alarm(_) | Kind::PublishMember(_) | Kind::Auth(_) => None,
        Kind::MemberChange(_) | Kind::SetDowngrade(_) | Kind::RaiseLevel(_) => None,
    }
}

/// Returns the cost of a single key; `None` for a range.
fn of_key(range_end: &[u8], reads_values: bool) -> Option<Cost> {
    range_end.is_empty().then_some(Cost { keys: 1, reads_values })
}

fn of_put(put: &PutRequest) -> Option<Cost> {
    if put.ignore_value { None } else { of_key(&[], put.prev_kv || put.ignore_lease) }
}

fn of_delete(delete: &DeleteRangeRequest) -> Option<Cost> {
    of_key(&delete.range_end, delete.prev_kv)
}

fn of_range(read: &RangeRequest) -> Option<Cost> {
    of_key(&read.range_end, range::fetch(read) == Fetch::Full)
}

fn of_compare(compared: &Compare) -> Option<Cost> {
    of_key(&compared.range_end, compare::fetch(compared) == Fetch::Full)
}

fn of_txn(txn: &TxnRequest) -> Option<Cost> {
    let ops = txn.success.iter().chain(&txn.failure).map(of_op);
    txn.compare.iter().map(of_compare).chain(ops).try_fold(
        Cost { keys: 0, reads_values: false },
        |sum, cost| {
            let cost = cost?;
            Some(Cost { keys: sum.keys + cost.keys, reads_values: sum.reads_values || cost.reads_values })
        },
    )
}

fn of_op(op: &RequestOp) -> Option<Cost> {
    match op.request.as_ref()? {
        Request::RequestRange(range) => of_range(range),
        Request::RequestPut(put) => of_put(put),
        Request::RequestDeleteRange(delete) => of_delete(delete),
        Request::RequestTxn(txn) => of_txn(txn),
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
    fn keys_and_whether_values_are_read() {
        let puts = |count| vec![op(Request::RequestPut(put())); count];
        let (blind, reads) =
            (|keys| Some(Cost { keys, reads_values: false }), |keys| Some(Cost { keys, reads_values: true }));
        let key_range = RangeRequest { range_end: KEY, ..range() };
        let key_only = RangeRequest { keys_only: true, ..range() };
        let one = |range| vec![op(Request::RequestRange(range))];
        let cases = [
            (Kind::Put(put()), blind(1)),
            (Kind::Put(PutRequest { prev_kv: true, ..put() }), reads(1)),
            (Kind::Put(PutRequest { ignore_lease: true, ..put() }), reads(1)),
            (Kind::Put(PutRequest { ignore_value: true, ..put() }), None),
            (Kind::DeleteRange(delete()), blind(1)),
            (Kind::DeleteRange(DeleteRangeRequest { prev_kv: true, ..delete() }), reads(1)),
            (Kind::DeleteRange(DeleteRangeRequest { range_end: KEY, ..delete() }), None),
            (Kind::Txn(txn(vec![compare(CompareTarget::Mod)], puts(1))), blind(2)),
            (Kind::Txn(txn(vec![compare(CompareTarget::Value)], puts(1))), reads(2)),
            (Kind::Txn(txn(vec![Compare { range_end: KEY, ..Compare::default() }], puts(1))), None),
            (Kind::Txn(TxnRequest { failure: one(range()), ..txn(vec![], puts(1)) }), reads(2)),
            (Kind::Txn(txn(vec![], one(key_only))), blind(1)),
            (Kind::Txn(txn(vec![], one(key_range))), None),
            (Kind::Txn(txn(vec![], vec![op(Request::RequestTxn(txn(vec![], puts(17))))])), blind(17)),
            (Kind::Txn(txn(vec![], vec![RequestOp { request: None }])), None),
            (Kind::Compact(CompactionRequest::default()), None),
        ];
        let mut machine = World::new().asked;
        for (kind, expected) in cases {
            let command = command::encode(kind.clone());
            for again in [false, true] {
                assert_eq!(machine.cost(&command), expected, "{kind:?}, again: {again}");
            }
        }
        assert_eq!(machine.cost(&Bytes::from_static(b"\xff\xff")), None, "no command");
    }
}
