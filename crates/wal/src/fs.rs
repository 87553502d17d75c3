//! The only access to the disk: every durable byte is written through this trait, so that tests can crash it.
//!
//! * Files and directories are closed to other users: they contain values of clients.
//! * No handle is kept longer than it is used, but for the tail's; a released file's blocks are free at once.
//! * Nothing is retried but an interrupted read; the log decides what an error means.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A file system, as far as a log needs one.
///
/// Names and contents are durable apart: a file's bytes by [`File::sync_data`], its name by [`Fs::sync_dir`].
/// What the log relies on, and what the simulated file system of [`crate::testing`] grants no more than:
///
/// * a rename is atomic: after a crash the file has one of its two names, never none and never both;
/// * a sync that returned without an error holds for every write that returned before it began;
/// * unsynced writes and names may be kept or lost in any combination, and a write may be kept in part;
/// * a sector that a write does not touch is not changed by it.
///
/// Nothing is assumed of a sync that failed, except that its writes may read as if they had been kept.
pub trait Fs: Clone + Send + Sync + 'static {
    type File: File;

    /// Makes one directory, closed to other users. One that exists already is fine.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a new empty file, closed to other users; fails if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Renames a file within its directory, replacing what has that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Offsets are absolute: no cursor is shared.
pub trait File: Send + Sync + 'static {
    /// Writes all of `bytes`, growing the file if needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `buffer` as far as the file reaches; returns how much that was.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns when the bytes, and the length needed to read them, are on the disk itself, not only in its
    /// cache. Times and other facts about the file need not be.
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The file system of the machine: a thin wrapper, so that no untested code is below it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

#[derive(Debug)]
pub struct RealFile(std::fs::File);

#[expect(clippy::disallowed_methods, reason = "this is the file system below the trait")]
impl Fs for RealFs {
    type File = RealFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn create(&self, path: &Path) -> io::Result<RealFile> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map(RealFile)
    }

    fn open(&self, path: &Path) -> io::Result<RealFile> {
        OpenOptions::new().read(true).write(true).open(path).map(RealFile)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // A name that is not text is not ours; the log ignores names it did not make.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // fsync on a directory writes its entries; fdatasync would do as well, but no one promises it.
        std::fs::File::open(dir)?.sync_all()
    }
}

/// The file system of the machine for readers that must not change it: files are opened for reading,
/// everything else fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnlyFs;

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

#[expect(clippy::disallowed_methods, reason = "this is the file system below the trait")]
impl Fs for ReadOnlyFs {
    type File = RealFile;

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn create(&self, _path: &Path) -> io::Result<RealFile> {
        refused()
    }

    /// A pipe, a device or a link is refused: opening it could wait, or do something.
    fn open(&self, path: &Path) -> io::Result<RealFile> {
        if !std::fs::symlink_metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        std::fs::File::open(path).map(RealFile)
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }
}

impl File for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// A call that a [`TimedFs`] has timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedCall {
    Write { bytes: usize },
    Sync,
}

/// The machine's file system, with every write and every sync of a file timed.
///
/// The log itself knows no clock, and its caller sees a group only as a whole; what a write costs and what a
/// sync costs shows here alone. Two readings of the clock per call, next to a call of the kernel.
#[derive(Clone)]
pub struct TimedFs {
    clock: fn() -> Instant,
    /// Receives each call that succeeded, and what it took.
    note: Arc<dyn Fn(TimedCall, Duration) + Send + Sync>,
}

impl TimedFs {
    pub fn new(clock: fn() -> Instant, note: impl Fn(TimedCall, Duration) + Send + Sync + 'static) -> Self {
        TimedFs { clock, note: Arc::new(note) }
    }

    fn timed(&self, file: RealFile) -> TimedFile {
        TimedFile { file, fs: self.clone() }
    }
}

impl fmt::Debug for TimedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimedFs")
    }
}

impl Fs for TimedFs {
    type File = TimedFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealFs.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<TimedFile> {
        RealFs.create(path).map(|file| self.timed(file))
    }

    fn open(&self, path: &Path) -> io::Result<TimedFile> {
        RealFs.open(path).map(|file| self.timed(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.sync_dir(dir)
    }
}

/// A file of a [`TimedFs`].
#[derive(Debug)]
pub struct TimedFile {
    file: RealFile,
    fs: TimedFs,
}

impl TimedFile {
    fn time(&self, call: TimedCall, work: impl FnOnce(&RealFile) -> io::Result<()>) -> io::Result<()> {
        let began = (self.fs.clock)();
        work(&self.file)?;
        (self.fs.note)(call, (self.fs.clock)().saturating_duration_since(began));
        Ok(())
    }
}

impl File for TimedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.time(TimedCall::Write { bytes: bytes.len() }, |file| file.write_at(offset, bytes))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.time(TimedCall::Sync, File::sync_data)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
