//! Compares the set of deleted keys with a list of intervals. `tests/validation.rs` tests the rule
//! itself.

use std::cell::Cell;

use super::*;
use api::etcdserverpb::{PutRequest, TxnRequest};
use bytes::Bytes;
use proptest::prelude::*;

thread_local! {
    pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
}

fn delete(key: &str, range_end: &str) -> DeleteRangeRequest {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    DeleteRangeRequest { key: bytes(key), range_end: bytes(range_end), prev_kv: false }
}

fn covers(request: &DeleteRangeRequest, key: &[u8]) -> bool {
    if request.range_end.is_empty() {
        request.key == key
    } else {
        request.key <= key && key < &request.range_end[..]
    }
}

fn assert_disjoint(deletes: &Deletes<'_>) {
    let mut last_end: Option<&[u8]> = None;
    for (start, end) in &deletes.ranges {
        assert!(start < end && last_end.is_none_or(|last| last < *start), "{:?}", deletes.ranges);
        last_end = Some(end);
    }
}

#[test]
fn ranges_that_meet_become_one() {
    let requests = [delete("a", "c"), delete("e", "g"), delete("c", "e"), delete("b", "d"), delete("x", "y")];
    let mut deletes = Deletes::default();
    requests.iter().for_each(|request| deletes.insert(request));
    let ranges: Vec<_> = deletes.ranges.iter().map(|(start, end)| (*start, *end)).collect();
    assert_eq!(ranges, [(&b"a"[..], &b"g"[..]), (b"x", b"y")]);
}

#[test]
fn a_range_swallows_those_inside_it() {
    let requests = [delete("c", "d"), delete("e", "f"), delete("a", "z")];
    let mut deletes = Deletes::default();
    requests.iter().for_each(|request| deletes.insert(request));
    assert_eq!(deletes.ranges.len(), 1);
    assert!(deletes.contains(b"y") && !deletes.contains(b"z"));
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn nested(success: Vec<RequestOp>) -> RequestOp {
    op(Request::RequestTxn(TxnRequest { success, ..TxnRequest::default() }))
}

/// Measures a tree of puts and deletes in a chain of 60 transactions.
#[test]
fn levels_of_nesting_cost_no_more_than_what_they_add() {
    const LEVELS: usize = 60;
    let put = |number: u32| PutRequest { key: number.to_be_bytes().to_vec().into(), ..PutRequest::default() };
    let puts = (0..4096).map(|number| op(Request::RequestPut(put(number))));
    let mut ops: Vec<_> = puts.collect();
    while ops.len() > 16 {
        ops = ops.chunks(16).map(|children| nested(children.to_vec())).collect();
    }
    let point = op(Request::RequestDeleteRange(delete("kk", "")));
    let range = op(Request::RequestDeleteRange(delete("k", "l")));
    for own in [vec![], vec![point], vec![range]] {
        let chain = |inner: Vec<RequestOp>, _| [own.clone(), vec![nested(inner)]].concat();
        let branch = (0..LEVELS).fold(ops.clone(), chain);
        STEPS.set(0);
        assert_eq!(check(&branch), Ok(()));
        assert!(STEPS.get() <= 4 * 4096, "{} steps for {own:?}", STEPS.get());
    }
}

fn any_branch() -> impl Strategy<Value = Vec<RequestOp>> {
    let key = || "[a-f]".prop_map(Bytes::from);
    let put = key().prop_map(|key| op(Request::RequestPut(PutRequest { key, ..PutRequest::default() })));
    let range_end = prop_oneof![Just(Bytes::new()), key()];
    let delete = (key(), range_end).prop_map(|(key, range_end)| {
        op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
    });
    let leaf = prop_oneof![3 => put, 1 => delete];
    let tree = leaf.prop_recursive(4, 24, 3, |inner| {
        let branch = || prop::collection::vec(inner.clone(), 0..3);
        (branch(), branch()).prop_map(|(success, failure)| {
            op(Request::RequestTxn(TxnRequest { success, failure, ..TxnRequest::default() }))
        })
    });
    prop::collection::vec(tree, 0..4)
}

/// Computes puts and deletes of a branch with the algorithm of etcd's source.
fn changes_by_rule(branch: &[RequestOp]) -> Option<(Vec<Bytes>, Vec<DeleteRangeRequest>)> {
    let (mut puts, mut deletes) = (Vec::<Bytes>::new(), Vec::<DeleteRangeRequest>::new());
    let requests = || branch.iter().filter_map(|op| op.request.as_ref());
    for request in requests() {
        if let Request::RequestDeleteRange(delete) = request {
            deletes.push(delete.clone());
        }
    }
    for request in requests() {
        let Request::RequestTxn(child) = request else { continue };
        let (success, failure) = (changes_by_rule(&child.success)?, changes_by_rule(&child.failure)?);
        let own = puts.clone();
        for key in success.0.iter().chain(&failure.0) {
            if own.contains(key) || deletes.iter().any(|delete| covers(delete, key)) {
                return None;
            }
        }
        puts.extend(success.0.into_iter().chain(failure.0));
        deletes.extend(success.1.into_iter().chain(failure.1));
    }
    for request in requests() {
        let Request::RequestPut(put) = request else { continue };
        if puts.contains(&put.key) || deletes.iter().any(|delete| covers(delete, &put.key)) {
            return None;
        }
        puts.push(put.key.clone());
    }
    Some((puts, deletes))
}

proptest! {
    #[test]
    fn a_branch_is_refused_as_the_rule_says(branch in any_branch()) {
        prop_assert_eq!(check(&branch).is_ok(), changes_by_rule(&branch).is_some());
    }

    #[test]
    fn the_merged_set_covers_exactly_what_its_parts_cover(
        parts in prop::collection::vec(("[a-h]{1,2}", prop_oneof![Just(String::new()), "[a-h]{1,2}".boxed(), Just("\0".to_owned())]), 0..12),
        keys in prop::collection::vec("[a-h]{1,3}", 1..20),
        cut in 0..12usize,
    ) {
        let requests: Vec<_> = parts.iter().map(|(key, end)| delete(key, end)).collect();
        let (mut deletes, mut others) = (Deletes::default(), Deletes::default());
        for (place, request) in requests.iter().enumerate() {
            if place < cut { deletes.insert(request) } else { others.insert(request) }
        }
        deletes.absorb(others);
        assert_disjoint(&deletes);
        for key in &keys {
            let wanted = requests.iter().any(|request| covers(request, key.as_bytes()));
            prop_assert_eq!(deletes.contains(key.as_bytes()), wanted, "{}", key);
        }
    }
}
