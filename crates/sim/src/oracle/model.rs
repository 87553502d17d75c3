//! The oracle: a straightforward model of etcd's rules for commands.
//!
//! * It stores every version of every key: historical reads scan a list instead of an index.
//! * Responses are reduced to a few numbers ([`Summary`]), for comparison with the oracle's.
//!
//! Shares no code with `mvcc` or `state-machine` except the request types.

use std::collections::BTreeMap;

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response as Op;
use api::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest,
};
use bytes::Bytes;
use raft_node::LogPosition;
use state_machine::command::{Caller, Kind};
use state_machine::{Outcome, Response};

use super::leases::LeaseModel;
use super::members::{LevelModel, MemberModel};
use super::refusal::RefusalReason;
use super::users::UserModel;
use crate::chance::{fold, fold_number};

/// A response as numbers: its kind, its revision, and values that distinguish it from other
/// responses of this kind.
pub(crate) type Summary = Vec<i64>;

const PUT: i64 = 1;
const DELETE: i64 = 2;
const TXN: i64 = 3;
const COMPACT: i64 = 4;
const REFUSED: i64 = 5;
const GRANT: i64 = 6;
const REVOKE: i64 = 7;
const EXPIRE: i64 = 8;
const RENEW: i64 = 9;
const MEMBERS: i64 = 10;
const AUTH: i64 = 11;

#[derive(Clone, Debug)]
struct Version {
    main: i64,
    create: i64,
    /// 0 for a tombstone.
    version: i64,
    value: Bytes,
    lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchedChange {
    pub key: Bytes,
    pub main: i64,
    /// State after the change; `None` if the key was deleted.
    pub put: Option<KeyPair>,
    pub previous: Option<KeyPair>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPair {
    pub value: Bytes,
    pub create: i64,
    pub main: i64,
    pub version: i64,
    pub lease: i64,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub revision: i64,
    pub compact_revision: i64,
    /// All changes, in the order of revisions and operations.
    changes: Vec<WatchedChange>,
    /// Versions of each key, oldest first.
    keys: BTreeMap<Bytes, Vec<Version>>,
    pub leases: LeaseModel,
    pub members: MemberModel,
    pub users: UserModel,
    pub levels: LevelModel,
}

impl Default for Model {
    fn default() -> Self {
        let (changes, keys, leases) = (Vec::new(), BTreeMap::new(), LeaseModel::default());
        let (members, users) = (MemberModel::default(), UserModel::default());
        let levels = LevelModel::default();
        Model { revision: 1, compact_revision: -1, changes, keys, leases, members, users, levels }
    }
}

impl Model {
    /// Executes a command of the entry at `at` and returns the expected response.
    pub fn apply(
        &mut self,
        kind: &Kind,
        caller: Option<&Caller>,
        at: LogPosition,
    ) -> Result<Summary, String> {
        let keys_of = |lease| self.keys_of_lease(lease, self.revision);
        if let Some(refusal) = self.users.refusal(kind, caller, keys_of) {
            return Ok(refused(refusal));
        }
        let term = at.term.0;
        match kind {
            Kind::Put(put) if !self.has_lease(put.lease) => Ok(refused(RefusalReason::LeaseNotFound)),
            Kind::Put(put) => {
                self.put(put, self.revision + 1);
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
                Ok(refused(RefusalReason::Compacted))
            }
            Kind::Compact(compact) if compact.revision > self.revision => Ok(refused(RefusalReason::Future)),
            Kind::Compact(compact) => {
                self.compact_revision = compact.revision;
                Ok(vec![COMPACT, self.revision])
            }
            Kind::LeaseGrant(grant) => Ok(match self.leases.grant(at.index, grant.id, grant.ttl) {
                Ok(ttl) => vec![GRANT, self.revision, grant.id, ttl],
                Err(refusal) => refused(refusal),
            }),
            Kind::LeaseRevoke(revoke) => Ok(match self.leases.revoke(revoke.id) {
                Ok(()) => {
                    self.delete_keys_of(revoke.id);
                    vec![REVOKE, self.revision]
                }
                Err(refusal) => refused(refusal),
            }),
            Kind::LeaseExpire(expire) if expire.term != term => Ok(refused(RefusalReason::LeaderChanged)),
            Kind::LeaseExpire(expire) => {
                let expired = self.leases.expire(expire.now, &expire.ids);
                expired.iter().for_each(|id| self.delete_keys_of(*id));
                Ok(vec![EXPIRE, expired.len() as i64])
            }
            Kind::LeaseRenew(renew) if renew.term != term => Ok(refused(RefusalReason::LeaderChanged)),
            Kind::LeaseRenew(renew) => {
                self.leases.renew(renew);
                Ok(vec![RENEW, 0])
            }
            Kind::MemberChange(change) => {
                let change = change.change.as_ref().ok_or("a change of nothing was applied")?;
                let is_taken = self.members.apply(change);
                let listed = [MEMBERS].into_iter().chain(self.members.summary());
                Ok(if is_taken { listed.collect() } else { vec![REFUSED, 0, 0] })
            }
            Kind::Auth(change) => {
                let change = change.kind.as_ref().ok_or("a change of nothing was applied")?;
                Ok(match self.users.apply(change, at.index) {
                    Ok(token) => vec![AUTH, self.revision, digest_of_token(&token.unwrap_or_default())],
                    Err(refusal) => refused(refusal),
                })
            }
            // The response is only used by the proposing member.
            Kind::RaiseLevel(raise) => {
                self.levels.apply(at.index, raise, &self.members.membership());
                Ok(vec![0])
            }
            Kind::Alarm(_) | Kind::PublishMember(_) | Kind::SetDowngrade(_) => {
                Err("a command that no client sent was applied".into())
            }
        }
    }

    fn has_lease(&self, id: i64) -> bool {
        id == 0 || self.leases.holds(id)
    }

    pub fn keys_of_lease(&self, id: i64, revision: i64) -> Vec<Bytes> {
        let is_attached = |history: &Vec<Version>| {
            let newest = history.iter().rev().find(|version| version.main <= revision);
            newest.is_some_and(|newest| newest.version > 0 && newest.lease == id)
        };
        let attached = self.keys.iter().filter(|(_, history)| is_attached(history));
        attached.map(|(key, _)| key.clone()).collect()
    }

    fn delete_keys_of(&mut self, id: i64) {
        let keys = self.keys_of_lease(id, self.revision);
        let main = self.revision + 1;
        for key in &keys {
            self.delete(key, &Bytes::new(), main);
        }
        self.revision += i64::from(!keys.is_empty());
    }

    /// Returns the expected count and digest of a range, for a store at `revision`, compacted to
    /// `compact_revision`.
    pub fn range(
        &self,
        request: &RangeRequest,
        revision: i64,
        compact_revision: i64,
    ) -> Result<(i64, u64), RefusalReason> {
        let at = if request.revision <= 0 { revision } else { request.revision };
        if at > revision {
            return Err(RefusalReason::Future);
        }
        if at < compact_revision {
            return Err(RefusalReason::Compacted);
        }
        let (mut count, mut digest) = (0, 0);
        for (key, history) in self.within(&request.key, &request.range_end) {
            let Some(found) = history.iter().rev().find(|version| version.main <= at) else { continue };
            if found.version > 0 {
                count += 1;
                digest = fold_pair(
                    digest,
                    key,
                    &found.value,
                    [found.create, found.main, found.version, found.lease],
                );
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

    pub fn changes(&self, first: i64, last: i64) -> &[WatchedChange] {
        let before = |revision: i64| self.changes.partition_point(|change| change.main < revision);
        let (from, to) = (before(first), before(last.saturating_add(1)));
        &self.changes[from..to.max(from)]
    }

    fn note_change(&mut self, key: &Bytes, main: i64, put: Option<KeyPair>) {
        let pair = |found: &Version| KeyPair {
            value: found.value.clone(),
            create: found.create,
            main: found.main,
            version: found.version,
            lease: found.lease,
        };
        let previous = self.newest(key).map(pair);
        self.changes.push(WatchedChange { key: key.clone(), main, put, previous });
    }

    fn put(&mut self, request: &PutRequest, main: i64) {
        let PutRequest { key, value, lease, .. } = request;
        let (create, version) =
            self.newest(key).map_or((main, 1), |newest| (newest.create, newest.version + 1));
        let written = Version { main, create, version, value: value.clone(), lease: *lease };
        let pair = KeyPair { value: value.clone(), create, main, version, lease: *lease };
        self.note_change(key, main, Some(pair));
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
            let tombstone = Version { main, create: 0, version: 0, value: Bytes::new(), lease: 0 };
            self.keys.get_mut(key).expect("found just now").push(tombstone);
        }
        doomed.len() as i64
    }

    fn txn(&mut self, txn: &TxnRequest) -> Result<Summary, String> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { &txn.success } else { &txn.failure };
        if let Some(refusal) = ops.iter().find_map(|op| self.refusal(op)) {
            return Ok(refused(refusal));
        }
        let mut summary = vec![TXN, 0, i64::from(succeeded)];
        let mut changed = false;
        self.operations(ops, &mut changed, &mut summary)?;
        self.revision += i64::from(changed);
        summary[1] = self.revision;
        Ok(summary)
    }

    /// Executes operations of a transaction, in order. Nested transactions have no compares.
    fn operations(
        &mut self,
        ops: &[RequestOp],
        changed: &mut bool,
        summary: &mut Summary,
    ) -> Result<(), String> {
        let main = self.revision + 1;
        for op in ops {
            match &op.request {
                Some(Request::RequestPut(put)) => {
                    self.put(put, main);
                    *changed = true;
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let count = self.delete(&delete.key, &delete.range_end, main);
                    *changed |= count > 0;
                    summary.push(count);
                }
                Some(Request::RequestRange(range)) => {
                    let visible = self.revision + i64::from(*changed);
                    let (count, digest) = self
                        .range(range, visible, self.compact_revision)
                        .map_err(|refusal| format!("a range that was checked is {refusal:?}"))?;
                    summary.extend([count, digest as i64]);
                }
                Some(Request::RequestTxn(inner)) if inner.compare.is_empty() => {
                    self.operations(&inner.success, changed, summary)?;
                }
                Some(Request::RequestTxn(_)) | None => return Err("an operation that no client sent".into()),
            }
        }
        Ok(())
    }

    /// Returns why an operation causes its whole transaction to be rejected.
    fn refusal(&self, op: &RequestOp) -> Option<RefusalReason> {
        match &op.request {
            Some(Request::RequestRange(range)) => {
                self.range(range, self.revision, self.compact_revision).err()
            }
            Some(Request::RequestPut(put)) => {
                (!self.has_lease(put.lease)).then_some(RefusalReason::LeaseNotFound)
            }
            Some(Request::RequestTxn(inner)) => inner.success.iter().find_map(|op| self.refusal(op)),
            _ => None,
        }
    }

    /// Evaluates a compare. A missing key has version and revisions 0, and its value equals no
    /// operand.
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

fn refused(refusal: RefusalReason) -> Summary {
    vec![REFUSED, 0, refusal as i64]
}

fn fold_pair(digest: u64, key: &[u8], value: &[u8], numbers: [i64; 4]) -> u64 {
    numbers.iter().fold(fold(fold(digest, key), value), |digest, number| fold_number(digest, *number as u64))
}

/// Converts a real range response to the oracle's format.
pub(crate) fn digest_of(range: &RangeResponse) -> (i64, u64) {
    let fold = |digest, kv: &api::mvccpb::KeyValue| {
        fold_pair(digest, &kv.key, &kv.value, [kv.create_revision, kv.mod_revision, kv.version, kv.lease])
    };
    (range.count, range.kvs.iter().fold(0, fold))
}

/// Converts a real response to the oracle's format.
pub(crate) fn summary_of(outcome: &Outcome) -> Summary {
    let revision =
        |header: &Option<api::etcdserverpb::ResponseHeader>| header.as_ref().map_or(0, |h| h.revision);
    match outcome {
        Ok(Response::Put(put)) => vec![PUT, revision(&put.header)],
        Ok(Response::DeleteRange(delete)) => vec![DELETE, revision(&delete.header), delete.deleted],
        Ok(Response::Compact(compact)) => vec![COMPACT, revision(&compact.header)],
        Ok(Response::Txn(txn)) => {
            let mut summary = vec![TXN, revision(&txn.header), i64::from(txn.succeeded)];
            summarise(&txn.responses, &mut summary);
            summary
        }
        Ok(Response::LeaseGrant(grant)) => vec![GRANT, revision(&grant.header), grant.id, grant.ttl],
        Ok(Response::LeaseRevoke(revoke)) => vec![REVOKE, revision(&revoke.header)],
        Ok(Response::LeaseExpire(count)) => vec![EXPIRE, *count as i64],
        Ok(Response::LeaseRenew) => vec![RENEW, 0],
        Ok(Response::Members(members)) => {
            let listed = members.iter().flat_map(|member| [member.id as i64, i64::from(member.is_learner)]);
            [MEMBERS].into_iter().chain(listed).collect()
        }
        Ok(Response::Alarm(_) | Response::PublishMember | Response::SetDowngrade | Response::RaiseLevel) => {
            vec![0]
        }
        Ok(Response::Auth(header)) => vec![AUTH, revision(header), digest_of_token("")],
        Ok(Response::Authenticate(issued)) => {
            vec![AUTH, revision(&issued.header), digest_of_token(&issued.token)]
        }
        Err(error) => vec![REFUSED, 0, RefusalReason::of(error).map_or(0, |refusal| refusal as i64)],
    }
}

fn summarise(answers: &[ResponseOp], summary: &mut Summary) {
    for answer in answers {
        match &answer.response {
            Some(Op::ResponseDeleteRange(delete)) => summary.push(delete.deleted),
            Some(Op::ResponseRange(range)) => {
                let (count, digest) = digest_of(range);
                summary.extend([count, digest as i64]);
            }
            Some(Op::ResponseTxn(inner)) => summarise(&inner.responses, summary),
            Some(Op::ResponsePut(_)) | None => {}
        }
    }
}

/// Digests a token. An empty token has a distinct digest.
fn digest_of_token(token: &str) -> i64 {
    fold(AUTH as u64, token.as_bytes()) as i64
}

/// Reports whether the request was rejected because of its user.
pub(crate) fn is_of_access(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|error| RefusalReason::of(error).is_some_and(RefusalReason::is_of_access))
}

/// Returns the revision in a response; none for a rejection.
pub(crate) fn revision_of(summary: &[i64]) -> Option<i64> {
    (summary[0] != REFUSED).then(|| summary[1])
}

/// Reports whether the response belongs to a change, and contains that change's revision.
pub(crate) fn is_change(summary: &[i64]) -> bool {
    summary[0] == PUT
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::{
        CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    };
    use state_machine::command::LeaseRenew;

    use super::*;

    fn put(key: &'static str, value: &'static str) -> PutRequest {
        PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
    }

    fn apply(model: &mut Model, kind: &Kind, term: u64) -> Result<Summary, String> {
        model.apply(kind, None, LogPosition::new(1, term))
    }

    fn model() -> Model {
        let mut model = Model::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            apply(&mut model, &Kind::Put(put(key, value)), 1).expect("a client's command");
        }
        model
    }

    fn count(model: &Model, key: &'static str, end: &'static str, at: i64) -> Result<i64, RefusalReason> {
        let range =
            RangeRequest { key: key.into(), range_end: end.into(), revision: at, ..RangeRequest::default() };
        model.range(&range, model.revision, model.compact_revision).map(|(count, _)| count)
    }

    #[test]
    fn history_is_kept_and_what_is_compacted_is_refused() {
        let mut model = model();
        let delete = DeleteRangeRequest { key: "a".into(), range_end: "z".into(), prev_kv: false };
        assert_eq!(apply(&mut model, &Kind::DeleteRange(delete.clone()), 1), Ok(vec![DELETE, 5, 2]));
        assert_eq!(
            apply(&mut model, &Kind::DeleteRange(delete), 1),
            Ok(vec![DELETE, 5, 0]),
            "nothing is no revision"
        );
        let counts = [1, 2, 3, 4, 5, 6].map(|at| count(&model, "a", "z", at));
        assert_eq!(counts, [Ok(0), Ok(1), Ok(2), Ok(2), Ok(0), Err(RefusalReason::Future)]);
        let compact = |revision| Kind::Compact(CompactionRequest { revision, physical: false });
        assert_eq!(apply(&mut model, &compact(3), 1), Ok(vec![COMPACT, 5]));
        assert_eq!(apply(&mut model, &compact(3), 1), Ok(refused(RefusalReason::Compacted)));
        assert_eq!(apply(&mut model, &compact(6), 1), Ok(refused(RefusalReason::Future)));
        assert_eq!([2, 3].map(|at| count(&model, "a", "z", at)), [Err(RefusalReason::Compacted), Ok(2)]);
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
        let first = apply(&mut model, &Kind::Txn(txn.clone()), 1).expect("a client's command");
        assert_eq!(first[..4], [TXN, 5, 1, 3]);
        apply(&mut model, &Kind::Put(put("a", "5")), 1).expect("a client's command");
        let second = apply(&mut model, &Kind::Txn(txn), 1).expect("a client's command");
        assert_eq!(second[..4], [TXN, 6, 0, 3], "the other branch changes nothing");
    }

    #[test]
    fn the_keys_of_a_lease_go_at_one_revision() {
        let mut model = model();
        let grant = |id| Kind::LeaseGrant(LeaseGrantRequest { id, ttl: 5 });
        assert_eq!(apply(&mut model, &grant(7), 1), Ok(vec![GRANT, 4, 7, 5]));
        let leased = |key, lease| Kind::Put(PutRequest { lease, ..put(key, "x") });
        assert_eq!(apply(&mut model, &leased("a", 8), 1), Ok(refused(RefusalReason::LeaseNotFound)));
        for key in ["a", "b", "c"] {
            apply(&mut model, &leased(key, 7), 1).expect("a client's command");
        }
        apply(&mut model, &leased("b", 0), 1).expect("a client's command");
        assert_eq!(model.keys_of_lease(7, model.revision), ["a", "c"]);
        assert_eq!(model.keys_of_lease(7, model.revision - 1), ["a", "b", "c"]);
        let stale = Kind::LeaseRenew(LeaseRenew { term: 1, now: 5, ids: vec![7], granted: None });
        assert_eq!(apply(&mut model, &stale, 2), Ok(refused(RefusalReason::LeaderChanged)));
        let revoke = Kind::LeaseRevoke(LeaseRevokeRequest { id: 7 });
        assert_eq!(apply(&mut model, &revoke, 1), Ok(vec![REVOKE, 9]));
        assert_eq!(model.changes(9, 9).len(), 2);
        assert_eq!(apply(&mut model, &revoke, 1), Ok(refused(RefusalReason::LeaseNotFound)));
    }
}
