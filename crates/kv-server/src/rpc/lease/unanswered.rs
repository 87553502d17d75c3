//! Renewals and questions about leases that the leader did not answer, as clients see them.

use crate::member::LeaseError;
use api::Error;
use tonic::Status;

/// A renewal, or a question about a lease, that the leader did not answer.
pub(super) fn unanswered(error: LeaseError) -> Status {
    grpc_errors::refused(match error {
        LeaseError::NoLeader => Error::NoLeader,
        LeaseError::NotLeader => Error::LeaderChanged,
        LeaseError::Unreachable | LeaseError::Timeout => Error::Timeout,
        LeaseError::TooManyRequests => Error::TooManyRequests,
        LeaseError::Stopped => Error::Stopped,
        LeaseError::Refused(error) => error,
    })
}
