//! Membership changes: proposed one at a time, and passed to raft-rs when the machine has applied them.
//!
//! ```text
//!   propose ─▶ queue ─none in progress─▶ separate entry ─committed─▶ machine ─Event::Membership─▶ raft-rs
//! ```
//!
//! * The machine decides the effect of an entry; it may reject it. Its membership after the entry is in
//!   force from that index on, on every member. raft-rs never sees a change that the machine rejected.
//! * A leader proposes a change only after its machine has applied the previous one, and all entries that
//!   were in its log when it was elected. So the majorities of two memberships in use overlap.
//! * The current voters must have committed an entry before the next change enters the log. A change that
//!   they cannot commit would stay there, and no member with an empty log is confirmed while one does: a
//!   second member that has not started yet could never start.
//! * The process may reject a queued change before it is proposed ([`crate::ChangeCheck`]): the membership
//!   at that time is the one that the change would apply to. A rejected change enters the log as an ordinary
//!   command, which every machine rejects. So its proposer gets a response, and versions without the check
//!   agree.
//! * Until a change is reported as applied, no entry at or after its index is.
//! * A member does not campaign while a committed change is not in effect in raft-rs. The core searches the
//!   log for such a change, because raft-rs only searches the first read of the log.
//! * A member without its store does not apply changes. It campaigns if every committed change leaves its
//!   given voters unchanged, applied or rejected: then they are still the voters.
//! * A leader transfers leadership before it removes itself: the new leader proposes the change, and
//!   concurrent client writes are forwarded to it. Without a successor within an election timeout it removes
//!   itself.
//! * A leader that is not a voter any more transfers leadership, and steps down in any case. It does not
//!   serve reads.
//! * A voter that becomes the only one campaigns when it has applied that change: it does not wait for a
//!   leader.

use bytes::Bytes;
use raft::GetEntriesContext;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType};
use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::wire::{Batch, change_batch, change_payload, refused_change};
use crate::{Fatal, LogIndex, Membership, NodeId, Progress, Role, StoreState};

/// Limit of queued changes on a leader. Further ones are dropped, and their proposers time out: operators
/// make changes one at a time.
const CHANGES_WAITING_MAX: usize = 16;

/// Validity of a member's applied index, in election timeouts. Each response renews it.
const REPORTED_TIMEOUTS: u32 = 3;

/// Reports whether a message of this type carries an applied index.
pub(super) fn may_report(message: &Message) -> bool {
    match message.msg_type {
        MessageType::MsgAppendResponse => !message.reject,
        kind => kind == MessageType::MsgHeartbeatResponse,
    }
}

impl Membership {
    /// Converts it to the representation of raft-rs.
    pub(crate) fn to_conf(&self) -> ConfState {
        let sorted = |list: &[u64]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        ConfState { voters: sorted(&self.voters), learners: sorted(&self.learners), ..ConfState::default() }
    }
}

/// Returns the single changes that lead from one membership to another, in an order that always leaves a
/// voter.
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
    /// Queues a change. A leader proposes it when possible.
    pub(super) fn await_change(&mut self, batch: Bytes) {
        if self.changes.len() >= CHANGES_WAITING_MAX {
            tracing::warn!("membership change dropped: too many pending changes");
            return;
        }
        self.changes.push_back(batch);
    }

    /// Reports whether a change may enter the log now.
    fn may_change(&self) -> bool {
        let is_alone = !self.raw.raft.has_pending_conf() || base::mutant("changes-at-once");
        is_alone && self.raw.raft.commit_to_current_term() && self.ready_for_proposals().is_ok()
    }

    /// Reports whether the current voters have committed an entry. If no entry is pending, proposes an empty
    /// one.
    fn voters_have_committed(&mut self) -> bool {
        if self.commit() > self.committed_before || base::mutant("change-before-a-commit") {
            return true;
        }
        if self.last_index() == self.commit() && self.propose_entries(&[&Bytes::new()]).is_err() {
            tracing::debug!("an empty entry is refused: a change of the membership goes on waiting");
        }
        false
    }

    /// Reports whether the next change is delayed for a leadership transfer because it removes this member.
    /// A transfer is attempted once.
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

    /// Handles queued changes after losing leadership. Changes that caused a transfer are forwarded to the
    /// new leader; the remaining ones are dropped, and their proposers time out.
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

    /// Proposes the next change as a separate entry.
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
            self.raw.raft.pending_conf_index = 0; // Otherwise raft-rs replaces a second change by an empty entry.
        }
        // Rejected while too many bytes are uncommitted: it stays queued.
        if self.raw.step(message).is_ok() {
            self.changes.pop_front();
            self.has_offered_office = false;
        }
    }

    fn passes(&self, batch: &Bytes) -> bool {
        let command = || Batch::parse(batch).ok()?.commands().ok()?.iter().next();
        command().is_none_or(|command| self.change_check.passes(&command))
    }

    /// Returns the membership in effect in raft-rs.
    #[cfg(test)]
    pub fn membership(&self) -> Membership {
        let conf = &self.raw.store().state.conf;
        let mut membership = Membership { voters: conf.voters.clone(), learners: conf.learners.clone() };
        membership.voters.sort_unstable();
        membership.learners.sort_unstable();
        membership
    }

    /// Adopts the membership reported by another member. This member started with an older one, and only the
    /// current voters can confirm it. The older membership was not used to count votes yet. An imported
    /// state is discarded in a cluster that has started, and only such a cluster has a different membership.
    pub(super) fn peer_membership(&mut self, membership: &Membership) -> Result<(), Fatal> {
        let mut ids: Vec<u64> = membership.ids().collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        // Invalid input from another member is ignored and not fatal.
        let is_list = !membership.voters.is_empty() && ids.len() == count && !ids.contains(&0);
        let has_no_state = self.waits_for_a_store() || !self.has_started();
        if is_list && self.is_unconfirmed && has_no_state { self.adopt(membership) } else { Ok(()) }
    }

    /// Handles the machine's membership after the entry or install at this index.
    ///
    /// Only an entry removes members, and only those in the machine's previous membership. An installed
    /// store may be older than the previous membership, and raft-rs uses the sender's membership since the
    /// store was accepted: neither implies that a missing member was removed, and it may be the leader.
    pub(super) fn machine_membership(&mut self, at: LogIndex, membership: &Membership) -> Result<(), Fatal> {
        let is_installed = self.snapshots.installing.is_some_and(|installing| installing.index == at);
        let before = std::mem::replace(&mut self.listed, membership.ids().collect());
        if !is_installed || base::mutant("installs-remove-members") {
            self.former.extend(before.difference(&self.listed));
        }
        self.adopt(membership)
    }

    /// Switches raft-rs to this membership.
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

    /// Campaigns if the removal of the leader has left this voter alone. Called after entries were applied
    /// or synced.
    pub(super) fn campaign_if_left_alone(&mut self) {
        if self.is_left_alone && self.may_campaign() {
            self.is_left_alone = false;
            self.step(|raw| raw.campaign());
        }
    }

    /// Reports whether a committed change may not be in effect in raft-rs yet. Reads a part of the log per
    /// call and returns true until all committed entries were checked, so the caller must retry later.
    pub(super) fn change_is_ahead(&mut self) -> bool {
        if !self.changing.is_empty() {
            return true;
        }
        let commit = self.commit();
        self.forget_examined_by_others();
        self.examined = self.examined.max(self.handed);
        if self.examined < commit {
            let why = GetEntriesContext::empty(false);
            // The log store records a disk failure, which fails the event.
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

    /// Restarts the check for a member that has its store, which uses its applied membership.
    fn forget_examined_by_others(&mut self) {
        let is_without_a_store = self.snapshots.store == StoreState::Lost;
        if self.examined_without_a_store != is_without_a_store {
            self.examined_without_a_store = is_without_a_store;
            (self.examined, self.newest_change) = (self.handed, LogIndex::ZERO);
        }
    }

    /// Reports whether a change leaves the given voters of a member without its store unchanged.
    fn is_without_effect(&self, entry: &Entry) -> bool {
        let command = || Batch::parse(&change_batch(&entry.data).ok()?).ok()?.commands().ok()?.iter().next();
        self.examined_without_a_store
            && command().is_some_and(|command| (self.keeps_voters)(&command, self.voters()))
    }

    /// Returns the voters in effect in raft-rs. Empty while the log may contain a change, committed or not,
    /// that is not in effect yet. Reads a part of the log per call, so a far lagging machine needs several
    /// calls.
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

    /// Campaigns as a lone voter, without waiting for a timeout. With a pending change it may not be alone
    /// any more: then it campaigns by its ticks, when its machine has applied the change.
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

    /// Steps down as a candidate if a vote response has raised the commit index to a pending change.
    pub(super) fn step_down_if_a_change_is_ahead(&mut self) {
        if self.role() == Role::Candidate && self.change_is_ahead() {
            self.step_down();
        }
    }

    pub(super) fn is_voter(&self) -> bool {
        self.voters().contains(&self.raw.raft.id)
    }

    /// Reports whether this member leads without being a voter any more.
    pub(super) fn leads_as_a_stranger(&self) -> bool {
        self.role() == Role::Leader && !self.is_voter()
    }

    /// Requests a voter that has all entries to take over immediately. This leader stays in office for that
    /// only if all entries are committed and synced here: raft-rs counts an entry of a leader through the
    /// leader's own progress, which does not exist any more.
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

    /// Steps down after raft-rs has aborted the transfer, an election timeout later.
    pub(super) fn end_office_of_a_stranger(&mut self) {
        if self.leads_as_a_stranger() && self.raw.raft.lead_transferee.is_none() {
            self.step_down();
        }
    }

    fn step_down(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
    }

    /// Returns the known log and state progress of a member. None if this member does not lead, or the
    /// member is unknown.
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

    /// Returns the index of the machine's state. 0 while it has no state, or will receive another one.
    fn applied_state(&self) -> LogIndex {
        if self.has_its_state() { LogIndex(self.raw.raft.raft_log.applied) } else { LogIndex::ZERO }
    }

    /// Writes the applied index plus 1 into acknowledgements and heartbeat responses. Members that do not
    /// support the hint ignore it; 0 means that a member does not report.
    pub(super) fn report_applied(&self, messages: &mut [Message]) {
        for message in messages.iter_mut().filter(|message| may_report(message)) {
            message.reject_hint = self.applied_state().next().0;
        }
    }

    /// Records the applied index reported by a member.
    pub(super) fn note_report(&mut self, message: &Message) {
        let is_heard = self.role() == Role::Leader && message.term == self.term().0 && may_report(message);
        match message.reject_hint.checked_sub(1) {
            Some(applied) if is_heard => {
                self.reports.note(message.from, LogIndex(applied), self.election_ticks * REPORTED_TIMEOUTS);
            }
            // The member's version does not report, possibly after one that did: only its log is considered.
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

    /// A joining member is given the membership at its start. It may change before the member is confirmed.
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

    /// A rejected vote raises the commit index. raft-rs searches only the first read of the log after it.
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
