//! The Raft core: events in, effects out. No clock, no disk, no channel; the same events give the same effects.
//!
//! ```text
//!   events ──handle──▶ raft-rs ──turn──▶ Effects { send, persist, committed, confirmed }
//!     ▲                                     │        │         └▶ apply ──▶ Event::Applied
//!     └──────────── Event::Durable ◀────────┼── one sync
//!                                           └▶ peers, at once
//! ```
//!
//! * What a leader appends leaves in the same turn as it is handed to the disk (Raft thesis 10.2.1); raft-rs counts
//!   the leader's own vote for an entry only after `Durable`. Everything else that promises durability is inside
//!   the persist job.
//! * Jobs are numbered; `Durable` of one covers all before it.
//! * Committed entries are handed out in order, each once, only when they are synced here as well, and only while
//!   less than `apply_bytes_max` of them wait to be applied. The rest is fetched again when there is room.
//! * A commit index that moved is no reason to sync: it rides along with the next job.
//! * Memory is bounded by bytes, whatever the size of an entry: `core::raft_config` says how.
//!
//! An entry on a leader of three, event by event; each line is one turn:
//!
//! | event | effects |
//! |---|---|
//! | a batch is proposed | `send`: the entry to both followers · `persist`: job 7 with the entry |
//! | an acknowledgement of one follower | nothing: one copy of three is synced for sure, its own is not |
//! | `Durable` of job 7 | two copies: committed. `committed`: the entry · `send`: the new commit index |
//! | `Applied` | room for the next |
//!
//! The last two lines may change places with the acknowledgement of the other follower: then the entry commits without
//! this leader's disk, and is applied here only once it is synced here as well.
//!
//! What a follower does with it: `persist` holds the entry together with the acknowledgement, which is a promise; the
//! entry is handed out when a later message brings the commit index, and not before the job was durable.

mod feed; // committed entries on their way to the machine
mod questions; // of followers for read points
mod ready; // what raft-rs wants sent, synced, applied
mod snapshots; // offers, installs, trimming
mod watch; // ticks, elections, stalled disks

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::batch::Batch;
use crate::event::{Effects, Event, Setup};
use crate::message::{decode, encode_all};
use crate::store::LogStore;
use crate::{Fatal, Limits, Role, StoreState};
use snapshots::Snapshots;
use watch::DiskWatch;

/// Entries on their way to one follower, in bytes: they fill any link's delay, and bound what the transport and the
/// follower's log thread may hold ahead of its acknowledgements.
const INFLIGHT_BYTES_MAX: usize = 64 << 20;
/// raft-rs counts messages, so the bound is that many of the longest possible. Fewer than this would make a follower
/// wait for a round trip after each.
const INFLIGHT_MESSAGES_MIN: usize = 4;
/// Committed entries in one turn: small enough that a turn never keeps heartbeats waiting.
const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;
/// Readies in one turn. More are taken in the next one, after the inbox had its say.
const READIES_PER_TURN: usize = 8;

/// Why a batch was not taken. It was not proposed and may be proposed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Nobody would take it; an election may be under way.
    NoLeader,
    /// The previous turn's entries are not synced yet, or leadership is moving, or too much is uncommitted.
    Busy,
}

/// The core of one member. Its owner feeds it with [`Core::handle`] and carries out what [`Core::turn`] asks for.
pub(crate) struct Core {
    raw: RawNode<LogStore>,
    /// Numbers of the jobs handed out and not yet durable.
    unsynced: VecDeque<u64>,
    /// The newest ready's number, whether or not it needed a job.
    newest: u64,
    /// The newest job that carries a new term or vote, while it is not durable.
    vote_unsynced: Option<u64>,
    /// Hard state or membership changed since the last job.
    state_due: bool,
    /// Batches that followers sent to this leader, waiting for the disk.
    forwarded: Vec<Bytes>,
    forwarded_bytes: usize,
    /// To questions of followers, for the next turn to send.
    answers: Vec<Message>,
    /// Last index that is committed and synced here.
    stable: u64,
    /// Last index handed out for applying.
    handed: u64,
    /// (index, bytes) of what was handed out and is not yet applied.
    applying: VecDeque<(u64, usize)>,
    applying_bytes: usize,
    apply_bytes_max: usize,
    election_ticks: u32,
    snapshots: Snapshots,
    disk: DiskWatch,
}

impl Core {
    /// Builds the core over a log; `applied` is where the state machine stands. Whatever that is worth: a lost store
    /// counts as having applied nothing but what the log no longer holds.
    pub fn new(setup: &Setup, mut store: LogStore, applied: u64) -> Result<Core, Fatal> {
        assert!(setup.apply_bytes_max > 0, "nothing could ever be applied");
        assert!(
            setup.timeout_ticks.start >= setup.election_ticks,
            "an election before the leader's time is up"
        );
        let applied = match setup.store {
            StoreState::Whole => applied,
            StoreState::Lost => store.start().index,
        };
        assert!(applied >= store.start().index, "a machine at {applied}, before the log's first entry");
        // What the machine holds was committed, even if the commit index of that time was never synced.
        // A log without any state yet: the membership it was told must become durable with the first job.
        let fresh = store.state.hard == HardState::default();
        store.state.hard = crate::store::restarted(store.state.hard.clone(), applied);
        let voters = store.state.conf.voters.clone();
        if setup.store == StoreState::Lost && voters == [setup.id] {
            return Err(Fatal::new("nobody else has the state that this member's store has lost"));
        }
        let raw = RawNode::new(&raft_config(setup, applied), store, &crate::logger::logger())
            .map_err(|error| Fatal::new(format!("build the Raft core: {error}")))?;
        let mut core = Core {
            raw,
            unsynced: VecDeque::new(),
            newest: 0,
            vote_unsynced: None,
            state_due: fresh,
            forwarded: Vec::new(),
            forwarded_bytes: 0,
            answers: Vec::new(),
            stable: applied,
            handed: applied,
            applying: VecDeque::new(),
            applying_bytes: 0,
            apply_bytes_max: setup.apply_bytes_max,
            election_ticks: setup.election_ticks,
            snapshots: Snapshots::new(setup.catch_up_entries, setup.store),
            disk: DiskWatch::default(),
        };
        if voters == [setup.id] {
            // Nobody else could object, so there is nothing to wait for.
            core.step(|raw| raw.campaign());
        }
        Ok(core)
    }

    /// Takes in one event. Its effects come with the next [`Core::turn`]: many events share one turn, and so one message
    /// to each follower and one job for the disk.
    ///
    /// An error means that this member's own disk, log or machine cannot be trusted any more. What a peer does wrong is
    /// never an error here: it is dropped.
    pub fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Tick => self.tick(),
            Event::Message { from, bytes } => self.receive(from, bytes)?,
            Event::Durable(durable) => self.durable(durable.number),
            Event::Applied { index } => self.applied(index),
            Event::Unreachable { peer } => self.raw.report_unreachable(peer),
            Event::TransferLeader { to } => self.raw.transfer_leader(to),
            Event::Checkpointed { at } => self.checkpointed(at),
            Event::SnapshotReported { peer, outcome } => self.snapshot_reported(peer, outcome),
            Event::ReadIndex { context } => self.raw.read_index(context.to_vec()),
        }
        self.raw.store().take_failure().map_or(Ok(()), Err)
    }

    /// Proposes batches as entries of their own, in one step. On a follower they leave for the leader.
    pub fn propose(&mut self, batches: &[Bytes]) -> Result<(), Refused> {
        assert!(!batches.is_empty(), "nothing to propose");
        self.ready_for_proposals()?;
        let entry = |data: &Bytes| Entry { data: data.clone(), ..Entry::default() };
        let entries: Vec<Entry> = batches.iter().map(entry).collect();
        let from = self.raw.raft.id;
        let message = Message {
            msg_type: MessageType::MsgPropose,
            from,
            entries: entries.into(),
            ..Message::default()
        };
        self.raw.step(message).map_err(|_| Refused::Busy)
    }

    /// Whether a proposal would be taken now. While a leader's entries are being synced the next ones wait, so
    /// that batches grow with the load; a follower forwards at any time.
    pub fn ready_for_proposals(&self) -> Result<(), Refused> {
        match self.role() {
            _ if self.leader().is_none() => Err(Refused::NoLeader),
            Role::Leader if !self.unsynced.is_empty() || self.raw.raft.lead_transferee.is_some() => {
                Err(Refused::Busy)
            }
            Role::Leader | Role::Follower | Role::Candidate => Ok(()),
        }
    }

    /// Whether a read round begun now can be answered at all.
    pub fn ready_for_reads(&self) -> bool {
        match self.role() {
            // A leader knows what is committed only after committing in its own term (Raft thesis 6.4).
            Role::Leader => self.raw.raft.commit_to_current_term(),
            Role::Follower => self.leader().is_some(),
            Role::Candidate => false,
        }
    }

    /// Collects everything that the events since the last turn call for.
    ///
    /// Installs come before readies: an entry behind a snapshot must not be handed out before it. Trimming comes last, so
    /// that it can ride along with a job of this turn.
    pub fn turn(&mut self) -> Result<Effects, Fatal> {
        let mut effects = Effects::default();
        effects.send.extend(encode_all(std::mem::take(&mut self.answers)));
        self.propose_forwarded();
        self.hand_out_installs(&mut effects);
        for _ in 0..READIES_PER_TURN {
            if !self.raw.has_ready() {
                break;
            }
            self.take_ready(&mut effects)?;
        }
        effects.more = self.raw.has_ready();
        assert!(self.stable <= self.commit(), "only what is committed is handed out");
        self.hand_out_more(&mut effects)?;
        self.ask_for_snapshot(&mut effects);
        self.trim(&mut effects);
        self.collect_snapshots(&mut effects);
        effects.more |= self.install_may_follow();
        self.raw.store().take_failure().map_or(Ok(effects), Err)
    }

    /// What this member is in the current term; a pre-candidate, who only asks whether it should stand, counts as
    /// candidate.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// Whom this member takes for the leader of [`Core::term`]: itself, another, or nobody yet.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The commit index as this member knows it. Its own log may not be synced that far: see `stable`.
    pub fn commit(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    pub fn voters(&self) -> &[u64] {
        &self.raw.store().state.conf.voters
    }

    /// Whether committed entries wait for earlier ones to be applied.
    pub fn is_starved(&self) -> bool {
        self.may_hand_out() && self.handed < self.stable
    }

    /// The other voter whose log is furthest, as far as this leader knows.
    pub fn most_caught_up(&self) -> Option<u64> {
        let this = self.raw.raft.id;
        let progress = self.raw.raft.prs().iter().filter(|(id, _)| **id != this);
        // Of equals the lowest id, so that the choice does not depend on the order of a hash map.
        progress
            .max_by_key(|(id, p)| (p.recent_active, p.matched, std::cmp::Reverse(**id)))
            .map(|(id, _)| *id)
    }

    /// Term of an entry that is in the log, for checks of the log's laws.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// Takes in a peer's message. What is malformed, or asks for what raft-rs would panic at, stops here: the first
    /// is the peer's fault and dropped, the second says that this member's own disk is no longer to be trusted.
    fn receive(&mut self, from: u64, bytes: Bytes) -> Result<(), Fatal> {
        let message = match decode(from, self.raw.raft.id, bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(peer = from, %error, "message dropped");
                return Ok(());
            }
        };
        if message.msg_type == MessageType::MsgHeartbeat
            && message.term >= self.term()
            && message.commit > self.last_index()
        {
            // The leader only says so after this member acknowledged that entry as synced.
            return Err(Fatal::new(format!(
                "follow member {from}: this log ends at {}, but had acknowledged {}; it lost synced entries",
                self.last_index(),
                message.commit
            )));
        }
        match message.msg_type {
            MessageType::MsgPropose => self.receive_proposal(from, message),
            MessageType::MsgReadIndex if self.question_is_proof(from) => self.answer_question(message),
            MessageType::MsgSnapshot => self.receive_snapshot(message),
            MessageType::MsgAppendResponse if message.request_snapshot != 0 => {
                self.snapshot_requested(&message);
            }
            MessageType::MsgTimeoutNow if !self.may_campaign() => {
                tracing::warn!(
                    peer = from,
                    "leadership is not taken: this member waits for its disk or its state"
                );
            }
            MessageType::MsgAppend
                if message.entries.iter().any(|e| e.entry_type != EntryType::EntryNormal) =>
            {
                // So the log holds none, and raft-rs need not look for any: see `LogStore::entries`.
                tracing::warn!(peer = from, "entries of an unsupported kind dropped");
            }
            _ => self.step(|raw| raw.step(message)),
        }
        Ok(())
    }

    /// A refusal of raft-rs here concerns one message only; whoever waits for an effect of it has a timeout.
    fn step(&mut self, action: impl FnOnce(&mut RawNode<LogStore>) -> raft::Result<()>) {
        if let Err(error) = action(&mut self.raw) {
            tracing::debug!(target: "raft", %error, "message refused");
        }
    }

    /// A leader keeps a forwarded batch until the disk is free; any other member passes it on.
    ///
    /// Passing on may go in a circle for a moment, when two members each take the other for the leader. It ends with the
    /// election, or with the proposers' patience; a batch is dropped by whoever knows no leader.
    fn receive_proposal(&mut self, from: u64, message: Message) {
        for entry in &message.entries {
            // What every member will have to apply must be sound before it enters the log: unpacked for this, and thrown away.
            let is_sound = || Batch::parse(&entry.data).and_then(|batch| batch.commands()).is_ok();
            if entry.entry_type != EntryType::EntryNormal || !is_sound() {
                tracing::warn!(peer = from, "malformed proposal dropped");
                return;
            }
        }
        if self.role() != Role::Leader {
            return self.step(|raw| raw.step(message));
        }
        let bytes: usize = message.entries.iter().map(|entry| entry.data.len()).sum();
        if self.forwarded_bytes + bytes > Limits::UNCOMMITTED_BYTES_MAX as usize {
            tracing::warn!(peer = from, bytes, "proposal dropped: too many are waiting");
            return;
        }
        self.forwarded_bytes += bytes;
        self.forwarded.extend(message.entries.into_iter().map(|entry| entry.data));
    }

    /// Batches of followers go into the log in one step, as soon as the disk is free.
    fn propose_forwarded(&mut self) {
        if self.forwarded.is_empty() {
            return;
        }
        let batches = std::mem::take(&mut self.forwarded);
        match self.propose(&batches) {
            // Without a leader nobody can take them; their proposers wait with a timeout, not for this member.
            Ok(()) | Err(Refused::NoLeader) => self.forwarded_bytes = 0,
            Err(Refused::Busy) => self.forwarded = batches,
        }
        assert_eq!(
            self.forwarded.is_empty(),
            self.forwarded_bytes == 0,
            "kept batches and their bytes disagree"
        );
    }
}

/// What raft-rs is told. Its defaults are no help: one entry per message, no bound on anything, no pre-vote.
///
/// Memory, worst case, on a leader: 64 MiB uncommitted and as much on its way to each follower, of the same buffers as
/// long as they are cached; on a follower: what its leader has under way to it.
///
/// * `pre_vote` and `check_quorum`: a member that was cut off does not depose a healthy leader when it returns, and a
///   leader that was cut off stops believing that it leads.
/// * Reads are confirmed by a quorum each time (the default, "safe"): a lease would trust every member's clock.
/// * `batch_append` stays off: it merges messages beyond any limit on their size.
fn raft_config(setup: &Setup, applied: u64) -> raft::Config {
    raft::Config {
        id: setup.id,
        election_tick: setup.election_ticks as usize,
        heartbeat_tick: setup.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: Limits::MESSAGE_BYTES_MAX,
        max_inflight_msgs: inflight_messages_max(setup.entry_bytes_max),
        check_quorum: true,
        pre_vote: true,
        min_election_tick: setup.timeout_ticks.start as usize,
        max_election_tick: setup.timeout_ticks.end as usize,
        max_uncommitted_size: Limits::UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        read_only_option: if cfg!(feature = "mutant-lease-reads") {
            raft::ReadOnlyOption::LeaseBased
        } else {
            raft::ReadOnlyOption::Safe
        },
        ..raft::Config::default()
    }
}

/// A message holds one entry at least, however long, and otherwise as many as its bound lets in.
fn inflight_messages_max(entry_bytes_max: usize) -> usize {
    let longest = entry_bytes_max.max(Limits::MESSAGE_BYTES_MAX as usize);
    (INFLIGHT_BYTES_MAX / longest).max(INFLIGHT_MESSAGES_MIN)
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
