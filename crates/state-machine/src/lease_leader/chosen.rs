//! Leases that the leader has found and wants to record.

use base::{LogIndex, Term};

use crate::command::{Kind, LeaseRenew};
use crate::lease::LeaseTable;

/// Leases to record, as a table had them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    ids: Vec<i64>,
    /// Index of the newest grant that was applied before they were looked up.
    granted: LogIndex,
}

impl Chosen {
    /// What `find` finds in the table.
    pub(super) fn find(table: &LeaseTable, find: impl FnOnce(&LeaseTable) -> Vec<i64>) -> Chosen {
        // First: a grant that is applied between the two is then later than all that were found, and not
        // earlier.
        let granted = table.newest_grant();
        Chosen { ids: find(table), granted }
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The command that records them. `now` is the lease clock of the term, read after they were found: a
    /// lease that was granted a moment before has its full TTL.
    pub fn record(self, term: Term, now: i64) -> Kind {
        let (term, granted) = (term.0, Some(self.granted.0));
        Kind::LeaseRenew(LeaseRenew { term, now, ids: self.ids, granted })
    }

    #[cfg(test)]
    pub(super) fn of(ids: &[i64]) -> Chosen {
        Chosen { ids: ids.to_vec(), granted: LogIndex::ZERO }
    }
}
