//! Clients: each has a single request in flight, to any member, and checks the response.
//!
//! * A response is never older than any response received before the request was sent. Combined
//!   with the reference history, this implies strict serializability, because every response has a
//!   revision.
//! * A read returns the oracle's result at that revision, for every member and requested revision.
//! * The outcome of a request without a response is unknown; its write may be applied later.

use std::collections::BTreeMap;

use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use mvcc::{LogIndex, Store};
use raft_node::Membership;
use state_machine::command::Change;
use state_machine::{Failure, Outcome, ROOT, Remaining, UNREVOKED, WhenExpired, command};

use super::ask::{Ask, LeaseQuestion, UserView};
use super::draw::Draw;
use crate::chance::{Chance, fold};
use crate::count::{RunReport, Statistic};
use crate::oracle::{
    Breach, RefusalReason, Truth, digest_of, is_change, is_of_access, revision_of, summary_of,
};
use crate::plan::RunConfig;

pub(crate) type RequestId = u64;

enum Kinds {
    Write { digest: u64, count: Statistic },
    Read(RangeRequest),
    Lease(LeaseQuestion),
    KeysOfLease(i64),
}

struct Request {
    client: u64,
    member: u64,
    asked: u64,
    kind: Kinds,
    /// Latest revision known to any client when the request was sent.
    floor: i64,
    /// User of the request, unless it is root.
    user: Option<&'static str>,
}

pub(crate) enum MemberInput {
    Propose(Bytes),
    Read,
    /// Range to read immediately, and the user.
    Serializable(RangeRequest, Option<&'static str>),
    Lease(LeaseQuestion),
}

#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub client: u64,
    pub member: u64,
    pub trade: Trade,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trade {
    Keys,
    Leases,
    /// Keys as a user, and auth changes.
    Users,
}

/// Action after the leader has responded to a lease request.
pub(crate) enum AfterLeaseAnswer {
    /// The request had already completed.
    Nothing,
    Rest {
        client: u64,
    },
    /// Retry: some leases had expired, but were not revoked yet.
    AskAgain {
        member: u64,
        question: LeaseQuestion,
    },
}

const GRANTED_MAX: usize = 4;

#[derive(Default)]
pub(crate) struct Clients {
    next: RequestId,
    open: BTreeMap<RequestId, Request>,
    newest_told: i64,
    /// Leases with ids assigned by members, latest last.
    granted: Vec<i64>,
    /// Writes that were not admitted by any member.
    refused: Vec<u64>,
}

impl Clients {
    pub fn ask(
        &mut self,
        asker: Asker,
        asked: u64,
        access: &UserView,
        config: &RunConfig,
        chance: &mut Chance,
    ) -> (RequestId, MemberInput) {
        self.next += 1;
        let id = self.next;
        let draw = Draw { config, chance, id, newest: self.newest_told };
        let (user, ask) = match asker.trade {
            Trade::Keys => (None, draw.ask()),
            Trade::Leases => (None, draw.ask_of_leases(&self.granted)),
            Trade::Users => {
                let (user, ask) = draw.ask_as_user(access.table.revision());
                (Some(user), ask)
            }
        };
        let (kind, handed) = match ask {
            Ask::Write(kind) => {
                let count = match kind {
                    command::Kind::Put(_) => Statistic::Puts,
                    command::Kind::DeleteRange(_) => Statistic::Deletes,
                    command::Kind::LeaseGrant(grant) => {
                        self.remember(grant.id);
                        Statistic::Grants
                    }
                    command::Kind::LeaseRevoke(_) => Statistic::Revokes,
                    command::Kind::Auth(_) => Statistic::ChangesOfUsers,
                    _ => Statistic::Txns,
                };
                let caller = access.caller(user.unwrap_or(ROOT));
                let bytes = numbered(command::encode_for(kind, caller), id);
                (Kinds::Write { digest: fold(0, &bytes), count }, MemberInput::Propose(bytes))
            }
            Ask::Read(range) => (Kinds::Read(range), MemberInput::Read),
            Ask::Serializable(range) => return (id, MemberInput::Serializable(range, user)),
            Ask::Lease(question) => (Kinds::Lease(question.clone()), MemberInput::Lease(question)),
            Ask::KeysOfLease(lease) => (Kinds::KeysOfLease(lease), MemberInput::Read),
        };
        let Asker { client, member, .. } = asker;
        self.open.insert(id, Request { client, member, asked, kind, floor: self.newest_told, user });
        (id, handed)
    }

    fn remember(&mut self, lease: i64) {
        self.granted.push(lease);
        if self.granted.len() > GRANTED_MAX {
            self.granted.remove(0);
        }
    }

    pub fn asked_at(&self, id: RequestId) -> Option<u64> {
        self.open.get(&id).map(|request| request.asked)
    }

    /// Handles the response to a write, applied by the entry at `index`. Returns the client.
    pub fn write_answered(
        &mut self,
        id: RequestId,
        outcome: &Outcome,
        index: LogIndex,
        truth: &Truth,
        report: &mut RunReport,
    ) -> Result<u64, Breach> {
        let request = self.open.remove(&id).ok_or("a write was answered twice")?;
        let Kinds::Write { digest, count } = request.kind else {
            return Err("a read was answered as a write".into());
        };
        let summary = summary_of(outcome);
        truth.answers(index, digest, &summary)?;
        let Some(revision) = revision_of(&summary) else {
            let count = if is_of_access(outcome) { Statistic::AccessRefused } else { Statistic::Refusals };
            report.add(count, 1);
            return Ok(request.client);
        };
        if revision < request.floor || (is_change(&summary) && revision == request.floor) {
            return Err(
                format!("a write got revision {revision}, but {} was known before", request.floor).into()
            );
        }
        self.newest_told = self.newest_told.max(revision);
        report.add(count, 1);
        Ok(request.client)
    }

    /// Executes a read on the member's store after its read index. Returns the client.
    pub fn may_read(
        &mut self,
        id: RequestId,
        store: &Store,
        access: &UserView,
        truth: &Truth,
        report: &mut RunReport,
    ) -> Result<u64, Breach> {
        let request = self.open.remove(&id).ok_or("a read was answered twice")?;
        let (revision, count) = match &request.kind {
            Kinds::Read(range) => {
                let count = if range.revision == 0 { Statistic::Reads } else { Statistic::OldReads };
                let Some(revision) = read(range, request.user, store, access, truth)? else {
                    report.add(Statistic::ReadsRefused, 1);
                    return Ok(request.client);
                };
                (revision, count)
            }
            Kinds::KeysOfLease(lease) => {
                (check_keys_of_lease(*lease, store, truth)?, Statistic::KeysOfLeases)
            }
            Kinds::Write { .. } | Kinds::Lease(_) => return Err("a write was answered as a read".into()),
        };
        if revision < request.floor {
            return Err(
                format!("a stale read: revision {revision}, but {} was known before", request.floor).into()
            );
        }
        self.newest_told = self.newest_told.max(revision);
        report.add(count, 1);
        Ok(request.client)
    }

    pub fn lease_answered(
        &mut self,
        id: RequestId,
        answers: &[Remaining],
        truth: &mut Truth,
        report: &mut RunReport,
    ) -> Result<AfterLeaseAnswer, Breach> {
        let Some(mut request) = self.open.remove(&id) else { return Ok(AfterLeaseAnswer::Nothing) };
        let Kinds::Lease(question) = &request.kind else {
            return Err("another request was answered as one about leases".into());
        };
        match question {
            LeaseQuestion::Renew(ids, when_expired) => {
                let mut unrevoked = Vec::new();
                for (lease, answer) in ids.iter().zip(answers) {
                    if (*when_expired, answer.ttl) == (WhenExpired::Tell, UNREVOKED) {
                        unrevoked.push(*lease);
                        report.add(Statistic::RenewalsUnrevoked, 1);
                        continue;
                    }
                    truth.times.renewed(*lease, request.asked, answer.ttl)?;
                    let is_there = answer.ttl > 0;
                    report.add(if is_there { Statistic::Renewals } else { Statistic::RenewalsRefused }, 1);
                }
                if !unrevoked.is_empty() {
                    let (member, question) =
                        (request.member, LeaseQuestion::Renew(unrevoked, WhenExpired::Wait));
                    request.kind = Kinds::Lease(question.clone());
                    self.open.insert(id, request);
                    return Ok(AfterLeaseAnswer::AskAgain { member, question });
                }
            }
            LeaseQuestion::Remaining(lease) => {
                truth.times.remains(*lease, request.asked, answers[0])?;
                report.add(Statistic::RemainingTimes, 1);
            }
        }
        Ok(AfterLeaseAnswer::Rest { client: request.client })
    }

    /// Handles a request without a response. Returns the client, unless it had completed.
    pub fn gone(&mut self, id: RequestId) -> Option<u64> {
        self.open.remove(&id).map(|request| request.client)
    }

    /// Records that a member did not admit a request: it must never have an effect.
    pub fn not_let_in(&mut self, id: RequestId) {
        if let Some(Request { kind: Kinds::Write { digest, .. }, .. }) = self.open.remove(&id) {
            self.refused.push(digest);
        }
    }

    /// Checks that no write was applied without being admitted.
    pub fn check_refused(&self, truth: &Truth) -> Result<(), Breach> {
        match self.refused.iter().find(|digest| truth.has_applied(**digest)) {
            Some(_) => Err("a write was applied that no member had let in".into()),
            None => Ok(()),
        }
    }

    pub fn open_at(&self, member: u64) -> Vec<RequestId> {
        self.open.iter().filter(|(_, request)| request.member == member).map(|(id, _)| *id).collect()
    }
}

/// Number of an extra field of the command, unknown to every version of the state machine, which
/// therefore skips it.
const NUMBER_FIELD: u64 = 1000;

/// Appends the request number to a command: commands are unique, and the oracle detects duplicate
/// commits.
pub(crate) fn numbered(command: Bytes, id: RequestId) -> Bytes {
    let mut bytes = command.to_vec();
    for mut number in [NUMBER_FIELD << 3, id] {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    bytes.into()
}

/// Reads a range for a user, or for root, and compares it with the oracle. Returns the store's
/// revision; None if the user has no permission.
pub(crate) fn read(
    range: &RangeRequest,
    user: Option<&str>,
    store: &Store,
    access: &UserView,
    truth: &Truth,
) -> Result<Option<i64>, Breach> {
    match user {
        Some(user) if !access.may_read(user, range, store, truth)? => Ok(None),
        Some(_) | None => check_range(range, store, truth).map(Some),
    }
}

/// Reads a range, and compares it with the oracle. Returns the store's revision.
fn check_range(range: &RangeRequest, store: &Store, truth: &Truth) -> Result<i64, Breach> {
    let (revision, compacted) = (store.revision(), store.compact_revision());
    let found = match state_machine::range(store, range, &()) {
        Ok(response) => {
            let header = response.header.as_ref().map_or(0, |header| header.revision);
            if header != revision {
                return Err(format!("a store at revision {revision} answers as of {header}").into());
            }
            Ok(digest_of(&response))
        }
        Err(Failure::Refused(api::Error::Compacted)) => Err(RefusalReason::Compacted),
        Err(Failure::Refused(api::Error::FutureRev)) => Err(RefusalReason::Future),
        Err(error) => return Err(format!("a read of {range:?} failed: {error:?}").into()),
    };
    let foretold = truth.model.range(range, revision, compacted);
    if found != foretold {
        return Err(
            format!("{range:?} gave {found:?} at revision {revision}, the oracle {foretold:?}").into()
        );
    }
    Ok(revision)
}

/// Compares the keys of a lease with the oracle. Returns the store's revision.
fn check_keys_of_lease(lease: i64, store: &Store, truth: &Truth) -> Result<i64, Breach> {
    let revision = store.revision();
    let found =
        store.keys_of_lease(lease, &()).map_err(|error| format!("the keys of lease {lease}: {error}"))?;
    let foretold = truth.model.keys_of_lease(lease, revision);
    if found != foretold {
        return Err(format!("lease {lease} has {found:?} at {revision}, in the oracle {foretold:?}").into());
    }
    Ok(revision)
}

/// First request id of membership changes. Client requests have lower ids, tasks higher ones.
pub(crate) const CHANGES: RequestId = 1 << 61;

pub(crate) fn is_member_change(request: RequestId) -> bool {
    (CHANGES..2 * CHANGES).contains(&request)
}

pub(crate) struct ProposedChange {
    pub member: u64,
    pub digest: u64,
    pub change: Change,
    /// True if its proposer got a response or timed out.
    pub is_over: bool,
}

#[derive(Default)]
pub(crate) struct ProposedChanges {
    pub proposed: BTreeMap<RequestId, ProposedChange>,
    pub placed: Membership,
}

impl ProposedChanges {
    pub fn begin(&mut self, founders: Membership) {
        self.placed = founders;
    }

    /// Handles a member that went down: its proposers get no response.
    pub fn gone_at(&mut self, member: u64) {
        let at_member = self.proposed.values_mut().filter(|proposed| proposed.member == member);
        at_member.for_each(|proposed| proposed.is_over = true);
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::PutRequest;
    use command::Kind;

    use super::*;

    #[test]
    fn a_number_makes_bytes_differ_and_changes_no_command() {
        let kind = Kind::Put(PutRequest { key: Bytes::from_static(b"a"), ..PutRequest::default() });
        let [one, two] = [1, 300].map(|id| numbered(command::encode(kind.clone()), id));
        assert_ne!(one, two);
        assert_eq!(command::decode(&one).ok(), Some(kind.clone()));
        assert_eq!(command::decode(&two).ok(), Some(kind));
    }
}
