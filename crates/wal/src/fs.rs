//! File-system abstraction. Every durable byte is written through it, so that tests can inject crashes.
//!
//! * Files and directories are inaccessible to other users: they contain clients' values.
//! * Only the tail's handle is long-lived, so a released file's blocks are freed immediately.
//! * Only interrupted reads are retried; the log decides how to handle errors.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The file-system operations that a log needs.
///
/// Contents and names become durable separately: contents by [`File::sync_data`], names by
/// [`Fs::sync_dir`]. The log relies on these guarantees, and the simulated file system of
/// [`crate::testing`] provides no others:
///
/// * A rename is atomic: after a crash the file has exactly one of the two names.
/// * A successful sync covers every write that returned before the sync was called.
/// * Unsynced writes and names may survive or be lost in any combination, and a write may survive in
///   part.
/// * A write does not change sectors that it does not touch.
///
/// After a failed sync the state of its writes is unknown, and they may still appear intact when read.
pub trait Fs: Clone + Send + Sync + 'static {
    type File: File;

    /// Creates one directory, inaccessible to other users. Succeeds if it already exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates an empty file, inaccessible to other users. Fails if the name exists.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Renames a file within its directory, replacing an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Lists the names in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Offsets are absolute; there is no cursor.
pub trait File: Send + Sync + 'static {
    /// Writes all of `bytes`, extending the file if needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads into `buffer` up to the end of the file. Returns the number of bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns once the contents, and the length needed to read them, have reached stable storage, not only
    /// the disk's cache. Timestamps and other metadata may be unsynced.
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The operating system's file system. A thin wrapper, to minimize the code that tests cannot simulate.
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
            // A name that is not UTF-8 cannot be one of the log's files.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // fsync writes the directory's entries; fdatasync probably would, but does not guarantee it.
        std::fs::File::open(dir)?.sync_all()
    }
}

/// The operating system's file system without write access: files are opened for reading, everything
/// else fails.
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

    /// Opens a regular file. Pipes, devices and links are rejected: opening one could block or have side
    /// effects.
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

/// A call timed by [`TimedFs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedCall {
    Write { bytes: usize },
    Sync,
}

/// The operating system's file system with timing of each write and sync.
///
/// The log itself does not use a clock, and its caller sees whole groups only. The overhead is two
/// clock readings per system call.
#[derive(Clone)]
pub struct TimedFs {
    clock: fn() -> Instant,
    /// Receives each successful call with its duration.
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
