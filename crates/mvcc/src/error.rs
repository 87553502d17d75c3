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

impl Error {
    /// Whether something durable is gone or is not what was written. Otherwise the disk refuses now, and may not later.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Corrupt { .. } => true,
            Error::Io { source, .. } => is_missing(source),
            Error::Catalogue { source, .. } => match source.downcast_ref::<sled::Error>() {
                // What the engine says by itself, and not the system through it, is about what it read. But for its lock.
                Some(sled::Error::Io(error)) => {
                    let of_the_engine = error.raw_os_error().is_none();
                    is_missing(error) || (of_the_engine && !error.to_string().contains("acquire lock"))
                }
                Some(_) => true,
                None => false,
            },
            Error::Compacted { .. }
            | Error::FutureRevision { .. }
            | Error::Refused { .. }
            | Error::Poisoned => false,
        }
    }
}

/// A file that should be there is not, or ends too early.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::UnexpectedEof)
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use std::io::{Error as IoError, ErrorKind};

    use super::*;

    #[test]
    fn a_full_disk_is_no_damage_and_a_missing_file_is() {
        let io = |source| Error::Io { attempt: "open", path: "x".into(), source };
        let sled = |source| Error::Catalogue { attempt: "open", source: Box::new(sled::Error::Io(source)) };
        let full = || IoError::from_raw_os_error(28);
        let cases = [
            (io(full()), false),
            (io(IoError::from(ErrorKind::NotFound)), true),
            (io(IoError::from_raw_os_error(5)), false),
            (sled(full()), false),
            (sled(IoError::from(ErrorKind::UnexpectedEof)), true),
            (sled(IoError::other("could not acquire lock on x")), false),
            (sled(IoError::other("crc mismatch")), true),
            (Error::Corrupt { file: "x".into(), offset: 0, what: "y" }, true),
            (Error::Poisoned, false),
        ];
        for (error, is_damage) in cases {
            assert_eq!(error.is_damage(), is_damage, "{error:?}");
        }
    }
}
