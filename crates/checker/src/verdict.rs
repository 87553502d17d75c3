//! What a check takes, and what it says.

use crate::hashes::Hash;
use crate::holders::HolderInput;
use crate::leases::{BrokenRule, LeaseInput};
use crate::members::MemberIds;
use crate::operation::{CallOutcome, ClientOperation, KeyChange, KeyRecord, Revision};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// What happens, in the order of the head of `rules`.
#[derive(Clone, Debug)]
pub enum Input {
    Began(ClientOperation),
    /// The operation of this number has an outcome.
    Ended(u64, Duration, CallOutcome),
    /// One response of a watcher.
    Watched {
        watcher: usize,
        at: Duration,
        changes: Vec<KeyChange>,
        /// What the key of each change was before, if the watcher asked for it.
        before: Vec<Option<KeyRecord>>,
    },
    /// A watcher has received everything up to this revision.
    Progress {
        watcher: usize,
        revision: Revision,
    },
    /// What is done with the lease of this ID.
    Lease(i64, LeaseInput),
    Hashed(Hash),
    /// What is done with the lock or the election of this name.
    Holder(String, HolderInput),
    Members(MemberIds),
    Replayed(Replay),
    /// History was compacted at this revision.
    Compacted(Revision),
}

/// What a watcher received that began at an old revision.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The place of its endpoint.
    pub member: usize,
    pub at: Duration,
    /// The first and the last revision of which it received everything.
    pub from: Revision,
    pub to: Revision,
    pub changes: Vec<KeyChange>,
}

/// Statements that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub rule: Cow<'static, str>,
    /// Operations, events and states, with times and revisions.
    pub evidence: Vec<String>,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckCounts {
    pub writes: u64,
    pub linearizable_reads: u64,
    pub serializable_reads: u64,
    /// Linearizable reads with a limit, or of an old revision.
    pub pages: u64,
    /// Reads that were refused because their revision was compacted.
    pub compacted: u64,
    /// Calls that failed, of which some may have been executed.
    pub unknown: u64,
    pub events: u64,
    /// Serializable reads of states that were forgotten already.
    pub too_old: u64,
    /// Leases whose keys were deleted after their time.
    pub leases_expired: u64,
    pub leases_revoked: u64,
    /// Answers that said how much time a lease had left.
    pub lifetimes: u64,
    /// From the earliest time at which a lease may expire to the arrival of the deletions, at most.
    pub lease_latest_ms: u64,
    /// Answers to HashKV that were equal to one of another member.
    pub hashes: u64,
    /// Events of watchers that began at an old revision.
    pub replayed: u64,
    /// Locks that were held and elections that were won.
    pub holds: u64,
    /// Lists of members.
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
