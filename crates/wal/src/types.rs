//! What the log holds, entries, each at an index and of a term; and every way it can fail.
//!
//! * Index and term are separate types: one cannot be passed where the other is expected.
//! * Indexes of a log have no gaps; an entry at an index that exists replaces it and everything after it.
//!
//! Knows nothing of what a payload or a kind means.

use std::io;
use std::path::{Path, PathBuf};

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

pub type Result<T> = std::result::Result<T, Error>;

/// Every way the log can fail, naming the attempt and the object.
///
/// | error | meaning |
/// |---|---|
/// | `Io`, `Poisoned` | the disk failed: the process must stop; a restart finds out what was kept |
/// | `Corrupt` | the log of the member is lost; an operator must replace the member |
/// | `Exists`, `Missing` | a wrong configuration |
/// | `Released` | no failure: a follower that lags this much gets a snapshot instead |
///
/// A caller that breaks an invariant of the log (a gap, a term that goes back) causes a panic instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the file system failed.
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    /// Bytes that were synced are damaged. Starting anyway would lose acknowledged writes in silence.
    #[error("log segment {segment:016x} is damaged at offset {offset}: {reason}")]
    Corrupt { segment: u64, offset: u64, reason: &'static str },
    #[error("a log exists already in {}", dir.display())]
    Exists { dir: PathBuf },
    #[error("no log in {}", dir.display())]
    Missing { dir: PathBuf },
    /// The entry was released (or discarded by a restart of the log); the first that can be read is `first`.
    #[error("log entry {index} was released; the first one kept is {first}")]
    Released { index: LogIndex, first: LogIndex },
    /// A write or a sync failed before. What reached the disk is unknown until the log is opened anew.
    #[error("the log stopped after a failed write or sync")]
    Poisoned,
}

/// Names the attempt and the object of a failed call to the file system.
pub(crate) trait IoContext<T> {
    fn attempt(self, attempt: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn attempt(self, attempt: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { attempt, path: path.to_path_buf(), source })
    }
}
