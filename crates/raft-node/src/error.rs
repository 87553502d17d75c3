//! Errors, as finely as a caller must distinguish them.
//!
//! | error | meaning |
//! |---|---|
//! | [`ProposeError`], [`ReadError`], [`TransferError`] | a client's call failed; the member continues |
//! | [`StartError`] | the member cannot start; its disk is unchanged |
//! | [`crate::Fatal`] | the member must stop: its state may be incorrect |

use crate::types::LogIndex;

/// Error of a proposal without an outcome. Only `TooManyRequests`, `TooLarge` and `NoLeader` guarantee that
/// the command was not applied; after any other error it may have been, or may still be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("too many proposals are waiting")]
    TooManyRequests,
    #[error("the command has {bytes} bytes, more than {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// No leader was known while the proposal waited; it never left this member.
    #[error("no leader was elected in time")]
    NoLeader,
    #[error("the proposal was not applied in time")]
    Timeout,
    /// Timed out, and a leader was elected so soon after the proposal that the old one probably lost it.
    #[error("the proposal was not applied in time, probably because the leader failed")]
    TimeoutLeaderFail,
    /// Timed out, and this member lost the connection to the leader, or as leader to a quorum,
    /// during the wait.
    #[error("the proposal was not applied in time, probably because the connection was lost")]
    TimeoutConnectionLost,
    #[error("the member is stopping")]
    Stopped,
}

/// Error of a read request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    #[error("too many reads are waiting")]
    TooManyRequests,
    #[error("the read point was not confirmed in time")]
    Timeout,
    #[error("the leader changed while the read point was being confirmed")]
    LeaderChanged,
    #[error("the member is stopping")]
    Stopped,
}

/// Error of a leadership transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    #[error("this member is not the leader")]
    NotLeader,
    #[error("no other voter can become the leader")]
    NoCandidate,
    #[error("leadership transfer timed out")]
    Timeout,
    #[error("the member is stopping")]
    Stopped,
}

/// Error of a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("configure the member: {reason}")]
    Config { reason: String },
    #[error("read the durable Raft state: {reason}")]
    State { reason: String },
    /// The state machine has applied entries beyond the log: the two do not belong together.
    #[error("match state machine and log: applied {applied}, log ends at {last}")]
    AppliedBeyondLog { applied: LogIndex, last: LogIndex },
    #[error("start thread {name}")]
    Thread { name: &'static str, source: std::io::Error },
}
