//! Phase 1: saves the source's database file, like `etcdctl snapshot save`.
//!
//! The last 32 bytes that the source sends are the SHA-256 of the file. The import verifies it before reading
//! the file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tonic::Status;

use super::progress::ImportProgress;
use super::source::Session;
use process::files;

/// Time without data after which the copy is restarted from another endpoint.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Failure of the copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("copy the source: {}", .0.message())]
    Source(Status),
    #[error("the source sent no byte for {} s", PART_TIMEOUT.as_secs())]
    Silent,
    #[error("the source closed the stream with {0} bytes outstanding")]
    Cut(u64),
}

/// Writes the file at `path`, and replaces one from an earlier run. Returns the arrival time of the first
/// part: at that time the source was at the file's revision.
pub async fn copy(
    session: &Session,
    path: &Path,
    progress: &mut ImportProgress,
) -> Result<SystemTime, CopyError> {
    let failed = |attempt| move |source| CopyError::File { attempt, path: path.to_owned(), source };
    let mut file = files::create(path).map_err(failed("make"))?;
    let mut stream = within(session.snapshot()).await?;
    let (mut bytes, mut remaining, mut taken) = (0u64, 0, None);
    while let Some(part) = within(stream.message()).await? {
        taken.get_or_insert_with(SystemTime::now);
        file.write_all(&part.blob).map_err(failed("write"))?;
        bytes += part.blob.len() as u64;
        remaining = part.remaining_bytes;
        progress.copied(bytes, remaining);
    }
    if remaining > 0 {
        return Err(CopyError::Cut(remaining));
    }
    progress.copied_all(bytes);
    Ok(taken.unwrap_or_else(SystemTime::now))
}

async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, CopyError> {
    let answered = tokio::time::timeout(PART_TIMEOUT, call).await;
    answered.map_err(|_| CopyError::Silent)?.map_err(CopyError::Source)
}
