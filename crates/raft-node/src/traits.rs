//! Interfaces provided by the process: the state machine, the transport, and an observer of metrics.
//!
//! | trait | called from | may |
//! |---|---|---|
//! | [`StateMachine`] | the apply thread | compute, and wait for its disk; later entries wait too |
//! | the same | the driver, for brief commands | compute for microseconds |
//! | [`Transport`] | the driver and the log thread | queue, and drop when full |
//! | [`Host`] | the driver and the applying thread | queue |
//! | [`Observer`] | the driver and both threads | count |
//!
//! The driver is a task of the process's runtime, and the threads belong to this crate. None of the three
//! may wait for the network or for a reply of this crate; only the state machine may wait for the disk, and
//! then all later entries wait too.

use std::time::Duration;

use base::Cost;
use bytes::Bytes;

use crate::types::{Answer, Fatal, Lane, LogIndex, LogPosition, Membership, NodeId};
use crate::wire::SnapshotOffer;

/// The replicated machine: a pure function of the commands, in log order.
///
/// Two members that have applied the same entries have identical states, bit for bit: a checkpoint of one is
/// therefore a valid snapshot for another. So clocks, randomness and hash map order must not affect it.
///
/// It manages its durability, with one obligation: [`StateMachine::applied`] at the next start must match
/// its state exactly. Later entries are applied again.
pub trait StateMachine: Send + 'static {
    /// Result for a command's proposer, rejections included.
    type Outcome: Send + 'static;

    /// Returns the last position included in the state when it was opened; replay starts right after it.
    fn applied(&self) -> LogPosition;

    /// Applies a command. `at` is its entry; several commands may share one. The outcome is `Some` if and
    /// only if it is requested by `answer`.
    fn apply(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Self::Outcome>, Fatal>;

    /// Applies the only command of an entry that changes the membership. [`StateMachine::membership`] after
    /// the entry is in force from then on.
    ///
    /// Such a command may be rejected, like any other. In any other entry it must be rejected: only here is
    /// it certain that the previous change is applied.
    fn apply_change(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Self::Outcome>, Fatal> {
        self.apply(at, command, answer)
    }

    /// Returns the membership as of the last entry. None if the machine does not store it: then the
    /// membership in the initial log is permanent.
    fn membership(&self) -> Option<Membership> {
        None
    }

    /// Called after every command of the entry was applied. Also called for entries without commands, so
    /// that the machine's applied position is never before the log's start. May block when the machine's
    /// store is full.
    ///
    /// It marks an entry boundary: a state between two commands of an entry is never made durable.
    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal>;

    /// Returns an upper bound of the cost of applying `command`; None if it is unbounded. The driver applies
    /// an entry of a few cheap commands itself, if it is next, no other thread applies, and there is
    /// capacity.
    fn cost(&mut self, _command: &Bytes) -> Option<Cost> {
        None
    }

    /// Reports whether an entry of `bytes` can be applied without blocking on the machine's store.
    fn has_room(&self, _bytes: usize) -> bool {
        true
    }

    /// Reports whether stored values are usually in memory.
    fn values_are_near(&self) -> bool {
        true
    }

    /// Replaces the machine's state by the staged snapshot; the next entry is the one after `at`. The log
    /// has already been restarted durably: the install must be completed, after a crash as well.
    ///
    /// The snapshot was announced by a message to [`crate::Inbox::receive`] with exactly this position.
    fn install(&mut self, at: LogPosition) -> Result<(), Fatal>;
}

/// The connections to the other members.
///
/// Messages may be lost and reordered; Raft tolerates that. A forwarded proposal must not be delivered twice
/// (a stream without replays, such as a TCP connection, guarantees that).
pub trait Transport: Send + Sync + 'static {
    /// Queues `message` for `to` without blocking. When the queue is full, drops the message and must call
    /// [`crate::Inbox::report_unreachable`].
    fn send(&self, to: NodeId, lane: Lane, message: Bytes);

    /// Starts to stream the machine's latest checkpoint to `offer.to`, without blocking. When the stream is
    /// complete, has failed, or could not start, [`crate::Inbox::report_snapshot`] must be called: without
    /// it the follower gets no further messages.
    fn send_snapshot(&self, offer: SnapshotOffer);
}

/// A group of log writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSync {
    pub entries: usize,
    pub bytes: u64,
    /// Time to append the group to the log and make it durable.
    pub took: Duration,
}

/// Receives measurements for metrics. Called on hot threads: must only count. Every method is optional.
pub trait Observer: Send + Sync + 'static {
    /// Called when this member follows another `leader`, or none.
    fn leader_changed(&self, _leader: Option<NodeId>) {}
    fn log_synced(&self, _sync: LogSync) {}
    /// A batch was sent to the log: directly by a leader, through the leader otherwise.
    fn batch_proposed(&self, _commands: usize, _bytes: usize) {}
    fn proposals_failed(&self, _count: usize) {}
    /// An entry was applied; `took` includes blocking on the machine's store.
    fn entry_applied(&self, _commands: usize, _took: Duration) {}
    fn read_points_failed(&self, _count: usize) {}
    /// A heartbeat was sent late because this member's loop was delayed by `late`.
    fn tick_late(&self, _late: Duration) {}
}

/// A no-op observer.
impl Observer for () {}

/// Services of the process, apart from the network.
pub trait Host: Send + Sync + 'static {
    /// Requests a checkpoint soon: a follower needs one at or after `index`, and the latest one is older.
    fn checkpoint_wanted(&self, index: LogIndex);

    /// Reports that the announced snapshot at this position will not be installed: its staged state may be
    /// removed.
    fn snapshot_ignored(&self, at: LogPosition);

    /// Reports a possible membership change of the machine. Called by the applying thread, before the
    /// proposal completes.
    fn membership_applied(&self, membership: &Membership);
}
