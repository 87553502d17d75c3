//! Reads synced entries from the segments, for lagging followers and for replay after a restart.
//!
//! * Every entry is verified again when it is read.
//! * The catalogue is locked for lookups only, so the writer does not wait for readers.
//! * A read starts at the nearest point of the catalogue, and reads up to 64 KiB unnecessarily.
//! * Each call opens its files. That is cheap compared with the up to one megabyte that a lagging
//!   follower requests at a time, and it keeps readers from holding released files open.
//! * An entry replaced at a conflict during the read may be returned in its old version. It was synced,
//!   and the reader has to know which entries are committed anyway.
//! * A segment may be released, and its file reused, during the read. Its bytes then fail to verify,
//!   because the new segment has another checksum seed, and the reader looks the entry up again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalogue::{Catalogue, Stretch};
use crate::format::frame::{HEADER_BYTES, Type};
use crate::format::segment::{self, LogProperties};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::types::IoContext;
use crate::{Error, Fs, LogIndex, LogPosition, OwnedEntry, Result, Term};

/// Minimum size of a disk read. A short read should not fetch much more than it returns.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Handle for reading synced entries. Cheap to clone, and usable on any thread while the writer
/// appends, releases or restarts the log.
#[derive(Debug)]
pub struct Reader<F: Fs> {
    shared: Arc<LogShared<F>>,
}

#[derive(Debug)]
struct LogShared<F> {
    fs: F,
    dir: PathBuf,
    lineage: LogProperties,
    catalogue: Mutex<Catalogue>,
}

impl<F: Fs> Clone for Reader<F> {
    fn clone(&self) -> Reader<F> {
        Reader { shared: Arc::clone(&self.shared) }
    }
}

impl<F: Fs> Reader<F> {
    pub(crate) fn new(fs: F, dir: PathBuf, lineage: LogProperties, catalogue: Catalogue) -> Reader<F> {
        Reader { shared: Arc::new(LogShared { fs, dir, lineage, catalogue: Mutex::new(catalogue) }) }
    }

    /// Returns entries from `from` on, in index order, up to `payload_bytes_max` but at least one if `from`
    /// is synced. Empty if `from` is beyond the synced end.
    ///
    /// Fails with [`crate::Error::Released`] if `from` was released. An entry that the writer replaces
    /// during the call may be returned in its old version.
    pub fn read(&self, from: LogIndex, payload_bytes_max: usize) -> Result<Vec<OwnedEntry>> {
        let mut reading =
            PartialRead { entries: Vec::new(), next: from, payload_bytes: 0, payload_bytes_max };
        loop {
            let Some(stretch) = self.catalogue().locate(reading.next)? else {
                return Ok(reading.entries);
            };
            let done = match self.read_stretch(&stretch, &mut reading) {
                Ok(done) => done,
                Err(error) if self.catalogue().segments().any(|kept| kept == stretch.place.segment) => {
                    return Err(error);
                }
                // The segment was released during the read: look the entry up again.
                Err(_) => continue,
            };
            if done == ReadEnd::Full {
                return Ok(reading.entries);
            }
        }
    }

    /// Returns the term of a synced entry or of the start, from memory. `None` if the index is outside of
    /// start..=last.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        self.catalogue().term(index)
    }

    /// Returns the position before the first retained entry.
    pub fn start(&self) -> LogPosition {
        self.catalogue().start()
    }

    /// Returns the start of the log after [`crate::Wal::release_before`] with `index`, limited to about
    /// `segments_max` segments. For callers that must stop using entries before their release, and that
    /// release gradually. Releasing before the entry after the returned position results in exactly that
    /// start.
    pub fn release_point(&self, index: LogIndex, segments_max: usize) -> LogPosition {
        self.catalogue().release_point(index, segments_max)
    }

    /// Returns the oldest entry within about the last `bytes` of the log up to `index`, or the start.
    pub fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        self.catalogue().back_by(index, bytes)
    }

    /// Returns the last synced entry, or the start if there is none.
    pub fn last(&self) -> LogPosition {
        self.catalogue().last()
    }

    /// Locks the catalogue. A broken invariant panics on the writer's thread and stops the log; readers
    /// then see the state before it.
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        self.shared.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads entries of one stretch, and continues in the same segment as long as the catalogue agrees.
    fn read_stretch(&self, stretch: &Stretch, reading: &mut PartialRead) -> Result<ReadEnd> {
        let LogShared { fs, dir, lineage, .. } = &*self.shared;
        let segment = stretch.place.segment;
        let path = segment::path(dir, segment);
        let (file, bytes) = segment::open(fs, &path)?;
        let seed = lineage.seed(segment);
        let corrupt = |offset, reason| Error::Corrupt { segment, offset, reason };
        if stretch.place.offset > bytes {
            return Err(corrupt(bytes, "the segment is cut short"));
        }
        // The chain is not verified because the walk starts in the middle; recovery or this process has
        // verified it. The index of each frame is checked below.
        let mut walk = FrameCursor::new(&file, seed, stretch.place.offset, bytes, reading.chunk_bytes());
        let mut expected = stretch.first;
        while expected <= stretch.last {
            let offset = walk.offset();
            let frame =
                walk.frame().attempt("read log segment", &path)?.map_err(|flaw| corrupt(offset, flaw))?;
            let header = frame.header;
            if header.type_ == Type::Entry {
                if header.position.index != expected {
                    return Err(corrupt(offset, "another entry than the one expected here"));
                }
                if expected == reading.next
                    && reading.take(header.position, header.kind, frame.payload) == ReadEnd::Full
                {
                    return Ok(ReadEnd::Full);
                }
                expected = expected.next();
            }
            walk.pass(&header);
        }
        Ok(ReadEnd::Partly)
    }
}

struct PartialRead {
    entries: Vec<OwnedEntry>,
    /// Next index to return; earlier entries are skipped.
    next: LogIndex,
    payload_bytes: usize,
    payload_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// The limit is reached, or the next entry would exceed it.
    Full,
    Partly,
}

impl PartialRead {
    /// Adds the next entry. The first one is accepted at any length; otherwise a reader could never get
    /// past it.
    fn take(&mut self, position: LogPosition, kind: u8, payload: &[u8]) -> ReadEnd {
        let bytes = self.payload_bytes.saturating_add(payload.len());
        if !self.entries.is_empty() && bytes > self.payload_bytes_max {
            return ReadEnd::Full;
        }
        assert_eq!(position.index, self.next, "entries are taken in index order");
        let LogPosition { index, term } = position;
        self.entries.push(OwnedEntry { index, term, kind, payload: payload.to_vec() });
        self.payload_bytes = bytes;
        self.next = index.next();
        if bytes >= self.payload_bytes_max { ReadEnd::Full } else { ReadEnd::Partly }
    }

    /// Returns the size of the next disk read: about as much as the result still needs.
    fn chunk_bytes(&self) -> usize {
        let wanted = self.payload_bytes_max.saturating_sub(self.payload_bytes).saturating_add(HEADER_BYTES);
        wanted.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES)
    }
}
