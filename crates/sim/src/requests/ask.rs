//! Kinds of requests.

use api::etcdserverpb::RangeRequest;
use state_machine::command::Kind;

/// What a member is asked for.
pub(crate) enum Ask {
    Write(Kind),
    /// Waits for a read point.
    Read(RangeRequest),
    /// Answered from the member's store at once.
    Serializable(RangeRequest),
    /// Answered by the leader.
    Lease(LeaseQuestion),
    /// The keys that are attached to a lease, after a read point.
    KeysOfLease(i64),
}

/// A question to the leader.
#[derive(Clone, Debug)]
pub(crate) enum LeaseQuestion {
    Renew(Vec<i64>),
    Remaining(i64),
}
