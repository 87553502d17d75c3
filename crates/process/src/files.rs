//! Files in directories where other users may write.
//!
//! * A file is created exclusively and readable by its owner only. An existing link or file of that name is
//!   removed first, so that neither an open descriptor nor a link of another user reaches the new file.
//! * Existing files are opened without blocking on a pipe, and must be regular files.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Maximum size of a file that is read as a whole. A configuration, a key or an identity has some
/// kilobytes; a larger file is not one of these.
pub const BYTES_MAX: u64 = 1 << 20;

/// Creates a file, replacing an existing one.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Replaces the contents of a file, or creates it: after a crash it has the former contents or the new ones.
/// Writes a draft with the extension `tmp` first.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    let mut file = create(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    sync_parent(path)
}

/// Syncs the directory of a file that was created, renamed or removed.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

/// Returns the directory that contains `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens or creates a lock file in place. Rejects a link.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    File::options().write(true).create(true).truncate(false).mode(0o600).custom_flags(no_follow).open(path)
}

/// An exclusive lock of a file or directory. Dropping it releases the lock even if a child process that has
/// just been forked holds a copy of the descriptor.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks `file`. Returns None if another process, or another part of this one, holds the lock.
    pub fn try_new(file: File) -> io::Result<Option<FileLock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(FileLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Fails only for an invalid descriptor; closing the file releases the lock as well.
        let _closed = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Opens a regular file to read it.
pub fn open(path: &Path) -> io::Result<File> {
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(at_once).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// All bytes of a regular file of at most [`BYTES_MAX`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= BYTES_MAX {
        true => Ok(bytes),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {BYTES_MAX} bytes"))),
    }
}

/// Returns the absolute path without links and `..`. Components that do not exist yet are assumed to be
/// directories.
pub fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|start| Some((start, start.canonicalize().ok()?)));
    let Some((start, mut resolved)) = existing else { return path };
    let mut has_gone_up = false;
    for component in path.strip_prefix(start).into_iter().flat_map(Path::components) {
        match component {
            Component::ParentDir => has_gone_up |= resolved.pop(),
            name => resolved.push(name),
        }
    }
    // It may lead to what exists.
    if has_gone_up { self::resolved(&resolved) } else { resolved }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_file_is_made_anew_and_nothing_is_written_through_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("draft"), directory.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let traps: [(&str, &dyn Fn()); 4] = [
            ("nothing", &|| {}),
            ("a link", &|| symlink(&victim, &path).unwrap()),
            ("another name of the file", &|| fs::hard_link(&victim, &path).unwrap()),
            ("a file that others read", &|| fs::write(&path, "old").unwrap()),
        ];
        for (trap, set) in traps {
            set();
            create(&path).unwrap().write_all(b"secret").unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious", "{trap}");
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600, "{trap}");
            fs::remove_file(&path).unwrap();
        }
    }

    /// A forked process has such a copy until it runs its program.
    #[test]
    fn a_dropped_lock_is_released_while_a_copy_of_its_descriptor_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let file = open_lock(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let held = FileLock::try_new(file).unwrap().unwrap();
        assert!(FileLock::try_new(open_lock(&path).unwrap()).unwrap().is_none());
        drop(held);
        assert!(FileLock::try_new(open_lock(&path).unwrap()).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn replaced_files_are_complete_and_readable_by_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for contents in [&b"first"[..], b"2nd"] {
            replace(&path, contents).unwrap();
            assert_eq!(fs::read(&path).unwrap(), contents);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no draft is left");
        }
        assert_eq!(parent(Path::new("state.json")), Path::new("."));
    }

    #[test]
    fn a_link_is_not_locked_and_neither_a_pipe_nor_a_long_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| directory.path().join(name));
        open_lock(&file).unwrap();
        open_lock(&file).unwrap();
        symlink(directory.path().join("elsewhere"), &link).unwrap();
        open_lock(&link).unwrap_err();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read(&file).unwrap(), b"");
        for refused in [&pipe, Path::new("/dev/null"), directory.path()] {
            read(refused).unwrap_err();
        }
        for (bytes, is_read) in [(BYTES_MAX, true), (BYTES_MAX + 1, false), (1 << 40, false)] {
            File::options().write(true).open(&file).unwrap().set_len(bytes).unwrap();
            assert_eq!(read(&file).is_ok(), is_read, "{bytes}");
        }
    }
}
