//! Receives a checkpoint into a separate slot.
//!
//!   begin ─▶ add chunk · add chunk … ─▶ finish ─▶ Staged ─▶ Maintainer::install
//!
//! * Chunks, entries, frames and records are checked as they arrive, and the whole by the digests in
//!   the marks.
//! * Memory is limited to a chunk, a block and some catalogue entries.
//! * The store is valid once `finish` has synced it and written its marker. A crash before that leaves
//!   a slot to be discarded, a crash after it a store that can be installed.
//! * After an error no further chunks are accepted.

use super::stream::{ChunkReader, PartKind, StreamPart};
use crate::backend::{Backend, Update};
use crate::block::{Block, BlockFiles, BlockSource, codec};
use crate::checkpoint::{BlockEntry, CatalogueEntry, Digest, Marks, catalogue, crc_of};
use crate::error::{Error, Result};
use crate::types::{LogPosition, Revision, StoreOptions};

/// Size of catalogue entries per update, to limit both syncs and memory.
const UPDATE_BYTES: usize = 1 << 20;
/// Size of blocks between syncs. A gigabyte synced at the end would delay the syncs of the log on the
/// same disk.
const SYNC_BYTES: usize = 128 << 10;

/// A checkpoint that is being received.
pub struct Staging {
    backend: Box<dyn Backend>,
    files: BlockFiles,
    chunks: ChunkReader,
    marks: Option<Marks>,
    received: Digests,
    /// Digests of the entries written here. Items are the same, blocks have other locations.
    written: Digests,
    last: Option<Revision>,
    update: Update,
    update_bytes: usize,
    unsynced_bytes: usize,
    is_ended: bool,
    has_failed: bool,
}

#[derive(Default)]
struct Digests {
    blocks: Digest,
    items: Digest,
}

/// A completely received, checked and synced store, ready to be installed.
pub struct StagedStore {
    pub(crate) backend: Box<dyn Backend>,
    applied: LogPosition,
    revision: i64,
    compact_revision: i64,
}

impl StagedStore {
    /// Returns its position in the log.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Returns its main revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    pub(crate) fn compact_revision(&self) -> i64 {
        self.compact_revision
    }
}

impl Staging {
    /// Starts to receive into `backend`, which must be empty.
    ///
    /// Errors: `Refused` if it is not empty, or errors of the backend.
    pub fn begin(mut backend: Box<dyn Backend>, options: &StoreOptions) -> Result<Self> {
        if !backend.catalogue()?.is_empty() || !backend.files()?.is_empty() {
            return Err(Error::Refused { attempt: "receive a store", reason: "the directory is not empty" });
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

    /// Accepts the next chunk of the stream, in order.
    ///
    /// Errors: `Corrupt` if it differs from the chunk sent, `Io` or `Catalogue` if the disk fails. Every
    /// later call returns `Poisoned`.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        if self.has_failed {
            return Err(Error::Poisoned);
        }
        let added = self.try_add(chunk);
        self.has_failed = added.is_err();
        added
    }

    /// Checks the whole after the last chunk, makes everything durable, and writes the completion marker.
    ///
    /// Errors: see [`Staging::add`]; an incomplete stream is `Corrupt`.
    pub fn finish(mut self) -> Result<StagedStore> {
        if self.has_failed {
            return Err(Error::Poisoned);
        }
        let Some(theirs) = self.marks.filter(|_| self.is_ended) else {
            return Err(self.chunks.damaged("the stream is cut"));
        };
        // The received entries must match the sender's marks.
        if (theirs.blocks, theirs.items) != (self.received.blocks, self.received.items) {
            return Err(self.chunks.damaged("parts are missing or of another checkpoint"));
        }
        assert_eq!(self.written.items, theirs.items, "items are written as they came");
        let marks = Marks { blocks: self.written.blocks, ..theirs };
        // Like in any checkpoint, write the marks last, after everything they cover is synced.
        if !base::mutant("unsynced-staging") {
            self.files.sync()?;
        }
        self.write_update()?;
        assert!(self.update.puts.is_empty() && self.chunks.is_empty(), "everything received is written");
        self.backend.update(Update { puts: vec![marks.entry()], removals: Vec::new() })?;
        self.backend.complete(marks.applied)?;
        let Marks { applied, revision, compact_revision, .. } = marks;
        Ok(StagedStore { backend: self.backend, applied, revision, compact_revision })
    }

    fn try_add(&mut self, chunk: &[u8]) -> Result<()> {
        self.chunks.add(chunk)?;
        while let Some(part) = self.chunks.part()? {
            if self.is_ended {
                return Err(self.chunks.damaged("a part after the end"));
            }
            self.add_part(&part)?;
        }
        if self.is_ended && !self.chunks.is_empty() {
            return Err(self.chunks.damaged("bytes after the end"));
        }
        if self.update_bytes >= UPDATE_BYTES {
            self.write_update()?;
        }
        Ok(())
    }

    /// Adds a part. The order is: marks first and once, then items and blocks.
    fn add_part(&mut self, part: &StreamPart) -> Result<()> {
        if part.kind == PartKind::End {
            self.is_ended = true;
            return Ok(());
        }
        let entry = catalogue::read(&part.key, &part.value)?;
        match (part.kind, entry, self.marks) {
            (PartKind::Entry, CatalogueEntry::Marks(marks), None) => {
                self.marks = Some(marks);
                Ok(())
            }
            (PartKind::Entry, CatalogueEntry::Item(_, _), Some(_)) => {
                let crc = crc_of(&part.value);
                self.received.items.add(crc);
                self.written.items.add(crc);
                self.put((part.key.to_vec(), part.value.to_vec()));
                Ok(())
            }
            (PartKind::Block, CatalogueEntry::Block(entry), Some(marks)) => {
                self.received.blocks.add(crc_of(&part.value));
                self.add_block(entry, &part.frame, &marks)
            }
            (
                PartKind::Entry | PartKind::Block | PartKind::End,
                CatalogueEntry::Marks(_) | CatalogueEntry::Item(..) | CatalogueEntry::Block(_),
                _,
            ) => Err(self.chunks.damaged("a part in the wrong place")),
        }
    }

    /// Checks a block down to its records and appends its frame unchanged. Its entry gets this member's
    /// file and offset.
    fn add_block(&mut self, entry: BlockEntry, stored: &[u8], marks: &Marks) -> Result<()> {
        let BlockEntry { identity, dead, .. } = entry;
        // The same check as at a start.
        if self.last >= Some(identity.first) || identity.last.main > marks.revision {
            return Err(self.chunks.damaged("blocks overlap, or reach beyond the newest revision"));
        }
        let decoded = codec::load(stored, identity).map_err(|what| self.chunks.damaged(what))?;
        // A dead record that does not exist would make every start of this store fail.
        if dead.unpack().into_iter().any(|revision| decoded.find(revision).is_none()) {
            return Err(self.chunks.damaged("the catalogue lists a dead record that is not there"));
        }
        assert!(identity.records > dead.len(), "the entry was checked for a live record");
        let location = self.files.append(&mut *self.backend, stored)?;
        self.unsynced_bytes += stored.len();
        if self.unsynced_bytes >= SYNC_BYTES {
            self.unsynced_bytes = 0;
            self.files.sync()?;
        }
        let block = Block { identity, content: BlockSource::Stored(location.clone()), dead };
        let entry = catalogue::block_entry(&block, &location);
        self.written.blocks.add(crc_of(&entry.1));
        self.last = Some(identity.last);
        self.put(entry);
        Ok(())
    }

    fn put(&mut self, entry: (Vec<u8>, Vec<u8>)) {
        self.update_bytes += entry.0.len() + entry.1.len();
        self.update.puts.push(entry);
    }

    /// Writes the queued entries. They may refer to blocks that are not synced: without marks the store is
    /// invalid.
    fn write_update(&mut self) -> Result<()> {
        self.update_bytes = 0;
        self.backend.update(std::mem::take(&mut self.update))
    }
}

#[cfg(test)]
#[path = "staging_tests.rs"]
mod tests;
