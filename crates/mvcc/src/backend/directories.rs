//! The places of a store as directories beside each other, in one file system.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::shelf::{self, Shelf, Slot};
use crate::error::{Error, Result};
use crate::types::Applied;

/// The name of the mark inside a received store.
const MARK: &str = "received";

/// How far the store that was received beside the one in `store` reaches; `None` if there is no whole one. To be asked
/// before `store` is opened: it may have to be installed first.
///
/// Errors: `Corrupt` if its mark is damaged: then it can only be discarded.
pub fn staged_at(store: &Path) -> Result<Option<Applied>> {
    shelf::staged(&Directories::of(store))
}

/// Puts the received store in the place of the one in `store`, or ends what a crash interrupted. Afterwards `store` can
/// be opened.
///
/// Errors: `Refused` if no whole store was received; then nothing was changed.
pub fn finish_install(store: &Path) -> Result<Applied> {
    shelf::swap(&Directories::of(store))
}

/// Keeps the store in `store` and removes what was received beside it, whole or not; leftovers of a replaced store as
/// well. If a crash had interrupted an install, the old store is back afterwards.
pub fn discard_staged(store: &Path) -> Result<()> {
    shelf::discard(&Directories::of(store))
}

/// The places of the store at `home`.
pub(crate) struct Directories {
    home: PathBuf,
}

impl Directories {
    /// The places that belong to the store at `home`, which need not be there.
    pub fn of(home: &Path) -> Self {
        Directories { home: home.to_path_buf() }
    }

    /// The other places are siblings, so that a rename never crosses from one file system to another and one directory's sync
    /// covers them all.
    pub fn path(&self, slot: Slot) -> PathBuf {
        let beside = |suffix| {
            let mut name = OsString::from(self.home.file_name().unwrap_or_default());
            // Appended, not put in the place of an extension: the names of two stores side by side never meet.
            name.push(suffix);
            self.home.with_file_name(name)
        };
        match slot {
            Slot::Home => self.home.clone(),
            Slot::Incoming => beside(".incoming"),
            Slot::Old => beside(".old"),
        }
    }
}

impl Shelf for Directories {
    fn has(&self, slot: Slot) -> Result<bool> {
        let path = self.path(slot);
        path.try_exists().map_err(refused("look for", &path))
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        let path = self.path(from);
        fs::rename(&path, self.path(to)).map_err(refused("rename", &path))
    }

    fn remove(&self, slot: Slot) -> Result<()> {
        let path = self.path(slot);
        // Not atomic: names go one by one. That is why nothing is removed that anybody may still need whole.
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(refused("remove", &path)(source)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        match parent(&self.home) {
            Some(parent) => sync_dir(parent),
            None => sync_dir(Path::new(".")),
        }
    }

    fn mark(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        let path = self.path(slot).join(MARK);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            // No mark, or no place: either way nothing complete was received.
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(refused("read", &path)(source)),
        }
    }

    fn mark_name(&self, slot: Slot) -> String {
        self.path(slot).join(MARK).display().to_string()
    }
}

/// Writes the mark into the store in `dir`. It appears under its name only when it is whole and synced.
pub(crate) fn write_mark(dir: &Path, mark: &[u8]) -> Result<()> {
    let (path, half) = (dir.join(MARK), dir.join("received.tmp"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&half).and_then(|mut file| {
        file.write_all(mark)?;
        file.sync_all()
    });
    // First the bytes, then the name: under its name the mark is whole or not there at all.
    written.map_err(refused("write", &half))?;
    fs::rename(&half, &path).map_err(refused("rename", &half))?;
    sync_dir(dir)
}

/// The directory that holds the name of `path`, unless that is the working directory.
pub(crate) fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

/// Makes the names in a directory durable. A synced file whose name is lost is lost as well.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(refused("sync", dir))
}

/// The error for an operation that the file system refused.
pub(crate) fn refused(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { attempt, path, source }
}
