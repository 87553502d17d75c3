//! Clients: each asks for one thing at a time, of any member, and holds the answer against what it knows.
//!
//! * What a client is told is never older than what any client was told before it asked: that, and the truth about
//!   every revision, is strict serializability, because every answer carries its revision.
//! * A read gives what the oracle gives at that revision, whichever member and whichever history it is asked of.
//! * A request without an answer says nothing; its write may appear later.

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

/// Names one request for ever.
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
    /// The newest revision that any client had been told of when this was asked.
    floor: i64,
    /// Of a client that is not root.
    user: Option<&'static str>,
}

/// What a member is handed.
pub(crate) enum MemberInput {
    Propose(Bytes),
    Read,
    /// To be read at once: what, and by which user.
    Serializable(RangeRequest, Option<&'static str>),
    /// For the leader.
    Lease(LeaseQuestion),
}

/// Who asks whom.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub client: u64,
    pub member: u64,
    pub trade: Trade,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trade {
    Keys,
    Leases,
    /// Keys as a user, and changes of users.
    Users,
}

/// What is left to do after an answer of the leader about leases.
pub(crate) enum AfterLeaseAnswer {
    /// The request ended before.
    Nothing,
    Rest {
        client: u64,
    },
    /// Some of its leases had expired, and were not revoked yet.
    AskAgain {
        member: u64,
        question: LeaseQuestion,
    },
}

/// Ids of leases that are remembered.
const GRANTED_MAX: usize = 4;

#[derive(Default)]
pub(crate) struct Clients {
    next: RequestId,
    open: BTreeMap<RequestId, Request>,
    newest_told: i64,
    /// Leases whose ids were chosen by members, newest last.
    granted: Vec<i64>,
    /// Writes that no member let in.
    refused: Vec<u64>,
}

impl Clients {
    /// A new request.
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

    /// When an open request was asked.
    pub fn asked_at(&self, id: RequestId) -> Option<u64> {
        self.open.get(&id).map(|request| request.asked)
    }

    /// A write was answered after the entry at `index` was applied. Returns the client.
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

    /// A read point was reached: reads from the member's store. Returns the client.
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

    /// The leader answered a question.
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

    /// A request ended without an answer. Returns the client, unless it ended before.
    pub fn gone(&mut self, id: RequestId) -> Option<u64> {
        self.open.remove(&id).map(|request| request.client)
    }

    /// The member did not let a request in: it has no effect, now or ever.
    pub fn not_let_in(&mut self, id: RequestId) {
        if let Some(Request { kind: Kinds::Write { digest, .. }, .. }) = self.open.remove(&id) {
            self.refused.push(digest);
        }
    }

    /// No write was applied that was not let in.
    pub fn check_refused(&self, truth: &Truth) -> Result<(), Breach> {
        match self.refused.iter().find(|digest| truth.has_applied(**digest)) {
            Some(_) => Err("a write was applied that no member had let in".into()),
            None => Ok(()),
        }
    }

    /// Every request that was open at a member that went down.
    pub fn open_at(&self, member: u64) -> Vec<RequestId> {
        self.open.iter().filter(|(_, request)| request.member == member).map(|(id, _)| *id).collect()
    }
}

/// Field 1000 of the command: no version of the state machine knows it, so all skip it.
const NUMBER_FIELD: u64 = 1000;

/// The command with the number of its request appended: two requests never have the same bytes, and the oracle notices a
/// command that is committed twice.
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

/// Reads a range for a user, or for root, and holds it against the oracle at the store's revision, which is returned.
/// None: the user may not read it.
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

/// Reads a range and holds it against the oracle at the store's revision, which is returned.
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

/// Holds the keys of a lease against the oracle at the store's revision, which is returned.
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

/// Requests for changes of the members have ids from here on, up to those of tasks; those of clients below.
pub(crate) const CHANGES: RequestId = 1 << 61;

/// Whether a request is one for a change of the members.
pub(crate) fn is_member_change(request: RequestId) -> bool {
    (CHANGES..2 * CHANGES).contains(&request)
}

/// A change that a member proposed.
pub(crate) struct ProposedChange {
    pub member: u64,
    pub digest: u64,
    pub change: Change,
    /// Its proposer was answered, or its time is up.
    pub is_over: bool,
}

/// All changes that were proposed, by number.
#[derive(Default)]
pub(crate) struct ProposedChanges {
    pub proposed: BTreeMap<RequestId, ProposedChange>,
    /// The members when they were looked at last.
    pub placed: Membership,
}

impl ProposedChanges {
    pub fn begin(&mut self, founders: Membership) {
        self.placed = founders;
    }

    /// The proposers at a member that went down get no answer.
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
