//! A database file becomes the data directory of a new member.
//!
//! ```text
//!   check the file ─▶ store ─▶ open it once ─▶ log that begins after the store ─▶ identity
//! ```
//!
//! * Every member of the new cluster imports the same file with the same flags, except its name and URLs.
//! * The data directory must be empty, and the identity is written last. So a directory whose import was cut
//!   short does not start, and the import is done again into an empty one.
//! * The log begins at entry 2 with the Raft state of term 1. It says that the member has taken no part yet:
//!   at its start it asks the others, and is given their state if they have begun without it. So no member
//!   can replay the log without the imported store: one that lost its store or did not import gets a snapshot
//!   of the leader.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use mvcc::{Change, SledBackend, StoreOptions};
use snapshot_file::bbolt::Database;

use config::Settings;
use data_dir::bootstrap::{self, BootstrapError};
use data_dir::genesis;
use data_dir::{Directory, DirectoryError, Identity};
use snapshot_file::trailer::{self, Trailer};
use snapshot_file::{ImportResult, Revisions, SnapshotReadError, read};
use state_machine::Lineage;

/// Why there is no data directory.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} has no SHA-256 at its end; a file that was copied from a data directory needs --skip-hash-check",
        .0.display()
    )]
    NoHash(PathBuf),
    #[error("{} does not have the SHA-256 that it has at its end: it is damaged or cut", .0.display())]
    OtherHash(PathBuf),
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: SnapshotReadError },
    #[error("data directory {} is not empty", .0.display())]
    NotEmpty(PathBuf),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("the histories of the file's keys do not fit together")]
    Opened(#[source] mvcc::Error),
}

/// What the checksum at the end of the file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashCheck {
    Required,
    Skipped,
}

/// Makes the data directory of `settings` from the file at `path`.
pub fn import(
    path: &Path,
    hash_check: HashCheck,
    revisions: Revisions,
    settings: &Settings,
) -> Result<ImportResult, ImportError> {
    // Flags and file are checked before anything is made.
    let identity = bootstrap::first_identity(settings)?;
    let file = CheckedFile::open(path, hash_check)?;
    check_empty(settings)?;
    let directory = Directory::open(&settings.data_dir, settings.wal_dir.as_deref())?;
    let imported = file.into_store(&directory.store_dir(), revisions, &identity)?;
    // The start checks the same, but a damaged file is better refused here.
    let backend = SledBackend::open(&directory.store_dir()).map_err(ImportError::Opened)?;
    drop(mvcc::open(Box::new(backend), StoreOptions::default()).map_err(ImportError::Opened)?);
    bootstrap::establish_after_import(&identity, &directory)?;
    Ok(imported)
}

/// A file that is whole, and a database.
pub struct CheckedFile {
    path: PathBuf,
    database: Database<File>,
}

impl CheckedFile {
    /// Reads the file once, to compare its checksum.
    pub fn open(path: &Path, hash_check: HashCheck) -> Result<CheckedFile, ImportError> {
        let (file, database_bytes) = open(path, hash_check)?;
        let read_error = |source: snapshot_file::bbolt::Error| ImportError::Read {
            path: path.into(),
            source: source.into(),
        };
        let database = Database::open(file, database_bytes).map_err(read_error)?;
        Ok(CheckedFile { path: path.to_owned(), database })
    }

    /// The newest revision. Reads all keys.
    pub fn revision(&self) -> Result<i64, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::newest_revision(&self.database).map_err(read_error)
    }

    /// The histories that it continues.
    pub fn lineage(&self) -> Result<Lineage, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::lineage(&self.database).map_err(read_error)
    }

    /// Hands out the changes of the newest `count` revisions, as far as they are not compacted; without a
    /// number, all that a compaction has left.
    pub fn newest_changes(
        &self,
        count: Option<usize>,
        take: impl FnMut(&Change<'_>),
    ) -> Result<(), ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::newest_changes(&self.database, count, take).map_err(read_error)
    }

    /// Fills the store in `store_dir`, which is empty or does not exist. Whether the changes fit together is
    /// found when the store is opened.
    pub fn into_store(
        self,
        store_dir: &Path,
        revisions: Revisions,
        identity: &Identity,
    ) -> Result<ImportResult, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        let backend = SledBackend::open(store_dir).map_err(|error| read_error(error.into()))?;
        read::import(&self.database, Box::new(backend), revisions, &genesis(identity), bootstrap::IMPORTED_AT)
            .map_err(read_error)
    }
}

/// The file, and the bytes of it that are the database.
fn open(path: &Path, hash_check: HashCheck) -> Result<(File, u64), ImportError> {
    let failed = |attempt| move |source| ImportError::File { attempt, path: path.to_owned(), source };
    let file = File::open(path).map_err(failed("open"))?;
    let bytes = file.metadata().map_err(failed("look at"))?.len();
    match (trailer::find(bytes), hash_check) {
        (Trailer::Absent, HashCheck::Skipped) => Ok((file, bytes)),
        (Trailer::Absent, HashCheck::Required) => Err(ImportError::NoHash(path.to_owned())),
        (Trailer::Present { database_bytes }, HashCheck::Skipped) => Ok((file, database_bytes)),
        (Trailer::Present { database_bytes }, HashCheck::Required) => {
            match trailer::matches(&file, database_bytes).map_err(failed("read"))? {
                true => Ok((file, database_bytes)),
                false => Err(ImportError::OtherHash(path.to_owned())),
            }
        }
    }
}

/// Refuses settings whose directories have files in them.
pub fn check_empty(settings: &Settings) -> Result<(), ImportError> {
    for dir in [Some(settings.data_dir.as_path()), settings.wal_dir.as_deref()].into_iter().flatten() {
        let failed = |source| ImportError::File { attempt: "look at", path: dir.to_owned(), source };
        match std::fs::read_dir(dir) {
            Ok(entries) => {
                if entries.count() > 0 {
                    return Err(ImportError::NotEmpty(dir.to_owned()));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
