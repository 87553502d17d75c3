//! Plain values that several parts of the crate use.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

pub use base::{Answer, LogIndex, LogPosition, NodeId, Term};

/// No cluster reaches this term, or this index, by itself: at a million a second it takes 146,000 years.
/// Below it no sum in raft-rs or here overflows.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// The member cannot go on: its state is no longer known to be right. The process should end. In a log,
/// [`base::causes`] shows the whole of it.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// The attempt and the object.
    pub what: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// `what` is the text of the source.
    is_source: bool,
}

impl Fatal {
    pub fn new(what: impl Into<String>) -> Self {
        Fatal { what: what.into(), source: None, is_source: false }
    }

    /// An attempt that failed by an error.
    pub fn caused(what: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Fatal { what: what.into(), source: Some(Arc::new(source)), is_source: false }
    }

    /// An error that says by itself what was attempted.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Fatal { what: error.to_string(), source: Some(Arc::new(error)), is_source: true }
    }

    /// What is left to say of a panic.
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

/// Who takes part in Raft.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Membership {
    /// At least one; 0 is no member.
    pub voters: Vec<NodeId>,
    /// They get all entries, and count in no majority. None of them is a voter.
    pub learners: Vec<NodeId>,
}

impl Membership {
    /// All of them, voters first.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.voters.iter().chain(&self.learners).copied()
    }
}

/// How far a member's log and state are known to its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The last entry that the member acknowledged.
    pub matched: LogIndex,
    /// The last entry that the member has applied; 0 if it has no state, or was not heard of lately.
    pub applied: LogIndex,
    /// The leader's own last entry.
    pub last_index: LogIndex,
}

impl Progress {
    /// A member may have applied so many entries more than its last report says.
    const SINCE_REPORT: u64 = 2;

    /// Whether the member has nine tenths of the leader's log, which is etcd's measure.
    pub fn has_log(&self) -> bool {
        self.is_most(self.matched.0)
    }

    /// Whether the member has nine tenths of the leader's log and of its state. A log alone is none: the
    /// state that it begins with may be with other members only.
    pub fn is_in_sync(&self) -> bool {
        let has_state = self.applied > LogIndex::ZERO
            && self.is_most(self.applied.0.saturating_add(Progress::SINCE_REPORT));
        self.has_log() && (has_state || base::mutant("log-counts-as-state"))
    }

    fn is_most(&self, index: u64) -> bool {
        u128::from(index) * 10 >= u128::from(self.last_index.0) * 9
    }
}

/// How a command travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Travel {
    /// With all others that wait.
    Batched,
    /// In a separate entry that changes the membership, see [`crate::StateMachine::apply_change`].
    AsChange,
}

/// What this member does in Raft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Follower,
    Candidate,
    Leader,
}

/// What a log without Raft state says of its member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmptyLog {
    /// The member is new: for clusters whose disks are known never to be replaced, as in tests.
    New,
    /// The member is new or has lost its disk. It takes no part until the others have confirmed it: see
    /// [`crate::Inquiry`].
    Unconfirmed,
}

/// Whether the machine still has the state that the log says it applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    Whole,
    /// The log begins after an entry that the machine does not hold: its store was lost or damaged. The
    /// member keeps its vote and its log, and asks the leader for the state; until an install it applies
    /// nothing and does not lead.
    Lost,
}

/// Two lanes to every peer, so that a heartbeat never queues after a megabyte of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Lane {
    /// Small and time-critical: heartbeats, votes, read points, and their answers.
    Urgent,
    /// Log entries, their acknowledgements, and forwarded proposals.
    Bulk,
}

/// Whether a command that changes the membership passes.
type Passes = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Judges a change of the membership when its turn has come on the leader: the machine has applied every
/// change before it, and no other one comes in between. A change that does not pass enters the log as an
/// ordinary command, which every machine refuses.
#[derive(Clone)]
pub struct ChangeCheck(Arc<Passes>);

impl ChangeCheck {
    /// `passes` gets the command. It is called by the driver, and reads what the machine holds.
    pub fn new(passes: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> ChangeCheck {
        ChangeCheck(Arc::new(passes))
    }

    pub(crate) fn passes(&self, command: &[u8]) -> bool {
        (self.0)(command)
    }
}

impl Default for ChangeCheck {
    /// Every change passes.
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
            (4, 2, 4, true), // What it applied after its last report is not known yet.
            (1, 0, 1, false),
            (0, 0, 0, false),
        ] {
            let [matched, applied, last_index] = [matched, applied, last].map(LogIndex);
            let progress = Progress { matched, applied, last_index };
            assert_eq!(progress.is_in_sync(), wanted, "{progress:?}");
        }
    }
}
