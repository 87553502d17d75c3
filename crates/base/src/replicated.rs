//! What Raft, the log, the store and the state machine agree on.
//!
//! * An index and a term have separate types: neither is accepted where the other, or a count, is expected.
//! * They are bare numbers in three places only: in the messages and fields of raft-rs, in the encodings of
//!   files and messages, and in what a person reads.
//!
//! Costs nothing: each type is the number that it holds.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Place of an entry in the log. The first entry of a new log is 1, so 0 stands for "before everything".
///
/// An index and a count give an index; two indexes give a count.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// Before the first entry of any log.
    pub const ZERO: LogIndex = LogIndex(0);

    /// The index after this one.
    #[must_use]
    pub fn next(self) -> LogIndex {
        LogIndex(self.0.checked_add(1).expect("2^64 entries are never written"))
    }

    /// The index so many entries before this one, or 0.
    #[must_use]
    pub fn saturating_sub(self, entries: u64) -> LogIndex {
        LogIndex(self.0.saturating_sub(entries))
    }

    /// How many entries this one is after `earlier`; 0 if it is not after it.
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

/// Raft's term: it has at most one leader. Along a log, terms never go back (Raft, figure 2: a leader appends
/// in its own term, and a term only grows).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// A member's number in Raft, which is etcd's member id; 0 is no member.
///
/// A bare number: clients and files have it as one, and there is no arithmetic with it. Since indexes and
/// terms have types, it is not mistaken for one of them.
pub type NodeId = u64;

/// Index and term together name one entry of all logs of a cluster: two logs that agree in one position agree
/// in all entries before it (Raft's log matching).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct LogPosition {
    pub index: LogIndex,
    pub term: Term,
}

impl LogPosition {
    /// From the numbers that a file or a message holds.
    pub const fn new(index: u64, term: u64) -> LogPosition {
        LogPosition { index: LogIndex(index), term: Term(term) }
    }
}

/// An index or a term is shown as its number, in errors and in traces.
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

/// What applying a command costs at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Keys that are looked up or written.
    pub keys: usize,
    /// A stored value is read.
    pub reads_values: bool,
}

/// Whether a caller on this member waits for the outcome of a command.
///
/// It must not influence the machine's state: the same command is `Wanted` on one member only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Wanted,
    /// Data that only a response needs is not read: ranges of transactions, previous values.
    Unwanted,
}
