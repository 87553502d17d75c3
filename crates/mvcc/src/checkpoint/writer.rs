//! Writes checkpoints.
//!
//!   persist:  take (lock) ─▶ compress, append blocks ─▶ sync files ─▶ update of the catalogue ─▶ swap (lock)
//!
//! * The catalogue refers only to synced blocks.
//! * Marks, items and blocks of a checkpoint become durable in one update, so the durable applied index
//!   always matches the durable data.
//! * The lock is held twice briefly. Sealed blocks are read without it, because they do not change.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::catalogue::Marks;
use super::durable::DurableStore;
use crate::block::{Block, BlockSource};
use crate::error::Result;
use crate::store::{LockPurpose, PendingCheckpoint, StoreData, StoreShared};
use crate::types::{PersistResult, Revision};

/// Minimum limit of removed files that long reads may keep open: half a gigabyte.
const REMOVED_FILES_MIN: u64 = 8;

/// Writes the checkpoints of a store. The caller must not write again after an error.
pub(crate) struct CheckpointWriter {
    pub shared: Arc<StoreShared>,
    pub durable: DurableStore,
}

impl CheckpointWriter {
    pub fn persist(&mut self) -> Result<PersistResult> {
        if base::mutant("early-checkpoint") {
            let state = self.shared.state.read(LockPurpose::Checkpoint);
            if state.applied.index.0 % 2 == 1 && self.differs(&state) {
                let (applied, revision) = (state.applied, state.revision);
                return Ok(PersistResult { applied, revision, blocks: 0, bytes_written: 0 });
            }
        }
        let Some(checkpoint) = self.take_pending() else { return Ok(self.persisted(0, 0)) };
        let first_new = Revision::first_of(self.durable.marks.revision + 1);
        // Only blocks up to the checkpoint's revision: the writer may have sealed more.
        let (from, sealed) = self.blocks_to_store(first_new, checkpoint.revision);
        let (stored, bytes_written) = self.durable.store(&sealed)?;
        let raw_bytes: usize = sealed.iter().map(|block| block.identity.raw_bytes as usize).sum();
        self.durable.written.records += raw_bytes as u64;
        self.durable.written.checkpoints += bytes_written;
        assert_eq!(stored.len(), sealed.len(), "every block of the checkpoint is stored");
        // The catalogue must not refer to bytes that a power failure can remove.
        self.durable.files.sync()?;
        self.durable.write_entries(&checkpoint, &stored)?;

        for (old, new) in sealed.iter().zip(&stored) {
            if let (BlockSource::Memory(decoded), BlockSource::Stored(location)) =
                (&old.content, &new.content)
            {
                self.shared.cache.insert(location, decoded.clone());
            }
        }
        // Until here the writer has continued without waiting.
        let (blocks, stored_bytes) = (stored.len(), self.durable.allocated());
        let mut state = self.shared.state.write(LockPurpose::Checkpoint);
        debug_assert!(state.block_table.len() >= from + blocks, "the writer only appends");
        state.block_table.replace(from..from + blocks, stored);
        state.unpersisted_bytes =
            state.unpersisted_bytes.checked_sub(raw_bytes).expect("sealed blocks were counted");
        state.stored_bytes = stored_bytes;
        drop(state);
        self.shared.pinned_blocks.refresh(&self.shared.state);
        Ok(self.persisted(blocks, bytes_written))
    }

    /// Closes up to two removed files, and limits the total size of those that long reads keep open to the
    /// size of the store's files. A store thus takes at most twice its space, and a single slow full scan
    /// is not aborted. Reports whether more files can be closed.
    pub fn close_removed_files(&mut self) -> bool {
        self.durable.files.close_unused();
        let bytes_min = REMOVED_FILES_MIN * self.shared.options.block_file_bytes;
        let (bytes_max, shared) = (self.durable.allocated().max(bytes_min), &self.shared);
        shared.pinned_blocks.keep_within(&shared.state, &self.durable.files.held(), bytes_max);
        let is_more_unused = self.durable.files.close_unused();
        shared.removed_bytes.store(self.durable.files.removed_bytes(), Ordering::Relaxed);
        is_more_unused
    }

    /// Takes the latest possible checkpoint, if it differs from the durable one.
    fn take_pending(&self) -> Option<PendingCheckpoint> {
        let mut state = self.shared.state.write(LockPurpose::Checkpoint);
        if state.is_inside_entry {
            state.is_checkpoint_requested = true;
        } else if self.differs(&state) {
            state.take_checkpoint();
        }
        state.pending.take()
    }

    fn differs(&self, state: &StoreData) -> bool {
        let durable = &self.durable.marks;
        let (applied, revision) = (state.applied, state.revision);
        (applied, revision, state.compact_revision)
            != (durable.applied, durable.revision, durable.compact_revision)
            || !state.items_changed.is_empty()
            || state.pending.is_some()
    }

    /// Returns the sealed blocks of a checkpoint up to `revision`, and the position of the first one.
    fn blocks_to_store(&self, first_new: Revision, revision: i64) -> (usize, Vec<Arc<Block>>) {
        let state = self.shared.state.read(LockPurpose::Checkpoint);
        let from = state.block_table.position_from(first_new);
        let newer = state.block_table.iter_from(from);
        (from, newer.take_while(|block| block.identity.last.main <= revision).cloned().collect())
    }

    fn persisted(&self, blocks: usize, bytes_written: u64) -> PersistResult {
        let Marks { applied, revision, .. } = self.durable.marks;
        PersistResult { applied, revision, blocks, bytes_written }
    }
}
