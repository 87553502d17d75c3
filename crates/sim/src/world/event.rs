//! Scheduled events.

use bytes::Bytes;
use raft_node::{PeerState, SnapshotOutcome};
use state_machine::CommandLevel;

use crate::member::LeaseEvent;

#[derive(Debug)]
pub(super) enum WorldEvent {
    Tick {
        to: u64,
        boot: u64,
    },
    /// Several ticks at the same time, after a jump of the clock.
    Burst {
        to: u64,
        boot: u64,
        ticks: u64,
    },
    Deliver {
        from: u64,
        to: u64,
        bytes: Bytes,
        /// Set while the message waits in the inbox of this run.
        inbox: Option<u64>,
    },
    Unreachable {
        to: u64,
        boot: u64,
        peer: u64,
    },
    Sync {
        to: u64,
        boot: u64,
    },
    /// The log thread continues to process the results of a sync.
    Release {
        to: u64,
        boot: u64,
    },
    Apply {
        to: u64,
        boot: u64,
    },
    Maintain {
        to: u64,
        boot: u64,
    },
    /// The store writes a checkpoint, because a follower waits for one.
    Checkpoint {
        to: u64,
        boot: u64,
    },
    Stream {
        number: u64,
    },
    /// The sender of a snapshot is notified of the outcome.
    Report {
        to: u64,
        boot: u64,
        peer: u64,
        outcome: SnapshotOutcome,
    },
    /// A member loses its disks while these members are unreachable.
    LoseDisk {
        to: u64,
        unreachable: Vec<u64>,
    },
    /// A leader queries the command level of a member, in its inquiry of this time.
    LevelAsked {
        to: u64,
        asker: u64,
        boot: u64,
        began: u64,
    },
    LevelAnswered {
        to: u64,
        boot: u64,
        began: u64,
        peer: u64,
        level: CommandLevel,
    },
    /// A member with an empty log queries all other members.
    Inquire {
        to: u64,
        boot: u64,
    },
    Asked {
        to: u64,
        asker: u64,
        boot: u64,
        round: u64,
    },
    Answered {
        to: u64,
        boot: u64,
        round: u64,
        peer: u64,
        answer: PeerState,
    },
    /// Sends a client request to a member; 0 selects one at random.
    Client {
        client: u64,
        member: u64,
    },
    Hub {
        to: u64,
        boot: u64,
    },
    Watch {
        client: u64,
    },
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
    Fault {
        schedule: usize,
    },
    /// A member looks up an unknown sender in the lists of its known members.
    Vouch {
        to: u64,
        boot: u64,
        peer: u64,
    },
    Promote {
        to: u64,
    },
    /// A removed member stops after it has learned of its removal.
    Stop {
        to: u64,
    },
    Reduce,
    Heal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultPhase {
    Faults,
    /// A minority is missing; all other components work.
    Reduced,
    Calm,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DownMembers {
    Down,
    Isolated,
    /// Sends, but receives no messages.
    Deaf,
    /// Receives, but its messages are lost.
    Mute,
}

/// A scheduled event. Ordered by time, then by number.
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
