//! Inputs and results of a check.

use crate::hashes::Hash;
use crate::holders::HolderInput;
use crate::leases::{BrokenRule, LeaseInput};
use crate::members::MemberIds;
use crate::operation::{CallOutcome, ClientOperation, KeyChange, KeyRecord, Revision};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// An observation; see the `rules` module for the required order.
#[derive(Clone, Debug)]
pub enum Input {
    Began(ClientOperation),
    Ended(u64, Duration, CallOutcome),
    /// Response received by a watcher.
    Watched {
        watcher: usize,
        at: Duration,
        changes: Vec<KeyChange>,
        /// Previous record of each changed key, if the watcher requested it.
        before: Vec<Option<KeyRecord>>,
    },
    /// The watcher has received all events up to this revision.
    Progress {
        watcher: usize,
        revision: Revision,
    },
    /// Event of the lease with this ID.
    Lease(i64, LeaseInput),
    Hashed(Hash),
    /// Event of the lock or election with this name.
    Holder(String, HolderInput),
    Members(MemberIds),
    Replayed(Replay),
    Compacted(Revision),
}

/// Events received by a watcher that started at an old revision.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Index of the watcher's endpoint.
    pub member: usize,
    pub at: Duration,
    /// First and last revision of which it received all events.
    pub from: Revision,
    pub to: Revision,
    pub changes: Vec<KeyChange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub rule: Cow<'static, str>,
    /// Operations, events and states, with times and revisions.
    pub evidence: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckCounts {
    pub writes: u64,
    pub linearizable_reads: u64,
    pub serializable_reads: u64,
    /// Linearizable reads with a limit, or at an old revision.
    pub pages: u64,
    /// Reads rejected because their revision was compacted.
    pub compacted: u64,
    /// Failed calls, some of which may have been executed.
    pub unknown: u64,
    pub events: u64,
    /// Serializable reads of states that were already discarded.
    pub too_old: u64,
    /// Leases whose keys were deleted after the TTL.
    pub leases_expired: u64,
    pub leases_revoked: u64,
    pub lifetimes: u64,
    /// Maximum delay between the earliest expiry of a lease and the arrival of the deletions.
    pub lease_latest_ms: u64,
    /// HashKV responses that matched one of another member.
    pub hashes: u64,
    /// Events of watchers that started at an old revision.
    pub replayed: u64,
    pub holds: u64,
    pub member_lists: u64,
}

/// `Ok`: no contradiction so far.
pub(crate) type CheckResult = Result<(), Box<Violation>>;

pub(crate) fn violation(rule: &'static str, evidence: Vec<String>) -> CheckResult {
    Err(Box::new(Violation { rule: rule.into(), evidence }))
}

pub(crate) fn broken_rule((rule, evidence): BrokenRule) -> CheckResult {
    violation(rule, evidence)
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Violation: {}.", self.rule)?;
        self.evidence.iter().try_for_each(|line| write!(formatter, "\n  {line}"))
    }
}
