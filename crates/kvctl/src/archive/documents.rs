//! The JSON objects of an archive: the identity of its cluster, and the revision and time up to which it is
//! complete.

use serde::{Deserialize, Serialize};

use super::inventory::{HEAD, IDENTITY};
use super::place::{ArchivePlace, PlaceError};

pub const FORMAT: u32 = 1;

/// The contents of `archive.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Identity {
    pub format: u32,
    /// Cluster ID in hexadecimal.
    pub cluster_id: String,
}

/// The contents of `head.json`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReachedRevision {
    pub revision: i64,
    /// Time in milliseconds since 1970 up to which all received revisions are archived.
    pub time_ms: i64,
    /// Auth revision of the cluster.
    pub auth_revision: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{0} is not readable as JSON")]
    Malformed(&'static str, #[source] serde_json::Error),
    #[error("the archive has format {0}, this version writes format {FORMAT}")]
    Format(u32),
}

/// Reads `archive.json`. Returns None for a new archive.
pub fn identity(place: &ArchivePlace) -> Result<Option<Identity>, DocumentError> {
    match read::<Identity>(place, IDENTITY)? {
        Some(identity) if identity.format != FORMAT => Err(DocumentError::Format(identity.format)),
        identity => Ok(identity),
    }
}

/// Reads `head.json`. Returns None if the archive is empty.
pub fn reached(place: &ArchivePlace) -> Result<Option<ReachedRevision>, DocumentError> {
    read(place, HEAD)
}

fn read<T: for<'de> Deserialize<'de>>(
    place: &ArchivePlace,
    name: &'static str,
) -> Result<Option<T>, DocumentError> {
    let Some(bytes) = place.get(name)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| DocumentError::Malformed(name, error))
}
