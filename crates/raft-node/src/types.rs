//! Plain values used by several parts of the crate.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

pub use base::{Answer, LogIndex, LogPosition, NodeId, Term};

/// Upper bound of valid terms and indexes. A cluster never reaches it: at a million a second it takes
/// 146,000 years. Below it sums in raft-rs and here do not overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// A fatal error: the member's state may be incorrect, so the process should exit. [`base::causes`] formats
/// it completely for a log.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// The failed action and its object.
    pub what: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// True if `what` is the text of the source.
    is_source: bool,
}

impl Fatal {
    pub fn new(what: impl Into<String>) -> Self {
        Fatal { what: what.into(), source: None, is_source: false }
    }

    /// Creates it from a failed action and its error.
    pub fn caused(what: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Fatal { what: what.into(), source: Some(Arc::new(source)), is_source: false }
    }

    /// Creates it from an error that already describes the action.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Fatal { what: error.to_string(), source: Some(Arc::new(error)), is_source: true }
    }

    pub(crate) fn panicked(who: &str, panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let said = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Fatal::new(format!("{who} panicked: {said}"))
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Fatal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source: &(dyn Error + 'static) = self.source.as_deref()?;
        if self.is_source { source.source() } else { Some(source) }
    }
}

/// The members of a Raft group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Membership {
    /// At least one; 0 is not a valid id.
    pub voters: Vec<NodeId>,
    /// Non-voters that receive all entries. Disjoint from the voters.
    pub learners: Vec<NodeId>,
}

impl Membership {
    /// Returns all ids, voters first.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.voters.iter().chain(&self.learners).copied()
    }
}

/// Progress of a member's log and state according to its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The last acknowledged entry.
    pub matched: LogIndex,
    /// The last applied entry; 0 if the member has no state, or did not report recently.
    pub applied: LogIndex,
    /// The leader's last entry.
    pub last_index: LogIndex,
}

impl Progress {
    /// Entries that a member may have applied since its last report.
    const SINCE_REPORT: u64 = 2;

    /// Reports whether the member has nine tenths of the leader's log, etcd's criterion.
    pub fn has_log(&self) -> bool {
        self.is_most(self.matched.0)
    }

    /// Reports whether the member has nine tenths of the leader's log and of its state. The log is not
    /// sufficient: its initial state may exist on other members only.
    pub fn is_in_sync(&self) -> bool {
        let has_state = self.applied > LogIndex::ZERO
            && self.is_most(self.applied.0.saturating_add(Progress::SINCE_REPORT));
        self.has_log() && (has_state || base::mutant("log-counts-as-state"))
    }

    fn is_most(&self, index: u64) -> bool {
        u128::from(index) * 10 >= u128::from(self.last_index.0) * 9
    }
}

/// Entry kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Travel {
    /// Shares an entry with other commands.
    Batched,
    /// In a separate entry that changes the membership, see [`crate::StateMachine::apply_change`].
    AsChange,
}

/// Role of this member in Raft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Follower,
    Candidate,
    Leader,
}

/// Interpretation of a log without Raft state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmptyLog {
    /// The member is new: for clusters whose disks are never replaced, such as in tests.
    New,
    /// The member is new or has lost its disk. It does not take part until its peers have confirmed it: see
    /// [`crate::Inquiry`].
    Unconfirmed,
}

/// Presence of the state that the log claims to be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    Whole,
    /// The log starts after an entry that the machine does not have: its store was lost or corrupted. The
    /// member retains its vote and its log, and requests the state from the leader; until an install it
    /// applies no entries and does not lead.
    Lost,
}

/// Two lanes to every peer, so that a heartbeat never queues after a megabyte of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Lane {
    /// Small and time-critical: heartbeats, votes, reads, and their responses.
    Urgent,
    /// Log entries, their acknowledgements, and forwarded proposals.
    Bulk,
}

/// Decides whether a command that changes the membership is accepted.
type Passes = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Checks a membership change when the leader is ready to propose it: the machine has applied every earlier
/// change, and no other one is pending. A rejected change enters the log as an ordinary command, which every
/// machine rejects.
#[derive(Clone)]
pub struct ChangeCheck(Arc<Passes>);

impl ChangeCheck {
    /// Creates a check. `passes` receives the command; the driver calls it, and it may read the machine's
    /// state.
    pub fn new(passes: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> ChangeCheck {
        ChangeCheck(Arc::new(passes))
    }

    pub(crate) fn passes(&self, command: &[u8]) -> bool {
        (self.0)(command)
    }
}

impl Default for ChangeCheck {
    /// Accepts every change.
    fn default() -> ChangeCheck {
        ChangeCheck::new(|_| true)
    }
}

impl fmt::Debug for ChangeCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ChangeCheck")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_in_sync_with_nine_tenths_of_log_and_state() {
        for (matched, applied, last, wanted) in [
            (90, 90, 100, true),
            (89, 89, 100, false),
            (90, 0, 100, false),
            (100, 88, 100, true),
            (100, 87, 100, false),
            (4, 2, 4, true), // It may have applied more since its last report.
            (1, 0, 1, false),
            (0, 0, 0, false),
        ] {
            let [matched, applied, last_index] = [matched, applied, last].map(LogIndex);
            let progress = Progress { matched, applied, last_index };
            assert_eq!(progress.is_in_sync(), wanted, "{progress:?}");
        }
    }
}
