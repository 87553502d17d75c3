//! Snapshots of the cluster as objects.

use std::path::Path;
use std::sync::Arc;

use super::inventory::{BASES, Base, now_ms};
use super::place::{ArchivePlace, PlaceError};
use crate::import::{CheckedFile, HashCheck, ImportError};
use crate::live_import::{CopyError, Progress, Session, copy};

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the snapshot of the cluster")]
    File(#[from] ImportError),
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// A base that was made, and its bytes.
pub struct Made {
    pub base: Base,
    pub bytes: u64,
}

/// Copies the cluster as it is now. The file is read once, to be sure that it can be imported.
pub async fn make(session: Session, place: Arc<ArchivePlace>) -> Result<Made, BaseError> {
    let time_ms = now_ms();
    let draft = place.draft(&format!("{BASES}/incoming"));
    copy(&session, &draft, &mut Progress::default()).await?;
    tokio::task::block_in_place(|| adopt(&place, &draft, time_ms))
}

fn adopt(place: &ArchivePlace, draft: &Path, time_ms: i64) -> Result<Made, BaseError> {
    let revision = CheckedFile::open(draft, HashCheck::Required)?.revision()?;
    let base = Base { revision, time_ms };
    let bytes = std::fs::metadata(draft).map_or(0, |metadata| metadata.len());
    place.adopt(draft, &base.name())?;
    Ok(Made { base, bytes })
}
