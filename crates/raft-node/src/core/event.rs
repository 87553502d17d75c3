//! Input and output of the Raft core: plain values, so that both can be recorded and replayed.
//!
//! * All randomness and time is in events or in the [`CoreSetup`], so a list of events is a test, and the
//!   list of a failed run replays it.
//! * An event reports an external fact; it has no return value.
//! * Effects are collected per poll. Their order does not matter except where the types enforce it: messages
//!   that promise durability are inside a [`PersistJob`], not in [`Effects::send`].

use bytes::Bytes;

use super::inquiry::Confirmation;
use crate::log::{Durable, PersistJob};
use crate::wire::{Outbound, SnapshotOffer, SnapshotOutcome};
use crate::{ChangeCheck, EmptyLog, LogIndex, LogPosition, Membership, NodeId, StoreState};

/// An external event.
#[derive(Debug)]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// A peer's bytes arrived.
    Message { from: NodeId, bytes: Bytes },
    /// A sync covered all jobs up to this one.
    Durable(Durable),
    /// The state machine has applied everything up to this index.
    Applied { index: LogIndex },
    /// The membership of the machine after the entry or install at this index. Reported before `Applied`.
    Membership { at: LogIndex, membership: Membership },
    /// The membership according to another member. Used only while this one has no membership and is
    /// unconfirmed.
    PeerMembership(Membership),
    /// A message to this peer, or the connection to it, was lost.
    Unreachable { peer: NodeId },
    /// The state machine's store has made everything up to here durable.
    Checkpointed { at: LogPosition },
    /// The stream requested by a [`SnapshotOffer`] is complete or has failed.
    SnapshotReported { peer: NodeId, outcome: SnapshotOutcome },
    /// Leadership should go to this voter.
    TransferLeader { to: NodeId },
    /// A read round starts; `context` is its permanent name.
    ReadIndex { context: Bytes },
    /// The other members have replied to the inquiry of this one, which had an empty log; see
    /// [`crate::Inquiry`].
    Confirmed(Confirmation),
    /// The machine's state is wrong and must be replaced by the leader's.
    Reseed,
}

/// A committed entry, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    pub at: LogPosition,
    pub payload: Payload,
}

/// The content of a committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No content: the first entry of a new leader.
    Empty,
    Batch(Bytes),
    Change(Bytes),
    /// A staged snapshot instead of an entry; replaces the machine's state and the entries up to here.
    Install,
}

/// External actions, in any order except where the types enforce one.
#[derive(Debug, Default)]
pub struct Effects {
    /// Messages that may be sent immediately: a leader's entries, heartbeats, pre-vote requests.
    pub send: Vec<Outbound>,
    /// Disk jobs, in this order; see [`crate::persist()`]. Messages that require their durability are
    /// inside.
    pub persist: Vec<PersistJob>,
    /// Followers that need a snapshot: streams to start; see [`crate::Transport::send_snapshot`].
    pub snapshots: Vec<SnapshotOffer>,
    /// Received snapshots that will not be installed: their staged state can be removed.
    pub snapshots_ignored: Vec<LogPosition>,
    /// A member needs a snapshot at or after this index, and the latest checkpoint is older; see
    /// [`crate::Host::checkpoint_wanted`].
    pub checkpoint_wanted: Option<LogIndex>,
    /// More work is pending: poll again without waiting for events.
    pub more: bool,
}

/// Output of a poll of the core.
#[derive(Debug, Default)]
pub struct CoreTurn {
    pub effects: Effects,
    /// Entries for the machine, in this order, each once.
    pub committed: Vec<CommittedEntry>,
    /// Read rounds confirmed by a quorum, with the index that must be applied before the reads.
    pub confirmed: Vec<(Bytes, LogIndex)>,
}

/// Parameters of a core, including all randomness.
#[derive(Clone, Debug)]
pub struct CoreSetup {
    pub id: NodeId,
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: u32,
    /// Election timeout: a leader without a quorum for this long steps down; a follower trusts its leader
    /// for this long.
    pub election_ticks: u32,
    /// Range of the randomized election timeout, not below `election_ticks`; a range of one makes it
    /// deterministic.
    pub timeout_ticks: std::ops::Range<u32>,
    /// Maximum bytes of committed entries in the apply step.
    pub apply_bytes_max: usize,
    /// Maximum size of a proposed entry; it bounds the data in flight to a follower.
    pub entry_bytes_max: usize,
    /// See [`crate::Config::catch_up_entries`].
    pub catch_up_entries: u64,
    pub store: StoreState,
    pub empty_log: EmptyLog,
    /// The membership stored by the machine; if present it is authoritative for the applied state. None: the
    /// membership in the initial log is permanent.
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
    /// Member 1, with a fixed election timeout of ten ticks.
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
