//! Any bytes as requests of clients: decoded, validated, proposed and applied as a server does it.
//!
//! Laws: no panic; what the service proposes is decoded by apply to the same request; two members give the
//! same outcomes; the keys are those of a `BTreeMap` that was changed by the same requests.

#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response as OpResponse;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mvcc::{LogPosition, MemoryBackend, StoreOptions};
use prost::Message;
use state_machine::command::{self, Kind};
use state_machine::{Answer, EtcdMachine, Genesis, Response, range, read_txn, validate};

/// As the default of `--max-txn-ops`.
const TXN_OPS_MAX: usize = 128;

fuzz_target!(|input: &[u8]| {
    let mut world = World::new();
    let mut rest = input;
    // Two bytes: the method, and the length of its request; 255 takes all that is left.
    while let [method, length, tail @ ..] = rest {
        let length = if *length == u8::MAX { tail.len() } else { usize::from(*length).min(tail.len()) };
        let (request, tail) = tail.split_at(length);
        rest = tail;
        world.call(*method, Bytes::copy_from_slice(request));
    }
    world.compare();
});

/// A key's value, and the revisions and version that clients see.
type Oracle = BTreeMap<Bytes, (Bytes, i64, i64, i64)>;

struct World {
    members: [EtcdMachine; 2],
    index: u64,
    oracle: Oracle,
}

impl World {
    fn new() -> World {
        let member = || {
            let (writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
            EtcdMachine::new(writer, &Genesis::default()).unwrap()
        };
        World { members: [member(), member()], index: 0, oracle: Oracle::new() }
    }

    /// As the service: decode, validate, then read or propose.
    fn call(&mut self, method: u8, message: Bytes) {
        match method % 6 {
            0 | 1 => {
                let Ok(put) = PutRequest::decode(message) else { return };
                if validate::put(&put).is_ok() {
                    self.propose(Kind::Put(put));
                }
            }
            2 => {
                let Ok(delete) = DeleteRangeRequest::decode(message) else { return };
                if validate::delete_range(&delete).is_ok() {
                    self.propose(Kind::DeleteRange(delete));
                }
            }
            3 => {
                let Ok(txn) = command::decode_txn(message, TXN_OPS_MAX) else { return };
                validate::txn_cost(&txn);
                if validate::txn(&txn, TXN_OPS_MAX).is_err() {
                    return;
                }
                if validate::is_read_only(&txn) {
                    drop(read_txn(self.members[0].store(), &txn, &()));
                } else {
                    self.propose(Kind::Txn(txn));
                }
            }
            4 => {
                let Ok(request) = RangeRequest::decode(message) else { return };
                if validate::range(&request).is_ok() {
                    drop(range(self.members[0].store(), &request, &()));
                }
            }
            _ => {
                let Ok(compact) = CompactionRequest::decode(message) else { return };
                self.propose(Kind::Compact(compact));
            }
        }
    }

    fn propose(&mut self, kind: Kind) {
        let command = command::encode(kind.clone());
        assert_eq!(command::decode(&command).expect("what is proposed can be applied"), kind);
        // As for the driver: one member may have decoded it before, the other has not.
        self.members[0].cost(&command);
        self.index += 1;
        let at = LogPosition::new(self.index, 1);
        let [outcome, other] = self.members.each_mut().map(|member| {
            let outcome = member.apply(at, &command, Answer::Wanted).expect("no command breaks the store");
            member.end_entry(at).expect("memory does not fail");
            outcome.expect("the answer is wanted")
        });
        assert_eq!(outcome, other);
        let Ok(response) = outcome else { return };
        let revision = self.members[0].store().revision();
        match (kind, response) {
            (Kind::Put(put), Response::Put(_)) => apply_put(&mut self.oracle, put, revision),
            (Kind::DeleteRange(delete), Response::DeleteRange(response)) => {
                assert_eq!(apply_delete(&mut self.oracle, &delete), response.deleted);
            }
            (Kind::Txn(txn), Response::Txn(response)) => {
                apply_txn(&mut self.oracle, txn, response, revision);
            }
            (Kind::Compact(_), Response::Compact(_)) => {}
            (kind, response) => panic!("{kind:?} was answered with {response:?}"),
        }
    }

    fn compare(&self) {
        let all =
            RangeRequest { key: b"\0"[..].into(), range_end: b"\0"[..].into(), ..RangeRequest::default() };
        let [answer, other] = self.members.each_ref().map(|member| range(member.store(), &all, &()).unwrap());
        assert_eq!(answer, other);
        let stored: Oracle = answer
            .kvs
            .into_iter()
            .map(|kv| (kv.key, (kv.value, kv.create_revision, kv.mod_revision, kv.version)))
            .collect();
        assert_eq!(stored, self.oracle);
        let [hash, other] = self.members.each_ref().map(|member| member.store().hash_kv(0).unwrap());
        assert_eq!(hash, other);
    }
}

fn apply_put(oracle: &mut Oracle, put: PutRequest, revision: i64) {
    let (kept, create, version) = match oracle.get(&put.key) {
        Some((value, create, _, version)) => (value.clone(), *create, version + 1),
        None => (Bytes::new(), revision, 1),
    };
    let value = if put.ignore_value { kept } else { put.value };
    oracle.insert(put.key, (value, create, revision, version));
}

fn apply_delete(oracle: &mut Oracle, delete: &DeleteRangeRequest) -> i64 {
    let key = &delete.key;
    let end = match &delete.range_end[..] {
        b"" => Bound::Included(key),
        b"\0" => Bound::Unbounded,
        end if end <= &key[..] => return 0,
        _ => Bound::Excluded(&delete.range_end),
    };
    let range = (Bound::Included(key), end);
    let keys: Vec<Bytes> = oracle.range::<Bytes, _>(range).map(|(key, _)| key.clone()).collect();
    keys.iter().for_each(|key| drop(oracle.remove(key)));
    keys.len() as i64
}

/// The branch that was taken is the machine's to say; what it did is the oracle's.
fn apply_txn(oracle: &mut Oracle, txn: TxnRequest, response: TxnResponse, revision: i64) {
    let ops = if response.succeeded { txn.success } else { txn.failure };
    assert_eq!(ops.len(), response.responses.len());
    for (op, answered) in ops.into_iter().zip(response.responses) {
        match (op, answered.response.expect("every operation is answered")) {
            (RequestOp { request: Some(Request::RequestPut(put)) }, OpResponse::ResponsePut(_)) => {
                apply_put(oracle, put, revision);
            }
            (
                RequestOp { request: Some(Request::RequestDeleteRange(delete)) },
                OpResponse::ResponseDeleteRange(response),
            ) => assert_eq!(apply_delete(oracle, &delete), response.deleted),
            (RequestOp { request: Some(Request::RequestTxn(txn)) }, OpResponse::ResponseTxn(response)) => {
                apply_txn(oracle, txn, response, revision);
            }
            (RequestOp { request: Some(Request::RequestRange(_)) }, OpResponse::ResponseRange(_)) => {}
            (op, answered) => panic!("{op:?} was answered with {answered:?}"),
        }
    }
}
