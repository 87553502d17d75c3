//! Old entries, read back from the segments: for followers that lag and for the replay after a restart.
//!
//! * A reader sees synced entries only, and every entry is verified again on its way.
//! * The lock is held to look up a place, never across a read of the disk: the writer does not wait for
//!   readers.
//! * Reading goes from the nearest point of the catalogue, so up to 64 KiB are read in vain, once per call.
//! * Files are opened for each call: a lagging follower asks for up to a megabyte at a time, against which
//!   that is nothing, and no reader keeps a released file alive.
//! * An entry that the log turned back over while it was being read may be given in its old form: it was
//!   synced, and its reader must know anyway which entries are settled.
//! * A segment may be released, and its file reused, while it is being read. Its bytes then fail to verify,
//!   as the seed of their checksums is another's, and the reader looks the entry up anew.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalogue::{Catalogue, Stretch};
use crate::format::frame::{HEADER_BYTES, Type};
use crate::format::segment::{self, Lineage};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::types::IoContext;
use crate::{Error, Fs, LogIndex, LogPosition, OwnedEntry, Result, Term};

/// A short answer should not read much more than it gives: the least that a read asks of the disk.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// A cheap handle on the synced part of the log. Cloneable; safe on any thread while the writer appends,
/// releases or restarts the log.
#[derive(Debug)]
pub struct Reader<F: Fs> {
    shared: Arc<LogShared<F>>,
}

#[derive(Debug)]
struct LogShared<F> {
    fs: F,
    dir: PathBuf,
    lineage: Lineage,
    catalogue: Mutex<Catalogue>,
}

impl<F: Fs> Clone for Reader<F> {
    fn clone(&self) -> Reader<F> {
        Reader { shared: Arc::clone(&self.shared) }
    }
}

impl<F: Fs> Reader<F> {
    pub(crate) fn new(fs: F, dir: PathBuf, lineage: Lineage, catalogue: Catalogue) -> Reader<F> {
        Reader { shared: Arc::new(LogShared { fs, dir, lineage, catalogue: Mutex::new(catalogue) }) }
    }

    /// Entries from `from` on, in index order: as many as fit in `payload_bytes_max`, but at least one if
    /// `from` is synced; none if `from` is beyond the synced end.
    ///
    /// Fails with [`crate::Error::Released`] if `from` is no longer kept. An entry that the writer replaces
    /// during the call may be given in its old form.
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
                // The segment was released during the read: look it up again.
                Err(_) => continue,
            };
            if done == ReadEnd::Full {
                return Ok(reading.entries);
            }
        }
    }

    /// Term of a synced entry, or of the start; from memory, without reading the disk. `None` if the index is
    /// outside of start..=last.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        self.catalogue().term(index)
    }

    /// The position before the first entry kept.
    pub fn start(&self) -> LogPosition {
        self.catalogue().start()
    }

    /// Where the log would start if [`crate::Wal::release_before`] were called with `index` and stopped after
    /// about `segments_max` segments: for a caller who must not ask for entries any more before they go, and
    /// does not want them all to go at once. Releasing before the entry after that position gives exactly
    /// that start.
    pub fn release_point(&self, index: LogIndex, segments_max: usize) -> LogPosition {
        self.catalogue().release_point(index, segments_max)
    }

    /// The oldest entry within about the last `bytes` of the log up to `index`; the start if that is all of
    /// it.
    pub fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        self.catalogue().back_by(index, bytes)
    }

    /// The last synced entry, or the start when there is none.
    pub fn last(&self) -> LogPosition {
        self.catalogue().last()
    }

    /// A broken invariant of the catalogue panics on the writer's thread, which ends the log there; readers
    /// then see the state before it.
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        self.shared.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads entries of one stretch, and of what follows it in the same segment as long as the catalogue
    /// agrees.
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
        // The chain is not verified: the reader begins in the middle, and recovery or this process has
        // verified it. That these are the right frames, index by index, is checked below.
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

/// What a read has gathered.
struct PartialRead {
    entries: Vec<OwnedEntry>,
    /// The index after them; entries before it are skipped.
    next: LogIndex,
    payload_bytes: usize,
    payload_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// The bound is reached, or the next entry would pass it.
    Full,
    Partly,
}

impl PartialRead {
    /// The next entry has come by. The first one is taken at any length: a reader could never pass it
    /// otherwise.
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

    /// About as much as is still wanted.
    fn chunk_bytes(&self) -> usize {
        let wanted = self.payload_bytes_max.saturating_sub(self.payload_bytes).saturating_add(HEADER_BYTES);
        wanted.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES)
    }
}
