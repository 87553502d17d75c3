//! What the log holds: entries, each at an index and of a term.
//!
//! * Index and term are separate types: one cannot be passed where the other is expected.
//! * Indexes of a log have no gaps; an entry at an index that exists replaces it and everything after it.
//!
//! Knows nothing of what a payload or a kind means.

use std::fmt;

use base::LogPosition;

/// Most bytes of one payload, entry or state. etcd advises requests of at most 10 MiB, and a batch of
/// commands is closed at about 1 MiB, so every legal batch fits; a reader never allocates more on the word of
/// a length.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Place of an entry in the log. The first entry of a new log is 1, so 0 stands for "before everything".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The index after this one.
    #[must_use]
    pub fn next(self) -> LogIndex {
        LogIndex(self.0.checked_add(1).expect("2^64 entries are never written"))
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Raft's term: it has at most one leader. Along a log, terms never go back (Raft, figure 2: a leader appends
/// in its own term, and a term only grows).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Index and term together name one entry of all logs of a cluster: two logs that agree in one position agree
/// in all entries before it (Raft's log matching).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub index: LogIndex,
    pub term: Term,
}

/// Other crates count as raft-rs does.
impl From<Position> for LogPosition {
    fn from(at: Position) -> Self {
        LogPosition { index: at.index.0, term: at.term.0 }
    }
}

impl From<LogPosition> for Position {
    fn from(at: LogPosition) -> Self {
        Position { index: LogIndex(at.index), term: Term(at.term) }
    }
}

/// An entry to append. The payload is copied once, into the group buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub index: LogIndex,
    pub term: Term,
    /// Opaque tag of the caller, given back as it was.
    pub kind: u8,
    pub payload: &'a [u8],
}

/// An entry read back: verified, and with a copied payload, since the segment may be gone the next moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    pub index: LogIndex,
    pub term: Term,
    pub kind: u8,
    pub payload: Vec<u8>,
}
