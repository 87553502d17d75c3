//! Exports the durable checkpoint while the store is in use.
//!
//!   Maintainer::export ─▶ Export (marks, items, locations of blocks) ─next─▶ chunk ─next─▶ chunk … ─▶ end
//!
//! * Later checkpoints and compactions do not change an export: it holds the locations of its blocks,
//!   which keep removed files readable. Their space is freed when the export has passed them or is
//!   dropped, or when too much of it is held (`store/pinned_blocks`).
//! * Starting an export copies a pointer per block: some hundred microseconds for a gigabyte. Sending
//!   takes the memory of a chunk and a block.
//! * The checksum of every block is verified before it is sent.
//!
//! `stream` defines the format, and `staging` is the receiver.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::stream::{CHUNK_HEADER_BYTES, ChunkWriter, PartKind};
use crate::block::Block;
use crate::checkpoint::{Marks, StoredItem, block_entry, item_entry};
use crate::error::Result;
use crate::maintainer::Maintainer;
use crate::store::{BlockOwner, LockPurpose, PinnedBlocks, RecordSource};
use crate::types::LogPosition;

/// Number of blocks copied per lock hold: some microseconds.
const BLOCKS_PER_HOLD: usize = 1000;

/// A durable checkpoint, pinned for sending. Can be sent by any thread.
pub struct Export {
    marks: Marks,
    items: Arc<BTreeMap<Bytes, StoredItem>>,
    /// Blocks not sent yet, in reverse order.
    blocks: Arc<PinnedBlocks>,
    /// Stored size of all blocks, sent or not.
    bytes: u64,
    progress: NextPart,
    chunks: ChunkWriter,
}

/// Next part to send.
enum NextPart {
    Marks,
    /// First item after this key.
    Items {
        after: Option<Bytes>,
    },
    Blocks,
    Ended,
}

impl Maintainer {
    /// Pins the durable checkpoint for sending.
    pub fn export(&self) -> Export {
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        // Only the maintainer changes stored blocks, and it is borrowed, so the lock can be released in
        // between.
        loop {
            let state = self.checkpoints.shared.state.read(LockPurpose::Transfer);
            let before = blocks.len();
            let stored = state.block_table.iter_from(before).take_while(|block| block.location().is_some());
            blocks.extend(stored.take(BLOCKS_PER_HOLD).cloned());
            if blocks.len() < before + BLOCKS_PER_HOLD {
                break;
            }
        }
        let marks = self.checkpoints.durable.marks;
        assert_eq!(blocks.len() as u64, marks.blocks.count, "the catalogue names the stored blocks");
        let sources = blocks.iter().rev().cloned().map(RecordSource::Sealed).collect();
        Export {
            marks,
            items: self.checkpoints.durable.items.clone(),
            bytes: blocks.iter().map(|block| block.stored_bytes()).sum(),
            blocks: self.checkpoints.shared.pinned_blocks.add(BlockOwner::Peer, sources),
            progress: NextPart::Marks,
            chunks: ChunkWriter::default(),
        }
    }
}

impl Export {
    /// Returns the position of the checkpoint in the log.
    pub fn applied(&self) -> LogPosition {
        self.marks.applied
    }

    /// Returns the main revision of the checkpoint.
    pub fn revision(&self) -> i64 {
        self.marks.revision
    }

    /// Returns the stored size of all its blocks. The stream is a few percent larger.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next chunk of at most `bytes_max` bytes (but at least a header and one byte); `None`
    /// after the last.
    ///
    /// Errors: `Corrupt` or `Io` if a block cannot be read as it was written, `Released` if the space of
    /// its removed files was needed. The stream is then incomplete, and the receiver does not install it.
    pub fn next(&mut self, bytes_max: usize) -> Result<Option<Bytes>> {
        let body_bytes_max = bytes_max.saturating_sub(CHUNK_HEADER_BYTES).max(1);
        while self.chunks.pending_bytes() < body_bytes_max && self.push_part()? {}
        Ok(self.chunks.cut(body_bytes_max))
    }

    /// Queues the next part. Returns false if there is none.
    fn push_part(&mut self) -> Result<bool> {
        match &self.progress {
            NextPart::Marks => {
                let (key, value) = self.marks.entry();
                self.chunks.push(PartKind::Entry, &key, &value, &[]);
                self.progress = NextPart::Items { after: None };
            }
            NextPart::Items { after } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                match self.items.range::<Bytes, _>((from, Bound::Unbounded)).next() {
                    Some((key, item)) => {
                        let entry = item_entry(key, &item.value);
                        self.chunks.push(PartKind::Entry, &entry.0, &entry.1, &[]);
                        self.progress = NextPart::Items { after: Some(key.clone()) };
                    }
                    None => self.progress = NextPart::Blocks,
                }
            }
            NextPart::Blocks => match self.blocks.pop_block()? {
                Some(block) => self.push_block(&block)?,
                None => {
                    self.chunks.push(PartKind::End, &[], &[], &[]);
                    self.progress = NextPart::Ended;
                }
            },
            NextPart::Ended => return Ok(false),
        }
        Ok(true)
    }

    /// Queues a block's frame after verifying its checksum. The receiver decompresses it and checks the
    /// records.
    fn push_block(&mut self, block: &Block) -> Result<()> {
        let location = block.location().expect("only stored blocks are in a checkpoint");
        let stored = block.read_frame()?;
        assert_eq!(stored.len() as u64, block.stored_bytes(), "a place is read as a whole");
        let (key, value) = block_entry(block, location);
        self.chunks.push(PartKind::Block, &key, &value, &stored);
        Ok(())
    }
}
