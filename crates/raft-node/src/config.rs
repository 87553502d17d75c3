//! The configuration of a member at its start. No other source of settings exists.
//!
//! Timing with its usual values, and the consequences:
//!
//! | setting | usual | consequence |
//! |---|---|---|
//! | tick, heartbeat | 100 ms, 1 tick | a follower receives ten heartbeats per election timeout |
//! | election | 10 ticks | a failed or stalled leader is replaced in 1 to 2 seconds |
//! | catch-up entries | 5,000 | a follower that was briefly disconnected needs no snapshot |
//! | request timeout | 7 s | covers an election and some retries: etcd's 5 s and two elections |
//!
//! All members should have the same timing. A member with a shorter election timeout campaigns early and
//! repeatedly; its pre-votes are rejected while the remaining members have a leader, so it only costs
//! messages.

use std::time::Duration;

use crate::types::{ChangeCheck, EmptyLog, Membership, NodeId, StoreState};
use crate::wire::{COMMAND_OVERHEAD, HEADER_BYTES};

/// Identity, timing and limits of a member.
#[derive(Clone, Debug)]
pub struct Config {
    /// Raft id of this member; never 0.
    pub id: NodeId,
    /// All voting members known to the process. Without a `membership` this member is among them, and an
    /// existing membership in the log must agree with it.
    pub voters: Vec<NodeId>,
    /// The membership stored by the state machine; for a member without its store, the one passed to the
    /// process. None if the membership is fixed.
    pub membership: Option<Membership>,
    /// A number that no earlier run of this member has used. It distinguishes responses to an earlier run
    /// from those to this one, so it must come from a good source of randomness.
    pub boot_nonce: u64,
    /// Length of a tick, the unit of heartbeats, elections and expiry.
    pub tick: Duration,
    /// Ticks between two heartbeats of a leader; at least 1.
    pub heartbeat_ticks: u32,
    /// Election timeout: a follower without a leader for this many ticks, plus a random part of as many
    /// again, campaigns. The random parts of different voters do not overlap. Must exceed `heartbeat_ticks`;
    /// ten times as much is usual.
    pub election_ticks: u32,
    /// Number of entries retained before the latest checkpoint for slightly lagging followers: sending them
    /// is cheaper than a snapshot. etcd retains 5,000. Fewer are retained if they take more than 32 MiB,
    /// more as long as their segment contains a later one.
    pub catch_up_entries: u64,
    /// Reports whether the state machine has the entries that the log does not contain any more. The process
    /// determines this when it opens both.
    pub store: StoreState,
    /// Interpretation of a log without Raft state.
    pub empty_log: EmptyLog,
    /// Returns the member that a command removes, if any. A leader transfers leadership before it removes
    /// itself.
    pub removed_by: fn(&[u8]) -> Option<NodeId>,
    /// Reports whether a command that changes the membership leaves the voters unchanged, applied or
    /// rejected.
    pub keeps_voters: fn(&[u8], &[NodeId]) -> bool,
    /// Decides whether a membership change may be proposed now.
    pub change_check: ChangeCheck,
    pub limits: RaftLimits,
}

/// Limits on the memory of a member and on its accepted input.
///
/// Limits count bytes rather than entries or requests, because a member must stay within its memory whether
/// clients write ten bytes or a megabyte at a time; if both are limited, small items are limited by their
/// overhead.
///
/// In the worst case a member holds full inbox, proposals, uncommitted entries and cache: about 180 MiB with
/// the defaults. In normal operation it is the cache and little else. Each limit states the behaviour when
/// it is reached.
#[derive(Clone, Debug)]
pub struct RaftLimits {
    /// Pending proposals, queued and in flight. Further ones are rejected with `TooManyRequests`: with the
    /// default, the last of them still waits for less than half of `request_timeout` at 20,000 writes per
    /// second.
    pub proposals_max: usize,
    /// Bytes of pending proposals. Further ones are rejected with `TooManyRequests`. Three times this must
    /// stay below [`RaftLimits::UNCOMMITTED_BYTES_MAX`], so that a leader never has to drop proposals
    /// forwarded by followers.
    pub proposal_bytes_max: usize,
    /// Maximum command size; longer commands are rejected with `TooLarge`. Together with `batch_bytes_max`
    /// it bounds the size of an entry. Capped at [`RaftLimits::COMMAND_BYTES_MAX`].
    pub command_bytes_max: usize,
    /// Maximum batch size: a batch is closed when the next command would exceed it. A larger single command
    /// gets a separate batch. Capped at the maximum size of a log entry.
    pub batch_bytes_max: usize,
    /// Pending read requests. Further ones are rejected with `TooManyRequests`.
    pub reads_max: usize,
    /// Bytes of unprocessed messages from peers: one window of entries. Further ones are dropped, and Raft
    /// resends. Small messages and those about snapshots are exempt, see [`crate::Inbox::receive`].
    pub inbox_bytes_max: usize,
    /// Bytes of entries cached in memory for followers, beyond the unapplied ones. Older entries are read
    /// from the log files.
    pub cache_bytes_max: usize,
    /// Bytes of committed entries that are passed to the apply thread and not yet applied. Beyond it commits
    /// continue, and applying catches up later.
    pub apply_bytes_max: usize,
    /// Committed entries not yet applied here. While there are more, proposals are rejected with
    /// `TooManyRequests`, like in etcd.
    pub unapplied_entries_max: u64,
    /// Timeout of a proposal or read request.
    pub request_timeout: Duration,
}

impl RaftLimits {
    /// Maximum bytes of uncommitted entries on a leader: 64 MiB is a second of a fast disk, and four times
    /// `proposal_bytes_max`.
    pub const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;
    /// Maximum bytes of entries in a message: large enough that a follower catches up at disk speed, small
    /// enough that a message does not occupy a stream for long.
    pub const MESSAGE_BYTES_MAX: u64 = crate::wire::MESSAGE_BYTES_MAX;

    /// Maximum size of a command in a log entry: 16 MiB minus the batch header and the command's length
    /// field.
    pub const COMMAND_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX - HEADER_BYTES - COMMAND_OVERHEAD;

    /// Lowers the limits to the capacity of a log entry, so that every batch fits into the log.
    pub(crate) fn within_log(self) -> RaftLimits {
        RaftLimits {
            command_bytes_max: self.command_bytes_max.min(RaftLimits::COMMAND_BYTES_MAX),
            batch_bytes_max: self.batch_bytes_max.min(wal::PAYLOAD_BYTES_MAX - HEADER_BYTES),
            ..self
        }
    }

    /// Returns the maximum entry size under these limits: a full batch, or a single long command.
    pub(crate) fn entry_bytes_max(&self) -> usize {
        let command = self.command_bytes_max + COMMAND_OVERHEAD;
        HEADER_BYTES + command.max(self.batch_bytes_max)
    }
}

impl Default for RaftLimits {
    /// Suitable for members with about 100 MiB of free memory and requests of at most 1.5 MiB.
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
