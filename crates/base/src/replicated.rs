//! What Raft, the store and the state machine agree on.

/// A position in the replicated log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
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
