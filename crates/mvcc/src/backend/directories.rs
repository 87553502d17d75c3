//! Store slots as sibling directories on one file system.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::slots::{self, Slot, SlotStorage};
use crate::error::{Error, Result};
use crate::types::LogPosition;

const MARKER: &str = "received";
/// Maximum number of bytes read from a marker, far more than it contains.
const MARKER_BYTES_MAX: u64 = 4096;

/// Returns the position of the completely received store next to `store`, or `None`. Call this before
/// opening `store`, because the received store may have to be installed first.
///
/// Errors: `Corrupt` if its marker is corrupt. The received store can then only be discarded.
pub fn staged_at(store: &Path) -> Result<Option<LogPosition>> {
    slots::staged(&DirectorySlots::of(store))
}

/// Replaces the store in `store` with the received one, or completes a replacement that a crash
/// interrupted. Afterwards `store` can be opened.
///
/// Errors: `Refused` if there is no completely received store; the slots are then unchanged.
pub fn finish_install(store: &Path) -> Result<LogPosition> {
    slots::swap(&DirectorySlots::of(store))
}

/// Keeps the store in `store`, and removes a received store, complete or not, and the remains of a
/// replaced one. If a crash interrupted a replacement, the old store is restored.
pub fn discard_staged(store: &Path) -> Result<()> {
    slots::discard(&DirectorySlots::of(store))
}

pub(super) struct DirectorySlots {
    home: PathBuf,
}

impl DirectorySlots {
    pub fn of(home: &Path) -> Self {
        DirectorySlots { home: home.to_path_buf() }
    }

    /// Returns the path of a slot. Siblings share a file system, so slots can be renamed, and one directory
    /// sync covers all of them.
    pub fn path(&self, slot: Slot) -> PathBuf {
        let sibling = |suffix| {
            let mut name = OsString::from(self.home.file_name().unwrap_or_default());
            // Append to the whole name, so that slots of different stores never have the same name.
            name.push(suffix);
            self.home.with_file_name(name)
        };
        match slot {
            Slot::Current => self.home.clone(),
            Slot::Incoming => sibling(".incoming"),
            Slot::Old => sibling(".old"),
        }
    }
}

impl SlotStorage for DirectorySlots {
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
        // Not atomic. Callers remove a directory only if its contents are no longer needed.
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

    fn marker(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        let path = self.path(slot).join(MARKER);
        let mut bytes = Vec::new();
        match open_regular(&path) {
            Ok(file) => {
                file.take(MARKER_BYTES_MAX).read_to_end(&mut bytes).map_err(refused("read", &path))?
            }
            // Without a marker or a directory, no store was received completely.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(bytes))
    }

    fn marker_name(&self, slot: Slot) -> String {
        self.path(slot).join(MARKER).display().to_string()
    }
}

pub(super) fn write_marker(dir: &Path, marker: &[u8]) -> Result<()> {
    write_synced(dir, MARKER, "received.tmp", marker).map(drop)
}

/// Writes and syncs a file in `dir` as `temporary`, then renames it to `name`. Under its name it is
/// complete or absent.
pub(super) fn write_synced(dir: &Path, name: &str, temporary: &str, bytes: &[u8]) -> Result<File> {
    let (path, temporary) = (dir.join(name), dir.join(temporary));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&temporary).map_err(refused("create", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(refused("write", &temporary))?;
    fs::rename(&temporary, &path).map_err(refused("rename", &temporary))?;
    sync_dir(dir)?;
    Ok(file)
}

/// Returns the parent directory of `path`; `None` for the working directory.
pub(super) fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(refused("sync", dir))
}

const COPY_BYTES: usize = 256 << 10;

/// Opens a regular file in a directory that other programs may have written to. Links and special files
/// are an error; opening one does not block.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(refused("open", path))?;
    match file.metadata().map_err(refused("look at", path))?.is_file() {
        true => Ok(file),
        false => Err(Error::Refused { attempt: "open a file of the store", reason: "not a regular file" }),
    }
}

/// Copies a file and replaces an existing one. Holes are preserved.
pub(crate) fn copy_regular(from: &Path, to: &Path) -> Result<()> {
    let source = open_regular(from)?;
    let bytes = source.metadata().map_err(refused("look at", from))?.len();
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to);
    let target = made.map_err(refused("create", to))?;
    let (mut at, mut buffer) = (0, vec![0; COPY_BYTES]);
    while at < bytes {
        let data = match seek(&source, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found.map_err(|errno| refused("read", from)(errno.into()))?,
        };
        let hole =
            seek(&source, SeekFrom::Hole(data)).map_err(|errno| refused("read", from)(errno.into()))?;
        at = data;
        while at < hole.min(bytes) {
            let part = COPY_BYTES.min(usize::try_from(hole.min(bytes) - at).unwrap_or(COPY_BYTES));
            source.read_exact_at(&mut buffer[..part], at).map_err(refused("read", from))?;
            target.write_all_at(&buffer[..part], at).map_err(refused("write", to))?;
            at += part as u64;
        }
    }
    target.set_len(bytes).map_err(refused("write", to))
}

pub(crate) fn refused(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { attempt, path, source }
}
