//! Why a place cannot be used.

use std::io;
use std::path::PathBuf;

use super::super::inventory::{HEAD, IDENTITY};

/// Longest object that is read as a whole: `--segment-bytes` and a revision at most.
pub const OBJECT_BYTES_MAX: u64 = 2 << 30;
/// Longest object of JSON: a few numbers.
const DOCUMENT_BYTES_MAX: u64 = 64 << 10;

/// Longest object of this name.
pub fn bytes_max(name: &str) -> u64 {
    if [IDENTITY, HEAD].contains(&name) { DOCUMENT_BYTES_MAX } else { OBJECT_BYTES_MAX }
}

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("create a directory for a copy")]
    Scratch(#[source] io::Error),
    #[error("{name} has {bytes} bytes, more than the archiver writes")]
    TooLarge { name: String, bytes: u64 },
    #[error("another archiver writes to {0}")]
    Taken(String),
    #[error("{0:?} is not s3://BUCKET or s3://BUCKET/PREFIX")]
    Address(String),
    #[error("{0} has files that no archiver created: use an empty directory, or that of the archive")]
    NoArchive(String),
    #[error("the archiver is stopping")]
    Stopped,
    #[error(
        "no credentials for {address}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine \
         a role"
    )]
    Credentials { address: String, source: Box<object_store::Error> },
    #[error("{attempt} {name}")]
    Bucket { attempt: &'static str, name: String, source: Box<object_store::Error> },
}

impl PlaceError {
    /// Whether another try may help.
    pub fn may_pass(&self) -> bool {
        match self {
            PlaceError::Io { .. } | PlaceError::Scratch(_) | PlaceError::Bucket { .. } => true,
            PlaceError::TooLarge { .. }
            | PlaceError::Taken(_)
            | PlaceError::Address(_)
            | PlaceError::NoArchive(_)
            | PlaceError::Credentials { .. }
            | PlaceError::Stopped => false,
        }
    }

    /// Whether an object of that name is there.
    pub fn is_there(&self) -> bool {
        match self {
            PlaceError::Io { source, .. } => source.kind() == io::ErrorKind::AlreadyExists,
            PlaceError::Bucket { source, .. } => {
                matches!(**source, object_store::Error::AlreadyExists { .. })
            }
            _ => false,
        }
    }
}
