//! Compares the decoder with prost, and checks the nesting limit.

use api::command::Command;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
use proptest::prelude::*;

use super::*;
use crate::cost::cost_of;
use crate::tests::totality::{field, nested_txn};
use crate::{command as commands, validate};

fn leaf() -> impl Strategy<Value = RequestOp> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..4).prop_map(Bytes::from);
    let put = (bytes(), bytes(), any::<i64>());
    let request = prop_oneof![
        put.prop_map(|(key, value, lease)| Some(Request::RequestPut(PutRequest {
            key,
            value,
            lease,
            ..PutRequest::default()
        }))),
        (bytes(), any::<i64>()).prop_map(|(key, limit)| Some(Request::RequestRange(RangeRequest {
            key,
            limit,
            ..RangeRequest::default()
        }))),
        (bytes(), bytes()).prop_map(|(key, range_end)| Some(Request::RequestDeleteRange(
            DeleteRangeRequest { key, range_end, prev_kv: true }
        ))),
        Just(None),
    ];
    request.prop_map(|request| RequestOp { request })
}

fn any_txn() -> impl Strategy<Value = TxnRequest> {
    let compare = prop::collection::vec(any::<u8>(), 0..4).prop_map(|key| Compare {
        key: key.into(),
        target: 3,
        ..Compare::default()
    });
    let flat = (
        prop::collection::vec(compare, 0..3),
        prop::collection::vec(leaf(), 0..3),
        prop::collection::vec(leaf(), 0..3),
    )
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure });
    flat.prop_recursive(5, 40, 4, |inner| {
        let op = inner.prop_map(|txn| RequestOp { request: Some(Request::RequestTxn(txn)) });
        (prop::collection::vec(op.clone(), 0..3), prop::collection::vec(op, 0..3))
            .prop_map(|(success, failure)| TxnRequest { compare: Vec::new(), success, failure })
    })
}

/// Asserts that the decoder accepts all bytes that prost accepts, with the same result.
fn agrees_with_prost(bytes: &Bytes) {
    if let Ok(theirs) = TxnRequest::decode(bytes.clone()) {
        assert_eq!(decode_txn(bytes.clone(), usize::MAX).expect("prost takes it"), theirs);
    }
    if let Ok(Command { kind: Some(kind), caller }) = Command::decode(bytes.clone()) {
        assert_eq!(decode_with_caller(bytes).expect("prost takes it"), (kind, caller));
    }
}

proptest! {
    #[test]
    fn a_transaction_decodes_as_prost_decodes_it(txn in any_txn()) {
        agrees_with_prost(&txn.encode_to_vec().into());
        agrees_with_prost(&Command { kind: Some(Kind::Txn(txn)), caller: None }.encode_to_vec().into());
    }

    /// Two concatenated encodings are one merged message, at every level.
    #[test]
    fn parts_of_a_message_are_merged_as_prost_merges_them(a in any_txn(), b in any_txn()) {
        let [a, b] = [a, b].map(|txn| Bytes::from(txn.encode_to_vec()));
        let txn = |parts: &[&Bytes]| parts.iter().flat_map(|part| field(4, part)).collect::<Vec<u8>>();
        agrees_with_prost(&[&a[..], &b].concat().into());
        agrees_with_prost(&field(2, &txn(&[&a, &b])));
        let replaced = [&txn(&[&a])[..], &field(2, b"\x0a\x01k"), &txn(&[&b, &a])].concat();
        agrees_with_prost(&field(3, &replaced));
        agrees_with_prost(&[field(3, &a), field(3, &b)].concat().into());
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        agrees_with_prost(&bytes.into());
    }

    #[test]
    fn a_damaged_transaction_is_taken_or_refused(txn in any_txn(), at in any::<usize>(), to in any::<u8>()) {
        let mut bytes = txn.encode_to_vec();
        if !bytes.is_empty() {
            let at = at % bytes.len();
            bytes[at] = to;
        }
        agrees_with_prost(&bytes.into());
    }
}

#[test]
fn nesting_ends_at_its_limit_for_the_service_and_for_apply_alike() {
    for (levels, taken) in [(1, true), (TXN_LEVELS_MAX, true), (TXN_LEVELS_MAX + 1, false), (9000, false)] {
        let bytes = nested_txn(levels);
        for decoded in
            [decode_txn(bytes.clone(), 128).map(drop), decode_with_caller(&field(3, &bytes)).map(drop)]
        {
            assert_eq!(decoded.is_ok(), taken, "{levels} levels");
            assert!(taken || matches!(decoded, Err(DecodeError::TooDeep)), "{levels} levels");
        }
    }
}

#[test]
fn a_transaction_of_too_many_operations_is_refused_before_it_is_built() {
    const OPS_MAX: usize = 128;
    let of = |part: &[u8], count: usize| Bytes::from(part.repeat(count));
    let levels = |widths: &[usize]| {
        let empty = Bytes::new();
        widths.iter().rev().fold(empty, |inner, width| of(&field(2, &field(4, &inner)), *width))
    };
    for (bytes, taken) in [
        (of(b"\x12\x00", OPS_MAX), true),
        (of(b"\x12\x00", OPS_MAX + 1), false),
        (of(b"\x1a\x00", OPS_MAX + 1), false),
        (of(b"\x0a\x00", OPS_MAX + 1), false),
        ([of(b"\x0a\x00", OPS_MAX), of(b"\x12\x00\x1a\x00", OPS_MAX)].concat().into(), true),
        (of(b"\x12\x00", 1 << 20), false),
        // The widest that etcd accepts on three levels, and on four.
        (levels(&[42, 42, 42]), true),
        (levels(&[32, 32, 32, 32]), false),
        (field(2, &field(4, &of(b"\x12\x00", OPS_MAX))), true),
        (field(2, &field(4, &of(b"\x12\x00", OPS_MAX + 1))), false),
        (field(3, &field(4, &of(b"\x0a\x00", OPS_MAX + 1))), false),
        (field(2, &field(4, &of(b"\x12\x00", 32_000))), false),
        // Split messages, and unknown fields.
        (field(2, &of(b"\x22\x00", 1 << 20)), false),
        (field(2, &of(b"\x28\x00", 1 << 20)), false),
        (of(b"\x28\x00", 1 << 20), false),
    ] {
        let decoded = decode_txn(bytes.clone(), OPS_MAX);
        assert_eq!(decoded.is_ok(), taken, "{} bytes", bytes.len());
        assert_eq!(txn_fields(bytes.clone(), OPS_MAX).is_ok(), taken, "{} bytes", bytes.len());
        assert!(taken || matches!(decoded, Err(DecodeError::TooMany)), "{} bytes", bytes.len());
        assert!(matches!(decode_short_txn(bytes.clone(), OPS_MAX, 2), Err(DecodeError::TooMany)));
        // Log entries stay readable.
        assert!(decode_with_caller(&field(3, &bytes)).is_ok(), "{} bytes", bytes.len());
    }
}

#[test]
fn keys_and_values_are_slices_of_the_message() {
    let bytes = nested_txn(3);
    let decoded = decode_txn(bytes.clone(), 128).unwrap();
    let mut inner = &decoded;
    let key = loop {
        match inner.success[0].request.as_ref().unwrap() {
            Request::RequestTxn(next) => inner = next,
            Request::RequestPut(put) => break &put.key,
            other => panic!("{other:?}"),
        }
    };
    assert!(bytes.as_ptr_range().contains(&key.as_ptr()));
}

/// Runs every recursive function on the deepest transaction, with a fraction of the usual stack.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread with a small stack; it decides no order of commands")]
fn the_deepest_transaction_fits_into_half_of_a_stack() {
    let walk = || {
        let request = decode_txn(nested_txn(TXN_LEVELS_MAX - 1), 128).unwrap();
        assert_eq!(validate::txn(&request, 128), Ok(()));
        assert!(validate::txn_cost(&request) > 0);
        assert_eq!(request.clone(), request);
        assert!(!format!("{request:?}").is_empty());
        let bytes = commands::encode(Kind::Txn(request));
        cost_of(&commands::decode_with_caller(&bytes).unwrap());
        let mut world = crate::tests::World::new();
        let Ok(crate::Response::Txn(response)) = world.apply_unvalidated(&bytes) else {
            panic!("the transaction was refused")
        };
        assert!(response.encode_to_vec().len() > TXN_LEVELS_MAX);
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(walk).unwrap();
    thread.join().expect("no overflow ends the process");
}
