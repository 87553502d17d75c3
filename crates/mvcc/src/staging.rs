//! Receiving a checkpoint into a place of its own, beside the store in use.
//!
//!   begin ─▶ add chunk · add chunk … ─▶ finish ─▶ Staged ─▶ Maintainer::install
//!
//! * Nothing that is received is believed: chunks, entries, frames and records are checked one by one as they come, and
//!   the whole by the digests in the marks. A store is complete only after the last of these checks.
//! * Memory is bounded by one chunk, one block and some entries of the catalogue; blocks go to files as they come.
//! * What is received means nothing until `finish` has synced it and written its mark. A crash before leaves a place to be
//!   discarded, a crash after it a store that can be installed.
//! * After an error nothing more is taken in.

use crate::backend::{Backend, Update};
use crate::block_file::BlockFiles;
use crate::catalogue::{self, BlockEntry, Digest, Entry, Marks, crc_of};
use crate::directory::{Block, Content};
use crate::error::{Error, Result};
use crate::frame;
use crate::revision::Revision;
use crate::stream::{ChunkReader, Kind, Part};
use crate::types::{Applied, Options};

/// Bytes of catalogue entries that are gathered for one update: few syncs, and little memory.
const UPDATE_BYTES: usize = 1 << 20;
/// Blocks are synced as they come. Left to the end, or to the kernel, a gigabyte would go to the disk at once, and whoever syncs a
/// log there would wait behind it.
const SYNC_BYTES: usize = 128 << 10;

/// A checkpoint being received.
pub struct Staging {
    backend: Box<dyn Backend>,
    files: BlockFiles,
    chunks: ChunkReader,
    /// What the sender's checkpoint consists of; the first part says it.
    marks: Option<Marks>,
    /// Of the sender's entries as they came.
    received: Digests,
    /// Of the entries written here. Items are the same, blocks lie elsewhere.
    written: Digests,
    /// The last record so far.
    last: Option<Revision>,
    update: Update,
    update_bytes: usize,
    /// Of blocks that no sync covers yet.
    unsynced_bytes: usize,
    is_ended: bool,
    has_failed: bool,
}

#[derive(Default)]
struct Digests {
    blocks: Digest,
    items: Digest,
}

/// A store that was received wholly, checked and synced, and waits to be installed.
pub struct Staged {
    pub(crate) backend: Box<dyn Backend>,
    applied: Applied,
    revision: i64,
    compact_revision: i64,
}

impl Staged {
    /// The entry of the log up to which it reaches.
    pub fn applied(&self) -> Applied {
        self.applied
    }

    /// Its main revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    pub(crate) fn compact_revision(&self) -> i64 {
        self.compact_revision
    }
}

impl Staging {
    /// Begins to receive into `backend`, an empty place beside the store in use.
    ///
    /// Errors: `Refused` if something is there already, or the backend's own.
    pub fn begin(mut backend: Box<dyn Backend>, options: &Options) -> Result<Self> {
        if !backend.catalogue()?.is_empty() || !backend.files()?.is_empty() {
            return Err(Error::Refused { attempt: "receive a store", reason: "its place is not empty" });
        }
        Ok(Staging {
            backend,
            files: BlockFiles::new(options.block_file_bytes, 0),
            chunks: ChunkReader::default(),
            marks: None,
            received: Digests::default(),
            written: Digests::default(),
            last: None,
            update: Update::default(),
            update_bytes: 0,
            unsynced_bytes: 0,
            is_ended: false,
            has_failed: false,
        })
    }

    /// Takes in the next chunk of the stream, in order.
    ///
    /// Errors: `Corrupt` if it is not what was sent, `Io` or `Catalogue` if the disk refuses; every later call is
    /// `Poisoned`.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        if self.has_failed {
            return Err(Error::Poisoned);
        }
        let added = self.try_add(chunk);
        self.has_failed = added.is_err();
        added
    }

    /// After the last chunk: checks the whole, makes everything durable, and marks it as complete.
    ///
    /// Errors: as `add`; a stream that has not ended is `Corrupt`.
    pub fn finish(mut self) -> Result<Staged> {
        if self.has_failed {
            return Err(Error::Poisoned);
        }
        let Some(theirs) = self.marks.filter(|_| self.is_ended) else {
            return Err(self.chunks.damaged("the stream is cut"));
        };
        // What was sent is what the sender's marks count: no entry lost, none from another checkpoint.
        if (theirs.blocks, theirs.items) != (self.received.blocks, self.received.items) {
            return Err(self.chunks.damaged("parts are missing or of another checkpoint"));
        }
        assert_eq!(self.written.items, theirs.items, "items are written as they came");
        let marks = Marks { blocks: self.written.blocks, ..theirs };
        // As for any checkpoint: the marks come last, when all that they vouch for is synced.
        self.files.sync()?;
        self.write_update()?;
        assert!(self.update.puts.is_empty() && self.chunks.is_empty(), "nothing is left behind");
        self.backend.update(Update { puts: vec![marks.entry()], removals: Vec::new() })?;
        self.backend.complete(marks.applied)?;
        let Marks { applied, revision, compact_revision, .. } = marks;
        Ok(Staged { backend: self.backend, applied, revision, compact_revision })
    }

    /// `add`, before anything is said of failures.
    fn try_add(&mut self, chunk: &[u8]) -> Result<()> {
        self.chunks.add(chunk)?;
        // As many parts as the chunk has completed; the beginning of the next one waits for its rest.
        while let Some(part) = self.chunks.part()? {
            if self.is_ended {
                return Err(self.chunks.damaged("a part behind the end"));
            }
            self.add_part(&part)?;
        }
        if self.is_ended && !self.chunks.is_empty() {
            return Err(self.chunks.damaged("bytes behind the end"));
        }
        if self.update_bytes >= UPDATE_BYTES {
            self.write_update()?;
        }
        Ok(())
    }

    /// One part in its turn. The match spells out what may follow what: marks first and once, then items and blocks.
    fn add_part(&mut self, part: &Part) -> Result<()> {
        if part.kind == Kind::End {
            self.is_ended = true;
            return Ok(());
        }
        let entry = catalogue::read(&part.key, &part.value)?;
        match (part.kind, entry, self.marks) {
            (Kind::Entry, Entry::Marks(marks), None) => {
                self.marks = Some(marks);
                Ok(())
            }
            (Kind::Entry, Entry::Item(_, _), Some(_)) => {
                let crc = crc_of(&part.value);
                self.received.items.add(crc);
                self.written.items.add(crc);
                self.put((part.key.to_vec(), part.value.to_vec()));
                Ok(())
            }
            (Kind::Block, Entry::Block(entry), Some(marks)) => {
                self.received.blocks.add(crc_of(&part.value));
                self.add_block(entry, &part.frame, &marks)
            }
            (
                Kind::Entry | Kind::Block | Kind::End,
                Entry::Marks(_) | Entry::Item(..) | Entry::Block(_),
                _,
            ) => Err(self.chunks.damaged("a part in the wrong place")),
        }
    }

    /// Checks a block down to its records and appends its frame, unchanged. The entry that names it here is a new one: file and
    /// offset are this member's.
    fn add_block(&mut self, entry: BlockEntry, stored: &[u8], marks: &Marks) -> Result<()> {
        let BlockEntry { identity, dead, .. } = entry;
        // The same rule as for a catalogue that is opened, checked as the blocks come: nothing is written that a start refuses.
        if self.last >= Some(identity.first) || identity.last.main > marks.revision {
            return Err(self.chunks.damaged("blocks overlap, or reach beyond the newest revision"));
        }
        let decoded = frame::load(stored, identity).map_err(|what| self.chunks.damaged(what))?;
        // A dead record that is nowhere would stop every start of this store.
        if dead.unpack().into_iter().any(|revision| decoded.find(revision).is_none()) {
            return Err(self.chunks.damaged("the catalogue lists a dead record that is not there"));
        }
        assert!(identity.records > dead.len(), "the entry was checked for a live record");
        let place = self.files.append(&mut *self.backend, stored)?;
        self.unsynced_bytes += stored.len();
        if self.unsynced_bytes >= SYNC_BYTES {
            self.unsynced_bytes = 0;
            self.files.sync()?;
        }
        let block = Block { identity, content: Content::Stored(place.clone()), dead };
        let entry = catalogue::block_entry(&block, &place);
        self.written.blocks.add(crc_of(&entry.1));
        self.last = Some(identity.last);
        self.put(entry);
        Ok(())
    }

    /// Queues an entry for the catalogue.
    fn put(&mut self, entry: (Vec<u8>, Vec<u8>)) {
        self.update_bytes += entry.0.len() + entry.1.len();
        self.update.puts.push(entry);
    }

    /// Writes the queued entries. They may name blocks that are not synced yet: without marks none of it is a store.
    fn write_update(&mut self) -> Result<()> {
        self.update_bytes = 0;
        self.backend.update(std::mem::take(&mut self.update))
    }
}

#[cfg(test)]
#[path = "staging_tests.rs"]
mod tests;
