//! The oracle: what etcd's rules make of each command, in the plainest way there is.
//!
//! * Every version of every key is kept for ever: history is answered from a list, not from an index.
//! * Answers are boiled down to a few numbers ([`Summary`]), so that a real answer and the oracle's are compared as such.
//!
//! Shares no code with `mvcc` or `state-machine` beyond the shapes of requests.

use std::collections::BTreeMap;

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response as Op;
use api::etcdserverpb::{Compare, RangeRequest, RangeResponse, TxnRequest};
use bytes::Bytes;
use state_machine::command::Kind;
use state_machine::{Outcome, Response};

use crate::chance::{fold, fold_number};

/// An answer in numbers: its kind, its revision, and what distinguishes it from others of its kind.
pub(crate) type Summary = Vec<i64>;

const PUT: i64 = 1;
const DELETE: i64 = 2;
const TXN: i64 = 3;
const COMPACT: i64 = 4;
const REFUSED: i64 = 5;

#[derive(Clone, Debug)]
struct Version {
    main: i64,
    create: i64,
    /// 0 for a tombstone.
    version: i64,
    value: Bytes,
}

/// A change of one key, as a watcher is to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub key: Bytes,
    pub main: i64,
    /// `None`: the key was deleted.
    pub put: Option<Pair>,
    /// The key just before.
    pub previous: Option<Pair>,
}

/// What a key held after a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub value: Bytes,
    pub create: i64,
    pub main: i64,
    pub version: i64,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub revision: i64,
    pub compact_revision: i64,
    /// Every change, in the order of their revisions and operations.
    changes: Vec<Change>,
    /// Oldest first.
    keys: BTreeMap<Bytes, Vec<Version>>,
}

impl Default for Model {
    fn default() -> Self {
        Model { revision: 1, compact_revision: -1, changes: Vec::new(), keys: BTreeMap::new() }
    }
}

/// Why a range is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Compacted = 1,
    Future = 2,
}

impl Model {
    /// Carries out a command and foretells its answer.
    pub fn apply(&mut self, kind: &Kind) -> Result<Summary, String> {
        match kind {
            Kind::Put(put) => {
                self.put(&put.key, &put.value, self.revision + 1);
                self.revision += 1;
                Ok(vec![PUT, self.revision])
            }
            Kind::DeleteRange(delete) => {
                let count = self.delete(&delete.key, &delete.range_end, self.revision + 1);
                self.revision += i64::from(count > 0);
                Ok(vec![DELETE, self.revision, count])
            }
            Kind::Txn(txn) => self.txn(txn),
            Kind::Compact(compact) if compact.revision <= self.compact_revision => {
                Ok(refused(Refusal::Compacted))
            }
            Kind::Compact(compact) if compact.revision > self.revision => Ok(refused(Refusal::Future)),
            Kind::Compact(compact) => {
                self.compact_revision = compact.revision;
                Ok(vec![COMPACT, self.revision])
            }
            Kind::Alarm(_)
            | Kind::PublishMember(_)
            | Kind::LeaseGrant(_)
            | Kind::LeaseRevoke(_)
            | Kind::LeaseExpire(_)
            | Kind::LeaseRenew(_) => Err("a command that no client sent was applied".into()),
        }
    }

    /// Keys of a range, with a digest of them, as a store at `revision`, compacted to `compact_revision`, must
    /// answer it.
    pub fn range(
        &self,
        request: &RangeRequest,
        revision: i64,
        compact_revision: i64,
    ) -> Result<(i64, u64), Refusal> {
        let at = if request.revision <= 0 { revision } else { request.revision };
        if at > revision {
            return Err(Refusal::Future);
        }
        if at < compact_revision {
            return Err(Refusal::Compacted);
        }
        let (mut count, mut digest) = (0, 0);
        for (key, history) in self.within(&request.key, &request.range_end) {
            let Some(found) = history.iter().rev().find(|version| version.main <= at) else { continue };
            if found.version > 0 {
                count += 1;
                digest = fold_pair(digest, key, &found.value, [found.create, found.main, found.version]);
            }
        }
        Ok((count, digest))
    }

    fn within<'m>(
        &'m self,
        key: &'m Bytes,
        end: &'m Bytes,
    ) -> impl Iterator<Item = (&'m Bytes, &'m Vec<Version>)> {
        let inside = move |at: &Bytes| if end.is_empty() { at == key } else { at < end };
        self.keys.range(key.clone()..).take_while(move |(at, _)| inside(at))
    }

    fn newest(&self, key: &Bytes) -> Option<&Version> {
        self.keys.get(key)?.last().filter(|newest| newest.version > 0)
    }

    /// Changes of main revisions from `first` to `last`, in order.
    pub fn changes(&self, first: i64, last: i64) -> &[Change] {
        let before = |revision: i64| self.changes.partition_point(|change| change.main < revision);
        let (from, to) = (before(first), before(last.saturating_add(1)));
        &self.changes[from..to.max(from)]
    }

    fn note_change(&mut self, key: &Bytes, main: i64, put: Option<Pair>) {
        let pair = |found: &Version| Pair {
            value: found.value.clone(),
            create: found.create,
            main: found.main,
            version: found.version,
        };
        let previous = self.newest(key).map(pair);
        self.changes.push(Change { key: key.clone(), main, put, previous });
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, main: i64) {
        let (create, version) =
            self.newest(key).map_or((main, 1), |newest| (newest.create, newest.version + 1));
        let written = Version { main, create, version, value: value.clone() };
        self.note_change(key, main, Some(Pair { value: value.clone(), create, main, version }));
        self.keys.entry(key.clone()).or_default().push(written);
    }

    fn delete(&mut self, key: &Bytes, end: &Bytes, main: i64) -> i64 {
        let doomed: Vec<Bytes> = self
            .within(key, end)
            .filter(|(_, history)| history.last().is_some_and(|newest| newest.version > 0))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &doomed {
            self.note_change(key, main, None);
            let tombstone = Version { main, create: 0, version: 0, value: Bytes::new() };
            self.keys.get_mut(key).expect("found just now").push(tombstone);
        }
        doomed.len() as i64
    }

    fn txn(&mut self, txn: &TxnRequest) -> Result<Summary, String> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { &txn.success } else { &txn.failure };
        for op in ops {
            if let Some(Request::RequestRange(range)) = &op.request
                && let Err(refusal) = self.range(range, self.revision, self.compact_revision)
            {
                return Ok(refused(refusal));
            }
        }
        let main = self.revision + 1;
        let mut summary = vec![TXN, 0, i64::from(succeeded)];
        let mut changed = false;
        for op in ops {
            match &op.request {
                Some(Request::RequestPut(put)) => {
                    self.put(&put.key, &put.value, main);
                    changed = true;
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let count = self.delete(&delete.key, &delete.range_end, main);
                    changed |= count > 0;
                    summary.push(count);
                }
                Some(Request::RequestRange(range)) => {
                    let visible = self.revision + i64::from(changed);
                    let (count, digest) = self
                        .range(range, visible, self.compact_revision)
                        .map_err(|refusal| format!("a range that was checked is {refusal:?}"))?;
                    summary.extend([count, digest as i64]);
                }
                Some(Request::RequestTxn(_)) | None => return Err("an operation that no client sent".into()),
            }
        }
        self.revision += i64::from(changed);
        summary[1] = self.revision;
        Ok(summary)
    }

    /// A key that is not there has version and revisions 0, and no value that could be equal to anything.
    fn holds(&self, compare: &Compare) -> bool {
        let found = self.newest(&compare.key);
        let number = |wanted: i64, is: fn(&Version) -> i64| found.map_or(0, is).cmp(&wanted);
        let order = match (&compare.target_union, compare.target()) {
            (Some(TargetUnion::Version(wanted)), CompareTarget::Version) => number(*wanted, |v| v.version),
            (Some(TargetUnion::CreateRevision(wanted)), CompareTarget::Create) => {
                number(*wanted, |v| v.create)
            }
            (Some(TargetUnion::ModRevision(wanted)), CompareTarget::Mod) => number(*wanted, |v| v.main),
            (Some(TargetUnion::Value(wanted)), CompareTarget::Value) => match found {
                Some(found) => found.value.cmp(wanted),
                None => return false,
            },
            other => unreachable!("clients compare nothing like {other:?}"),
        };
        match compare.result() {
            CompareResult::Equal => order.is_eq(),
            CompareResult::Greater => order.is_gt(),
            CompareResult::Less => order.is_lt(),
            CompareResult::NotEqual => order.is_ne(),
        }
    }
}

fn refused(refusal: Refusal) -> Summary {
    vec![REFUSED, 0, refusal as i64]
}

fn fold_pair(digest: u64, key: &[u8], value: &[u8], numbers: [i64; 3]) -> u64 {
    numbers.iter().fold(fold(fold(digest, key), value), |digest, number| fold_number(digest, *number as u64))
}

/// A real range in the oracle's words.
pub(crate) fn digest_of(range: &RangeResponse) -> (i64, u64) {
    let fold = |digest, kv: &api::mvccpb::KeyValue| {
        fold_pair(digest, &kv.key, &kv.value, [kv.create_revision, kv.mod_revision, kv.version])
    };
    (range.count, range.kvs.iter().fold(0, fold))
}

/// A real answer in the oracle's words.
pub(crate) fn summary_of(outcome: &Outcome) -> Summary {
    let revision =
        |header: &Option<api::etcdserverpb::ResponseHeader>| header.as_ref().map_or(0, |h| h.revision);
    match outcome {
        Ok(Response::Put(put)) => vec![PUT, revision(&put.header)],
        Ok(Response::DeleteRange(delete)) => vec![DELETE, revision(&delete.header), delete.deleted],
        Ok(Response::Compact(compact)) => vec![COMPACT, revision(&compact.header)],
        Ok(Response::Txn(txn)) => {
            let mut summary = vec![TXN, revision(&txn.header), i64::from(txn.succeeded)];
            for op in &txn.responses {
                match &op.response {
                    Some(Op::ResponseDeleteRange(delete)) => summary.push(delete.deleted),
                    Some(Op::ResponseRange(range)) => {
                        let (count, digest) = digest_of(range);
                        summary.extend([count, digest as i64]);
                    }
                    Some(Op::ResponsePut(_) | Op::ResponseTxn(_)) | None => {}
                }
            }
            summary
        }
        Ok(Response::Alarm(_) | Response::PublishMember | Response::LeaseRenew) => vec![0],
        Ok(Response::LeaseGrant(_) | Response::LeaseRevoke(_) | Response::LeaseExpire(_)) => vec![0],
        Err(api::Error::Compacted) => refused(Refusal::Compacted),
        Err(api::Error::FutureRev) => refused(Refusal::Future),
        Err(_) => vec![REFUSED, 0, 0],
    }
}

/// The revision that an answer names; none for a refusal.
pub(crate) fn revision_of(summary: &[i64]) -> Option<i64> {
    (summary[0] != REFUSED).then(|| summary[1])
}

/// Whether the answer stands for a change: then its revision is its own.
pub(crate) fn is_change(summary: &[i64]) -> bool {
    summary[0] == PUT
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp};

    use super::*;

    fn put(key: &'static str, value: &'static str) -> PutRequest {
        PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
    }

    fn model() -> Model {
        let mut model = Model::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            model.apply(&Kind::Put(put(key, value))).expect("a client's command");
        }
        model
    }

    fn count(model: &Model, key: &'static str, end: &'static str, at: i64) -> Result<i64, Refusal> {
        let range =
            RangeRequest { key: key.into(), range_end: end.into(), revision: at, ..RangeRequest::default() };
        model.range(&range, model.revision, model.compact_revision).map(|(count, _)| count)
    }

    #[test]
    fn history_is_kept_and_what_is_compacted_is_refused() {
        let mut model = model();
        let delete = DeleteRangeRequest { key: "a".into(), range_end: "z".into(), prev_kv: false };
        assert_eq!(model.apply(&Kind::DeleteRange(delete.clone())), Ok(vec![DELETE, 5, 2]));
        assert_eq!(model.apply(&Kind::DeleteRange(delete)), Ok(vec![DELETE, 5, 0]), "nothing is no revision");
        let counts = [1, 2, 3, 4, 5, 6].map(|at| count(&model, "a", "z", at));
        assert_eq!(counts, [Ok(0), Ok(1), Ok(2), Ok(2), Ok(0), Err(Refusal::Future)]);
        let compact = |revision| Kind::Compact(CompactionRequest { revision, physical: false });
        assert_eq!(model.apply(&compact(3)), Ok(vec![COMPACT, 5]));
        assert_eq!(model.apply(&compact(3)), Ok(refused(Refusal::Compacted)));
        assert_eq!(model.apply(&compact(6)), Ok(refused(Refusal::Future)));
        assert_eq!([2, 3].map(|at| count(&model, "a", "z", at)), [Err(Refusal::Compacted), Ok(2)]);
    }

    #[test]
    fn a_transaction_is_one_revision_and_sees_itself() {
        let mut model = model();
        let compare = Compare {
            target: CompareTarget::Version as i32,
            key: "a".into(),
            target_union: Some(TargetUnion::Version(2)),
            ..Compare::default()
        };
        let op = |request| RequestOp { request: Some(request) };
        let range = RangeRequest { key: "a".into(), range_end: "z".into(), ..RangeRequest::default() };
        let success = vec![op(Request::RequestPut(put("c", "4"))), op(Request::RequestRange(range.clone()))];
        let txn =
            TxnRequest { compare: vec![compare], success, failure: vec![op(Request::RequestRange(range))] };
        let first = model.apply(&Kind::Txn(txn.clone())).expect("a client's command");
        assert_eq!(first[..4], [TXN, 5, 1, 3]);
        model.apply(&Kind::Put(put("a", "5"))).expect("a client's command");
        let second = model.apply(&Kind::Txn(txn)).expect("a client's command");
        assert_eq!(second[..4], [TXN, 6, 0, 3], "the other branch changes nothing");
    }
}
