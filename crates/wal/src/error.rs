//! Every way the log can fail, naming the attempt and the object.
//!
//! | error | meaning |
//! |---|---|
//! | `Io`, `Poisoned` | the disk failed: the process must stop; a restart finds out what was kept |
//! | `Corrupt` | the member's log is lost; an operator must replace the member |
//! | `Exists`, `Missing` | a wrong configuration |
//! | `Released` | no failure: a follower that lags this much gets a snapshot instead |
//!
//! A caller that breaks an invariant of the log (a gap, a term that goes back) causes a panic instead.

use std::io;
use std::path::{Path, PathBuf};

use crate::LogIndex;

pub type Result<T> = std::result::Result<T, Error>;

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
