//! What the process supplies: the machine that commands drive, the way to other members, an eye on the
//! figures.
//!
//! | trait | called from | may |
//! |---|---|---|
//! | [`StateMachine`] | the apply thread | compute, and wait for its own disk; later entries wait too |
//! | the same | the driver, for brief commands | compute for microseconds |
//! | [`Transport`] | the driver and the log thread | queue, and drop what finds no room |
//! | [`Host`] | the driver and the thread that applies | queue |
//! | [`Observer`] | the driver and both threads | count |
//!
//! The driver is a task of the process's runtime, and the threads are this crate's own. None of the three may
//! wait for the network or for a reply of this crate; only the state machine may wait for the disk, and then
//! everything after it waits too.

use std::time::Duration;

use base::Cost;
use bytes::Bytes;

use crate::types::{Answer, Fatal, Lane, LogIndex, LogPosition, Membership, NodeId};
use crate::wire::SnapshotOffer;

/// The replicated machine: a pure function of the commands, in log order.
///
/// Two members that have applied the same entries are in the same state, bit for bit: that is what makes a
/// checkpoint of one a snapshot for another. So no clock, no chance, no order of a hash map may get in.
///
/// Its own durability is its own affair, with one duty: what [`StateMachine::applied`] says at the next start
/// must be exactly what its state holds. The entries after that are applied again.
pub trait StateMachine: Send + 'static {
    /// What a proposer receives for its command, refusals included.
    type Outcome: Send + 'static;

    /// The last position whose effects the machine held when it was opened; replay begins right after it.
    fn applied(&self) -> LogPosition;

    /// Applies one command. `at` is the entry it travelled in; several commands may share one.
    /// The outcome is `Some` if and only if the answer is wanted.
    fn apply(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Self::Outcome>, Fatal>;

    /// Applies the command of an entry that changes the membership; it stands alone in its entry. What
    /// [`StateMachine::membership`] says after the entry is the membership from then on.
    ///
    /// Such a command may be refused, as any other. In any other entry it must be refused: only here is it
    /// certain that the change before it is applied.
    fn apply_change(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Self::Outcome>, Fatal> {
        self.apply(at, command, answer)
    }

    /// The members as of the last entry. None if the machine knows nothing of members: then those are for
    /// ever that the log was begun with.
    fn membership(&self) -> Option<Membership> {
        None
    }

    /// Every command of the entry has been applied. Called for entries without commands as well, so that the
    /// machine's applied position is never before the log's start. May wait when the machine's store is full.
    ///
    /// The border of an entry: a state between two commands of one entry is never made durable.
    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal>;

    /// What applying `command` costs at most; None if that is not bounded. The driver itself applies an entry
    /// of a few commands that cost little, if it is next, no other thread applies, and there is room.
    fn cost(&mut self, _command: &Bytes) -> Option<Cost> {
        None
    }

    /// Whether an entry of `bytes` can be applied and ended without waiting for the machine's store.
    fn has_room(&self, _bytes: usize) -> bool {
        true
    }

    /// Whether stored values are usually in memory.
    fn values_are_near(&self) -> bool {
        true
    }

    /// The staged snapshot becomes the machine's state, in place of everything applied so far; the next entry
    /// is the one after `at`. The log has been restarted by now, durably: there is no way back, only on,
    /// after a crash as well.
    ///
    /// The snapshot is the one whose message came in by [`crate::Inbox::receive`] with exactly this
    /// position.
    fn install(&mut self, at: LogPosition) -> Result<(), Fatal>;
}

/// The way to the other members.
///
/// Messages may be lost and may overtake each other; Raft copes. A forwarded proposal must not be delivered
/// twice (a stream that never replays, such as one TCP connection, keeps that promise by itself).
pub trait Transport: Send + Sync + 'static {
    /// Queues `message` for `to` and returns at once. When the queue is full the message is dropped and
    /// [`crate::Inbox::report_unreachable`] is owed.
    fn send(&self, to: NodeId, lane: Lane, message: Bytes);

    /// Begins to stream the machine's newest checkpoint to `offer.to` and returns at once. When the stream
    /// has ended, or could not begin, [`crate::Inbox::report_snapshot`] is owed: without it the follower
    /// gets nothing more.
    fn send_snapshot(&self, offer: SnapshotOffer);
}

/// One group of log writes, as the disk saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSync {
    pub entries: usize,
    pub bytes: u64,
    /// Time to place the group in the log and make it durable.
    pub took: Duration,
}

/// Receives figures worth a metric. Called on hot threads: count and return. Every method may be left out.
pub trait Observer: Send + Sync + 'static {
    /// This member now follows `leader`, or knows none.
    fn leader_changed(&self, _leader: Option<NodeId>) {}
    fn log_synced(&self, _sync: LogSync) {}
    /// A batch left this member for the log: directly when it leads, through the leader otherwise.
    fn batch_proposed(&self, _commands: usize, _bytes: usize) {}
    fn proposals_failed(&self, _count: usize) {}
    /// One entry was applied; `took` includes waiting for the machine's store.
    fn entry_applied(&self, _commands: usize, _took: Duration) {}
    fn read_points_failed(&self, _count: usize) {}
    /// A heartbeat could not be sent in time because this member's loop was late by `late`.
    fn tick_late(&self, _late: Duration) {}
}

/// An observer that looks away.
impl Observer for () {}

/// What a member needs from its process, apart from the network.
pub trait Host: Send + Sync + 'static {
    /// A follower needs a checkpoint at or after `index`; the newest one is older. Make one soon.
    fn checkpoint_wanted(&self, index: LogIndex);

    /// The snapshot at this position, whose message came in, will not be installed: what is staged for it may
    /// go.
    fn snapshot_ignored(&self, at: LogPosition);

    /// The machine may have changed the members. Called by the thread that applies, before the proposer is
    /// answered.
    fn membership_applied(&self, membership: &Membership);
}
