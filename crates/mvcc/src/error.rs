//! Errors of the store.
//!
//! `Compacted`, `FutureRevision`, `Interrupted` and `Released` concern a single request. After any
//! other error the member must stop, because memory and disk may differ.

use std::path::PathBuf;

/// Error with the failed operation and its object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The history at this revision was removed (etcd: ErrCompacted).
    #[error("revision {requested} is compacted; the oldest readable revision is {compacted}")]
    Compacted { requested: i64, compacted: i64 },
    /// The revision does not exist yet (etcd: ErrFutureRev).
    #[error("revision {requested} is in the future; the current revision is {current}")]
    FutureRevision { requested: i64, current: i64 },
    /// Durable bytes differ from those written. They are never served.
    #[error("{file} is corrupt at byte {offset}: {what}")]
    Corrupt { file: String, offset: u64, what: &'static str },
    /// An operating-system call failed.
    #[error("{attempt} {path}")]
    Io { attempt: &'static str, path: PathBuf, source: std::io::Error },
    /// An operation of sled failed.
    #[error("{attempt} the catalogue")]
    Catalogue { attempt: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    /// The operation is not possible in this state. It has not changed anything.
    #[error("{attempt}: {reason}")]
    Refused { attempt: &'static str, reason: &'static str },
    /// An earlier write or sync failed. The state on disk is unknown, so the store is not written any more.
    #[error("checkpoints are disabled: an earlier write or sync failed")]
    Poisoned,
    /// The meter of a read stopped it.
    #[error("the read was interrupted")]
    Interrupted,
    /// A long read was aborted because it kept too much space of removed files from being freed.
    #[error("the blocks of the read were released")]
    Released,
}

impl Error {
    /// Reports whether durable data is missing or corrupt. Otherwise the failure may be temporary.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Corrupt { .. } => true,
            Error::Io { source, .. } => is_missing(source),
            Error::Catalogue { source, .. } => match source.downcast_ref::<sled::Error>() {
                // An error without an OS error number concerns the data that sled read, except for its lock.
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
            | Error::Poisoned
            | Error::Interrupted
            | Error::Released => false,
        }
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::UnexpectedEof)
}

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
