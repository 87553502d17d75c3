use super::*;
use api::etcdserverpb::RequestOp;

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

#[test]
fn nothing_of_a_transaction_is_counted_after_more_than_is_quick() {
    let range = |revision: i64| {
        let range =
            RangeRequest { key: "a".into(), range_end: "z".into(), revision, ..RangeRequest::default() };
        RequestOp { request: Some(Op::RequestRange(range)) }
    };
    let txn = |success: Vec<RequestOp>| TxnRequest {
        success: success.clone(),
        failure: success,
        ..TxnRequest::default()
    };
    for (ops, keys, quick, counted) in [
        (vec![range(0); 128], 4, true, 256),
        (vec![range(0); 128], 100, false, 11),
        (vec![range(0); 128], i64::MAX, false, 1),
        (vec![range(7), range(0)], 1, false, 0),
    ] {
        let counts = std::cell::Cell::new(0);
        let count = |_: &RangeRequest| {
            counts.set(counts.get() + 1);
            keys
        };
        assert_eq!(is_quick_txn(&txn(ops), 1024, count), quick);
        assert_eq!(counts.get(), counted, "{keys} keys in each range");
    }
}
