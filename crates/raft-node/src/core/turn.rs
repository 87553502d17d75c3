//! State transitions of the core: events in, effects out.
//!
//! An event is handled immediately. Its effects are collected by the next [`Core::turn`], so that many
//! events share one message to each follower and one persist job. Peers' messages are validated before
//! raft-rs processes them.
//!
//! # Ready
//!
//! raft-rs' asynchronous ready: messages to send now, data to persist first, and progress after a sync.
//!
//! ```text
//!   ready ─┬─ messages of a leader ────────────────▶ send, or offers of snapshots
//!          ├─ entries, state, restart ─▶ job ─sync─▶ Event::Durable ─▶ on_persist_ready
//!          └─ promises ───────────────▶ in the job, or sent if no job is in flight
//! ```
//!
//! * Readies are numbered; a job has the number of its ready, and `Durable` of a job covers all before it.
//! * Several jobs may be in flight: the log thread takes all queued ones and syncs once.
//! * A ready without a job counts as persisted as soon as every job before it is.
//!
//! Which ready needs a job:
//!
//! | in the ready | job |
//! |---|---|
//! | entries, a new term or vote, a snapshot | yes: raft-rs requires a sync |
//! | promises while a job is in flight | yes, an empty one: it orders them after that sync |
//! | promises without a job in flight | no: their state is already durable |
//! | a commit index that moved | no: it is written with the next job that is needed anyway |
//!
//! # Committed entries
//!
//! Committed entries are handed to the state machine in order, once each, within a memory limit.
//!
//! ```text
//!   committed by raft-rs ──hand_out──▶ effects ──▶ apply thread ──Event::Applied──▶ free capacity
//!            └── no capacity: dropped here, read again from the log by hand_out_more
//! ```
//!
//! * `applied ≤ handed ≤ stable ≤ commit`, each of them monotonic. Entries between `applied` and `handed`
//!   are with the apply thread, at most `apply_bytes_max` of them and one entry more; entries between
//!   `handed` and `stable` stay in the log until there is capacity.
//! * `handed` advances one entry at a time, except over a snapshot.
//! * raft-rs returns each committed entry once. Retaining entries beyond the capacity would hold a second
//!   copy of the log in memory; so they are dropped here and read again, usually from the cache.
//! * A membership change is handed out only when the commit index that covers it is durable here. A removed
//!   member stops once a voter has applied its removal; that voter must not forget the commit in a crash
//!   and then wait for the vote of the stopped member.
//! * While the store is lost, entries are not handed out; `stable` still advances, so that the log's cache
//!   can be evicted.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};

use super::Core;
use super::event::{CommittedEntry, CoreTurn, Event, Payload};
use super::state::position;
use crate::log::{PersistJob, Restart};
use crate::wire::{Batch, CoreView, MalformedBytes, change_batch, decode, encode_all, entry_kind, validate};
use crate::{Fatal, LogIndex, LogPosition, NodeId, RaftLimits, Role};

/// Maximum readies per [`Core::turn`]. Further ones follow after the inbox was processed.
const READIES_PER_TURN: usize = 8;

/// Election timeouts without a leader after which forwarded batches are dropped. An election usually takes
/// less than three; proposers time out after about seven.
const FORWARDED_KEPT_FOR: u32 = 3;

/// Reason a batch was rejected. It was not proposed and may be proposed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchRefusal {
    /// No leader is known or reachable; an election may be in progress.
    NoLeader,
    /// The previous entries are not synced yet, leadership is being transferred, or too much is
    /// uncommitted.
    Busy,
}

impl Core {
    /// Processes one event. Its effects are returned by the next [`Core::turn`]: many events share one
    /// message to each follower and one persist job.
    ///
    /// An error means that this member's own disk, log or machine can no longer be trusted. Invalid
    /// messages of a peer are not errors: they are dropped.
    pub fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Tick => self.tick(),
            Event::Message { from, bytes } => {
                self.lost_leader = self.lost_leader.filter(|lost| *lost != from);
                self.receive(from, bytes);
            }
            Event::Durable(durable) => {
                self.durable(durable.number);
                self.campaign_if_left_alone();
            }
            Event::Applied { index } => {
                self.applied(index);
                self.campaign_if_left_alone();
            }
            Event::Unreachable { peer } => {
                if self.leader() == Some(peer) {
                    self.lost_leader = Some(peer);
                }
                self.raw.report_unreachable(peer);
            }
            Event::Membership { at, membership } => self.machine_membership(at, &membership)?,
            Event::PeerMembership(membership) => self.peer_membership(&membership)?,
            Event::TransferLeader { to } => self.raw.transfer_leader(to),
            Event::Checkpointed { at } => self.checkpointed(at),
            Event::SnapshotReported { peer, outcome } => self.snapshot_reported(peer, outcome),
            Event::ReadIndex { .. } if self.leads_as_a_stranger() => {} // Its readers have a timeout.
            Event::ReadIndex { context } => self.begin_read(context),
            Event::Confirmed(confirmation) => self.confirm(confirmation),
            Event::Reseed => self.reseed(),
        }
        self.raw.store().take_failure().map_or(Ok(()), Err)
    }

    /// Proposes batches as separate entries, in one step. A follower forwards them to the leader.
    pub fn propose(&mut self, batches: &[Bytes]) -> Result<(), BatchRefusal> {
        assert!(!batches.is_empty(), "nothing to propose");
        self.ready_for_proposals()?;
        let leads = self.role() == Role::Leader;
        let waits = |data: &&Bytes| leads && Batch::parse(data).is_ok_and(|batch| batch.is_change);
        let (changes, batches): (Vec<&Bytes>, Vec<&Bytes>) = batches.iter().partition(waits);
        if !batches.is_empty() {
            self.propose_entries(&batches)?;
        }
        changes.into_iter().for_each(|change| self.await_change(change.clone()));
        Ok(())
    }

    pub(super) fn propose_entries(&mut self, batches: &[&Bytes]) -> Result<(), BatchRefusal> {
        let entry = |data: &&Bytes| Entry { data: Bytes::clone(data), ..Entry::default() };
        let entries: Vec<Entry> = batches.iter().map(entry).collect();
        let from = self.raw.raft.id;
        let message = Message {
            msg_type: MessageType::MsgPropose,
            from,
            entries: entries.into(),
            ..Message::default()
        };
        self.raw.step(message).map_err(|_| BatchRefusal::Busy)
    }

    /// Reports whether a proposal would be accepted. While a leader's entries are being synced, proposals
    /// wait, so that batches grow with the load. A follower forwards at any time, unless its link to the
    /// leader broke and it has received no message from it since: a proposal to a stopped leader would be
    /// lost, and its proposer would wait for its whole timeout.
    pub fn ready_for_proposals(&self) -> Result<(), BatchRefusal> {
        match self.role() {
            _ if self.leader().is_none() || self.leader() == self.lost_leader => Err(BatchRefusal::NoLeader),
            Role::Leader if !self.unsynced.is_empty() || self.raw.raft.lead_transferee.is_some() => {
                Err(BatchRefusal::Busy)
            }
            Role::Leader | Role::Follower | Role::Candidate => Ok(()),
        }
    }

    /// Reports whether a read round started now could be confirmed.
    pub fn ready_for_reads(&self) -> bool {
        match self.role() {
            // A leader learns the commit index only by committing in its own term (Raft thesis 6.4).
            Role::Leader => self.is_voter() && self.raw.raft.commit_to_current_term(),
            Role::Follower => self.leader().is_some(),
            Role::Candidate => false,
        }
    }

    /// Collects the effects of the events since the previous call.
    ///
    /// Installs come before readies: an entry after a snapshot must not be handed out before it. Trimming
    /// comes last, so that it can share a job.
    pub fn turn(&mut self) -> Result<CoreTurn, Fatal> {
        let mut turn = CoreTurn::default();
        turn.effects.send.extend(encode_all(std::mem::take(&mut self.answers)));
        self.release_changes();
        self.propose_forwarded();
        self.propose_change();
        self.hand_out_installs(&mut turn);
        for _ in 0..READIES_PER_TURN {
            if !self.raw.has_ready() {
                break;
            }
            self.take_ready(&mut turn)?;
        }
        turn.effects.more = self.raw.has_ready();
        assert!(self.stable <= self.commit(), "only what is committed is handed out");
        self.hand_out_more(&mut turn)?;
        self.ask_for_snapshot(&mut turn.effects);
        self.trim(&mut turn.effects);
        self.collect_snapshots(&mut turn.effects);
        turn.effects.more |= self.install_may_follow();
        self.raw.store().take_failure().map_or(Ok(turn), Err)
    }

    /// Processes a peer's message. A message that is malformed, or that a correct member would not send, is
    /// dropped as if lost: a peer cannot stop this member.
    fn receive(&mut self, from: NodeId, bytes: Bytes) {
        let id = self.raw.raft.id;
        match decode(from, id, bytes) {
            Ok(message) => match self.validate(from, &message) {
                Ok(()) if self.holds_back(&message) => {}
                Ok(()) => self.receive_valid(from, message),
                Err(reason) => self.refuse(from, reason, Some(message)),
            },
            Err(MalformedBytes(what)) => self.refuse(from, what, None),
        }
    }

    fn validate(&self, from: NodeId, message: &Message) -> Result<(), &'static str> {
        let raft = &self.raw.raft;
        let view = CoreView {
            id: raft.id,
            role: self.role(),
            leader: self.leader(),
            term: raft.term,
            commit: self.commit().0,
            last: self.last_index().0,
            term_room: self.term_budget.room,
            reads_pending: raft.pending_read_count(),
            is_durable: self.vote_unsynced.is_none() && raft.raft_log.persisted == self.last_index().0,
            is_member: &|id| raft.prs().get(id).is_some(),
            was_member: &|id| self.former.contains(&id),
            term_at: &|index| self.term_at(LogIndex(index)).map(|term| term.0),
        };
        validate(&view, from, message)
    }

    fn refuse(&mut self, from: NodeId, reason: &str, message: Option<Message>) {
        self.refusals.note(from, reason, self.election_ticks);
        if message.as_ref().is_some_and(|message| message.term > self.term().0) {
            self.term_budget.note_behind();
        }
        if let Some(snapshot) = message.as_ref().and_then(|message| message.snapshot.as_ref()) {
            self.ignore_snapshot(position(snapshot)); // What is staged for it may go.
        }
    }

    fn receive_valid(&mut self, from: NodeId, message: Message) {
        let (term, commit) = (self.term(), self.commit());
        self.note_report(&message);
        match message.msg_type {
            MessageType::MsgPropose => self.receive_proposal(from, message),
            MessageType::MsgReadIndex if self.read_request_is_proof(from, &message) => {
                self.answer_read_request(message);
            }
            // raft-rs would respond without a read round when one voter is left, even if this member is not
            // that voter.
            MessageType::MsgReadIndex if self.leads_as_a_stranger() => {
                tracing::debug!(peer = from, "no read is answered: this leader is no voter any more");
            }
            MessageType::MsgReadIndex => self.begin_read_for(message),
            MessageType::MsgSnapshot => self.receive_snapshot(message),
            MessageType::MsgAppendResponse if message.request_snapshot != 0 => {
                self.snapshot_requested(&message);
            }
            MessageType::MsgTimeoutNow if !self.may_campaign() => {
                tracing::warn!(
                    peer = from,
                    "leadership declined: waiting for the disk, the state or the membership"
                );
            }
            MessageType::MsgAppend | MessageType::MsgHeartbeat => self.receive_notice(message),
            MessageType::MsgAppendResponse => {
                self.marking_notices(|core| core.step(|raw| raw.step(message)));
            }
            MessageType::MsgHeartbeatResponse if base::mutant("unanswered-appends") => {
                self.marking_notices(|core| core.step(|raw| raw.step(message)));
            }
            _ => self.step(|raw| raw.step(message)),
        }
        if self.commit() > commit {
            self.step_down_if_a_change_is_ahead();
        }
        self.term_budget.spend(self.term().0 - term.0);
    }

    /// Retains a forwarded batch until the disk is free or leadership has moved on a leader, and until a
    /// leader is known on a member without one. Any other member forwards it.
    ///
    /// Forwarding may loop briefly, while two members each take the other for the leader. The election ends
    /// the loop.
    fn receive_proposal(&mut self, from: NodeId, message: Message) {
        for entry in &message.entries {
            // All members will have to apply the batch, so it must be valid before it enters the log. The
            // unpacked commands are discarded.
            let is_sound = || Batch::parse(&entry.data).and_then(|batch| batch.commands()).is_ok();
            if !is_sound() {
                return self.refuse(from, "a proposal that is not a batch of commands", None);
            }
        }
        if self.role() != Role::Leader && self.ready_for_proposals().is_ok() {
            return self.step(|raw| raw.step(message));
        }
        message.entries.into_iter().for_each(|entry| self.keep_forwarded(entry.data));
    }

    /// Retains a batch until it can be proposed or forwarded.
    pub(super) fn keep_forwarded(&mut self, batch: Bytes) {
        if self.forwarded_bytes + batch.len() > RaftLimits::UNCOMMITTED_BYTES_MAX as usize {
            return tracing::debug!("a forwarded proposal is dropped: too many wait");
        }
        self.forwarded_bytes += batch.len();
        self.forwarded.push(batch);
    }

    /// Proposes the followers' batches in one step, as soon as the disk is free. After a leadership change
    /// they are forwarded to the new leader: proposers send a batch once, and would wait for their whole
    /// timeout.
    fn propose_forwarded(&mut self) {
        if self.forwarded.is_empty() {
            return;
        }
        let batches = std::mem::take(&mut self.forwarded);
        let is_late = self.leaderless_ticks > FORWARDED_KEPT_FOR * self.election_ticks;
        match self.ready_for_proposals() {
            Ok(()) if self.role() == Role::Leader => {
                if self.propose(&batches).is_err() {
                    self.forwarded = batches;
                }
            }
            // One message per batch: a single batch always fits.
            Ok(()) => batches.iter().for_each(|batch| {
                let _lost = self.propose_entries(&[batch]);
            }),
            Err(BatchRefusal::NoLeader) if is_late => {}
            Err(BatchRefusal::NoLeader | BatchRefusal::Busy) => self.forwarded = batches,
        }
        if self.forwarded.is_empty() {
            self.forwarded_bytes = 0;
        }
        assert_eq!(
            self.forwarded.is_empty(),
            self.forwarded_bytes == 0,
            "kept batches and their bytes disagree"
        );
    }
}

impl Core {
    /// Processes one asynchronous ready of raft-rs.
    ///
    /// The order is its contract: the ready is consumed completely and the log store holds the entries
    /// before the ready is advanced. [`crate::Event::Durable`] with the job's number later reports that the
    /// entries are on disk; further readies are allowed in between, and one without a job is persisted as
    /// soon as all before it are.
    fn take_ready(&mut self, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let mut ready = self.raw.ready();
        let number = ready.number();
        assert!(number > self.newest, "readies are numbered in order");
        self.newest = number;
        self.note_vote(ready.hs(), number);
        let mut messages = self.offer_snapshots(ready.take_messages(), &mut turn.effects);
        self.mark_requests_to_the_other_of_two(&mut messages);
        self.name_answers(&mut messages);
        // A lone voter leads without requesting votes: its term is not durable yet.
        let leads_durably = self.vote_unsynced.is_none() || base::mutant("unsynced-term-leads");
        let (now, of_term) = if leads_durably { (messages, Vec::new()) } else { (Vec::new(), messages) };
        turn.effects.send.extend(encode_all(now));
        turn.confirmed.extend(self.confirmed_reads(ready.take_read_states()));
        let mut persisted = self.offer_snapshots(ready.take_persisted_messages(), &mut turn.effects);
        self.mark_requests_to_the_other_of_two(&mut persisted);
        self.name_answers(&mut persisted);
        self.report_applied(&mut persisted);
        let (promises, free): (Vec<_>, Vec<_>) =
            persisted.into_iter().partition(|message| self.promises_durability(message));
        turn.effects.send.extend(encode_all(free));
        let promises = encode_all(of_term.into_iter().chain(promises).collect());
        let entries = ready.take_entries();
        let committed = ready.take_committed_entries();
        let changes = committed.iter().filter(|entry| entry.entry_type == EntryType::EntryConfChange);
        let uncertain = self.uncertain.len();
        self.uncertain.extend(changes.map(|entry| (LogIndex(entry.index), number)));
        let commits_change = self.uncertain.len() > uncertain;
        let must_sync = ready.must_sync() || commits_change;
        if let Some(hard) = ready.hs().cloned() {
            self.raw.mut_store().state.hard = hard;
            self.state_due = true;
        }
        if !entries.is_empty() || base::mutant("vote-starts-imported-member") {
            self.note_started();
        }
        let restart = (!ready.snapshot().is_empty()).then(|| self.restart(number, ready.snapshot()));
        let early_states = self.early_states(&entries, number);
        let first = entries.first().map(|entry| LogIndex(entry.index));
        self.replacing
            .extend(first.filter(|first| *first <= self.raw.store().last().index).map(|at| (number, at)));
        // raft-rs reads the entries from the store as soon as the ready is advanced.
        self.raw.mut_store().append(&entries);
        self.raw.advance_append_async(ready);
        self.state_due |= commits_change;
        if must_sync || (!promises.is_empty() && !self.unsynced.is_empty()) {
            let state = std::mem::take(&mut self.state_due).then(|| self.raw.store().state.encode());
            let state = state.filter(|state| early_states.last().is_none_or(|(_, early)| early != state));
            self.unsynced.push_back(number);
            turn.effects.persist.push(PersistJob {
                number,
                restart,
                entries,
                early_states,
                state,
                promises,
                release: None,
            });
            if base::mutant("leader-counts-unsynced") {
                self.raw.on_persist_ready(number);
            }
        } else {
            // No new durable state and no earlier job in flight: these promises already hold.
            assert!(restart.is_none(), "a log begins anew without a sync");
            turn.effects.send.extend(promises);
            self.acknowledge_idle();
        }
        self.hand_out(committed, turn)
    }

    /// Restarts the log after a snapshot: in memory now, on disk with job `number`.
    ///
    /// Until then, raft-rs sees a log that starts at the snapshot, while the log thread still has the old
    /// one. The files are not read in between: entries after the snapshot stay in the store's cache until
    /// they are synced.
    fn restart(&mut self, number: u64, snapshot: &raft::eraftpb::Snapshot) -> Restart {
        let at = super::state::position(snapshot);
        self.begin_restart(number, at);
        let store = self.raw.mut_store();
        store.restore(at);
        // The leader's configuration at the time of the offer. The machine's follows with the install.
        store.state.conf = snapshot.get_metadata().get_conf_state().clone();
        // Commit index of the new, still empty log. A later commit index is written with its entries.
        let mut state = store.state.clone();
        assert!(state.hard.commit >= at.index.0, "a snapshot of what is not committed");
        state.hard.commit = at.index.0;
        Restart { at, state: state.encode() }
    }

    /// Returns the states to write in front of entries of a job, since a crash may retain only a prefix of
    /// the job. An entry of a new term must not survive without the term: this member could not be elected
    /// in the following term, and would not learn of it. A membership change must not survive without the
    /// commit index received with it: the previous change is committed, and this member must not campaign
    /// in the membership before both.
    fn early_states(&self, entries: &[Entry], number: u64) -> Vec<(usize, Vec<u8>)> {
        let begins_term = self.vote_unsynced == Some(number);
        let is_change = |entry: &Entry| entry.entry_type == EntryType::EntryConfChange;
        let is_due = |(at, entry): &(usize, &Entry)| *at == 0 && begins_term || is_change(entry);
        let state_before = |(at, entry): (usize, &Entry)| {
            let mut state = self.raw.store().state.clone();
            // Never beyond the log that precedes it.
            state.hard.commit = state.hard.commit.min(entry.index - 1);
            (at, state.encode())
        };
        entries.iter().enumerate().filter(is_due).map(state_before).collect()
    }

    /// Records which job makes a new term or vote durable.
    fn note_vote(&mut self, hard: Option<&HardState>, number: u64) {
        let Some(hard) = hard else { return };
        let before = &self.raw.store().state.hard;
        assert!(hard.term >= before.term, "terms never go back");
        assert!(hard.commit >= before.commit, "what was committed stays committed");
        if (hard.term, hard.vote) != (before.term, before.vote) {
            self.vote_unsynced = Some(number);
        }
    }

    /// Reports whether a message asserts durable state of this member. raft-rs delays all messages of a
    /// follower or candidate until earlier writes are synced. Forwarded requests and heartbeat responses do
    /// not depend on this disk, and readers and writers wait for them. A heartbeat response only asserts
    /// that this member was in the leader's term on receipt, which must not be a term that a crash could
    /// undo.
    fn promises_durability(&self, message: &Message) -> bool {
        match message.msg_type {
            _ if base::mutant("early-promises") => false,
            MessageType::MsgPropose | MessageType::MsgReadIndex => false,
            MessageType::MsgHeartbeatResponse => {
                self.vote_unsynced.is_some() && !base::mutant("early-heartbeat-answers")
            }
            _ => true,
        }
    }

    /// Completes the job `number` and all before it after a sync. Here a leader counts its own copy of an
    /// entry, and a lone voter commits.
    pub(super) fn durable(&mut self, number: u64) {
        assert!(self.unsynced.contains(&number), "a sync of job {number}, which is not under way");
        while self.unsynced.front().is_some_and(|first| *first <= number) {
            self.unsynced.pop_front();
        }
        self.vote_unsynced = self.vote_unsynced.filter(|job| *job > number);
        self.uncertain.retain(|(_, job)| *job > number);
        self.marking_notices(|core| core.raw.on_persist_ready(number));
        self.replacing.retain(|(job, _)| *job > number);
        // raft-rs counts an entry as synced although a later job replaces it, if a job after that restores
        // it: a crash may retain the replacement.
        if let Some(first) = self.replacing.iter().map(|(_, first)| first.0).min()
            && !base::mutant("replaced-entries-count")
        {
            let log = &mut self.raw.raft.raft_log;
            log.persisted = log.persisted.min(first - 1);
        }
        self.acknowledge_idle();
        self.restarted(number);
    }

    /// Reports whether the owner should wake for a sync. Otherwise it processes the sync with the following
    /// event, a tick at the latest: a leader's copy counts with a follower's acknowledgement, and a
    /// follower applies only committed entries.
    pub fn waits_for_sync(&self) -> bool {
        let raft = &self.raw.raft;
        let waits_for_disk_alone = self.vote_unsynced.is_some()
            || !self.uncertain.is_empty()
            || !self.forwarded.is_empty()
            || !self.changes.is_empty()
            || !self.snapshots.restarting.is_empty()
            || self.is_left_alone;
        let is_acknowledged = |(id, follower): (&u64, &raft::Progress)| {
            *id != raft.id && follower.matched > raft.raft_log.committed
        };
        let waits = match self.role() {
            Role::Leader => self.voters().len() == 1 || raft.prs().iter().any(is_acknowledged),
            Role::Follower => self.stable < self.commit(),
            Role::Candidate => true,
        };
        (waits || waits_for_disk_alone) && !base::mutant("unheard-syncs")
    }

    /// Marks readies without a job as persisted once every job before them is.
    fn acknowledge_idle(&mut self) {
        if self.unsynced.is_empty() {
            self.raw.on_persist_ready(self.newest);
        }
    }
}

/// Minimum size counted per entry, so that the number of empty entries is bounded as well.
const ENTRY_BYTES_MIN: usize = 64;

impl Core {
    /// Reports whether committed entries wait for earlier ones to be applied.
    pub fn is_starved(&self) -> bool {
        self.may_hand_out() && self.handed < self.stable && !self.waits_for_commit()
    }

    /// Reports whether the following entry is a membership change with a commit index that a crash could
    /// lose.
    fn waits_for_commit(&self) -> bool {
        self.uncertain.front().is_some_and(|(index, _)| *index == self.handed + 1)
    }

    /// Hands out newly committed entries within the capacity, if no older ones wait. raft-rs returns each
    /// entry once; [`Core::hand_out_more`] reads the remaining ones from the log again.
    fn hand_out(&mut self, committed: Vec<Entry>, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let Some(last) = committed.last() else { return Ok(()) };
        assert!(LogIndex(last.index) > self.stable, "entry {} was committed before", last.index);
        let next = self.stable + 1;
        self.stable = LogIndex(last.index);
        assert_eq!(
            committed.len() as u64,
            last.index + 1 - committed[0].index,
            "a gap among committed entries"
        );
        // Only if no earlier entries are pending; otherwise all are read again later, in order.
        if self.may_hand_out() && self.handed + 1 == next && committed[0].index == next.0 {
            for entry in committed {
                if self.applying_bytes >= self.apply_bytes_max || self.waits_for_commit() {
                    break;
                }
                self.hand_out_one(entry, turn)?;
            }
        }
        Ok(())
    }

    /// Hands out pending entries, and evicts from the cache the entries that it no longer needs.
    fn hand_out_more(&mut self, turn: &mut CoreTurn) -> Result<(), Fatal> {
        while self.is_starved() && self.applying_bytes < self.apply_bytes_max {
            let room = self.apply_bytes_max - self.applying_bytes;
            for entry in self.raw.store().read(self.handed + 1, self.stable + 1, room)? {
                if self.waits_for_commit() {
                    break;
                }
                self.hand_out_one(entry, turn)?;
            }
        }
        let stable = self.stable;
        self.raw.mut_store().evict(stable);
        Ok(())
    }

    fn hand_out_one(&mut self, entry: Entry, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let at = LogPosition::new(entry.index, entry.term);
        assert_eq!(at.index, self.handed + 1, "entries are applied in order, each once");
        let bytes = entry.data.len();
        let payload = match entry.entry_type {
            EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
            EntryType::EntryNormal => Payload::Batch(entry.data),
            EntryType::EntryConfChange => {
                self.changing.push_back(at.index);
                match change_batch(&entry.data) {
                    Ok(batch) => Payload::Change(batch),
                    // Equal on every member, as is their handling of it.
                    Err(error) => {
                        tracing::warn!(
                            entry.index,
                            %error,
                            "malformed membership change is applied as an empty entry"
                        );
                        Payload::Empty
                    }
                }
            }
            EntryType::EntryConfChangeV2 => {
                let kind = entry_kind(&entry);
                return Err(Fatal::new(format!("apply entry {}: kind {kind} is not supported", entry.index)));
            }
        };
        self.count(at.index, bytes);
        turn.committed.push(CommittedEntry { at, payload });
        Ok(())
    }

    /// Hands out an install instead of the entries up to `at`: the machine replaces its state with theirs.
    pub(super) fn hand_out_install(&mut self, at: LogPosition, turn: &mut CoreTurn) {
        assert!(at.index >= self.handed, "an install at {} after {} entries", at.index, self.handed);
        self.stable = self.stable.max(at.index);
        self.count(at.index, 0);
        turn.committed.push(CommittedEntry { at, payload: Payload::Install });
    }

    /// Counts entries up to `index` as handed out; the last of them counts as `bytes`.
    fn count(&mut self, index: LogIndex, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES_MIN;
        self.handed = index;
        self.applying_bytes += bytes;
        self.applying.push_back((index, bytes));
    }

    /// Frees capacity for further entries, and reports progress to raft-rs: a member with unapplied
    /// membership changes must not campaign.
    pub(super) fn applied(&mut self, index: LogIndex) {
        assert!(index <= self.handed, "entry {index} was applied before it was handed out");
        assert!(self.handed <= self.stable, "handed out before it was committed and synced");
        while let Some((_, bytes)) = self.applying.front().filter(|(first, _)| *first <= index) {
            self.applying_bytes -= bytes;
            self.applying.pop_front();
        }
        assert_eq!(self.applying.is_empty(), self.applying_bytes == 0, "a leak in the bytes being applied");
        if index.0 > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(index.0);
        }
        self.changing.retain(|change| *change > index);
        self.note_installed(index);
        if let Some(at) = self.checkpoint_due.take() {
            self.checkpointed(at);
        }
    }
}
