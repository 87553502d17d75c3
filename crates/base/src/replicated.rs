//! Types shared by Raft, the log, the store and the state machine.
//!
//! * Indexes and terms have separate types, so one cannot be passed as the other or as a count.
//! * They are plain integers in three places only: messages and fields of raft-rs, encodings of files
//!   and messages, and text for people.
//!
//! The wrappers have no runtime cost.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Index of an entry in the log. A new log starts at 1, so 0 means "before the first entry".
///
/// Index plus count is an index; the difference of two indexes is a count.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// Position before the first entry of any log.
    pub const ZERO: LogIndex = LogIndex(0);

    /// Returns the following index.
    #[must_use]
    pub fn next(self) -> LogIndex {
        LogIndex(self.0.checked_add(1).expect("2^64 entries are never written"))
    }

    /// Returns the index `entries` before this one, or 0.
    #[must_use]
    pub fn saturating_sub(self, entries: u64) -> LogIndex {
        LogIndex(self.0.saturating_sub(entries))
    }

    /// Returns the number of entries from `earlier` to this index; 0 if this index is not after it.
    #[must_use]
    pub fn entries_since(self, earlier: LogIndex) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for LogIndex {
    type Output = LogIndex;

    fn add(self, entries: u64) -> LogIndex {
        LogIndex(self.0 + entries)
    }
}

impl AddAssign<u64> for LogIndex {
    fn add_assign(&mut self, entries: u64) {
        self.0 += entries;
    }
}

impl Sub for LogIndex {
    type Output = u64;

    fn sub(self, earlier: LogIndex) -> u64 {
        self.0 - earlier.0
    }
}

/// Raft term, with at most one leader. Terms never decrease along a log (Raft, figure 2: a leader
/// appends in its current term, and a term only grows).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// Raft number of a member, identical to etcd's member id; 0 means no member.
///
/// A plain integer: clients and files use it as such, and it has no arithmetic. Indexes and terms have
/// types, so it cannot be confused with them.
pub type NodeId = u64;

/// Index and term of an entry; together they identify it across all logs of a cluster. Logs that agree
/// on one position agree on all entries before it (Raft's log matching property).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct LogPosition {
    pub index: LogIndex,
    pub term: Term,
}

impl LogPosition {
    /// Builds a position from the numbers in a file or a message.
    pub const fn new(index: u64, term: u64) -> LogPosition {
        LogPosition { index: LogIndex(index), term: Term(term) }
    }
}

/// Formats the type as its number in errors and traces.
macro_rules! shown_as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shown_as_number!(LogIndex, Term);

/// Upper bound of the cost of applying a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Keys that the command looks up or writes.
    pub keys: usize,
    /// True if the command reads stored values.
    pub reads_values: bool,
}

/// Whether a caller on this member waits for the outcome of a command.
///
/// Must not influence the state of the machine: a command is `Wanted` on one member only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Wanted,
    /// Skips reads that only a response needs: ranges of transactions, previous values.
    Unwanted,
}
