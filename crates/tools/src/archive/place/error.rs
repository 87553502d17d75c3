//! Why a place cannot be used.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("another archiver writes to {0}")]
    Taken(String),
    #[error("{0:?} is not s3://BUCKET or s3://BUCKET/PREFIX")]
    Address(String),
    #[error("{attempt} {name}")]
    Bucket { attempt: &'static str, name: String, source: Box<object_store::Error> },
}
