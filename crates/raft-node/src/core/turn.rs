//! Events in, effects out: the functions that change the core.
//!
//! An event is handled at once. Its effects are collected by the next turn, so that many events share one
//! message to each follower and one job for the disk. Messages of peers are validated before raft-rs sees
//! them.

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};

use super::Core;
use super::event::{CoreTurn, Event};
use super::state::{CoreView, position, validate};
use crate::wire::{Batch, MalformedBytes, decode, encode_all};
use crate::{Fatal, LogIndex, NodeId, RaftLimits, Role};

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
            Event::Durable(durable) => self.durable(durable.number),
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
            Event::Membership(membership) => self.adopt(&membership)?,
            Event::PeerMembership(membership) => self.peer_membership(&membership)?,
            Event::TransferLeader { to } => self.raw.transfer_leader(to),
            Event::Checkpointed { at } => self.checkpointed(at),
            Event::SnapshotReported { peer, outcome } => self.snapshot_reported(peer, outcome),
            Event::ReadIndex { .. } if self.leads_as_a_stranger() => {} // Its readers have a timeout.
            Event::ReadIndex { context } => self.raw.read_index(context.to_vec()),
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
