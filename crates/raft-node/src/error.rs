//! Errors, as finely as a caller must distinguish them.
//!
//! | error | the caller |
//! |---|---|
//! | [`ProposeError`], [`ReadError`], [`TransferError`] | one client's call failed; the member goes on |
//! | [`StartError`] | the member cannot be brought up; nothing has been changed on its disk |
//! | [`crate::Fatal`] | the member must end: its state is no longer known to be right |

use crate::types::LogIndex;

/// Why a proposal was not answered with its outcome. Only `TooManyRequests`, `TooLarge` and `NoLeader` say
/// that the command was certainly not applied; after any other it may have been, or may still be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("too many proposals are waiting")]
    TooManyRequests,
    #[error("the command has {bytes} bytes, more than {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// No leader was known for the whole time that the proposal waited; it never left this member.
    #[error("no leader became known in time")]
    NoLeader,
    #[error("the proposal was not applied in time")]
    Timeout,
    /// Not applied in time, and a leader was elected so soon after the proposal that the old one probably
    /// lost it.
    #[error("the proposal was not applied in time, probably because the leader failed")]
    TimeoutLeaderFail,
    /// Not applied in time, and this member lost touch with the leader, or as leader with a quorum,
    /// meanwhile.
    #[error("the proposal was not applied in time, probably because the connection was lost")]
    TimeoutConnectionLost,
    #[error("the member is stopping")]
    Stopped,
}

/// Why a read point was not found.
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

/// Why leadership did not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    #[error("this member does not lead")]
    NotLeader,
    #[error("no other voter can take over")]
    NoCandidate,
    #[error("leadership did not move in time")]
    Timeout,
    #[error("the member is stopping")]
    Stopped,
}

/// Why a member could not be brought up from its log.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("configure the member: {reason}")]
    Config { reason: String },
    #[error("read the durable Raft state: {reason}")]
    State { reason: String },
    /// The state machine claims to have applied what the log does not hold: the two do not belong together.
    #[error("match state machine and log: applied {applied}, log ends at {last}")]
    AppliedBeyondLog { applied: LogIndex, last: LogIndex },
    #[error("start thread {name}")]
    Thread { name: &'static str, source: std::io::Error },
}
