//! Requests of attackers, encoded and as calls.

use std::io;
use std::time::Duration;

use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{HashKvRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use prost::Message;
use prost::encoding::encode_varint;
use tonic::transport::{Channel, Endpoint};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const PUT: &str = "/etcdserverpb.KV/Put";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";

/// h2 closes a connection once small responses add up to half of this window; this suffices for
/// hundreds of thousands.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Field 2 of TxnRequest, `success`, and field 4 of RequestOp, `request_txn`: tags with wire type 2.
const SUCCESS: u8 = 2 << 3 | 2;
const REQUEST_TXN: u8 = 4 << 3 | 2;
/// Default limit of a request, minus etcd's overhead.
const REQUEST_BYTES_MAX: usize = (3 << 20) / 2 - 1024;
/// Largest message by default.
const MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Default limit of operations per transaction.
const OPERATIONS_MAX: usize = 128;

/// Opens a compliant connection; calls time out after `timeout`.
pub async fn connect(port: u16, timeout: Duration) -> io::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).map_err(io::Error::other)?;
    let endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
    let endpoint = endpoint.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    endpoint.connect().await.map_err(io::Error::other)
}

pub async fn kv(port: u16) -> io::Result<KvClient<Channel>> {
    connect(port, CALL_TIMEOUT).await.map(KvClient::new)
}

pub fn range_of_one() -> Vec<u8> {
    range(b"attack", b"")
}

pub fn range(key: &[u8], end: &[u8]) -> Vec<u8> {
    let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(end));
    RangeRequest { key, range_end, ..RangeRequest::default() }.encode_to_vec()
}

/// Encodes a request for the hash of all keys at the current revision.
pub fn hash_kv() -> Vec<u8> {
    HashKvRequest { revision: 0 }.encode_to_vec()
}

/// Encodes a put within `depth` nested transactions, each the only operation of its parent.
pub fn nested_txn(depth: usize) -> Vec<u8> {
    let put = PutRequest { key: Bytes::from_static(b"deep"), ..PutRequest::default() };
    let innermost = TxnRequest { success: vec![op(Request::RequestPut(put))], ..TxnRequest::default() };
    // Built from the inside out in reverse: each level prepends its tags and lengths.
    let mut reversed: Vec<u8> = innermost.encode_to_vec().into_iter().rev().collect();
    for _ in 1..depth {
        for tag in [REQUEST_TXN, SUCCESS] {
            let mut head = vec![tag];
            encode_varint(reversed.len() as u64, &mut head);
            reversed.extend(head.into_iter().rev());
        }
        if reversed.len() > REQUEST_BYTES_MAX {
            break;
        }
    }
    reversed.reverse();
    reversed
}

/// Encodes a request with the maximum number of operations. etcd subtracts the operations of the
/// parents from the limit of a transaction, so three levels of a third each are the widest. Most
/// operations are reads, because the memory of written values is legitimate.
pub fn wide_txn() -> Vec<u8> {
    const PUTS: usize = 4;
    let width = OPERATIONS_MAX / 3;
    let txn = |success| TxnRequest { success, ..TxnRequest::default() };
    let leaf = |group: usize| {
        let key = |number: usize| Bytes::from(format!("wide/{number:05}"));
        let puts =
            (0..PUTS).map(|number| PutRequest { key: key(group * PUTS + number), ..PutRequest::default() });
        let reads =
            (PUTS..width - 1).map(|number| RangeRequest { key: key(number), ..RangeRequest::default() });
        let page = RangeRequest {
            key: Bytes::from_static(b"attack/"),
            range_end: Bytes::from_static(b"attack0"),
            limit: 100,
            keys_only: true,
            ..RangeRequest::default()
        };
        let reads = reads.chain(std::iter::once(page)).map(Request::RequestRange);
        op(Request::RequestTxn(txn(puts.map(Request::RequestPut).chain(reads).map(op).collect())))
    };
    let middle = |number: usize| {
        op(Request::RequestTxn(txn((0..width).map(|group| leaf(number * width + group)).collect())))
    };
    txn((0..width).map(middle).collect()).encode_to_vec()
}

/// Encodes a million operations without a request, two bytes each, in the largest message.
pub fn countless_txn() -> Vec<u8> {
    [SUCCESS, 0].repeat(MESSAGE_BYTES_MAX / 2)
}

/// Encodes operations without a request below a nested transaction, as many as fit into 64 KiB.
pub fn countless_nested_txn() -> Vec<u8> {
    let txn = |success| TxnRequest { success, ..TxnRequest::default() };
    txn(vec![op(Request::RequestTxn(txn(vec![RequestOp::default(); 32_000])))]).encode_to_vec()
}

/// Returns a put of `bytes` bytes, at most the largest that is allowed.
pub fn large_put(key: Bytes, bytes: usize) -> PutRequest {
    PutRequest { key, value: Bytes::from(vec![b'v'; bytes.min(REQUEST_BYTES_MAX)]), ..PutRequest::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_transaction_is_as_deep_as_asked() {
        for depth in [1, 2, 40] {
            let mut txn = TxnRequest::decode(&nested_txn(depth)[..]).expect("below the limit of prost");
            for _ in 1..depth {
                let Some(RequestOp { request: Some(Request::RequestTxn(inner)) }) = txn.success.pop() else {
                    panic!("no transaction inside");
                };
                txn = inner;
            }
            assert!(matches!(txn.success[0].request, Some(Request::RequestPut(_))));
        }
    }

    #[test]
    fn the_widest_transaction_fits_into_a_request() {
        let bytes = wide_txn();
        assert!(bytes.len() < REQUEST_BYTES_MAX, "{}", bytes.len());
    }
}
