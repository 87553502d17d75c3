//! Why a lease request was not answered.

use raft_node::{ProposeError, ReadError};

/// Why a renewal or a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No leader is known.
    #[error("there is no leader")]
    NoLeader,
    /// The member that was asked does not lead, or does not lead any more.
    #[error("the member does not lead")]
    NotLeader,
    /// The leader cannot be reached.
    #[error("the leader cannot be reached")]
    Unreachable,
    #[error("timed out")]
    Timeout,
    #[error("too many requests are waiting")]
    TooManyRequests,
    #[error("the member stops")]
    Stopped,
    #[error("refused")]
    Refused(#[source] api::Error),
}

impl LeaseError {
    /// Whether another attempt may be answered: the leader is being found.
    pub fn is_passing(self) -> bool {
        match self {
            LeaseError::NoLeader | LeaseError::NotLeader | LeaseError::Unreachable => true,
            LeaseError::Timeout
            | LeaseError::TooManyRequests
            | LeaseError::Stopped
            | LeaseError::Refused(_) => false,
        }
    }
}

impl From<ReadError> for LeaseError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::TooManyRequests => LeaseError::TooManyRequests,
            ReadError::Timeout => LeaseError::Timeout,
            ReadError::LeaderChanged => LeaseError::NotLeader,
            ReadError::Stopped => LeaseError::Stopped,
        }
    }
}

impl From<ProposeError> for LeaseError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::TooManyRequests => LeaseError::TooManyRequests,
            ProposeError::NoLeader => LeaseError::NoLeader,
            ProposeError::TimeoutLeaderFail => LeaseError::NotLeader,
            ProposeError::Timeout | ProposeError::TimeoutConnectionLost => LeaseError::Timeout,
            ProposeError::TooLarge { .. } => LeaseError::Refused(api::Error::RequestTooLarge),
            ProposeError::Stopped => LeaseError::Stopped,
        }
    }
}
