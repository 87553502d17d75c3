//! A member without its threads: the Raft core together with those who wait for it. As pure as the core.
//!
//! ```text
//!   offer, ask, handle ──▶ Node { proposals, reads, core } ──turn──▶ Turn { effects, apply, answers }
//! ```
//!
//! * Commands that wait are proposed as one batch per turn, and only when Raft takes them; reads likewise.
//! * What a committed entry answers is decided here and travels with it, so that the apply step needs no
//!   table.
//! * Every wait ends: in an answer, in an error that says which kind of trouble it was, or when the member
//!   stops.
//!
//! Who waits where, and for what:
//!
//! | who | waits in | until |
//! |---|---|---|
//! | a proposer | `proposals`: for a batch, then under its name | its entry is committed and applied |
//! | a reader | `reads`: for a round, then for a quorum | the apply step has reached the round's index |
//! | both, at most | – | the tick at which the request times out |
//!
//! A proposal whose entry a snapshot skips is among the last kind: it may have been applied, elsewhere, and
//! this member cannot know. A reader is not: it reads the snapshot's state, which holds all that its round
//! asked for.
//!
//! The driver and the simulator run the same code; they differ in where time, disk and network come from.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::apply::ApplyJob;
use super::proposals::{ExpiredProposal, Proposals, Ticks};
use super::reads::Reads;
use crate::core::Core;
use crate::core::{CommittedEntry, CoreSetup, CoreTurn, Effects, Event, Payload};
use crate::core::{PeerState, Start};
use crate::log::{Archive, LogStore};
use crate::log::{RecoveredLog, durable_state};
use crate::types::Travel;
use crate::wire::Batch;
use crate::{
    Fatal, LogIndex, LogPosition, NodeId, Progress, ProposeError, ReadError, Role, StoreState, Term,
};

/// How a node is set up: the core's part, and the waiting room's.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    pub core: CoreSetup,
    /// See [`crate::Config::boot_nonce`].
    pub boot_nonce: u64,
    pub batch_bytes_max: usize,
    pub cache_bytes_max: usize,
    pub request_timeout_ticks: u64,
    pub read_retry_ticks: u64,
}

/// What one turn calls for, in the order in which a driver best carries it out: peers hear first, because
/// their disks can then work at the same time as this member's. Nothing breaks in another order. `P` answers
/// a proposer, `R` a reader.
#[derive(Debug)]
pub struct NodeOutput<P, R> {
    /// Of the core.
    pub effects: Effects,
    /// To be applied in order; see [`crate::Applier`].
    pub apply: Vec<ApplyJob<P, R>>,
    pub proposals_failed: Vec<(P, ProposeError)>,
    pub reads_failed: Vec<(R, ReadError)>,
    /// Readers whose round is confirmed and whose index is applied already: they may read now.
    pub readable: Vec<R>,
    /// Commands and bytes of the batch that was proposed in this turn.
    pub batch: Option<(usize, usize)>,
}

/// The gauges of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gauges {
    pub role: Role,
    /// Whom this member follows, itself included; None during an election.
    pub leader: Option<NodeId>,
    pub term: Term,
    /// What this member knows to be committed; others may know more.
    pub commit: LogIndex,
    /// End of the log in memory: it may not be synced so far.
    pub last_index: LogIndex,
}

/// The node of one member. `P` answers a proposer and `R` a reader; a node moves them but never looks inside.
///
/// Per turn: at most one batch and one read round begin. That is no limit on throughput, because both take in
/// all that wait, and it keeps the number of messages independent of the number of clients.
pub struct Node<P, R> {
    core: Core,
    proposals: Proposals<P>,
    reads: Reads<R>,
    /// How far the machine is, as last heard.
    applied: LogIndex,
    /// Ticks heard since the start.
    now: Ticks,
    /// A tick passed since the last turn: requests may have run out of time.
    ticked: bool,
    /// Raft refused a batch in this turn although it had seemed ready.
    refused: bool,
    id: NodeId,
    election_ticks: Ticks,
    request_timeout_ticks: Ticks,
    /// Who led at the end of the last turn.
    leader: Option<NodeId>,
    /// When the leader of today became known.
    leader_since: Ticks,
    /// When a message to each peer was last reported lost.
    unreachable_at: BTreeMap<NodeId, Ticks>,
}

impl<P, R> Node<P, R> {
    /// Brings a node up from its log. `voters` must agree with a membership that the log already holds;
    /// `applied` is where the state machine stands.
    pub fn open<F: wal::Fs>(
        setup: &NodeSetup,
        voters: &[NodeId],
        found: RecoveredLog<F>,
        applied: LogPosition,
    ) -> Result<Self, Fatal> {
        let store = setup.core.store;
        let state = durable_state(voters, setup.core.membership.as_ref(), &found, applied, store)?;
        let (start, last) = (found.start, found.last);
        let checkpoint = match store {
            StoreState::Whole => applied,
            StoreState::Lost => LogPosition::default(),
        };
        let archive: Box<dyn Archive> = Box::new(found.reader);
        let store = LogStore::open(archive, state, start, last, checkpoint, setup.cache_bytes_max)?;
        let id = setup.core.id;
        Ok(Node {
            core: Core::new(&setup.core, store, applied.index)?,
            proposals: Proposals::new(id, setup.boot_nonce, setup.batch_bytes_max),
            reads: Reads::new(id, setup.boot_nonce, setup.read_retry_ticks),
            applied: applied.index,
            now: 0,
            ticked: false,
            refused: false,
            id,
            election_ticks: Ticks::from(setup.core.election_ticks),
            request_timeout_ticks: setup.request_timeout_ticks,
            leader: None,
            leader_since: 0,
            unreachable_at: BTreeMap::new(),
        })
    }

    /// Queues a command; its entrance has bounded how many wait.
    pub fn offer(&mut self, command: Bytes, reply: P) {
        self.proposals.offer(command, Travel::Batched, reply, self.now);
    }

    /// Queues a command that changes the membership. It waits for the change before it.
    pub fn offer_change(&mut self, command: Bytes, reply: P) {
        self.proposals.offer(command, Travel::AsChange, reply, self.now);
    }

    /// Drops the commands that wait unproposed although their proposers have gone. Looks at them only when a
    /// batch could be made of them.
    pub fn withdraw(&mut self, is_gone: impl Fn(&P) -> bool) {
        if self.may_propose() {
            self.proposals.withdraw(is_gone);
        }
    }

    /// Queues a read.
    pub fn ask(&mut self, reply: R) {
        self.reads.ask(reply, self.now);
    }

    /// Takes in what happened outside. What it calls for comes with the next turn.
    ///
    /// Ticks are this node's only time: deadlines of those who wait are counted in them, so a member that
    /// stood still does not fail all its clients at once when it goes on.
    pub fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match &event {
            Event::Tick => {
                self.now += 1;
                self.ticked = true;
            }
            // Others are not asked for, and may have any id.
            Event::Unreachable { peer } => {
                if self.leader == Some(*peer) || self.core.voters().contains(peer) {
                    self.unreachable_at.insert(*peer, self.now);
                }
            }
            Event::Applied { index } => self.applied = *index,
            Event::Message { .. }
            | Event::Durable(_)
            | Event::Membership { .. }
            | Event::PeerMembership(_)
            | Event::TransferLeader { .. }
            | Event::Checkpointed { .. }
            | Event::SnapshotReported { .. }
            | Event::ReadIndex { .. }
            | Event::Confirmed(_)
            | Event::Reseed => {}
        }
        self.core.handle(event)
    }

    /// Collects everything that the calls since the last turn ask for.
    ///
    /// The order within is not free. Changes of leadership are noted first, so that no round begins under a
    /// leader that is gone; the batch is proposed before the core turns, so that it leaves in this turn;
    /// rounds are confirmed last, after leadership was looked at again.
    pub fn turn(&mut self) -> Result<NodeOutput<P, R>, Fatal> {
        let mut turn = NodeOutput {
            effects: Effects::default(),
            apply: Vec::new(),
            proposals_failed: Vec::new(),
            reads_failed: Vec::new(),
            readable: Vec::new(),
            batch: None,
        };
        self.note_leader(&mut turn);
        self.expire(&mut turn);
        self.propose(&mut turn);
        self.begin_reads()?;
        let CoreTurn { effects, committed, confirmed } = self.core.turn()?;
        turn.effects = effects;
        for committed in committed {
            turn.apply.push(self.job(committed));
        }
        // Before the confirmed rounds: a round that another leader was to answer must not be taken from its
        // answer.
        self.note_leader(&mut turn);
        for (context, index) in confirmed {
            let readers = self.reads.confirm(&context);
            if index <= self.applied || base::mutant("early-reads-in-turn") {
                turn.readable.extend(readers);
            } else if !readers.is_empty() {
                turn.apply.push(ApplyJob::reads(index, readers));
            }
        }
        // Others may have waited for what this turn finished. No other event wakes the loop for them.
        turn.effects.more |= !self.refused && self.may_propose() && self.proposals.is_waiting();
        turn.effects.more |= self.reads.may_begin() && self.core.ready_for_reads();
        Ok(turn)
    }

    pub fn gauges(&self) -> Gauges {
        Gauges {
            role: self.core.role(),
            leader: self.core.leader(),
            term: self.core.term(),
            commit: self.core.commit(),
            last_index: self.core.last_index(),
        }
    }

    pub fn voters(&self) -> &[NodeId] {
        self.core.voters()
    }

    /// How far the machine is, as last heard by [`Event::Applied`].
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Whether committed entries wait for room in the apply step: then [`Event::Applied`] is owed soon.
    pub fn is_starved(&self) -> bool {
        self.core.is_starved()
    }

    /// Whether the next sync lets something go on here; see [`Core::waits_for_sync`].
    pub fn waits_for_sync(&self) -> bool {
        let leads = self.core.role() == Role::Leader;
        self.core.waits_for_sync() || (leads && self.proposals.is_waiting())
    }

    /// Answers member `asker`, whose log is empty; see [`crate::Inquiry`]. None if it must ask again.
    pub fn answer_member(&mut self, asker: NodeId) -> Option<PeerState> {
        self.core.answer_member(asker)
    }

    /// What this leader knows of a member's log; see [`crate::Handle::progress_of`].
    pub fn progress_of(&self, member: NodeId) -> Option<Progress> {
        self.core.progress_of(member)
    }

    /// Whether this member takes no part until [`Event::Confirmed`]; see [`crate::Inquiry`].
    pub fn is_unconfirmed(&self) -> bool {
        self.core.is_unconfirmed()
    }

    /// Returns what this member knows of its own start.
    pub fn start(&self) -> Start {
        self.core.start()
    }

    /// Whether this member must neither vote nor campaign.
    pub fn is_held(&self) -> bool {
        self.core.is_held()
    }

    /// The voter that should lead if this one stops.
    pub fn most_caught_up(&self) -> Option<NodeId> {
        self.core.most_caught_up()
    }

    /// Term of an entry in this member's log.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.core.term_at(index)
    }

    /// Takes out all requests that wait, to be answered that the member stops.
    pub fn stop(mut self) -> (Vec<P>, Vec<R>) {
        (self.proposals.drain().collect(), self.reads.drain().collect())
    }

    /// Keeps track of who leads since when, and ends the read rounds of a leader that is no more.
    fn note_leader(&mut self, turn: &mut NodeOutput<P, R>) {
        let leader = self.core.leader();
        if leader != self.leader {
            self.leader = leader;
            self.leader_since = self.now;
        }
        assert!(self.leader_since <= self.now, "a leader from the future");
        let failed = self.reads.note_leader_term((leader, self.core.term()));
        turn.reads_failed.extend(failed.into_iter().map(|reader| (reader, ReadError::LeaderChanged)));
    }

    /// Once per tick: requests that waited too long fail, with the reason.
    fn expire(&mut self, turn: &mut NodeOutput<P, R>) {
        if !std::mem::take(&mut self.ticked) {
            return;
        }
        let deadline = self.now.saturating_sub(self.request_timeout_ticks);
        for expired in self.proposals.expire(deadline) {
            let why = self.why(&expired);
            turn.proposals_failed.push((expired.reply, why));
        }
        let readers = self.reads.expire(deadline);
        turn.reads_failed.extend(readers.into_iter().map(|reader| (reader, ReadError::Timeout)));
    }

    /// The cause of a proposal that was not applied in time, as etcd distinguishes it.
    ///
    /// A guess, made from what this member saw: clients choose their next endpoint by it, and nothing here
    /// depends on it.
    fn why(&self, expired: &ExpiredProposal<P>) -> ProposeError {
        let since = expired.since;
        let Some(leader) = self.leader else {
            return if expired.sent { ProposeError::Timeout } else { ProposeError::NoLeader };
        };
        // Proposed shortly before this leader was elected: the one before it had probably failed already.
        if since < self.leader_since && since + 2 * self.election_ticks > self.leader_since {
            return ProposeError::TimeoutLeaderFail;
        }
        let lost = |peer: &NodeId| self.unreachable_at.get(peer).is_some_and(|at| *at >= since);
        let voters = self.core.voters();
        let cut_off = if leader == self.id {
            2 * voters.iter().filter(|peer| !lost(peer)).count() <= voters.len()
        } else {
            lost(&leader)
        };
        if cut_off { ProposeError::TimeoutConnectionLost } else { ProposeError::Timeout }
    }

    /// A follower keeps one batch on the way to the leader, so that its batches grow with the load as well.
    /// The next tick lifts that: the batch may have been lost.
    fn may_propose(&self) -> bool {
        let follows = self.core.role() != Role::Leader;
        let held = follows && self.proposals.sent_within(self.now);
        !held && self.core.ready_for_proposals().is_ok()
    }

    fn propose(&mut self, turn: &mut NodeOutput<P, R>) {
        self.refused = false;
        if !self.may_propose() {
            return;
        }
        let Some(batch) = self.proposals.batch() else { return };
        let again = base::mutant("resent-batches") && self.core.role() == Role::Follower;
        let proposed =
            if again { self.core.propose(&[batch.clone(), batch]) } else { self.core.propose(&[batch]) };
        match proposed {
            Ok(()) => turn.batch = Some(self.proposals.sent(self.now)),
            // It stays prepared; a later event makes room.
            Err(_) => self.refused = true,
        }
    }

    /// One round for all readers that wait, and those again that were not answered in time, if they can be;
    /// otherwise they wait for a turn when they can.
    fn begin_reads(&mut self) -> Result<(), Fatal> {
        if !self.core.ready_for_reads() {
            return Ok(());
        }
        let mut contexts = self.reads.overdue(self.now);
        contexts.extend(self.reads.begin(self.now));
        contexts.into_iter().try_for_each(|context| self.core.handle(Event::ReadIndex { context }))
    }

    /// A committed entry as a step for the machine, with those who wait for it on this member.
    ///
    /// The replies travel with the entry from here on: a stop between now and the apply step answers them as
    /// stopped.
    ///
    /// A payload that is no batch is applied as an entry without commands: every member reads the same bytes
    /// and does the same, and stopping would stop all of them at every start.
    fn job(&mut self, committed: CommittedEntry) -> ApplyJob<P, R> {
        let at = committed.at;
        let (payload, is_change) = match committed.payload {
            Payload::Batch(payload) => (payload, false),
            Payload::Change(payload) => (payload, true),
            Payload::Empty => return ApplyJob::empty(at),
            Payload::Install => return ApplyJob::install(at),
        };
        assert!(at.term > Term(0) && at.index > LogIndex::ZERO, "a batch outside of the log");
        match Batch::parse(&payload) {
            Ok(batch) if batch.is_change != is_change => {
                let index = at.index.0;
                tracing::warn!(index, "a batch in an entry of another kind is applied as an empty entry");
                ApplyJob::empty(at)
            }
            Ok(batch) => {
                let replies = self.proposals.take(batch.id, batch.count);
                ApplyJob::batch(at, batch, replies)
            }
            Err(error) => {
                let index = at.index.0;
                tracing::warn!(index, %error, "an entry is no batch and is applied as an empty one");
                ApplyJob::empty(at)
            }
        }
    }
}

#[cfg(test)]
mod tests;
