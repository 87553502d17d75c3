//! Keys and sizes of a sampled request.

use api::Method;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use state_machine::command::{SHORT_TXN_FIELDS_MAX, TxnPart, TxnReader};

/// Inspected operations of a transaction.
const OPERATIONS_MAX: usize = 16;
/// Inspected bytes of a key.
const PREFIX_BYTES_MAX: usize = 64;
/// Segments of a prefix, not counting the empty one before a leading slash.
const SEGMENTS: usize = 2;
/// Pairs of a response that are counted individually. The rest is estimated from its bytes.
const PAIRS_MAX: u64 = 4096;
/// Length of gRPC's message prefix.
const FRAME_HEAD_BYTES: usize = 5;

/// A key of a request, and the bytes of the pair written to it.
pub(super) type NamedKey = (Bytes, u64);

/// Returns the keys of a request, at most [`OPERATIONS_MAX`]. Undecodable parts yield none.
pub(super) fn named(method: Method, message: Bytes) -> Vec<NamedKey> {
    let mut named = Vec::new();
    match method {
        Method::KvRange => named.extend(RangeRequest::decode(message).ok().map(|range| (range.key, 0))),
        Method::KvPut => named.extend(PutRequest::decode(message).ok().map(put)),
        Method::KvDeleteRange => {
            named.extend(DeleteRangeRequest::decode(message).ok().map(|delete| (delete.key, 0)));
        }
        Method::KvTxn => of_txn(message, &mut named),
        _ => {}
    }
    named
}

fn put(put: PutRequest) -> NamedKey {
    let bytes = (put.key.len() + put.value.len()) as u64;
    (put.key, bytes)
}

/// Reads both branches, since the outcome of the comparison is unknown here. Stops at the limit.
fn of_txn(message: Bytes, named: &mut Vec<NamedKey>) {
    let mut reader = TxnReader::new(message, SHORT_TXN_FIELDS_MAX);
    while named.len() < OPERATIONS_MAX
        && let Ok(Some(part)) = reader.next_part()
    {
        let TxnPart::Op(_, op) = part else { continue };
        named.extend(op.request.and_then(|op| match op {
            Op::RequestRange(range) => Some((range.key, 0)),
            Op::RequestPut(one) => Some(put(one)),
            Op::RequestDeleteRange(delete) => Some((delete.key, 0)),
            Op::RequestTxn(_) => None,
        }));
    }
}

/// Returns the prefix that a key shares with its neighbours: [`SEGMENTS`] segments with the slash after the
/// last, or fewer if there are fewer slashes. Empty if the first 64 bytes have no slash.
pub(super) fn prefix_of(key: &[u8]) -> &[u8] {
    let seen = &key[..key.len().min(PREFIX_BYTES_MAX)];
    let slashes = seen.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
    let segments = SEGMENTS + usize::from(seen.first() == Some(&b'/'));
    &seen[..slashes.take(segments).last().unwrap_or_default()]
}

/// Returns the number of keys that a call read, wrote or deleted, from its framed response.
pub(super) fn keys_of(method: Method, named: usize, frame: Option<&Bytes>) -> u64 {
    let answer = frame.and_then(|frame| frame.get(FRAME_HEAD_BYTES..));
    match (method, answer) {
        (Method::KvRange | Method::KvDeleteRange, Some(answer)) => field_two(answer),
        (Method::KvRange | Method::KvDeleteRange, None) => 0,
        _ => named as u64,
    }
}

/// Decodes field 2 of a response: the pairs of a range, one each, or the number of deleted keys.
fn field_two(answer: &[u8]) -> u64 {
    let (mut rest, mut count) = (answer, 0u64);
    while rest.has_remaining() {
        let Ok((tag, kind)) = decode_key(&mut rest) else { return count };
        if (tag, kind) == (2, WireType::Varint) {
            return decode_varint(&mut rest).unwrap_or(count);
        }
        if skip_field(kind, tag, &mut rest, DecodeContext::default()).is_err() {
            return count;
        }
        count += u64::from(tag == 2);
        if count == PAIRS_MAX {
            let seen = (answer.len() - rest.len()) as u64;
            return count * answer.len() as u64 / seen;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{DeleteRangeResponse, RangeResponse, RequestOp, TxnRequest};
    use api::mvccpb::KeyValue;

    #[test]
    fn a_prefix_ends_with_a_slash_and_is_short() {
        let long = format!("a/{}/x", "y".repeat(1 << 20));
        for (key, prefix) in [
            ("/registry/pods/default/x", "/registry/pods/"),
            ("/registry/pods", "/registry/"),
            ("app/web/1", "app/web/"),
            ("app/web", "app/"),
            ("/", "/"),
            ("//x", "//"),
            ("plain", ""),
            ("", ""),
            (&long, "a/"),
        ] {
            assert_eq!(prefix_of(key.as_bytes()), prefix.as_bytes(), "{key:.40}");
        }
    }

    fn framed(message: &impl Message) -> Bytes {
        [&[0; FRAME_HEAD_BYTES], message.encode_to_vec().as_slice()].concat().into()
    }

    #[test]
    fn keys_are_counted_in_the_answer() {
        let range = |pairs| {
            let pair = KeyValue { key: "k".into(), value: vec![7; 100].into(), ..KeyValue::default() };
            framed(&RangeResponse { kvs: vec![pair; pairs], count: 9, ..RangeResponse::default() })
        };
        let deleted = framed(&DeleteRangeResponse { deleted: 7, ..DeleteRangeResponse::default() });
        assert_eq!(keys_of(Method::KvRange, 1, Some(&range(0))), 0);
        assert_eq!(keys_of(Method::KvRange, 1, Some(&range(3))), 3);
        assert!((9_990..=10_010).contains(&keys_of(Method::KvRange, 1, Some(&range(10_000)))));
        assert_eq!(keys_of(Method::KvDeleteRange, 1, Some(&deleted)), 7);
        assert_eq!(keys_of(Method::KvPut, 1, None), 1);
        assert_eq!(keys_of(Method::KvRange, 1, Some(&Bytes::from_static(b"\0\0\0\0\x05\xff\xff\xff"))), 0);
    }

    #[test]
    fn a_transaction_names_its_first_operations() {
        let put = PutRequest { key: "k/1".into(), value: "v".into(), ..PutRequest::default() };
        let op = RequestOp { request: Some(Op::RequestPut(put)) };
        let txn = TxnRequest { success: vec![op; 100], ..TxnRequest::default() };
        let mut message = txn.encode_to_vec();
        // The bytes after them are not decoded.
        message.push(0xff);
        let named = named(Method::KvTxn, message.into());
        assert_eq!((named.len(), named[0].clone()), (OPERATIONS_MAX, ("k/1".into(), 4)));
    }
}
