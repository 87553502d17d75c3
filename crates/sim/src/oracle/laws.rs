//! Invariants of the cluster, and the reference history to check them against.
//!
//! * At most one leader per term (election safety); a leader has every entry that any member
//!   applied (leader completeness).
//! * Two logs that agree on an entry agree on all earlier ones (log matching).
//! * All members that applied an index applied the same commands and have the same revision, the
//!   same digest of the changes and the same state hash, which are also those of the oracle (state
//!   machine safety).
//! * A command is committed at most once: clients give each a number that only the oracle reads.
//! * Acknowledged entries are synced on a quorum (durability), and their responses are those of the
//!   oracle.
//! * All members have the leases of the oracle at the same index, in memory and in their stores.
//! * All members have the users, roles and permissions of the oracle at the same index, in memory
//!   and in their stores.
//! * All members have the same membership at the same index, and their Raft uses it for quorums.
//! * A leader is a voter, elected by a majority of the voters; its committed entries are synced on
//!   a majority of them.
//! * All members have the same command level at the same index, and none exceeds its version's.
//! * Terms, commit index, applied index and revisions of a running member never decrease.
//!
//! Visibility to clients is checked in `clients`, and service after recovery in `verdict`.

use std::collections::BTreeMap;

use bytes::Bytes;
use mvcc::{SpanDigest, Store};
use raft_node::{Gauges, LogIndex, LogPosition, Membership, Role, Term};
use state_machine::command::{self, Kind};
use state_machine::{AuthState, AuthTable, LeaseTable};

use super::lease_times::LeaseTimes;
use super::leases::lease_digest;
use super::model::{Model, Summary};
use super::users::UserModel;
use crate::chance::fold;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach(pub String);

impl<T: Into<String>> From<T> for Breach {
    fn from(text: T) -> Breach {
        Breach(text.into())
    }
}

/// Interval, in entries, at which all members' state hashes are compared: hashing reads the
/// complete store.
const HASH_INTERVAL: u64 = 32;

#[derive(Debug)]
struct AppliedCommand {
    digest: u64,
    answer: Summary,
    after: (i64, i64),
}

#[derive(Debug, Default)]
struct AppliedEntry {
    term: Term,
    commands: Vec<AppliedCommand>,
    /// True after the first member has completely applied it.
    is_whole: bool,
    /// Revision and compact revision after the entry.
    after: (i64, i64),
    hash: Option<u32>,
    digest: Option<u64>,
    /// Digest of the leases, and the lease clock, after the entry.
    leases: (u64, i64),
}

/// Reference history: results of the first member to apply an entry, which all other members must
/// match.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Entries from index 1.
    entries: Vec<AppliedEntry>,
    /// Position of the first application of each command, by digest: commands have unique bytes.
    places: BTreeMap<u64, (LogIndex, usize)>,
    /// Members by the index of their change; the initial ones have index 0.
    memberships: BTreeMap<LogIndex, Membership>,
    users: BTreeMap<LogIndex, UserModel>,
    pub model: Model,
    pub times: LeaseTimes,
    pub hashes: u64,
    pub digests: u64,
    pub compactions: u64,
}

impl Truth {
    pub fn begin(&mut self, founders: impl IntoIterator<Item = u64>) {
        self.model.members.begin(founders);
        self.memberships.insert(LogIndex::ZERO, self.model.members.membership());
    }

    /// Returns the members after the entry at `index`, and those before the last change up to
    /// there.
    pub fn members_at(&self, index: LogIndex) -> (&Membership, &Membership) {
        let mut until = self.memberships.range(..=index).rev().map(|(_, membership)| membership);
        let newest = until.next().expect("a cluster begins with members");
        (newest, until.next().unwrap_or(newest))
    }

    pub fn has_applied(&self, command: u64) -> bool {
        self.places.contains_key(&command)
    }

    /// Checks the `ordinal`-th command of the entry at `at`, after which a member has these
    /// revisions.
    pub fn command(
        &mut self,
        at: LogPosition,
        ordinal: usize,
        bytes: &Bytes,
        after: (i64, i64),
    ) -> Result<(), String> {
        let digest = fold(0, bytes);
        let entry = self.entry_at(at)?;
        if let Some(known) = entry.commands.get(ordinal) {
            return match known.digest == digest && known.after == after {
                true => Ok(()),
                false => Err(format!(
                    "command {ordinal} of entry {at:?} left one member at {:?}, another at {after:?}",
                    known.after
                )),
            };
        }
        if entry.is_whole {
            return Err(format!("entry {at:?} has a command {ordinal} on one member only"));
        }
        if let Some((index, before)) = self.places.insert(digest, (at.index, ordinal)) {
            return Err(format!(
                "a command was committed twice: as command {before} of entry {index}, and as {ordinal} of {at:?}"
            ));
        }
        let (kind, caller) = command::decode_with_caller(bytes).map_err(|error| error.to_string())?;
        let compacted = self.model.compact_revision;
        let answer = self.model.apply(&kind, caller.as_ref(), at)?;
        if let Kind::MemberChange(_) = kind {
            self.memberships.insert(at.index, self.model.members.membership());
        }
        if let Kind::Auth(_) = kind {
            self.users.insert(at.index, self.model.users.clone());
        }
        let changes = self.model.leases.take_changes();
        changes.into_iter().try_for_each(|change| self.times.changed(change))?;
        let foretold = (self.model.revision, self.model.compact_revision);
        if foretold != after {
            return Err(format!("{kind:?} left the store at {after:?}, the oracle at {foretold:?}"));
        }
        self.compactions += u64::from(compacted != self.model.compact_revision);
        self.entry_at(at)?.commands.push(AppliedCommand { digest, answer, after });
        Ok(())
    }

    pub fn entry(
        &mut self,
        at: LogPosition,
        commands: usize,
        store: &Store,
        leases: &LeaseTable,
        users: &AuthTable,
    ) -> Result<(), String> {
        let after = (store.revision(), store.compact_revision());
        let foretold = self.model.leases.digests();
        let entry = self.entry_at(at)?;
        if entry.commands.len() != commands || (entry.is_whole && entry.after != after) {
            return Err(format!(
                "entry {at:?} is {entry:?}, and another with {commands} commands at {after:?}"
            ));
        }
        if !entry.is_whole {
            entry.leases = foretold;
        }
        (entry.is_whole, entry.after) = (true, after);
        let found = leases.scan(None, usize::MAX);
        let found = found.iter().map(|(id, lease)| (*id, lease.ttl, lease.deadline));
        if (lease_digest(found), leases.clock()) != entry.leases {
            return Err(format!("after entry {at:?} a member has the leases {:?}", leases.scan(None, 10)));
        }
        if let SpanDigest::Known(digest) = store.span_digest(at.index.saturating_sub(1), at.index) {
            self.digest(at.index, digest)?;
        }
        if self.users.contains_key(&at.index) || at.index.0.is_multiple_of(HASH_INTERVAL) {
            self.check_users(at.index, &users.state())?;
        }
        if at.index.0.is_multiple_of(HASH_INTERVAL) {
            return self.state(at.index, store);
        }
        if self.memberships.contains_key(&at.index) { self.members(at.index, store) } else { Ok(()) }
    }

    fn digest(&mut self, index: LogIndex, digest: u64) -> Result<(), String> {
        self.digests += 1;
        match self.entries[place_of(index)].digest.replace(digest) {
            Some(known) if known != digest => Err(format!(
                "entry {index} has the digest {digest:016x} on one member, {known:016x} on another"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the users after the entry at `index`; `None` before the first change.
    pub fn users_at(&self, index: LogIndex) -> Option<&UserModel> {
        self.users.range(..=index).next_back().map(|(_, users)| users)
    }

    /// Checks users, roles and permissions of a member or a store at `index`.
    pub fn check_users(&self, index: LogIndex, found: &AuthState) -> Result<(), String> {
        let found = UserModel::found(found);
        let none = UserModel::default();
        let wanted = self.users_at(index).unwrap_or(&none);
        if found == *wanted {
            return Ok(());
        }
        Err(format!("at entry {index} a member has the users {found:?}, not {wanted:?}"))
    }

    fn members(&self, index: LogIndex, store: &Store) -> Result<(), String> {
        let found = state_machine::members(store).map_err(|error| error.to_string())?;
        let ids = |is_learner| {
            let of_kind = found.iter().filter(move |member| member.is_learner == is_learner);
            of_kind.map(|member| member.id).collect()
        };
        let (found, wanted) =
            (Membership { voters: ids(false), learners: ids(true) }, self.members_at(index).0);
        if found == *wanted {
            return Ok(());
        }
        Err(format!("a store at entry {index} has the members {found:?}, not {wanted:?}"))
    }

    /// Checks that the complete state of a member at `index` equals that of all other members at
    /// this index.
    pub fn state(&mut self, index: LogIndex, store: &Store) -> Result<(), String> {
        let Some(entry) = (index.0 as usize).checked_sub(1).and_then(|at| self.entries.get_mut(at)) else {
            return if index == LogIndex::ZERO {
                Ok(())
            } else {
                Err(format!("a store stands at {index}, which no member applied"))
            };
        };
        let after = (store.revision(), store.compact_revision());
        if entry.after != after {
            return Err(format!("a store at entry {index} is at {after:?}, not at {:?}", entry.after));
        }
        self.members(index, store)?;
        let found = state_machine::auth_in(&store.items(b"auth-")).map_err(|error| error.to_string())?;
        self.check_users(index, &found)?;
        let entry = &mut self.entries[place_of(index)];
        let found = state_machine::leases(store.items(b"lease/")).map_err(|error| error.to_string())?;
        if lease_digest(found.iter().map(|(id, it)| (*id, it.ttl, it.deadline))) != entry.leases.0 {
            return Err(format!("a store at entry {index} has the leases {found:?}"));
        }
        let found = store.hash_kv(0).map_err(|error| format!("hash at entry {index}: {error}"))?;
        if (found.hash_revision, found.compact_revision) != after {
            return Ok(()); // One that is remembered from a compaction, as etcd does.
        }
        self.hashes += 1;
        match entry.hash.replace(found.hash) {
            Some(known) if known != found.hash => {
                Err(format!("state hash {:08x} and {known:08x} at entry {index}", found.hash))
            }
            _ => Ok(()),
        }
    }

    fn entry_at(&mut self, at: LogPosition) -> Result<&mut AppliedEntry, String> {
        let (known, place) = (self.entries.len(), place_of(at.index));
        if place > known {
            return Err(format!("entry {at:?} was applied, though no member applied {}", known + 1));
        }
        if place == known {
            self.entries.push(AppliedEntry { term: at.term, ..AppliedEntry::default() });
        }
        let entry = &mut self.entries[place];
        if entry.term != at.term {
            return Err(format!("entry {} is of term {} and of term {}", at.index, entry.term, at.term));
        }
        Ok(entry)
    }

    pub fn last(&self) -> LogPosition {
        let term = self.entries.last().map_or(Term(0), |entry| entry.term);
        LogPosition { index: LogIndex(self.entries.len() as u64), term }
    }

    /// Checks that the entry contains this command with this expected response.
    pub fn answers(&self, index: LogIndex, digest: u64, answer: &Summary) -> Result<(), String> {
        let commands = &self.entries[place_of(index)].commands;
        if commands.iter().any(|command| command.digest == digest && command.answer == *answer) {
            return Ok(());
        }
        let foretold: Vec<_> = commands.iter().filter(|c| c.digest == digest).map(|c| &c.answer).collect();
        Err(format!("a command of entry {index} was answered {answer:?}; the oracle says {foretold:?}"))
    }
}

fn place_of(index: LogIndex) -> usize {
    index.0 as usize - 1
}

#[derive(Debug, Default)]
pub(crate) struct Elections {
    leaders: BTreeMap<Term, u64>,
}

impl Elections {
    /// Observes a member after its turn. Returns true if it leads a term in which no leader was
    /// seen before.
    pub fn observe(&mut self, id: u64, gauges: Gauges) -> Result<bool, Breach> {
        if gauges.role != Role::Leader {
            return Ok(false);
        }
        match self.leaders.insert(gauges.term, id) {
            Some(other) if other != id => {
                Err(format!("members {other} and {id} both led term {}", gauges.term).into())
            }
            other => Ok(other.is_none()),
        }
    }

    /// Reports whether no leader of a later term was ever seen. A leader of an older one, elected
    /// by late votes, may lack entries committed since.
    pub fn is_newest(&self, term: Term) -> bool {
        self.leaders.last_key_value().is_none_or(|(newest, _)| *newest <= term)
    }

    pub fn count(&self) -> usize {
        self.leaders.len()
    }
}

/// Checks that the gauges of a member do not move backwards.
pub(crate) fn goes_on(before: Option<Gauges>, now: Gauges) -> Result<(), Breach> {
    let Some(before) = before else { return Ok(()) };
    if now.term < before.term || now.commit < before.commit {
        return Err(format!("a member went back from {before:?} to {now:?}").into());
    }
    if now.commit > now.last_index {
        return Err(format!("a member knows more committed than it has: {now:?}").into());
    }
    Ok(())
}

/// Number of entries to compare per check, the last ones, where logs may differ.
const COMPARED_MAX: u64 = 64;

/// Checks that two logs, each given as "term at index", agree on all entries before the last one on
/// which they agree. Trimmed entries are not compared.
pub(crate) fn logs_match(
    last: LogIndex,
    one: impl Fn(LogIndex) -> Option<Term>,
    other: impl Fn(LogIndex) -> Option<Term>,
) -> Result<(), Breach> {
    let mut agreed = false;
    for index in (last.saturating_sub(COMPARED_MAX).0 + 1..=last.0).rev().map(LogIndex) {
        let (Some(one), Some(other)) = (one(index), other(index)) else { return Ok(()) };
        if agreed && one != other {
            return Err(format!("two logs agree on entry {} but not on {index}", index + 1).into());
        }
        agreed |= one == other;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::{CompactionRequest, PutRequest};

    use super::*;

    fn at(index: u64, term: u64) -> LogPosition {
        LogPosition::new(index, term)
    }

    fn put(key: &str, value: &str) -> Bytes {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
        command::encode(Kind::Put(PutRequest { key, value, ..PutRequest::default() }))
    }

    #[test]
    fn members_that_applied_different_commands_are_caught() {
        for (position, command, after) in [
            (at(1, 2), put("a", "1"), (2, -1)),
            (at(1, 1), put("a", "2"), (2, -1)),
            (at(1, 1), put("a", "1"), (3, -1)),
        ] {
            let mut truth = Truth::default();
            truth.command(at(1, 1), 0, &put("a", "1"), (2, -1)).unwrap();
            truth.command(at(1, 1), 0, &put("a", "1"), (2, -1)).unwrap();
            assert!(truth.command(position, 0, &command, after).is_err(), "{position:?} {after:?}");
        }
    }

    #[test]
    fn a_command_that_is_committed_twice_is_caught() {
        for second in [(at(1, 1), 1), (at(2, 1), 0)] {
            let mut truth = Truth::default();
            truth.command(at(1, 1), 0, &put("a", "1"), (2, -1)).unwrap();
            if second.0.index == LogIndex(2) {
                truth.entries[0].is_whole = true;
            }
            let error = truth.command(second.0, second.1, &put("a", "1"), (3, -1)).unwrap_err();
            assert!(error.contains("committed twice"), "{error}");
        }
    }

    #[test]
    fn a_revision_that_the_oracle_does_not_come_to_is_caught() {
        let mut truth = Truth::default();
        assert!(truth.command(at(1, 1), 0, &put("a", "1"), (3, -1)).is_err(), "one put is one revision");
        let mut truth = Truth::default();
        let compact = command::encode(Kind::Compact(CompactionRequest { revision: 1, physical: false }));
        truth.command(at(1, 1), 0, &compact, (1, 1)).unwrap();
        assert!(truth.command(at(2, 1), 0, &compact, (1, 2)).is_err(), "a compaction that was refused");
    }

    #[test]
    fn an_entry_that_nobody_could_know_is_caught() {
        assert!(Truth::default().command(at(2, 1), 0, &put("a", "1"), (2, -1)).is_err());
    }

    #[test]
    fn an_answer_is_held_against_the_command_and_the_oracle() {
        let mut truth = Truth::default();
        truth.command(at(1, 1), 0, &put("a", "1"), (2, -1)).unwrap();
        let digest = fold(0, &put("a", "1"));
        truth.answers(LogIndex(1), digest, &vec![1, 2]).unwrap();
        assert!(truth.answers(LogIndex(1), digest, &vec![1, 3]).is_err());
        assert!(truth.answers(LogIndex(1), fold(0, &put("b", "1")), &vec![1, 2]).is_err());
    }

    #[test]
    fn two_leaders_of_one_term_are_caught() {
        let mut elections = Elections::default();
        let none = LogIndex::ZERO;
        let gauges = |term| Gauges {
            role: Role::Leader,
            leader: None,
            term: Term(term),
            commit: none,
            last_index: none,
        };
        assert!(elections.observe(1, gauges(5)).unwrap());
        assert!(!elections.observe(1, gauges(5)).unwrap());
        elections.observe(2, gauges(6)).unwrap();
        assert!(elections.is_newest(Term(6)) && !elections.is_newest(Term(5)));
        assert!(elections.observe(2, gauges(5)).is_err());
    }

    #[test]
    fn a_member_that_goes_back_is_caught() {
        let gauges = |term, commit| {
            let (term, commit, last_index) = (Term(term), LogIndex(commit), LogIndex(9));
            Gauges { role: Role::Follower, leader: None, term, commit, last_index }
        };
        goes_on(Some(gauges(5, 7)), gauges(5, 8)).unwrap();
        assert!(goes_on(Some(gauges(5, 7)), gauges(4, 8)).is_err());
        assert!(goes_on(Some(gauges(5, 7)), gauges(6, 6)).is_err());
        assert!(goes_on(Some(gauges(5, 7)), gauges(6, 10)).is_err());
    }

    #[test]
    fn logs_that_agree_above_a_difference_are_caught() {
        let log = |terms: &'static [u64]| {
            move |index| terms.get(place_of(index)).copied().filter(|term| *term > 0).map(Term)
        };
        assert!(logs_match(LogIndex(3), log(&[1, 1, 2]), log(&[1, 1, 3])).is_ok());
        assert!(logs_match(LogIndex(3), log(&[1, 1, 2]), log(&[1, 2, 2])).is_err());
        assert!(logs_match(LogIndex(3), log(&[0, 1, 2]), log(&[7, 1, 2])).is_ok(), "trimmed");
    }
}
