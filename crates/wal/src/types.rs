//! Entries of the log, and its errors.
//!
//! * Index and term are separate types: one cannot be passed where the other is expected.
//! * Indexes have no gaps. An entry at an existing index replaces it and everything after it.
//!
//! Payloads and kinds are opaque.

use std::io;
use std::path::{Path, PathBuf};

pub use base::{LogIndex, LogPosition, Term};

/// Maximum size of a payload, entry or state. etcd recommends requests of at most 10 MiB, and a batch
/// of commands is closed at about 1 MiB, so every legal batch fits. The limit bounds allocations for a
/// decoded length.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// An entry to append. The payload is copied once, into the group buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub index: LogIndex,
    pub term: Term,
    /// Opaque tag of the caller.
    pub kind: u8,
    pub payload: &'a [u8],
}

/// A verified entry. The payload is copied, since the segment may be released at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    pub index: LogIndex,
    pub term: Term,
    pub kind: u8,
    pub payload: Vec<u8>,
}

pub type Result<T> = std::result::Result<T, Error>;

/// Errors of the log, with the failed operation and its object.
///
/// | error | meaning |
/// |---|---|
/// | `Io`, `Poisoned` | the disk failed: the process must stop; a restart shows which writes survived |
/// | `Corrupt` | the log of the member is lost; an operator must replace the member |
/// | `Exists`, `Missing` | a wrong configuration |
/// | `Released` | no failure: a follower that lags this far receives a snapshot instead |
///
/// Violating an invariant of the log (a gap, a decreasing term) causes a panic instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file-system call failed.
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    /// Synced bytes are corrupt. Starting anyway would silently lose acknowledged writes.
    #[error("log segment {segment:016x} is corrupt at offset {offset}: {reason}")]
    Corrupt { segment: u64, offset: u64, reason: &'static str },
    #[error("a log exists already in {}", dir.display())]
    Exists { dir: PathBuf },
    #[error("no log in {}", dir.display())]
    Missing { dir: PathBuf },
    /// The entry was released, or discarded by a restart of the log. `first` is the first readable entry.
    #[error("log entry {index} was released; the first retained one is {first}")]
    Released { index: LogIndex, first: LogIndex },
    /// An earlier write or sync failed. The state on disk is unknown until the log is reopened.
    #[error("the log stopped after a failed write or sync")]
    Poisoned,
}

/// Adds the failed operation and its object to an I/O error.
pub(crate) trait IoContext<T> {
    fn attempt(self, attempt: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn attempt(self, attempt: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { attempt, path: path.to_path_buf(), source })
    }
}
