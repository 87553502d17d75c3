//! What goes into the Raft core and what comes out of it: plain values, so that both can be written down and
//! replayed.
//!
//! * Everything that chance or time decides is an event or part of the [`CoreSetup`]; so a list of events is
//!   a test, and the list of a failed run replays it.
//! * An event says what happened outside; it never asks for an answer in place.
//! * Effects are collected per turn. Their order does not matter except where the types enforce it: what
//!   promises durability is not among [`Effects::send`] but inside a [`PersistJob`].

use bytes::Bytes;

use super::inquiry::Confirmation;
use crate::log::{Durable, PersistJob};
use crate::wire::{Outbound, SnapshotOffer, SnapshotOutcome};
use crate::{ChangeCheck, EmptyLog, LogIndex, LogPosition, Membership, NodeId, StoreState};

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// A peer's bytes arrived.
    Message { from: NodeId, bytes: Bytes },
    /// A sync covered everything up to this job.
    Durable(Durable),
    /// The state machine has applied everything up to this index.
    Applied { index: LogIndex },
    /// The membership that the machine holds after the entry or install at this index, before the report that
    /// it is applied.
    Membership { at: LogIndex, membership: Membership },
    /// The membership as another member has it. Of use while this one has no list, and is not confirmed.
    PeerMembership(Membership),
    /// A message to this peer was lost, or the way to it.
    Unreachable { peer: NodeId },
    /// The state machine's store has made everything up to here durable.
    Checkpointed { at: LogPosition },
    /// A stream that a [`SnapshotOffer`] asked for has ended.
    SnapshotReported { peer: NodeId, outcome: SnapshotOutcome },
    /// Leadership should go to this voter.
    TransferLeader { to: NodeId },
    /// A read round begins; `context` names it for ever.
    ReadIndex { context: Bytes },
    /// The other members have answered this one, whose log was empty; see [`crate::Inquiry`].
    Confirmed(Confirmation),
    /// The machine's state is wrong and is to be replaced by the leader's.
    Reseed,
}

/// A committed entry, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    pub at: LogPosition,
    pub payload: Payload,
}

/// What a committed entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Empty,
    /// The bytes of a batch of commands.
    Batch(Bytes),
    /// The bytes of a batch whose command changes the membership.
    Change(Bytes),
    /// Not an entry: a staged snapshot becomes the machine's state, in place of the entries up to here.
    Install,
}

/// What must be done outside, in any order but for what the types enforce.
#[derive(Debug, Default)]
pub struct Effects {
    /// May leave at once: a leader's entries, heartbeats, requests for votes that promise nothing yet.
    pub send: Vec<Outbound>,
    /// For the disk, in this order; see [`crate::persist()`]. What it makes true is said by the messages inside.
    pub persist: Vec<PersistJob>,
    /// Followers that need the state: streams to begin; see [`crate::Transport::send_snapshot`].
    pub snapshots: Vec<SnapshotOffer>,
    /// Snapshots that came and will not be installed: what was staged for them is of no use.
    pub snapshots_ignored: Vec<LogPosition>,
    /// A member needs a snapshot at or after this index, and the newest checkpoint is older; see
    /// [`crate::Host::checkpoint_wanted`].
    pub checkpoint_wanted: Option<LogIndex>,
    /// More is waiting: turn again without waiting for events.
    pub more: bool,
}

/// What one turn of the core calls for.
#[derive(Debug, Default)]
pub struct CoreTurn {
    pub effects: Effects,
    /// For the machine, in this order, each once.
    pub committed: Vec<CommittedEntry>,
    /// Read rounds that a quorum confirmed, with the index that must be applied before the reads.
    pub confirmed: Vec<(Bytes, LogIndex)>,
}

/// How a core is set up. Everything that chance decides comes in here.
#[derive(Clone, Debug)]
pub struct CoreSetup {
    pub id: NodeId,
    /// Between two heartbeats of a leader.
    pub heartbeat_ticks: u32,
    /// A leader that hears no quorum for this long steps down; a follower trusts its leader for this long.
    pub election_ticks: u32,
    /// Where the election timeout is drawn from, not below `election_ticks`; a range of one leaves no chance.
    pub timeout_ticks: std::ops::Range<u32>,
    /// Committed entries that may be with the apply step at a time.
    pub apply_bytes_max: usize,
    /// The longest entry that may be proposed; it bounds what is on its way to a follower.
    pub entry_bytes_max: usize,
    /// See [`crate::Config::catch_up_entries`].
    pub catch_up_entries: u64,
    pub store: StoreState,
    pub empty_log: EmptyLog,
    /// The membership that the machine holds, if it holds one: then it is the truth for what the machine has
    /// applied. None: the members are those that the log was begun with, for ever.
    pub membership: Option<Membership>,
    /// See [`crate::Config::removed_by`].
    pub removed_by: fn(&[u8]) -> Option<NodeId>,
    /// See [`crate::Config::keeps_voters`].
    pub keeps_voters: fn(&[u8], &[NodeId]) -> bool,
    /// See [`crate::Config::change_check`].
    pub change_check: ChangeCheck,
}

#[cfg(test)]
impl CoreSetup {
    /// Member 1, whose election timeout is always ten ticks.
    pub(crate) fn of_tests() -> CoreSetup {
        CoreSetup {
            id: 1,
            heartbeat_ticks: 1,
            election_ticks: 10,
            timeout_ticks: 10..11,
            apply_bytes_max: 1 << 20,
            entry_bytes_max: 1 << 20,
            catch_up_entries: 0,
            store: StoreState::Whole,
            empty_log: EmptyLog::New,
            membership: None,
            removed_by: |_| None,
            keeps_voters: |_, _| false,
            change_check: ChangeCheck::default(),
        }
    }
}
