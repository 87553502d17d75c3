//! The data directory of a member, locked by a single process at a time.
//!
//! ```text
//!   NAME.kv-server/          0700
//!     LOCK                   held with flock while the process runs
//!     identity.json          cluster and member; written once
//!     live-import.json       progress of `import --live`; without an identity, the directory is not finished
//!     wal/                   the log, unless --wal-dir is set
//!     store/                 checkpoints of the key space
//!     store.incoming/        a store received from the leader, until it replaces the current one
//!     store.damaged-N/       a store that could not be opened, set aside
//! ```
//!
//! * The directory is neither read nor modified before the lock is held.
//! * A directory created by etcd, or an archive, is never modified, not even by a lock file.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use process::files::{self, FileLock};

/// Name of the lock file in a data directory.
pub const LOCK: &str = "LOCK";
/// Name of the file that marks a directory as an archive and identifies its cluster.
pub const ARCHIVE: &str = "archive.json";

/// A data directory locked by this process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    wal_dir: PathBuf,
    /// The locks are released when these files are closed.
    _lock: FileLock,
    _wal_lock: FileLock,
}

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(
        "{} is a data directory of etcd; kv-server needs another one: choose another --data-dir, and fill it \
         with `kvctl import`",
        .0.display()
    )]
    Etcd(PathBuf),
    #[error(
        "identity.json of kv-server found next to member/ of etcd in {path}: etcd was started here by \
         mistake; remove {path}/member",
        path = .0.display()
    )]
    EtcdInside(PathBuf),
    #[error(
        "{path} is an archive: choose another directory, and make it a member's with \
         `kvctl restore --from {path}`",
        path = .0.display()
    )]
    Archive(PathBuf),
    #[error(
        "data directory {} is locked by another process: each member needs a separate --data-dir; \
         --local-cluster 3 runs three members on one machine",
        .0.display()
    )]
    Locked(PathBuf),
    #[error(
        "log directory {} is locked by another process: each member needs a separate --wal-dir",
        .0.display()
    )]
    LogLocked(PathBuf),
    #[error(
        "log directory {} is a name that the store in the data directory uses, and removes: choose another \
         --wal-dir",
        .0.display()
    )]
    LogInStore(PathBuf),
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
}

impl Directory {
    /// Rejects directories that do not belong to a member. Read-only.
    ///
    /// Errors: the detected kind of directory.
    pub fn check(path: &Path, wal_dir: Option<&Path>) -> Result<(), DirectoryError> {
        if path.join("member").exists() {
            let is_ours = Directory::identity_in(path).exists();
            let refused = if is_ours { DirectoryError::EtcdInside } else { DirectoryError::Etcd };
            return Err(refused(path.to_owned()));
        }
        let mut directories = [Some(path), wal_dir].into_iter().flatten();
        if let Some(archive) = directories.find(|dir| dir.join(ARCHIVE).exists()) {
            return Err(DirectoryError::Archive(archive.to_owned()));
        }
        match wal_dir.filter(|dir| is_of_store(path, dir)) {
            Some(dir) => Err(DirectoryError::LogInStore(dir.to_owned())),
            None => Ok(()),
        }
    }

    /// Locks the directory, creating it if necessary.
    pub fn open(path: &Path, wal_dir: Option<&Path>) -> Result<Directory, DirectoryError> {
        Directory::check(path, wal_dir)?;
        create_private(path)?;
        let lock = lock(path)?;
        let wal_dir = match wal_dir {
            Some(dir) => dir.to_owned(),
            None => Directory::wal_in(path),
        };
        create_private(&wal_dir)?;
        // Lock the directory itself: two data directories may refer to the same external log.
        let wal_lock = try_lock(File::open(&wal_dir), &wal_dir, &wal_dir, DirectoryError::LogLocked)?;
        warn_if_open_to_others(path);
        Ok(Directory { path: path.to_owned(), wal_dir, _lock: lock, _wal_lock: wal_lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn identity_path(&self) -> PathBuf {
        Directory::identity_in(&self.path)
    }

    pub fn identity_in(path: &Path) -> PathBuf {
        path.join("identity.json")
    }

    pub fn live_import_path(&self) -> PathBuf {
        Directory::live_import_in(&self.path)
    }

    /// Returns the path of the progress file of `import --live` in the data directory `path`.
    pub fn live_import_in(path: &Path) -> PathBuf {
        path.join("live-import.json")
    }

    pub fn wal_dir(&self) -> &Path {
        &self.wal_dir
    }

    pub fn store_dir(&self) -> PathBuf {
        Directory::store_in(&self.path)
    }

    /// Reports whether the data directory `path` is `wal_dir` or below it.
    pub fn lies_in(path: &Path, wal_dir: &Path) -> bool {
        files::resolved(path).starts_with(files::resolved(wal_dir))
    }

    /// Returns the path of the log in the data directory `path`, unless `--wal-dir` is given.
    pub fn wal_in(path: &Path) -> PathBuf {
        path.join("wal")
    }

    pub fn store_in(path: &Path) -> PathBuf {
        path.join("store")
    }
}

/// Creates a private directory and makes its name durable: if a power failure lost the name, it
/// would lose all acknowledged data inside. Syncs an existing directory too, since its creator may
/// have been killed before the sync.
fn create_private(path: &Path) -> Result<(), DirectoryError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let io_error = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| DirectoryError::Io { attempt, path, source }
    };
    if !parent.exists() {
        create_private(parent)?;
    }
    let existed = match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => true,
        created => created.map(|()| false).map_err(io_error("create directory", path))?,
    };
    match File::open(parent).and_then(|parent| parent.sync_all()) {
        // Another user created the directory in a parent that this user may not read; that user has
        // to sync its name.
        Err(error) if existed && error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(io_error("sync directory", parent)),
    }
}

/// Reports whether the log in `wal_dir` would be inside `store`, or inside a directory derived from
/// its name, for received or corrupt stores.
fn is_of_store(path: &Path, wal_dir: &Path) -> bool {
    let (path, wal_dir) = (files::resolved(path), files::resolved(wal_dir));
    let first = wal_dir.strip_prefix(&path).ok().and_then(|below| below.components().next());
    let name = first.map_or(&b""[..], |name| name.as_os_str().as_encoded_bytes());
    name == b"store" || name.starts_with(b"store.")
}

fn lock(path: &Path) -> Result<FileLock, DirectoryError> {
    let lock_path = path.join(LOCK);
    try_lock(files::open_lock(&lock_path), &lock_path, path, DirectoryError::Locked)
}

/// Locks `file` at `path` for `directory`. Returns the error `taken` if another
/// process holds the lock.
fn try_lock(
    file: io::Result<File>,
    path: &Path,
    directory: &Path,
    taken: fn(PathBuf) -> DirectoryError,
) -> Result<FileLock, DirectoryError> {
    let io_error = |attempt| move |source| DirectoryError::Io { attempt, path: path.to_owned(), source };
    let file = file.map_err(io_error("open"))?;
    let lock = FileLock::try_new(file).map_err(io_error("lock"))?;
    lock.ok_or_else(|| taken(directory.to_owned()))
}

fn warn_if_open_to_others(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:o}"),
            "data directory is accessible to other users; use mode 700"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_private_and_held_by_one() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let held = Directory::open(&path, None).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("LOCK")), 0o600);
        assert!(matches!(Directory::open(&path, None), Err(DirectoryError::Locked(_))));
        drop(held);
        Directory::open(&path, None).unwrap();
    }

    #[test]
    fn a_directory_of_another_kind_is_left_as_it_was() {
        for (made, data, log, wanted) in [
            ("other/member", "other", None, "is a data directory of etcd"),
            ("other/identity.json other/member", "other", None, "etcd was started here by mistake; remove "),
            ("other/archive.json", "other", None, "other is an archive"),
            ("other/archive.json", "new", Some("other"), "other is an archive"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let made: Vec<&str> = made.split(' ').collect();
            made.iter().for_each(|made| std::fs::create_dir_all(dir.path().join(made)).unwrap());
            let log = log.map(|log| dir.path().join(log));
            let refused = Directory::open(&dir.path().join(data), log.as_deref()).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
            let counts = ["", "other"].map(|name| std::fs::read_dir(dir.path().join(name)).unwrap().count());
            assert_eq!(counts, [1, made.len()], "something was made");
        }
    }

    #[test]
    fn the_log_may_lie_elsewhere() {
        let parent = tempfile::tempdir().unwrap();
        let wal_dir = parent.path().join("fast/log");
        let directory = Directory::open(&parent.path().join("data"), Some(&wal_dir)).unwrap();
        assert_eq!(directory.wal_dir(), wal_dir);
        assert!(wal_dir.is_dir());
        let second = Directory::open(&parent.path().join("other"), Some(&wal_dir));
        assert!(matches!(second, Err(DirectoryError::LogLocked(_))), "one log for two members");
    }

    #[test]
    fn the_log_does_not_lie_where_stores_are_made_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let insides = [
            "store",
            "store.incoming",
            "store.damaged-1/log",
            "./store.old",
            "new/../store",
            "n/../../data/store",
        ];
        for inside in insides {
            let refused = Directory::open(&data, Some(&data.join(inside)));
            assert!(matches!(refused, Err(DirectoryError::LogInStore(_))), "{inside}");
            assert!(!data.exists(), "nothing is made");
        }
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, parent.path().join("link")).unwrap();
        let refused = Directory::open(&data, Some(&parent.path().join("link/store.incoming")));
        assert!(matches!(refused, Err(DirectoryError::LogInStore(_))));
        for name in ["log", "store-log", "stored/store.log"] {
            Directory::open(&data, Some(&data.join(name))).unwrap();
        }
    }
}
