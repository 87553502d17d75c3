//! Events in, effects out: the functions that change the core.
//!
//! An event is handled at once. Its effects are collected by the next turn, so that many events share one
//! message to each follower and one job for the disk. Messages of peers are validated before raft-rs sees
//! them.
//!
//! # Ready
//!
//! raft-rs' asynchronous ready: what leaves now, what goes to the disk first, and what the disk has
//! confirmed.
//!
//! ```text
//!   ready ─┬─ messages of a leader ────────────────▶ send, or offers of snapshots
//!          ├─ entries, state, restart ─▶ job ─sync─▶ Event::Durable ─▶ on_persist_ready
//!          └─ promises ───────────────▶ in the job, or sent if nothing is under way
//! ```
//!
//! * Readies are numbered; a job has the number of its ready, and `Durable` of one covers all before it.
//! * Several jobs may be under way: the log thread takes all that wait and syncs once.
//! * A ready without a job counts as persisted as soon as every job before it is.
//!
//! Which ready needs a job:
//!
//! | in the ready | job |
//! |---|---|
//! | entries, a new term or vote, a snapshot | yes: raft-rs says that they must be synced |
//! | promises while a job is under way | yes, one without bytes: it keeps their place after that sync |
//! | promises, and nothing under way | no: what they promise is durable already |
//! | a commit index that moved | no: it is written with the next job that is needed anyway |
//!
//! # Committed entries
//!
//! Committed entries on their way to the state machine: in order, each once, never more than fit.
//!
//! ```text
//!   committed by raft-rs ──hand_out──▶ effects ──▶ apply thread ──Event::Applied──▶ room for more
//!            └── no room: forgotten here, read again from the log by hand_out_more
//! ```
//!
//! * `applied ≤ handed ≤ stable ≤ commit`, each of them only growing. What lies between `applied` and
//!   `handed` is with the apply thread, at most `apply_bytes_max` of it and one entry more; what lies between
//!   `handed` and `stable` is in the log and waits for room there.
//! * `handed` moves one entry at a time, except over what a snapshot brings.
//! * raft-rs gives each committed entry once and forgets it. Keeping what finds no room would be a second
//!   copy of the log in memory; so it is dropped here and read again, from the cache as a rule.
//! * A change of the membership is handed out when the commit index that covers it is durable here. A member
//!   that is removed ends when a voter has applied that; the voter must not forget it in a crash, and wait
//!   for the vote of the one that has ended.
//! * While the store is lost nothing is handed out; `stable` goes on, so that the log's cache can be emptied.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};

use super::Core;
use super::event::{CommittedEntry, CoreTurn, Event, Payload};
use super::state::position;
use crate::log::{PersistJob, Restart};
use crate::wire::{Batch, CoreView, MalformedBytes, change_batch, decode, encode_all, entry_kind, validate};
use crate::{Fatal, LogIndex, LogPosition, NodeId, RaftLimits, Role};

/// Readies in one turn. More are taken in the next one, after the inbox.
const READIES_PER_TURN: usize = 8;

/// What other members have forwarded is dropped when no leader has been known for so many election timeouts.
/// One is elected within three as a rule; the proposers wait for some seven.
const FORWARDED_KEPT_FOR: u32 = 3;

/// Why a batch was not taken. It was not proposed and may be proposed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchRefusal {
    /// No leader is known, or none that can be reached; an election may be under way.
    NoLeader,
    /// The previous turn's entries are not synced yet, or leadership is moving, or too much is uncommitted.
    Busy,
}

impl Core {
    /// Takes in one event. Its effects come with the next [`Core::turn`]: many events share one turn, and so
    /// one message to each follower and one job for the disk.
    ///
    /// An error means that this member's own disk, log or machine cannot be trusted any more. What a peer
    /// does wrong is never an error here: it is dropped.
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

    /// Proposes batches as separate entries, in one step. On a follower they are sent to the leader.
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

    /// Whether a proposal would be taken now. While a leader's entries are being synced the next ones wait,
    /// so that batches grow with the load. A follower forwards at any time, unless the way to the leader
    /// broke and nothing has come from it since: what is sent to a leader that has ended is lost, and its
    /// proposer would wait for the whole of its timeout.
    pub fn ready_for_proposals(&self) -> Result<(), BatchRefusal> {
        match self.role() {
            _ if self.leader().is_none() || self.leader() == self.lost_leader => Err(BatchRefusal::NoLeader),
            Role::Leader if !self.unsynced.is_empty() || self.raw.raft.lead_transferee.is_some() => {
                Err(BatchRefusal::Busy)
            }
            Role::Leader | Role::Follower | Role::Candidate => Ok(()),
        }
    }

    /// Whether a read round begun now can be answered at all.
    pub fn ready_for_reads(&self) -> bool {
        match self.role() {
            // A leader knows what is committed only after committing in its own term (Raft thesis 6.4).
            Role::Leader => self.is_voter() && self.raw.raft.commit_to_current_term(),
            Role::Follower => self.leader().is_some(),
            Role::Candidate => false,
        }
    }

    /// Collects everything that the events since the last turn call for.
    ///
    /// Installs come before readies: an entry after a snapshot must not be handed out before it. Trimming
    /// comes last, so that it can ride along with a job of this turn.
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

    /// Takes in a peer's message. One that is malformed, or that claims what no honest member would, is
    /// dropped as if it had been lost: nothing that a peer sends ends this member.
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
            // raft-rs would answer alone when one voter is left, and does not ask which.
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
                    "leadership is not taken: this member waits for its disk, state or membership"
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

    /// A leader keeps a forwarded batch until the disk is free, or leadership has moved; a member that knows
    /// no leader keeps it until it does. Any other member passes it on.
    ///
    /// Passing on may go in a circle for a moment, when two members each take the other for the leader. It
    /// ends with the election.
    fn receive_proposal(&mut self, from: NodeId, message: Message) {
        for entry in &message.entries {
            // What every member will have to apply must be sound before it enters the log: unpacked for this,
            // and thrown away.
            let is_sound = || Batch::parse(&entry.data).and_then(|batch| batch.commands()).is_ok();
            if !is_sound() {
                return self.refuse(from, "a proposal that is no batch of commands", None);
            }
        }
        if self.role() != Role::Leader && self.ready_for_proposals().is_ok() {
            return self.step(|raw| raw.step(message));
        }
        message.entries.into_iter().for_each(|entry| self.keep_forwarded(entry.data));
    }

    /// Keeps a batch until it can be proposed, or passed on.
    pub(super) fn keep_forwarded(&mut self, batch: Bytes) {
        if self.forwarded_bytes + batch.len() > RaftLimits::UNCOMMITTED_BYTES_MAX as usize {
            return tracing::debug!("a forwarded proposal is dropped: too many wait");
        }
        self.forwarded_bytes += batch.len();
        self.forwarded.push(batch);
    }

    /// Batches of followers go into the log in one step, as soon as the disk is free. After a move of
    /// leadership they go to the new leader: their proposers send them once, and would wait for the whole of
    /// their timeout.
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
            // A message each: a batch fits into one for sure.
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
    /// One round of raft-rs' asynchronous ready.
    ///
    /// The order is its contract: everything in the ready is taken, the log store holds the entries, and only
    /// then is the ready advanced. That the entries are on disk is reported later, by
    /// [`crate::Event::Durable`] of the job's number; readies in between are allowed, and one that needs no
    /// job is persisted as soon as all before it are.
    fn take_ready(&mut self, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let mut ready = self.raw.ready();
        let number = ready.number();
        assert!(number > self.newest, "readies are numbered in order");
        self.newest = number;
        self.note_vote(ready.hs(), number);
        let mut messages = self.offer_snapshots(ready.take_messages(), &mut turn.effects);
        self.mark_requests_to_the_other_of_two(&mut messages);
        self.name_answers(&mut messages);
        // A lone voter leads without having asked for votes: its term is not durable yet.
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
        // raft-rs reads the entries back from the store as soon as the ready is advanced.
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
            // Nothing new to make durable and nothing before it under way: these promises are kept already.
            assert!(restart.is_none(), "a log begins anew without a sync");
            turn.effects.send.extend(promises);
            self.acknowledge_idle();
        }
        self.hand_out(committed, turn)
    }

    /// The log begins anew after a snapshot: in memory now, on disk with job `number`.
    ///
    /// In between, raft-rs sees a log that starts at the snapshot, while the log thread still has the old
    /// one. Nothing asks the files meanwhile: what follows the snapshot is in the store's cache until it is
    /// synced.
    fn restart(&mut self, number: u64, snapshot: &raft::eraftpb::Snapshot) -> Restart {
        let at = super::state::position(snapshot);
        self.begin_restart(number, at);
        let store = self.raw.mut_store();
        store.restore(at);
        // That of the leader when it offered. The machine's own follows with the install.
        store.state.conf = snapshot.get_metadata().get_conf_state().clone();
        // What the new log knows committed when there is nothing in it yet. A later commit comes with its
        // entries.
        let mut state = store.state.clone();
        assert!(state.hard.commit >= at.index.0, "a snapshot of what is not committed");
        state.hard.commit = at.index.0;
        Restart { at, state: state.encode() }
    }

    /// A crash may keep the first entries of a job and no more. An entry of a term is not kept without the
    /// term: this member could not be elected in the next one, and would not learn of it. A change of the
    /// membership is not kept without the commit index that came with it: the change before it is committed,
    /// and this member must not stand for election in the membership before both.
    fn early_states(&self, entries: &[Entry], number: u64) -> Vec<(usize, Vec<u8>)> {
        let begins_term = self.vote_unsynced == Some(number);
        let is_change = |entry: &Entry| entry.entry_type == EntryType::EntryConfChange;
        let is_due = |(at, entry): &(usize, &Entry)| *at == 0 && begins_term || is_change(entry);
        let state_before = |(at, entry): (usize, &Entry)| {
            let mut state = self.raw.store().state.clone();
            // Never one that the log before it does not hold.
            state.hard.commit = state.hard.commit.min(entry.index - 1);
            (at, state.encode())
        };
        entries.iter().enumerate().filter(is_due).map(state_before).collect()
    }

    /// Remembers which job makes a new term or vote durable.
    fn note_vote(&mut self, hard: Option<&HardState>, number: u64) {
        let Some(hard) = hard else { return };
        let before = &self.raw.store().state.hard;
        assert!(hard.term >= before.term, "terms never go back");
        assert!(hard.commit >= before.commit, "what was committed stays committed");
        if (hard.term, hard.vote) != (before.term, before.vote) {
            self.vote_unsynced = Some(number);
        }
    }

    /// raft-rs holds back everything that a follower or candidate says until all before it is synced. Some of
    /// it says nothing about this member's disk, and readers and writers wait for it: what is forwarded for
    /// others, and the answer to a heartbeat, which only says that this member was in the leader's term when
    /// it came. That must not be said of a term that a crash could take back.
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

    /// A sync covered the job `number` and all before it. This is where a leader counts its own copy of an
    /// entry, and where a lone voter commits.
    pub(super) fn durable(&mut self, number: u64) {
        assert!(self.unsynced.contains(&number), "a sync of job {number}, which is not under way");
        while self.unsynced.front().is_some_and(|first| *first <= number) {
            self.unsynced.pop_front();
        }
        self.vote_unsynced = self.vote_unsynced.filter(|job| *job > number);
        self.uncertain.retain(|(_, job)| *job > number);
        self.marking_notices(|core| core.raw.on_persist_ready(number));
        self.replacing.retain(|(job, _)| *job > number);
        // raft-rs takes an entry for synced that a later job replaces by another one, if one after that has
        // put it back: a crash may keep the other one.
        if let Some(first) = self.replacing.iter().map(|(_, first)| first.0).min()
            && !base::mutant("replaced-entries-count")
        {
            let log = &mut self.raw.raft.raft_log;
            log.persisted = log.persisted.min(first - 1);
        }
        self.acknowledge_idle();
        self.restarted(number);
    }

    /// Whether the owner should wake for a sync. If not, it hears of the sync together with what comes next,
    /// a tick at the latest: a leader's copy counts with a follower's acknowledgement, and a follower applies
    /// what is committed.
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

    /// Readies without a job count as persisted once every job before them is.
    fn acknowledge_idle(&mut self) {
        if self.unsynced.is_empty() {
            self.raw.on_persist_ready(self.newest);
        }
    }
}

/// The least that an entry counts, so that empty ones are bounded as well.
const ENTRY_BYTES_MIN: usize = 64;

impl Core {
    /// Whether committed entries wait for earlier ones to be applied.
    pub fn is_starved(&self) -> bool {
        self.may_hand_out() && self.handed < self.stable && !self.waits_for_commit()
    }

    /// Whether the next entry is a change of the membership that is not known as committed after a crash.
    fn waits_for_commit(&self) -> bool {
        self.uncertain.front().is_some_and(|(index, _)| *index == self.handed + 1)
    }

    /// Hands out what raft-rs just gave, as far as there is room and nothing older waits. raft-rs gives each
    /// entry once; what finds no room here is read from the log again by [`Core::hand_out_more`].
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
        // Only if nothing is owed from before; otherwise the order says to fetch them again, later.
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

    /// Hands out what had to wait, and lets the cache forget what it no longer must hold.
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
                    // Equal on every member, and so is what they do with it.
                    Err(error) => {
                        tracing::warn!(entry.index, %error, "a malformed change is an empty entry");
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

    /// Hands out an install instead of the entries up to `at`: the machine takes over the state that they led
    /// to.
    pub(super) fn hand_out_install(&mut self, at: LogPosition, turn: &mut CoreTurn) {
        assert!(at.index >= self.handed, "an install at {} after {} entries", at.index, self.handed);
        self.stable = self.stable.max(at.index);
        self.count(at.index, 0);
        turn.committed.push(CommittedEntry { at, payload: Payload::Install });
    }

    /// Everything up to `index` is with the apply step; the last of it counts as `bytes` there.
    fn count(&mut self, index: LogIndex, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES_MIN;
        self.handed = index;
        self.applying_bytes += bytes;
        self.applying.push_back((index, bytes));
    }

    /// Makes room for more. raft-rs wants to know as well: a member with unapplied changes of membership must
    /// not stand for election.
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
