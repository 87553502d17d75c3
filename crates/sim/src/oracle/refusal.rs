//! Refusals of etcd that the oracle foretells.

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Compacted = 1,
    Future = 2,
    LeaseNotFound = 3,
    LeaseExists = 4,
    TtlTooLarge = 5,
    /// A command of a leader in an entry of another term.
    LeaderChanged = 6,
}
