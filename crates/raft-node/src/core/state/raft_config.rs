//! How raft-rs is set up: timeouts, checks and bounds.

use crate::config::RaftLimits;
use crate::core::event::CoreSetup;
use crate::types::LogIndex;

/// Entries on their way to one follower, in bytes: they fill any link's delay, and bound what the transport
/// and the follower's log thread may hold ahead of its acknowledgements.
pub(crate) const INFLIGHT_BYTES_MAX: usize = 64 << 20;
/// raft-rs counts messages, so the bound is that many of the longest possible. Fewer than this would make a
/// follower wait for a round trip after each.
const INFLIGHT_MESSAGES_MIN: usize = 4;
/// Committed entries in one turn: small enough that a turn never keeps heartbeats waiting.
const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;

/// The configuration of raft-rs. Its defaults do not fit: one entry per message, no bounds, no pre-vote.
///
/// Memory, worst case, on a leader: 64 MiB uncommitted and as much on its way to each follower, of the same
/// buffers as long as they are cached; on a follower: what its leader has under way to it.
///
/// * `pre_vote` and `check_quorum`: a member that was cut off does not depose a healthy leader when it
///   returns, and a leader that was cut off stops believing that it leads.
/// * Reads are confirmed by a quorum each time (the default, "safe"): a lease would trust every member's
///   clock.
/// * `batch_append` stays off: it merges messages beyond any limit on their size.
pub(super) fn raft_config(setup: &CoreSetup, applied: LogIndex) -> raft::Config {
    raft::Config {
        id: setup.id,
        election_tick: setup.election_ticks as usize,
        heartbeat_tick: setup.heartbeat_ticks as usize,
        applied: applied.0,
        max_size_per_msg: RaftLimits::MESSAGE_BYTES_MAX,
        max_inflight_msgs: inflight_messages_max(setup.entry_bytes_max),
        check_quorum: true,
        pre_vote: true,
        min_election_tick: setup.timeout_ticks.start as usize,
        max_election_tick: setup.timeout_ticks.end as usize,
        max_uncommitted_size: RaftLimits::UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        read_only_option: if base::mutant("lease-reads") {
            raft::ReadOnlyOption::LeaseBased
        } else {
            raft::ReadOnlyOption::Safe
        },
        ..raft::Config::default()
    }
}

/// A message holds one entry at least, however long, and otherwise as many as its bound lets in.
pub(crate) fn inflight_messages_max(entry_bytes_max: usize) -> usize {
    let longest = entry_bytes_max.max(RaftLimits::MESSAGE_BYTES_MAX as usize);
    (INFLIGHT_BYTES_MAX / longest).max(INFLIGHT_MESSAGES_MIN)
}
