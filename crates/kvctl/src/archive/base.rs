//! Bases: snapshots of the cluster, stored as objects.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use api::mvccpb::KeyValue;
use bytes::Bytes;
use mvcc::Change;
use process::shutdown::Stop;
use state_machine::Lineage;

use super::inventory::{BASES, Base, milliseconds};
use super::place::{ArchivePlace, PlaceError};
use crate::import::{CheckedFile, HashCheck, ImportError};
use crate::live_import::{CopyError, Digests, ImportProgress, SEAM_REVISIONS, Session, copy};

/// Failure to create or read a base.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the snapshot of the cluster")]
    File(#[from] ImportError),
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// A new base, its size, and digests of its latest revisions.
pub struct BaseResult {
    pub base: Base,
    pub bytes: u64,
    pub digests: Digests,
    /// Auth revision, read before the base was started.
    pub auth_revision: u64,
}

/// Creates a base of the cluster's current state, and reads the file to verify that it can be imported. Its
/// time is at least `from_ms`, so that times never decrease. `stop` cancels the copy and the upload, but not
/// the verification.
pub async fn make(
    session: Session,
    place: Arc<ArchivePlace>,
    from_ms: i64,
    auth_revision: u64,
    stop: Stop,
) -> Result<BaseResult, BaseError> {
    let draft = place.draft(&format!("{BASES}/incoming"))?;
    let mut progress = ImportProgress::default();
    let taken = tokio::select! {
        biased;
        () = stop.stopped() => return Err(PlaceError::Stopped.into()),
        taken = copy(&session, &draft.path, &mut progress) => taken?,
    };
    let time_ms = milliseconds(taken).max(from_ms);
    tokio::task::block_in_place(|| adopt(&place, &draft.path, time_ms, auth_revision, &stop))
}

fn adopt(
    place: &ArchivePlace,
    draft: &Path,
    time_ms: i64,
    auth_revision: u64,
    stop: &Stop,
) -> Result<BaseResult, BaseError> {
    let file = CheckedFile::open(draft, HashCheck::Required)?;
    let base = Base { revision: file.revision()?, time_ms, is_taken: true };
    let digests = newest_digests(&file)?;
    let bytes = std::fs::metadata(draft).map_or(0, |metadata| metadata.len());
    place.adopt(draft, &base.name(), stop)?;
    Ok(BaseResult { base, bytes, digests, auth_revision })
}

/// Returns digests of the latest revisions of an archived base, and its lineage.
pub fn digests(place: &ArchivePlace, base: &Base) -> Result<(Digests, Lineage), BaseError> {
    with_file(place, base, |file| Ok((newest_digests(file)?, file.lineage()?)))
}

/// Returns the revision of an archived base, as its pairs have it, digests of its latest revisions, and its
/// lineage. Reads all pairs.
pub fn contents(place: &ArchivePlace, base: &Base) -> Result<(i64, Digests, Lineage), BaseError> {
    with_file(place, base, |file| Ok((file.revision()?, newest_digests(file)?, file.lineage()?)))
}

/// Returns the latest pairs of an archived base, at most `count`.
pub fn pairs(place: &ArchivePlace, base: &Base, count: usize) -> Result<VecDeque<KeyValue>, BaseError> {
    let mut pairs: VecDeque<KeyValue> = VecDeque::new();
    let take = |change: &Change<'_>| {
        pairs.retain(|pair| pair.key != change.key());
        if let Change::Put { kv, .. } = change {
            pairs.truncate(count - 1);
            pairs.push_front(KeyValue {
                key: Bytes::copy_from_slice(kv.key),
                value: Bytes::copy_from_slice(kv.value),
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
                version: kv.version,
                lease: kv.lease,
            });
        }
    };
    with_file(place, base, |file| file.newest_changes(None, take))?;
    Ok(pairs)
}

fn with_file<T>(
    place: &ArchivePlace,
    base: &Base,
    read: impl FnOnce(&CheckedFile) -> Result<T, ImportError>,
) -> Result<T, BaseError> {
    let file = place.file(&base.name(), &std::env::temp_dir().join("base"))?;
    Ok(read(&CheckedFile::open(&file.path, HashCheck::Required)?)?)
}

fn newest_digests(file: &CheckedFile) -> Result<Digests, ImportError> {
    let mut digests = Digests::default();
    file.newest_changes(Some(SEAM_REVISIONS), |change| digests.add(change))?;
    Ok(digests)
}
