//! Why nothing could be shown, or not to the end.

use std::io;
use std::path::PathBuf;

/// Why nothing could be shown, or not to the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("look at the log")]
    Log(#[from] ::wal::Error),
    #[error("look at the store")]
    Store(#[from] mvcc::Error),
    #[error("make a directory for a copy of the catalogue")]
    Scratch(#[source] io::Error),
    #[error("no data directory {}", .0.display())]
    Missing(PathBuf),
    #[error("write")]
    Output(#[from] io::Error),
}
