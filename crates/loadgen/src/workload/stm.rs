//! Software transactional memory: transactions that read some keys, write some of them, and commit only if
//! their dependencies are unchanged.
//!
//! ```text
//!   read each key ──▶ compares (read set, write set) + puts ──▶ committed
//!        ▲                                             └──conflict──┐
//!        └── read again, or take the values from the answer ◀───────┘
//! ```
//!
//! * Requests are those of etcd's Go client: one transaction per read, one to commit.
//! * Reads of the serializable levels use a single revision, that of the first read. The response to a
//!   conflict contains the reads of the next attempt.
//!
//! Independent of connections and time.

use crate::workload::keys::KeySequence;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse};
use bench_report::model::{Isolation, KeyOrder, Locker};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeSet;

/// Key length, like in etcd's tool.
pub const KEY_BYTES: usize = 16;

/// Parameters of transactions.
#[derive(Clone, Debug, PartialEq)]
pub struct Stm {
    /// Number of keys that transactions choose from.
    pub keys: u64,
    pub keys_per_txn: usize,
    /// Percentage of the keys of a transaction that are written.
    pub write_percent: usize,
    pub value_bytes: usize,
    pub prefix: Bytes,
    pub isolation: Isolation,
    pub locker: Locker,
    pub seed: u64,
}

/// A transaction, over all its attempts.
#[derive(Clone, Debug)]
pub struct Transaction {
    isolation: Isolation,
    keys: Vec<Bytes>,
    /// Values of the first keys.
    values: Vec<Bytes>,
    /// Reads of the first keys.
    reads: Vec<TxnRead>,
    pub retries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TxnRead {
    mod_revision: i64,
    revision: i64,
}

/// Next step of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum TxnNext {
    Send(TxnRequest),
    Committed,
}

impl Stm {
    pub fn transaction(&self, position: u64) -> Transaction {
        let mut random = SmallRng::seed_from_u64(self.seed ^ position);
        let mut numbers = BTreeSet::new();
        while numbers.len() < self.keys_per_txn {
            numbers.insert(random.random_range(0..self.keys));
        }
        let mut names = KeySequence::new(KeyOrder::Sequential, self.keys, KEY_BYTES - self.prefix.len(), 0);
        let keys = numbers.into_iter().map(|number| {
            let mut key = vec![0; KEY_BYTES];
            key[..self.prefix.len()].copy_from_slice(&self.prefix);
            names.write(number, &mut key[self.prefix.len()..]);
            Bytes::from(key)
        });
        let value = |_| {
            let mut value = vec![0; self.value_bytes];
            random.fill_bytes(&mut value);
            Bytes::from(value)
        };
        let keys: Vec<_> = keys.collect();
        let values = (0..keys.len() * self.write_percent / 100).map(value).collect();
        Transaction { isolation: self.isolation, keys, values, reads: Vec::new(), retries: 0 }
    }
}

fn is_serializable(isolation: Isolation) -> bool {
    match isolation {
        Isolation::ReadCommitted | Isolation::RepeatableReads => false,
        Isolation::Serializable | Isolation::SerializableSnapshot => true,
    }
}

impl Transaction {
    pub fn begin(&self) -> TxnRequest {
        match self.keys.get(self.reads.len()) {
            Some(key) => TxnRequest { success: vec![self.read(key)], ..Default::default() },
            None => self.commit(),
        }
    }

    /// Handles the response to the last request.
    pub fn answered(&mut self, answer: TxnResponse) -> TxnNext {
        let committing = self.reads.len() == self.keys.len();
        if committing && answer.succeeded {
            return TxnNext::Committed;
        }
        if committing {
            self.retries += 1;
            self.reads.clear();
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        for response in answer.responses {
            let Some(Response::ResponseRange(range)) = response.response else { continue };
            let revision = range.header.map_or(revision, |header| header.revision);
            let mod_revision = range.kvs.first().map_or(0, |kv| kv.mod_revision);
            self.reads.push(TxnRead { mod_revision, revision });
        }
        TxnNext::Send(self.begin())
    }

    fn read(&self, key: &Bytes) -> RequestOp {
        let (serializable, revision) = match self.reads.first() {
            _ if !is_serializable(self.isolation) => (true, 0),
            None => (false, 0),
            Some(first) => (true, first.revision),
        };
        let range = RangeRequest { key: key.clone(), serializable, revision, ..Default::default() };
        RequestOp { request: Some(Request::RequestRange(range)) }
    }

    fn commit(&self) -> TxnRequest {
        let compare = |key: &Bytes, result: CompareResult, revision: i64| Compare {
            result: result.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Default::default()
        };
        let read_set = self.keys.iter().zip(&self.reads);
        let mut compares: Vec<_> =
            read_set.map(|(key, read)| compare(key, CompareResult::Equal, read.mod_revision)).collect();
        let written = || self.keys.iter().zip(&self.values);
        match self.isolation {
            Isolation::ReadCommitted => compares.clear(),
            Isolation::RepeatableReads | Isolation::Serializable => {}
            Isolation::SerializableSnapshot => {
                let first = self.reads.iter().map(|read| read.revision).min().unwrap_or(i64::MAX - 1);
                compares.extend(written().map(|(key, _)| compare(key, CompareResult::Less, first + 1)));
            }
        }
        let put = |(key, value): (&Bytes, &Bytes)| {
            let put = PutRequest { key: key.clone(), value: value.clone(), ..Default::default() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        };
        let again = |key: &Bytes| {
            let range = RangeRequest { key: key.clone(), ..Default::default() };
            RequestOp { request: Some(Request::RequestRange(range)) }
        };
        let failure = if is_serializable(self.isolation) { &self.keys[..] } else { &[] };
        TxnRequest {
            compare: compares,
            success: written().map(put).collect(),
            failure: failure.iter().map(again).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{RangeResponse, ResponseHeader, ResponseOp};
    use api::mvccpb::KeyValue;

    const STM: Stm = Stm {
        prefix: Bytes::new(),
        keys: 100,
        keys_per_txn: 2,
        write_percent: 50,
        value_bytes: 4,
        isolation: Isolation::Serializable,
        locker: Locker::None,
        seed: 3,
    };

    /// Returns a response at `revision` with a range per mod revision.
    fn answer(succeeded: bool, revision: i64, mod_revisions: &[i64]) -> TxnResponse {
        let header = Some(ResponseHeader { revision, ..Default::default() });
        let range = |&mod_revision: &i64| {
            let kv = KeyValue { mod_revision, ..Default::default() };
            let kvs = if mod_revision == 0 { Vec::new() } else { vec![kv] };
            let range = RangeResponse { header, kvs, ..Default::default() };
            ResponseOp { response: Some(Response::ResponseRange(range)) }
        };
        TxnResponse { header, succeeded, responses: mod_revisions.iter().map(range).collect() }
    }

    /// Summarizes a request: compares, then operations, else operations.
    fn brief(request: &TxnRequest) -> String {
        let compares = request.compare.iter().map(|compare| {
            let Some(TargetUnion::ModRevision(revision)) = compare.target_union else {
                panic!("{compare:?}")
            };
            let sign = if compare.result() == CompareResult::Equal { "=" } else { "<" };
            format!("mod{sign}{revision}")
        });
        let op = |op: &RequestOp| match op.request.as_ref().unwrap() {
            Request::RequestRange(range) if range.revision > 0 => format!("get@{}", range.revision),
            Request::RequestRange(range) if range.serializable => "get-s".into(),
            Request::RequestRange(_) => "get".into(),
            Request::RequestPut(_) => "put".into(),
            other => panic!("{other:?}"),
        };
        let (yes, no) = (request.success.iter().map(op), request.failure.iter().map(op));
        let words: Vec<String> = compares.chain(yes).chain(["|".to_owned()]).chain(no).collect();
        words.join(" ")
    }

    #[test]
    fn each_level_reads_compares_and_retries_as_the_go_client() {
        for (isolation, reads, commit, after_conflict) in [
            (Isolation::ReadCommitted, ["get-s |", "get-s |"], "put |", "get-s |"),
            (Isolation::RepeatableReads, ["get-s |", "get-s |"], "mod=7 mod=0 put |", "get-s |"),
            (
                Isolation::Serializable,
                ["get |", "get@40 |"],
                "mod=7 mod=0 put | get get",
                "mod=44 mod=45 put | get get",
            ),
            (
                Isolation::SerializableSnapshot,
                ["get |", "get@40 |"],
                "mod=7 mod=0 mod<41 put | get get",
                "mod=44 mod=45 mod<51 put | get get",
            ),
        ] {
            let mut transaction = Stm { isolation, ..STM }.transaction(0);
            assert_eq!(brief(&transaction.begin()), reads[0], "{isolation:?}");
            let mut next = |answer| match transaction.answered(answer) {
                TxnNext::Send(request) => brief(&request),
                TxnNext::Committed => "committed".into(),
            };
            assert_eq!(next(answer(true, 40, &[7])), reads[1], "{isolation:?}");
            assert_eq!(next(answer(true, 43, &[0])), commit, "{isolation:?}");
            let reread: &[i64] = if is_serializable(isolation) { &[44, 45] } else { &[] };
            assert_eq!(next(answer(false, 50, reread)), after_conflict, "{isolation:?}");
            assert_eq!(transaction.retries, 1);
            if is_serializable(isolation) {
                assert_eq!(transaction.answered(answer(true, 51, &[])), TxnNext::Committed);
            }
        }
    }

    #[test]
    fn a_transaction_has_distinct_keys_and_writes_its_share_of_them() {
        for (keys, per_txn, percent, writes) in
            [(1, 1, 50, 0), (1, 1, 100, 1), (100, 10, 50, 5), (10, 10, 33, 3), (5, 0, 50, 0)]
        {
            let stm = Stm { keys, keys_per_txn: per_txn, write_percent: percent, ..STM };
            for position in 0..50 {
                let transaction = stm.transaction(position);
                let distinct: BTreeSet<_> = transaction.keys.iter().collect();
                assert_eq!((distinct.len(), transaction.values.len()), (per_txn, writes));
                let stm = Stm { prefix: "lgen/".into(), ..stm.clone() };
                assert!(stm.transaction(position).keys.iter().all(|key| key.starts_with(b"lgen/")));
            }
        }
    }

    #[test]
    fn a_transaction_without_keys_commits_at_once() {
        let mut transaction = Stm { keys_per_txn: 0, ..STM }.transaction(0);
        assert_eq!(transaction.begin(), TxnRequest::default());
        assert_eq!(transaction.answered(answer(true, 1, &[])), TxnNext::Committed);
    }
}
