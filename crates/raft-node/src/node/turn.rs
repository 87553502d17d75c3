//! A member without its threads: the Raft core together with its pending requests. As pure as the core.
//!
//! ```text
//!   offer, ask, handle ──▶ Node { proposals, reads, core } ──turn──▶ Turn { effects, apply, results }
//! ```
//!
//! * Each poll proposes all waiting commands as one batch, if Raft accepts proposals; likewise for reads.
//! * The requests that a committed entry completes are attached to it here, so the apply step needs no
//!   table.
//! * Every wait finishes: with a result, with an error that identifies the problem, or when the member
//!   stops.
//!
//! Locations of pending requests:
//!
//! | request | waits in | until |
//! |---|---|---|
//! | a proposal | `proposals`: for a batch, then under its id | its entry is committed and applied |
//! | a read | `reads`: for a round, then for a quorum | the apply step has reached the round's index |
//! | both, at most | – | the tick at which the request times out |
//!
//! A proposal in an entry that a snapshot skips times out: another member may have applied it, and this
//! member cannot find out. A read does not: it uses the snapshot's state, which includes its index.
//!
//! The driver and the simulator run the same code with different time, disk and network.

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

/// Parameters of a node: those of the core, and of the pending requests.
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

/// Output of a poll, in the recommended order of execution: peers first, because their disks can then work
/// concurrently with this member's. Any other order is correct too. `P` completes a proposal, `R` a read.
#[derive(Debug)]
pub struct NodeOutput<P, R> {
    /// Effects of the core.
    pub effects: Effects,
    /// To be applied in order; see [`crate::Applier`].
    pub apply: Vec<ApplyJob<P, R>>,
    pub proposals_failed: Vec<(P, ProposeError)>,
    pub reads_failed: Vec<(R, ReadError)>,
    /// Readers of a confirmed round with an already applied index: they may read now.
    pub readable: Vec<R>,
    /// Commands and bytes of the batch proposed in this poll.
    pub batch: Option<(usize, usize)>,
}

/// The gauges of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gauges {
    pub role: Role,
    /// The leader known to this member, possibly itself; None during an election.
    pub leader: Option<NodeId>,
    pub term: Term,
    /// Commit index known to this member.
    pub commit: LogIndex,
    /// Last index in memory: it may not be synced yet.
    pub last_index: LogIndex,
}

/// The node of a member. `P` completes a proposal and `R` a read; a node moves them without inspecting them.
///
/// A poll starts at most one batch and one read round. That does not limit throughput, because both include
/// all waiting requests, and it keeps the number of messages independent of the number of clients.
pub struct Node<P, R> {
    core: Core,
    proposals: Proposals<P>,
    reads: Reads<R>,
    /// Last reported applied index of the machine.
    applied: LogIndex,
    /// Ticks since the start.
    now: Ticks,
    /// A tick passed since the last poll: requests may have timed out.
    ticked: bool,
    /// Raft rejected a batch in this poll although it had seemed ready.
    refused: bool,
    id: NodeId,
    election_ticks: Ticks,
    request_timeout_ticks: Ticks,
    /// Leader after the last poll.
    leader: Option<NodeId>,
    /// Tick at which the current leader became known.
    leader_since: Ticks,
    /// Tick of the last lost message to each peer.
    unreachable_at: BTreeMap<NodeId, Ticks>,
}

impl<P, R> Node<P, R> {
    /// Creates a node from its log. `voters` must agree with an existing membership in the log; `applied` is
    /// the state machine's position.
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

    /// Queues a command; admission limits the number of waiting ones.
    pub fn offer(&mut self, command: Bytes, reply: P) {
        self.proposals.offer(command, Travel::Batched, reply, self.now);
    }

    /// Queues a command that changes the membership. It waits for earlier changes.
    pub fn offer_change(&mut self, command: Bytes, reply: P) {
        self.proposals.offer(command, Travel::AsChange, reply, self.now);
    }

    /// Drops unproposed commands of abandoned proposals. Checks them only when a batch could be created.
    pub fn withdraw(&mut self, is_gone: impl Fn(&P) -> bool) {
        if self.may_propose() {
            self.proposals.withdraw(is_gone);
        }
    }

    pub fn ask(&mut self, reply: R) {
        self.reads.ask(reply, self.now);
    }

    /// Handles an external event. Its effects are part of the next poll.
    ///
    /// Ticks are this node's only time: request deadlines count ticks, so a suspended member does not fail
    /// all its clients immediately when it resumes.
    pub fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match &event {
            Event::Tick => {
                self.now += 1;
                self.ticked = true;
            }
            // Other peers are never queried, and may have any id.
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

    /// Collects the effects of all calls since the last poll.
    ///
    /// The internal order matters. Leadership changes are recorded first, so that no round starts under a
    /// former leader; the batch is proposed before the core is polled, so that it is sent in this poll;
    /// rounds are confirmed last, after leadership was checked again.
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
        // Before the confirmed rounds: a round of another leader must not be completed by its response.
        self.note_leader(&mut turn);
        for (context, index) in confirmed {
            let readers = self.reads.confirm(&context);
            if index <= self.applied || base::mutant("early-reads-in-turn") {
                turn.readable.extend(readers);
            } else if !readers.is_empty() {
                turn.apply.push(ApplyJob::reads(index, readers));
            }
        }
        // Requests may have waited for the completions of this poll. No other event wakes the loop for them.
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

    /// Returns the applied index last reported by [`Event::Applied`].
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Reports whether committed entries wait for capacity in the apply step: then [`Event::Applied`] must
    /// be reported soon.
    pub fn is_starved(&self) -> bool {
        self.core.is_starved()
    }

    /// Reports whether the next sync unblocks work here; see [`Core::waits_for_sync`].
    pub fn waits_for_sync(&self) -> bool {
        let leads = self.core.role() == Role::Leader;
        self.core.waits_for_sync() || (leads && self.proposals.is_waiting())
    }

    /// Responds to member `asker`, which has an empty log; see [`crate::Inquiry`]. None if it must retry.
    pub fn answer_member(&mut self, asker: NodeId) -> Option<PeerState> {
        self.core.answer_member(asker)
    }

    /// Returns the known progress of a member's log; see [`crate::Handle::progress_of`].
    pub fn progress_of(&self, member: NodeId) -> Option<Progress> {
        self.core.progress_of(member)
    }

    /// Reports whether this member does not take part until [`Event::Confirmed`]; see [`crate::Inquiry`].
    pub fn is_unconfirmed(&self) -> bool {
        self.core.is_unconfirmed()
    }

    /// Returns the facts that this member has about its start.
    pub fn start(&self) -> Start {
        self.core.start()
    }

    /// Reports whether this member must neither vote nor campaign.
    pub fn is_held(&self) -> bool {
        self.core.is_held()
    }

    /// Returns the voter that should lead if this one stops.
    pub fn most_caught_up(&self) -> Option<NodeId> {
        self.core.most_caught_up()
    }

    /// Returns the term of an entry in this member's log.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.core.term_at(index)
    }

    /// Returns all pending requests, because the member stops.
    pub fn stop(mut self) -> (Vec<P>, Vec<R>) {
        (self.proposals.drain().collect(), self.reads.drain().collect())
    }

    /// Tracks the current leader, and fails the read rounds of a former one.
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

    /// Fails the requests that timed out, once per tick.
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

    /// Returns the cause of a proposal timeout, with etcd's distinctions.
    ///
    /// It is an estimate from this member's observations: clients choose their next endpoint by it, and it
    /// has no effect here.
    fn why(&self, expired: &ExpiredProposal<P>) -> ProposeError {
        let since = expired.since;
        let Some(leader) = self.leader else {
            return if expired.sent { ProposeError::Timeout } else { ProposeError::NoLeader };
        };
        // Proposed shortly before this leader was elected: the previous one had probably failed already.
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

    /// Reports whether a batch may be proposed. A follower has a single batch in flight to the leader, so
    /// that its batches also grow with the load. The next tick lifts that limit, because the batch may be
    /// lost.
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
            // It stays prepared until a later event frees capacity.
            Err(_) => self.refused = true,
        }
    }

    /// Starts a round for all waiting readers, and retries overdue rounds, if the core accepts reads.
    fn begin_reads(&mut self) -> Result<(), Fatal> {
        if !self.core.ready_for_reads() {
            return Ok(());
        }
        let mut contexts = self.reads.overdue(self.now);
        contexts.extend(self.reads.begin(self.now));
        contexts.into_iter().try_for_each(|context| self.core.handle(Event::ReadIndex { context }))
    }

    /// Converts a committed entry to a step for the machine, with the local requests that it completes.
    ///
    /// From here on the replies belong to the entry: a stop before the apply step completes them as stopped.
    ///
    /// An invalid payload is applied as an entry without commands: every member reads the same bytes and
    /// behaves the same, while a fatal error would stop all of them at every start.
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
                tracing::warn!(index, "batch in an entry of another type is applied as an empty entry");
                ApplyJob::empty(at)
            }
            Ok(batch) => {
                let replies = self.proposals.take(batch.id, batch.count);
                ApplyJob::batch(at, batch, replies)
            }
            Err(error) => {
                let index = at.index.0;
                tracing::warn!(index, %error, "entry is not a batch and is applied as an empty entry");
                ApplyJob::empty(at)
            }
        }
    }
}

#[cfg(test)]
mod tests;
