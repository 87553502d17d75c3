//! What can go wrong in the store. Two kinds are a client's business (`Compacted`, `FutureRevision`); all others mean
//! that this member must stop: its memory and its disk may no longer agree.

use std::path::PathBuf;

/// An attempt that failed, and the object of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The history at this revision is gone (etcd: ErrCompacted).
    #[error("revision {requested} is compacted; the oldest readable revision is {compacted}")]
    Compacted { requested: i64, compacted: i64 },
    /// The revision has not been written yet (etcd: ErrFutureRev).
    #[error("revision {requested} is in the future; the current revision is {current}")]
    FutureRevision { requested: i64, current: i64 },
    /// Bytes that were durable are not what was written. They are never served.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt { file: String, offset: u64, what: &'static str },
    /// The operating system refused.
    #[error("{attempt} {path}")]
    Io { attempt: &'static str, path: PathBuf, source: std::io::Error },
    /// The catalogue's engine refused.
    #[error("{attempt} the catalogue")]
    Catalogue { attempt: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    /// Asked for at the wrong moment. Nothing was changed.
    #[error("{attempt}: {reason}")]
    Refused { attempt: &'static str, reason: &'static str },
    /// An earlier write or sync failed. What reached the disk is unknown, so nothing more is written.
    #[error("the store takes no more checkpoints: an earlier write or sync failed")]
    Poisoned,
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
