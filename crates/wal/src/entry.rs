//! What the log holds: entries, each at an index and of a term.
//!
//! * Index and term are separate types: one cannot be passed where the other is expected.
//! * Indexes of a log have no gaps; an entry at an index that exists replaces it and everything after it.
//!
//! Knows nothing of what a payload or a kind means.

pub use base::{LogIndex, LogPosition, Term};

/// Most bytes of one payload, entry or state. etcd advises requests of at most 10 MiB, and a batch of
/// commands is closed at about 1 MiB, so every legal batch fits; a reader never allocates more on the word of
/// a length.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

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
