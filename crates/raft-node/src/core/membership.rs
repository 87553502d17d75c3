//! Changes of the membership: one at a time into the log, and into raft-rs when the machine has applied them.
//!
//! ```text
//!   propose ─▶ waiting ─none under way─▶ separate entry ─committed─▶ machine ─Event::Membership─▶ raft-rs
//! ```
//!
//! * The machine decides what an entry changes; it may refuse. What it holds after the entry is the
//!   membership from that index on, on every member. raft-rs never sees a change that the machine refused.
//! * A leader proposes a change when its machine has applied the one before, and everything that it found in
//!   its log when it was elected. So the majorities of two memberships in use meet.
//! * The voters in force must have committed an entry before the next change enters the log. A change that
//!   they cannot commit would stay there, and no member with an empty log is confirmed while one does: a
//!   second member that has not started yet could never start.
//! * The process may refuse a change when its turn has come ([`crate::ChangeCheck`]): the list of members at
//!   that time is the one that the change would be applied to. Such a change enters the log as an ordinary
//!   command, in which every machine refuses it. So its proposer is answered, and versions without the check
//!   agree.
//! * Until a change is reported as applied, nothing at or after its index is.
//! * A member does not stand for election while a change is committed that raft-rs does not count by yet. The
//!   core looks for one itself: raft-rs looks only as far as one read of the log reaches.
//! * A member without its store applies no change. It stands if each committed change leaves the voters that
//!   it was given, applied or refused: then those are still the voters.
//! * A leader hands over before it removes itself: the new one makes the change, and what clients wrote
//!   meanwhile is forwarded to it. Without a successor within an election timeout it removes itself.
//! * A leader that is no voter any more hands over, and steps down in any case. It serves no reads.
//! * A voter that a change leaves alone stands when it has applied that: it has no other to hear of.

use bytes::Bytes;
use raft::GetEntriesContext;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType};
use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::wire::{Batch, change_batch, change_payload, refused_change};
use crate::{Fatal, LogIndex, Membership, NodeId, Progress, Role, StoreState};

/// Changes that wait on a leader. More are dropped, and their proposers time out: an operator makes one at a
/// time.
const CHANGES_WAITING_MAX: usize = 16;

/// What a member reports of its state holds for so many election timeouts. It reports with each answer.
const REPORTED_TIMEOUTS: u32 = 3;

/// Messages that carry such a report.
pub(super) fn may_report(message: &Message) -> bool {
    match message.msg_type {
        MessageType::MsgAppendResponse => !message.reject,
        kind => kind == MessageType::MsgHeartbeatResponse,
    }
}

impl Membership {
    /// As raft-rs writes it.
    pub(crate) fn to_conf(&self) -> ConfState {
        let sorted = |list: &[u64]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        ConfState { voters: sorted(&self.voters), learners: sorted(&self.learners), ..ConfState::default() }
    }
}

/// The single changes that lead from one membership to another, in an order that never leaves it without
/// voters.
fn steps(from: &ConfState, to: &ConfState) -> Vec<(ConfChangeType, u64)> {
    let added = to.voters.iter().filter(|id| !from.voters.contains(id));
    let learners = to.learners.iter().filter(|id| !from.learners.contains(id));
    let stays = |id: &NodeId| to.voters.contains(id) || to.learners.contains(id);
    let gone = from.voters.iter().chain(&from.learners).filter(|id| !stays(id));
    let as_learner = match base::mutant("learners-count") {
        true => ConfChangeType::AddNode,
        false => ConfChangeType::AddLearnerNode,
    };
    added
        .filter(|_| !base::mutant("quorum-of-the-past"))
        .map(|id| (ConfChangeType::AddNode, *id))
        .chain(learners.map(|id| (as_learner, *id)))
        .chain(
            gone.filter(|_| !base::mutant("removed-members-count"))
                .map(|id| (ConfChangeType::RemoveNode, *id)),
        )
        .collect()
}

impl Core {
    /// Takes a change in. On a leader it waits for its turn.
    pub(super) fn await_change(&mut self, batch: Bytes) {
        if self.changes.len() >= CHANGES_WAITING_MAX {
            tracing::warn!("a change of the membership is dropped: too many wait");
            return;
        }
        self.changes.push_back(batch);
    }

    /// Whether a change may enter the log now.
    fn may_change(&self) -> bool {
        let is_alone = !self.raw.raft.has_pending_conf() || base::mutant("changes-at-once");
        is_alone && self.raw.raft.commit_to_current_term() && self.ready_for_proposals().is_ok()
    }

    /// Whether the voters in force have committed an entry. If there is none that they could commit, an empty
    /// one is proposed.
    fn voters_have_committed(&mut self) -> bool {
        if self.commit() > self.committed_before || base::mutant("change-before-a-commit") {
            return true;
        }
        if self.last_index() == self.commit() && self.propose_entries(&[&Bytes::new()]).is_err() {
            tracing::debug!("an empty entry is refused: a change of the membership goes on waiting");
        }
        false
    }

    /// Whether the next change waits for another member to lead, since it removes this one. One offer is
    /// made.
    fn offers_office(&mut self) -> bool {
        let Some(batch) = self.changes.front() else { return false };
        let commands = Batch::parse(batch).and_then(|batch| batch.commands());
        let removed = commands.ok().and_then(|commands| (self.removed_by)(&commands.iter().next()?));
        if removed != Some(self.raw.raft.id) || self.has_offered_office {
            return false;
        }
        let Some(heir) = self.most_caught_up() else { return false };
        self.has_offered_office = true;
        self.raw.transfer_leader(heir);
        true
    }

    /// The changes of a member that no longer leads. Those that it handed over for go to the new leader;
    /// others are dropped: their proposers time out.
    pub(super) fn release_changes(&mut self) {
        if self.role() == Role::Leader {
            return;
        }
        self.reports.retain(|_| false);
        let changes = std::mem::take(&mut self.changes);
        if std::mem::take(&mut self.has_offered_office) {
            changes.into_iter().for_each(|change| self.keep_forwarded(change));
        }
    }

    /// The next change, as a separate entry.
    pub(super) fn propose_change(&mut self) {
        if self.changes.is_empty() || self.role() != Role::Leader {
            return;
        }
        if !self.may_change() || !self.voters_have_committed() || self.offers_office() {
            return;
        }
        let Some(batch) = self.changes.front() else { return };
        if !self.passes(batch) {
            let refused = refused_change(batch);
            if self.propose_entries(&[&refused]).is_ok() {
                self.changes.pop_front();
            }
            return;
        }
        let data = change_payload(batch);
        let entry = Entry { entry_type: EntryType::EntryConfChange, data, ..Entry::default() };
        let message = Message {
            msg_type: MessageType::MsgPropose,
            from: self.raw.raft.id,
            entries: vec![entry].into(),
            ..Message::default()
        };
        if base::mutant("changes-at-once") {
            self.raw.raft.pending_conf_index = 0; // raft-rs would replace the second one by an empty entry.
        }
        // Refused while too much is uncommitted: it goes on waiting.
        if self.raw.step(message).is_ok() {
            self.changes.pop_front();
            self.has_offered_office = false;
        }
    }

    fn passes(&self, batch: &Bytes) -> bool {
        let command = || Batch::parse(batch).ok()?.commands().ok()?.iter().next();
        command().is_none_or(|command| self.change_check.passes(&command))
    }

    /// The members as raft-rs counts them.
    #[cfg(test)]
    pub fn membership(&self) -> Membership {
        let conf = &self.raw.store().state.conf;
        let mut membership = Membership { voters: conf.voters.clone(), learners: conf.learners.clone() };
        membership.voters.sort_unstable();
        membership.learners.sort_unstable();
        membership
    }

    /// Another member has this membership. This one was given another at its start, and may not have been
    /// confirmed by that: it is confirmed by its present voters only. Nothing was counted by the former list
    /// yet. An imported state is given up in a cluster that has begun, and only that one has another list.
    pub(super) fn peer_membership(&mut self, membership: &Membership) -> Result<(), Fatal> {
        let mut ids: Vec<u64> = membership.ids().collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        // What another member says ends no process.
        let is_list = !membership.voters.is_empty() && ids.len() == count && !ids.contains(&0);
        let has_no_state = self.waits_for_a_store() || !self.has_started();
        if is_list && self.is_unconfirmed && has_no_state { self.adopt(membership) } else { Ok(()) }
    }

    /// The machine holds this membership since the entry or install at this index.
    ///
    /// Only an entry removes members, and only those that the machine had before. A store that is installed
    /// may be older than the list of before, and raft-rs counts by that of the sender since the store was
    /// accepted: neither says that a member which is missing was removed, and it may be the leader.
    pub(super) fn machine_membership(&mut self, at: LogIndex, membership: &Membership) -> Result<(), Fatal> {
        let is_installed = self.snapshots.installing.is_some_and(|installing| installing.index == at);
        let before = std::mem::replace(&mut self.listed, membership.ids().collect());
        if !is_installed || base::mutant("installs-remove-members") {
            self.former.extend(before.difference(&self.listed));
        }
        self.adopt(membership)
    }

    /// Counts by this membership from now on.
    fn adopt(&mut self, membership: &Membership) -> Result<(), Fatal> {
        if !self.follows_machine {
            return Ok(());
        }
        let wanted = membership.to_conf();
        let steps = steps(&self.raw.store().state.conf, &wanted);
        let voters = self.voters().to_vec();
        for (change_type, node_id) in &steps {
            let single = ConfChangeSingle {
                change_type: *change_type,
                node_id: *node_id,
                ..ConfChangeSingle::default()
            };
            let change = ConfChangeV2 { changes: vec![single].into(), ..ConfChangeV2::default() };
            let conf = self
                .raw
                .apply_conf_change(&change)
                .map_err(|error| Fatal::caused(format!("change the membership to {membership:?}"), error))?;
            self.raw.mut_store().state.conf = conf;
        }
        if steps.is_empty() {
            return Ok(());
        }
        self.state_due = true;
        if self.voters().iter().any(|id| !voters.contains(id)) || self.voters().len() < voters.len() {
            self.committed_before = self.commit();
        }
        tracing::debug!(?membership, "the membership has changed");
        let stays = |id: &NodeId| wanted.voters.contains(id) || wanted.learners.contains(id);
        self.snapshots.holds.retain(|id, _| stays(id));
        self.snapshots.storeless.retain(|id, _| stays(id));
        self.forgotten.retain(|id, _| stays(id));
        self.reports.retain(|id| stays(&id));
        self.snapshots.trim_due = true;
        match self.role() {
            Role::Leader if !self.is_voter() => self.leave_office(),
            Role::Candidate if !self.is_voter() => self.step_down(),
            Role::Leader | Role::Candidate | Role::Follower => {}
        }
        self.is_left_alone = self.role() != Role::Leader && self.voters() == [self.raw.raft.id];
        Ok(())
    }

    /// Something was applied or synced. The removal of its leader may have left this voter alone.
    pub(super) fn campaign_if_left_alone(&mut self) {
        if self.is_left_alone && self.may_campaign() {
            self.is_left_alone = false;
            self.step(|raw| raw.campaign());
        }
    }

    /// Whether a change may be committed that raft-rs does not count by yet. One part of the log is read per
    /// call: true until all that is committed was looked at, so the caller asks again later.
    pub(super) fn change_is_ahead(&mut self) -> bool {
        if !self.changing.is_empty() {
            return true;
        }
        let commit = self.commit();
        self.forget_examined_by_others();
        self.examined = self.examined.max(self.handed);
        if self.examined < commit {
            let why = GetEntriesContext::empty(false);
            // A failure of the disk is kept by the log store, and ends the event.
            let (from, end) = (self.examined.0 + 1, commit.0 + 1);
            let part = self.raw.raft.raft_log.slice(from, end, None, why);
            for entry in part.unwrap_or_default() {
                if entry.entry_type != EntryType::EntryNormal && !self.is_without_effect(&entry) {
                    self.newest_change = LogIndex(entry.index);
                }
                self.examined = LogIndex(entry.index);
            }
        }
        self.examined < commit || self.newest_change > self.handed
    }

    /// A member with its store counts by what it has applied, and looks at all changes again.
    fn forget_examined_by_others(&mut self) {
        let is_without_a_store = self.snapshots.store == StoreState::Lost;
        if self.examined_without_a_store != is_without_a_store {
            self.examined_without_a_store = is_without_a_store;
            (self.examined, self.newest_change) = (self.handed, LogIndex::ZERO);
        }
    }

    /// Whether a change leaves the voters that a member without its store was given.
    fn is_without_effect(&self, entry: &Entry) -> bool {
        let command = || Batch::parse(&change_batch(&entry.data).ok()?).ok()?.commands().ok()?.iter().next();
        self.examined_without_a_store
            && command().is_some_and(|command| (self.keeps_voters)(&command, self.voters()))
    }

    /// The voters by which raft-rs counts. None while the log may hold a change, committed or not, that it
    /// does not count by yet: one part of the log is read, so a machine that lags far is read again.
    pub(super) fn settled_voters(&mut self) -> Vec<NodeId> {
        if self.change_is_ahead() {
            return Vec::new();
        }
        let (next, last) = (self.examined.0 + 1, self.last_index().0);
        if next <= last {
            let log = &self.raw.raft.raft_log;
            let rest = log.slice(next, last + 1, None, GetEntriesContext::empty(false)).unwrap_or_default();
            let is_all = rest.last().is_some_and(|entry| entry.index == last);
            if !is_all || rest.iter().any(|entry| entry.entry_type != EntryType::EntryNormal) {
                return Vec::new();
            }
        }
        self.voters().to_vec()
    }

    /// A lone voter has no other to wait for. With a change ahead it may not be alone any more: then it
    /// stands by its ticks, when its machine has applied that.
    pub(crate) fn campaign_alone(&mut self) {
        loop {
            let examined = self.examined;
            if !self.change_is_ahead() {
                return self.step(|raw| raw.campaign());
            }
            if self.examined == examined {
                return;
            }
        }
    }

    /// A vote may bring the commit index to a candidate.
    pub(super) fn step_down_if_a_change_is_ahead(&mut self) {
        if self.role() == Role::Candidate && self.change_is_ahead() {
            self.step_down();
        }
    }

    pub(super) fn is_voter(&self) -> bool {
        self.voters().contains(&self.raw.raft.id)
    }

    /// Whether this member leads and is no voter any more.
    pub(super) fn leads_as_a_stranger(&self) -> bool {
        self.role() == Role::Leader && !self.is_voter()
    }

    /// A leader that is no voter any more asks a voter that has all entries to take over at once. It stays
    /// for that only if all entries are committed and synced here: raft-rs counts an entry of a leader on the
    /// leader's own progress, which is gone.
    fn leave_office(&mut self) {
        let last = self.last_index().0;
        let is_complete = self.commit().0 == last && self.raw.raft.raft_log.persisted == last;
        let has_all =
            |heir: &NodeId| self.raw.raft.prs().get(*heir).is_some_and(|progress| progress.matched == last);
        match self.most_caught_up().filter(has_all) {
            Some(heir) if is_complete => self.raw.transfer_leader(heir),
            _ => self.step_down(),
        }
    }

    /// raft-rs gives a transfer up after an election timeout; then such a leader steps down.
    pub(super) fn end_office_of_a_stranger(&mut self) {
        if self.leads_as_a_stranger() && self.raw.raft.lead_transferee.is_none() {
            self.step_down();
        }
    }

    fn step_down(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
    }

    /// What this leader knows of a member's log and state. None if it does not lead, or knows no such member.
    pub fn progress_of(&self, member: NodeId) -> Option<Progress> {
        let progress = self.raw.raft.prs().get(member).filter(|_| self.role() == Role::Leader)?;
        let matched = LogIndex(progress.matched);
        let applied = match self.reports.applied(member) {
            _ if member == self.raw.raft.id => self.applied_state(),
            Some(applied) => applied,
            None if self.lacks_its_store(member) => LogIndex::ZERO,
            None => matched,
        };
        Some(Progress { matched, applied, last_index: self.last_index() })
    }

    /// The entry that the machine's state reaches. 0 while it has no state, or is about to get another one.
    fn applied_state(&self) -> LogIndex {
        if self.has_its_state() { LogIndex(self.raw.raft.raft_log.applied) } else { LogIndex::ZERO }
    }

    /// Writes into acknowledgements, and into answers to heartbeats, what is applied here, and 1. Members
    /// that do not know the hint ignore it; 0 is of a member that reports nothing.
    pub(super) fn report_applied(&self, messages: &mut [Message]) {
        for message in messages.iter_mut().filter(|message| may_report(message)) {
            message.reject_hint = self.applied_state().next().0;
        }
    }

    /// Notes what a member reports of its state.
    pub(super) fn note_report(&mut self, message: &Message) {
        let is_heard = self.role() == Role::Leader && message.term == self.term().0 && may_report(message);
        match message.reject_hint.checked_sub(1) {
            Some(applied) if is_heard => {
                self.reports.note(message.from, LogIndex(applied), self.election_ticks * REPORTED_TIMEOUTS);
            }
            // A version that reports nothing, perhaps after one that did: it is judged by its log.
            None if is_heard => self.reports.forget(message.from),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{append, batch, bench, bench_of, heartbeat};
    use crate::core::{Confirmation, CoreSetup, Event};
    use crate::{EmptyLog, StoreState, Term};

    fn conf(voters: &[u64], learners: &[u64]) -> ConfState {
        Membership { voters: voters.to_vec(), learners: learners.to_vec() }.to_conf()
    }

    #[test]
    fn a_membership_is_reached_by_single_changes() {
        use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
        type Case<'a> = ((&'a [u64], &'a [u64]), (&'a [u64], &'a [u64]), &'a [(ConfChangeType, u64)]);
        let cases: &[Case<'_>] = &[
            ((&[1], &[]), (&[1], &[]), &[]),
            ((&[1], &[]), (&[1, 2], &[]), &[(AddNode, 2)]),
            ((&[1], &[]), (&[1], &[2]), &[(AddLearnerNode, 2)]),
            ((&[1], &[2]), (&[1, 2], &[]), &[(AddNode, 2)]),
            ((&[1, 2], &[]), (&[2], &[]), &[(RemoveNode, 1)]),
            ((&[1], &[2]), (&[1], &[]), &[(RemoveNode, 2)]),
            ((&[1], &[]), (&[2], &[3]), &[(AddNode, 2), (AddLearnerNode, 3), (RemoveNode, 1)]),
        ];
        for (from, to, wanted) in cases {
            assert_eq!(steps(&conf(from.0, from.1), &conf(to.0, to.1)), *wanted, "{from:?} to {to:?}");
        }
    }

    /// A member that joins is given the members at its start. They may change before it is confirmed.
    #[test]
    fn a_member_without_a_list_takes_another_one_until_it_is_confirmed() {
        let [four, five] = [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 5]]
            .map(|voters| Membership { voters: voters.to_vec(), learners: Vec::new() });
        for (store, is_taken) in [(StoreState::Lost, true), (StoreState::Whole, false)] {
            let setup = CoreSetup {
                empty_log: EmptyLog::Unconfirmed,
                store,
                membership: Some(four.clone()),
                ..CoreSetup::of_tests()
            };
            let mut bench = bench_of(&four.voters, &setup, 1 << 20);
            bench.core.handle(Event::PeerMembership(five.clone())).unwrap();
            assert_eq!(bench.core.membership() == five, is_taken, "{store:?}");
            let confirmation = Confirmation::CatchUp { term: Term(3), until: None, is_alike: true };
            bench.core.handle(Event::Confirmed(confirmation)).unwrap();
            let before = bench.core.membership();
            let three = Membership { voters: vec![1, 2, 3], learners: Vec::new() };
            bench.core.handle(Event::PeerMembership(three)).unwrap();
            assert_eq!(bench.core.membership(), before, "{store:?}: it counts by its list from now on");
        }
    }

    /// A refused vote brings the commit index. raft-rs looks beyond it only as far as one read of the log
    /// reaches.
    #[test]
    fn a_candidate_that_learns_of_a_committed_change_steps_down() {
        let mut bench = bench(&[1, 2, 3], 8 << 20);
        let mut entries = append(1, 0, 0, &[1 << 20; 5]);
        let data = crate::wire::change_payload(&batch(6, 10));
        let change =
            Entry { entry_type: EntryType::EntryConfChange, data, index: 6, term: 1, ..Entry::default() };
        entries.entries.push(change);
        let order = Message { msg_type: MessageType::MsgTimeoutNow, ..heartbeat(1) };
        for message in [entries, order] {
            let jobs = bench.hear(message).persist;
            bench.sync(jobs);
        }
        assert_eq!(bench.core.role(), Role::Candidate, "nothing is committed as far as it knows");
        let refusal = Message { msg_type: MessageType::MsgRequestVoteResponse, reject: true, ..heartbeat(2) };
        bench.hear(Message { commit: 6, commit_term: 1, ..refusal });
        assert_eq!((bench.core.role(), bench.core.commit()), (Role::Follower, LogIndex(6)));
    }
}
