//! What can happen, and when.

use bytes::Bytes;
use raft_node::{PeerState, SnapshotOutcome};

use crate::member::LeaseEvent;

#[derive(Debug)]
pub(super) enum WorldEvent {
    Tick {
        to: u64,
        boot: u64,
    },
    /// So many ticks at once, after a jump of the clock.
    Burst {
        to: u64,
        boot: u64,
        ticks: u64,
    },
    Deliver {
        from: u64,
        to: u64,
        bytes: Bytes,
        /// The run of the member in whose inbox it waits.
        inbox: Option<u64>,
    },
    /// The transport noticed that a peer is not reached.
    Unreachable {
        to: u64,
        boot: u64,
        peer: u64,
    },
    Sync {
        to: u64,
        boot: u64,
    },
    /// The log thread goes on with what a sync released.
    Release {
        to: u64,
        boot: u64,
    },
    Apply {
        to: u64,
        boot: u64,
    },
    /// The store writes a checkpoint or compacts.
    Maintain {
        to: u64,
        boot: u64,
    },
    /// The store writes a checkpoint, because a follower waits for one.
    Checkpoint {
        to: u64,
        boot: u64,
    },
    /// A snapshot's stream goes on.
    Stream {
        number: u64,
    },
    /// The sender of a snapshot hears how its stream ended.
    Report {
        to: u64,
        boot: u64,
        peer: u64,
        outcome: SnapshotOutcome,
    },
    /// A member loses its disks while these others are unreachable.
    LoseDisk {
        to: u64,
        unreachable: Vec<u64>,
    },
    /// A member with an empty log asks all others.
    Inquire {
        to: u64,
        boot: u64,
    },
    /// The question of such a member arrives.
    Asked {
        to: u64,
        asker: u64,
        boot: u64,
    },
    /// The answer does.
    Answered {
        to: u64,
        boot: u64,
        peer: u64,
        answer: PeerState,
    },
    /// Asks a member for something; 0 lets chance choose which.
    Client {
        client: u64,
        member: u64,
    },
    /// The watch hub of a member takes a turn.
    Hub {
        to: u64,
        boot: u64,
    },
    /// A watch client acts.
    Watch {
        client: u64,
    },
    /// Something about leases.
    Lease {
        to: u64,
        event: LeaseEvent,
    },
    Crash {
        to: u64,
    },
    Restart {
        to: u64,
    },
    /// One of the schedules that the seed has, by its place among them.
    Fault {
        schedule: usize,
    },
    /// A member looks for the id of one that greets it in the lists of the members that it knows.
    Vouch {
        to: u64,
        boot: u64,
        peer: u64,
    },
    /// An operator tries to promote a learner that has started.
    Promote {
        to: u64,
    },
    /// A member that knows that it was removed ends.
    Stop {
        to: u64,
    },
    Reduce,
    Heal,
}

/// What the members of a cluster have to cope with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultPhase {
    Faults,
    /// A minority is missing; everything else works.
    Reduced,
    Calm,
}

/// How a member is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DownMembers {
    Down,
    Isolated,
    /// It sends, but hears nothing.
    Deaf,
    /// It hears, but nothing of what it sends arrives.
    Mute,
}

/// An event and its place in time. Ordered by time, then by when it was planned.
pub(super) struct ScheduledEvent {
    pub at: u64,
    pub number: u64,
    pub what: WorldEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
