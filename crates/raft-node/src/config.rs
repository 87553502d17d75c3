//! The configuration of a member at its start. No value is read from anywhere else.
//!
//! Rhythm and bounds with their usual values, and what they lead to:
//!
//! | setting | usual | so |
//! |---|---|---|
//! | tick, heartbeat | 100 ms, 1 tick | a follower hears its leader ten times in an election timeout |
//! | election | 10 ticks | a lost leader is replaced in 1 to 2 seconds, a stalled one as soon |
//! | catch-up entries | 5,000 | a follower away for a moment needs no snapshot |
//! | request timeout | 7 s | an election and some retries fit in: etcd's 5 s and two elections |
//!
//! All members should have the same rhythm. One with a shorter election timeout stands too early, again and
//! again; its pre-votes are refused while the others hear their leader, so it costs messages and no more.

use std::time::Duration;

use crate::types::{ChangeCheck, EmptyLog, Membership, NodeId, StoreState};
use crate::wire::{COMMAND_OVERHEAD, HEADER_BYTES};

/// Identity, rhythm and bounds of one member.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node id that Raft knows this member by; never 0.
    pub id: NodeId,
    /// Every voting member, as far as the process knows. Without a `membership` this one is among them, and a
    /// log that already holds a membership must agree with it.
    pub voters: Vec<NodeId>,
    /// The membership that the machine holds; of a member whose store is lost, the one that the process was
    /// given. None if the members never change.
    pub membership: Option<Membership>,
    /// A number that no earlier run of this member used. It keeps answers meant for an earlier run apart from
    /// ours, so it must come from a good source of randomness.
    pub boot_nonce: u64,
    /// Length of one tick. Heartbeats, elections and expiry count in ticks.
    pub tick: Duration,
    /// Ticks between two heartbeats of a leader; at least 1.
    pub heartbeat_ticks: u32,
    /// A follower that hears no leader for this many ticks, plus a random part of as many again, stands for
    /// election; the part is drawn from a share that no other voter draws from. Must exceed
    /// `heartbeat_ticks`; ten times as much is usual.
    pub election_ticks: u32,
    /// Entries kept before the newest checkpoint for followers that lag a little: sending them is cheaper
    /// than a snapshot. etcd keeps 5,000. Fewer are kept where they take more than 32 MiB, more as long as
    /// their segment holds a newer one.
    pub catch_up_entries: u64,
    /// Whether the machine has what the log no longer holds. The process knows: it opened both.
    pub store: StoreState,
    /// What a log without Raft state means.
    pub empty_log: EmptyLog,
    /// The member that a command removes, if it is a change that removes one. A leader hands over before it
    /// removes itself.
    pub removed_by: fn(&[u8]) -> Option<NodeId>,
    /// Whether a command that changes the membership leaves the voters as they are, applied or refused.
    pub keeps_voters: fn(&[u8], &[NodeId]) -> bool,
    /// Whether a command that changes the membership may be made now.
    pub change_check: ChangeCheck,
    pub limits: RaftLimits,
}

/// Bounds on what a member holds in memory and takes from others.
///
/// Bytes are counted and not entries or requests, because a member must stay within its memory whether
/// clients write ten bytes or a megabyte at a time; where both are bounded, small ones are bounded by their
/// overhead.
///
/// At its worst a member holds the inbox, the proposals, the uncommitted entries and the cache at once: with
/// the defaults about 180 MiB. In ordinary work it is the cache and little else. Bounds, each with what
/// happens when it is reached.
#[derive(Clone, Debug)]
pub struct RaftLimits {
    /// Proposals not yet answered, waiting and in flight. More are refused with `TooManyRequests`: with the
    /// default, the last of them still waits for less than half of `request_timeout` at 20,000 writes per
    /// second.
    pub proposals_max: usize,
    /// Bytes of such proposals. More are refused with `TooManyRequests`. Three members' worth must stay below
    /// [`RaftLimits::UNCOMMITTED_BYTES_MAX`], so that a leader never has to drop what a follower forwarded.
    pub proposal_bytes_max: usize,
    /// A longer command is refused with `TooLarge`; it bounds an entry together with `batch_bytes_max`. More
    /// than [`RaftLimits::COMMAND_BYTES_MAX`] counts as that.
    pub command_bytes_max: usize,
    /// A batch is closed when the next command would exceed this. A larger single command travels alone. More
    /// than an entry of the log holds counts as that.
    pub batch_bytes_max: usize,
    /// Read points not yet answered. More are refused with `TooManyRequests`.
    pub reads_max: usize,
    /// Messages from peers not yet handled, in bytes: one window of entries. More are dropped; Raft sends
    /// again. Small ones and those of snapshots are let in beyond it, see [`crate::Inbox::receive`].
    pub inbox_bytes_max: usize,
    /// Entries kept in memory for followers, in bytes, beyond those not yet applied. Older ones are read from
    /// the log's files.
    pub cache_bytes_max: usize,
    /// Committed entries handed to the apply thread and not yet applied, in bytes. Beyond it commit goes on,
    /// and applying catches up later.
    pub apply_bytes_max: usize,
    /// Entries committed and not yet applied here; while there are more, proposals are refused with
    /// `TooManyRequests`, as etcd does.
    pub unapplied_entries_max: u64,
    /// A proposal or read point without an answer for this long fails.
    pub request_timeout: Duration,
}

impl RaftLimits {
    /// Entries that a leader holds uncommitted: 64 MiB is a second of a fast disk, and four followers' worth
    /// of `proposal_bytes_max`.
    pub const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;
    /// Entries in one message: large enough that a follower catches up at disk speed, small enough that one
    /// message never occupies a stream for long.
    pub const MESSAGE_BYTES_MAX: u64 = crate::wire::MESSAGE_BYTES_MAX;

    /// The longest command that an entry of the log holds: 16 MiB without the header of its batch and its own
    /// length.
    pub const COMMAND_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX - HEADER_BYTES - COMMAND_OVERHEAD;

    /// These limits, lowered to what an entry of the log holds: no batch is built that the log would not
    /// take.
    pub(crate) fn within_log(self) -> RaftLimits {
        RaftLimits {
            command_bytes_max: self.command_bytes_max.min(RaftLimits::COMMAND_BYTES_MAX),
            batch_bytes_max: self.batch_bytes_max.min(wal::PAYLOAD_BYTES_MAX - HEADER_BYTES),
            ..self
        }
    }

    /// The longest entry that these limits let into the log: a full batch, or one long command in a batch of
    /// its own.
    pub(crate) fn entry_bytes_max(&self) -> usize {
        let command = self.command_bytes_max + COMMAND_OVERHEAD;
        HEADER_BYTES + command.max(self.batch_bytes_max)
    }
}

impl Default for RaftLimits {
    /// Chosen for members with about 100 MiB to spare and requests of at most 1.5 MiB.
    fn default() -> Self {
        RaftLimits {
            proposals_max: 65_536,
            proposal_bytes_max: 16 << 20,
            command_bytes_max: 8 << 20,
            batch_bytes_max: 1 << 20,
            reads_max: 65_536,
            inbox_bytes_max: 64 << 20,
            cache_bytes_max: 16 << 20,
            apply_bytes_max: 8 << 20,
            unapplied_entries_max: 5_000,
            request_timeout: Duration::from_secs(7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_the_log_are_lowered_to_what_an_entry_holds() {
        let unbounded = RaftLimits {
            command_bytes_max: usize::MAX,
            batch_bytes_max: usize::MAX,
            ..RaftLimits::default()
        };
        assert_eq!(unbounded.within_log().entry_bytes_max(), wal::PAYLOAD_BYTES_MAX);
        let usual = RaftLimits::default().entry_bytes_max();
        assert_eq!(RaftLimits::default().within_log().entry_bytes_max(), usual);
    }
}
