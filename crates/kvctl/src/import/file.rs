//! Imports a database file into the data directory of a new member.
//!
//! ```text
//!   check the file ─▶ store ─▶ open it once ─▶ log that starts after the store ─▶ identity
//! ```
//!
//! * All members of the new cluster import the same file with the same flags, except name and URLs.
//! * The data directory must be empty, and the identity is written last. A directory with an interrupted
//!   import does not start, and must be emptied before the import is repeated. A failed import removes the
//!   files it created.
//! * The log starts at entry 2 with the Raft state of term 1, and marks the member as not having participated
//!   yet. At startup it queries its peers, and receives their state if they have already started without it.
//!   So no member can replay the log without the imported store: a member that lost its store or skipped the
//!   import gets a snapshot from the leader.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mvcc::{Change, SledBackend, StoreOptions};
use process::files;
use snapshot_file::bbolt::Database;

use config::Settings;
use data_dir::bootstrap::{self, BootstrapError};
use data_dir::genesis;
use data_dir::{Directory, DirectoryError, Identity, LOCK};
use snapshot_file::trailer::{self, Trailer};
use snapshot_file::{ImportResult, Revisions, SnapshotReadError, read};
use state_machine::Lineage;

/// Failure of an import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} has no SHA-256 trailer; a file copied from a data directory needs --skip-hash-check",
        .0.display()
    )]
    NoHash(PathBuf),
    #[error("{}: checksum mismatch: file is truncated or corrupted", .0.display())]
    OtherHash(PathBuf),
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: SnapshotReadError },
    #[error("data directory {} is not empty", .0.display())]
    NotEmpty(PathBuf),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("the key histories in the file are inconsistent")]
    Opened(#[source] mvcc::Error),
}

/// Verification of the checksum at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashCheck {
    Required,
    Skipped,
}

/// Creates the data directory of `settings` from the file at `path`.
pub fn import(
    path: &Path,
    hash_check: HashCheck,
    revisions: Revisions,
    settings: &Settings,
) -> Result<ImportResult, ImportError> {
    // Check flags and file before creating anything.
    let identity = bootstrap::first_identity(settings)?;
    let file = CheckedFile::open(path, hash_check)?;
    check_empty(settings)?;
    let directory = NewDirectory::make(settings)?;
    let imported = file.into_store(&directory.store_dir(), revisions, &identity)?;
    // A start would detect a corrupt file as well, but an early error is better.
    let backend = SledBackend::open(&directory.store_dir()).map_err(ImportError::Opened)?;
    drop(mvcc::open(Box::new(backend), StoreOptions::default()).map_err(ImportError::Opened)?);
    directory.finish(&identity)?;
    Ok(imported)
}

/// A data directory being created, locked by this process. Unless finished, its files are removed on drop.
#[derive(Debug)]
pub struct NewDirectory {
    directory: Directory,
    /// Directories that were created, innermost first.
    made: Vec<PathBuf>,
    is_finished: bool,
}

impl NewDirectory {
    /// Creates and locks the directories. Existing ones must be empty.
    pub fn make(settings: &Settings) -> Result<NewDirectory, ImportError> {
        let (data_dir, wal_dir) = (&settings.data_dir, settings.wal_dir.as_deref());
        let dirs = [wal_dir.map_or_else(|| Directory::wal_in(data_dir), Path::to_owned), data_dir.clone()];
        let made = dirs.iter().flat_map(|dir| dir.ancestors().take_while(|dir| !dir.exists()));
        let made: Vec<PathBuf> = made.map(Path::to_owned).collect();
        check_empty(settings)?;
        match NewDirectory::lock(data_dir, wal_dir) {
            Ok(directory) => Ok(NewDirectory { directory, made, is_finished: false }),
            Err(error) => {
                if !matches!(error, ImportError::Directory(DirectoryError::Locked(_))) {
                    let _absent = fs::remove_file(data_dir.join(LOCK));
                }
                made.iter().for_each(|dir| drop(fs::remove_dir(dir)));
                Err(error)
            }
        }
    }

    fn lock(data_dir: &Path, wal_dir: Option<&Path>) -> Result<Directory, ImportError> {
        let directory = Directory::open(data_dir, wal_dir)?;
        // Another process may have used it before this one acquired the lock.
        let files = [directory.store_dir(), directory.identity_path(), directory.live_import_path()];
        match files.iter().any(|path| path.exists()) || !files_in(directory.wal_dir()).is_empty() {
            true => Err(ImportError::NotEmpty(data_dir.to_owned())),
            false => Ok(directory),
        }
    }

    pub fn store_dir(&self) -> PathBuf {
        self.directory.store_dir()
    }

    /// Creates the log and the identity of a member whose store is complete.
    pub fn finish(mut self, identity: &Identity) -> Result<(), BootstrapError> {
        bootstrap::establish_after_import(identity, &self.directory)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // Remove the identity first, so that an incomplete directory does not start.
        let identity = self.directory.identity_path();
        let draft = identity.with_extension("tmp");
        let mut files = vec![identity, draft];
        files.extend(files_in(self.directory.wal_dir()));
        files.push(self.directory.path().join(LOCK));
        files.iter().for_each(|path| drop(fs::remove_file(path)));
        let _stays = fs::remove_dir_all(self.store_dir());
        // Directories in which another process created files are retained.
        self.made.iter().for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

/// Lists all files except the lock, which is among them if log and data share a directory.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| !path.is_dir() && !path.ends_with(LOCK)).collect()
}

/// A verified database file.
pub struct CheckedFile {
    path: PathBuf,
    database: Database<File>,
}

impl CheckedFile {
    /// Opens the file and verifies its checksum, which reads it once.
    pub fn open(path: &Path, hash_check: HashCheck) -> Result<CheckedFile, ImportError> {
        let (file, database_bytes) = open(path, hash_check)?;
        let read_error = |source: snapshot_file::bbolt::Error| ImportError::Read {
            path: path.into(),
            source: source.into(),
        };
        let database = Database::open(file, database_bytes).map_err(read_error)?;
        Ok(CheckedFile { path: path.to_owned(), database })
    }

    /// Returns the latest revision. Reads all keys.
    pub fn revision(&self) -> Result<i64, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::newest_revision(&self.database).map_err(read_error)
    }

    /// Returns the lineage of the file's history.
    pub fn lineage(&self) -> Result<Lineage, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::lineage(&self.database).map_err(read_error)
    }

    /// Returns all leases and their TTLs in seconds.
    pub fn leases(&self) -> Result<Vec<(i64, i64)>, ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::leases(&self.database).map_err(read_error)
    }

    /// Passes the latest `count` revisions to `take`, except compacted ones. Without a count, passes all
    /// revisions that are not compacted.
    pub fn newest_changes(
        &self,
        count: Option<usize>,
        take: impl FnMut(&Change<'_>),
    ) -> Result<(), ImportError> {
        let read_error = |source| ImportError::Read { path: self.path.clone(), source };
        read::newest_changes(&self.database, count, take).map_err(read_error)
    }

    /// Creates the store in `store_dir`, which must be empty or not exist. Inconsistent changes are detected
    /// only when the store is opened.
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

/// Opens the file, and returns it with the size of its database.
fn open(path: &Path, hash_check: HashCheck) -> Result<(File, u64), ImportError> {
    let failed = |attempt| move |source| ImportError::File { attempt, path: path.to_owned(), source };
    let file = files::open(path).map_err(failed("open"))?;
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

/// Returns an error if a directory of the settings is not empty.
pub fn check_empty(settings: &Settings) -> Result<(), ImportError> {
    for dir in [Some(settings.data_dir.as_path()), settings.wal_dir.as_deref()].into_iter().flatten() {
        let failed = |source| ImportError::File { attempt: "look at", path: dir.to_owned(), source };
        match fs::read_dir(dir) {
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
