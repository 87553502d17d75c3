//! Temporary directory with a random name, accessible to its owner only, and removed on drop.
//!
//! The process holds a lock on it. A directory of a killed process is removed when a new one is created in
//! the same parent.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::runtime::Builder;

use super::shutdown;

/// Prefix of a name; 32 hexadecimal digits follow.
const PREFIX: &str = "kv-scratch-";
const NAME_BYTES: usize = PREFIX.len() + 32;
const MODE: u32 = 0o700;

/// A temporary directory, removed with its contents on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// None if the file system does not support locks: stale directories are not removed there.
    _lock: Option<OwnedFd>,
}

impl Scratch {
    /// Creates a directory in the system's directory for temporary files.
    pub fn new() -> io::Result<Scratch> {
        Scratch::within(&std::env::temp_dir())
    }

    /// Creates a directory on the file system of `path`, in its first existing ancestor. `path` may not exist
    /// yet.
    pub fn next_to(path: &Path) -> io::Result<Scratch> {
        let above = path.ancestors().skip(1).find(|above| above.is_dir());
        Scratch::within(above.unwrap_or(Path::new(".")))
    }

    fn within(parent: &Path) -> io::Result<Scratch> {
        remove_left(parent);
        loop {
            let path = parent.join(format!("{PREFIX}{:032x}", rand::random::<u128>()));
            let made = DirBuilder::new().mode(MODE).create(&path);
            // The system's error does not include the path.
            made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", parent.display())))?;
            match lock(&path) {
                Ok(lock) if path.exists() => return Ok(Scratch { path, _lock: Some(lock) }),
                // Another process removed it as stale before it was locked.
                Ok(_) | Err(Errno::WOULDBLOCK | Errno::NOENT) => {}
                Err(_) => return Ok(Scratch { path, _lock: None }),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory when a signal stops the process.
    pub fn remove_at_signal(&self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let signalled = {
            let _entered = runtime.enter();
            shutdown::signalled()?
        };
        let path = self.path.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(signalled);
            let _stays = fs::remove_dir_all(path);
            std::process::exit(shutdown::SIGNALLED)
        })?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _stays = fs::remove_dir_all(&self.path);
    }
}

fn lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty())?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// Removes directories of this user that no process has locked.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_scratch =
            name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.len() == NAME_BYTES);
        let Some(directory) = is_scratch.then(|| lock(&path).ok()).flatten() else { continue };
        let is_own =
            |found: rustix::fs::Stat| found.st_uid == geteuid().as_raw() && found.st_mode & 0o777 == MODE;
        if fstat(&directory).is_ok_and(is_own) {
            let _stays = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_scratch_directory_has_a_new_name_and_is_open_to_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing").join("data");
        let (one, other) = (Scratch::next_to(&missing).unwrap(), Scratch::next_to(&missing).unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        drop((one, other));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_processes_that_were_killed_are_removed_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let within = || Scratch::within(directory.path()).unwrap();
        let (used, mut killed) = (within(), within());
        fs::write(killed.path().join("file"), "").unwrap();
        let gone = std::mem::take(&mut killed.path);
        drop(killed); // Releases the lock.
        let name = |letter: &str| directory.path().join(format!("{PREFIX}{}", letter.repeat(32)));
        let (open_to_others, link, short) = (name("a"), name("b"), directory.path().join(PREFIX));
        let target = directory.path().join("target");
        for (path, mode) in [(&open_to_others, 0o755), (&target, 0o700), (&short, 0o700)] {
            DirBuilder::new().mode(mode).create(path).unwrap();
        }
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let new = within();
        assert!(!gone.exists());
        for kept in [used.path(), new.path(), &open_to_others, &link, &short, &target] {
            assert!(fs::symlink_metadata(kept).is_ok(), "{}", kept.display());
        }
    }
}
