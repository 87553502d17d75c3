//! The writer: append, sync, cut, release, restart.

use std::path::Path;

use crate::{Entry, Fs, LogIndex, Position, Reader, Result};

/// What a log must be told.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A segment is cut when the next group would pass this size. 64 MiB: see [`Options::SEGMENT_BYTES`].
    pub segment_bytes: u64,
}

impl Options {
    pub const SEGMENT_BYTES: u64 = 64 << 20;
}

/// What `open` found. Entries are read through [`Wal::reader`]: recovery itself keeps none in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The bytes given to `create`.
    pub identity: Vec<u8>,
    /// The last synced state, if one was ever put.
    pub state: Option<Vec<u8>>,
    /// The position before the first entry kept.
    pub start: Position,
    /// The last entry, or the start when there is none.
    pub last: Position,
    /// Bytes of an unfinished group after the last whole frame; they were never reported as synced.
    pub torn_bytes: u64,
}

/// What one `sync` made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Bytes written to the segment.
    pub bytes: u64,
    /// Frames among them: entries and states.
    pub frames: u64,
    /// Segments begun.
    pub cuts: u64,
}

/// The one writer of a log.
#[derive(Debug)]
pub struct Wal<F: Fs> {
    fs: F,
    reader: Reader<F>,
}

impl<F: Fs> Wal<F> {
    /// Whether `dir` holds a log. A `create` that was cut short leaves none.
    pub fn exists(fs: &F, dir: &Path) -> Result<bool> {
        let _ = (fs, dir);
        Ok(false)
    }

    /// Makes a log whose first entry will be the one after `start`. `identity` (opaque, ≤ 1 KiB) is repeated in each
    /// segment: whose log this is. The log exists wholly or not at all. The parent of `dir` must exist.
    pub fn create(fs: F, dir: &Path, identity: &[u8], start: Position, options: Options) -> Result<Wal<F>> {
        let _ = (fs, dir, identity, start, options);
        Err(crate::Error::Poisoned)
    }

    /// Opens a log, checks every byte of it, and drops an unfinished group at its end.
    pub fn open(fs: F, dir: &Path, options: Options) -> Result<(Wal<F>, Recovery)> {
        let _ = (fs, dir, options);
        Err(crate::Error::Poisoned)
    }

    /// Adds an entry to the group. An index that exists already replaces that entry and all after it.
    ///
    /// Panics on a gap, on an index that was released, and on a payload above [`crate::PAYLOAD_BYTES_MAX`].
    pub fn append(&mut self, entry: Entry<'_>) {
        let _ = entry;
    }

    /// Adds an opaque state to the group; the latest one is what `open` gives back.
    pub fn put_state(&mut self, state: &[u8]) {
        let _ = state;
    }

    /// Makes the group durable with one write and one fdatasync. Nothing waits: nothing is done.
    ///
    /// After an error the log is poisoned: every later call fails, and only opening it anew tells what was kept.
    pub fn sync(&mut self) -> Result<Synced> {
        Ok(Synced::default())
    }

    /// Begins the log anew after `start` with `state`; every entry kept so far and the unsynced group are
    /// discarded. Durable and atomic when it returns.
    pub fn restart_at(&mut self, start: Position, state: &[u8]) -> Result<()> {
        let _ = (start, state);
        Ok(())
    }

    /// Removes whole segments that hold only entries below `index`. Returns how many.
    pub fn release_before(&mut self, index: LogIndex) -> Result<usize> {
        let _ = index;
        Ok(0)
    }

    /// Ends the log in good order: the last group is guarded against damage as all others are.
    pub fn close(self) -> Result<()> {
        Ok(())
    }

    /// The last appended entry, synced or not.
    pub fn last(&self) -> Position {
        Position::default()
    }

    /// Bytes waiting for `sync`.
    pub fn group_bytes(&self) -> usize {
        0
    }

    /// A handle for reading synced entries.
    pub fn reader(&self) -> Reader<F> {
        let _ = &self.fs;
        self.reader.clone()
    }
}
