//! Sending the durable checkpoint, while the store goes on.
//!
//!   Maintainer::export ─▶ Export (marks, items, places of blocks) ─next─▶ chunk ─next─▶ chunk … ─▶ end
//!
//! * An export is one checkpoint, however long it takes to send. Later checkpoints and compactions do not show in it: it
//!   holds the places of its blocks, and a place keeps its file readable after the name is gone. Such a file's space
//!   comes back when the export has passed it or is dropped.
//! * Nothing is copied to begin one. To send one takes the memory of a chunk and a block.
//! * Every block is checked before it leaves: what is damaged here is not spread.
//!
//! Beginning one copies a pointer per block: 16,000 of them for a gigabyte, some hundred microseconds in all, a thousand per
//! hold of the lock. Sending is bounded by the transport or by the disk; the store's own part is a checksum.
//!
//! The form of the stream is `stream`'s; `staging` is the other end.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalogue::{Marks, block_entry, item_entry};
use crate::directory::Block;
use crate::error::Result;
use crate::maintainer::{DurableItem, Maintainer};
use crate::stream::{CHUNK_HEADER_BYTES, ChunkWriter, Kind};
use crate::types::Applied;

/// Positions in the directory copied under one hold of the lock: some microseconds.
const BLOCKS_PER_HOLD: usize = 1000;

/// A durable checkpoint, pinned to be sent. It may be sent from any thread, beside everything else.
pub struct Export {
    marks: Marks,
    items: Arc<BTreeMap<Bytes, DurableItem>>,
    blocks: std::vec::IntoIter<Arc<Block>>,
    /// Stored bytes of all blocks, sent or not.
    bytes: u64,
    progress: Progress,
    chunks: ChunkWriter,
}

/// The part that comes next.
enum Progress {
    Marks,
    /// The first item after this key.
    Items {
        after: Option<Bytes>,
    },
    Blocks,
    Ended,
}

impl Maintainer {
    /// Pins the durable checkpoint for sending. What is not persisted yet is no part of it.
    pub fn export(&self) -> Export {
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        // Only the maintainer changes stored blocks, and it is borrowed: so the lock may be let go in between.
        loop {
            let state = self.shared.state.read();
            let stored = (blocks.len()..state.directory.len())
                .map_while(|position| state.directory.get(position))
                .take_while(|block| block.place().is_some());
            let before = blocks.len();
            blocks.extend(stored.take(BLOCKS_PER_HOLD).cloned());
            if blocks.len() < before + BLOCKS_PER_HOLD {
                break;
            }
        }
        let marks = self.durable.marks;
        assert_eq!(blocks.len() as u64, marks.blocks.count, "the catalogue names the stored blocks");
        Export {
            marks,
            items: self.durable.items.clone(),
            bytes: blocks.iter().map(|block| block.stored_bytes()).sum(),
            blocks: blocks.into_iter(),
            progress: Progress::Marks,
            chunks: ChunkWriter::default(),
        }
    }
}

impl Export {
    /// The entry of the log up to which the checkpoint reaches.
    pub fn applied(&self) -> Applied {
        self.marks.applied
    }

    /// The main revision of the checkpoint.
    pub fn revision(&self) -> i64 {
        self.marks.revision
    }

    /// Stored bytes of all its blocks: what the stream carries, but for a few percent of framing. For progress, and for
    /// limits on how fast to send.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next chunk, of at most `bytes_max` bytes (at least a header and one byte); `None` after the last.
    ///
    /// Errors: `Corrupt` or `Io` when a block cannot be read back as it was written. The receiver has then seen no end,
    /// and will install nothing.
    pub fn next(&mut self, bytes_max: usize) -> Result<Option<Bytes>> {
        let body_bytes_max = bytes_max.saturating_sub(CHUNK_HEADER_BYTES).max(1);
        while self.chunks.pending_bytes() < body_bytes_max && self.push_part()? {}
        Ok(self.chunks.cut(body_bytes_max))
    }

    /// Queues the next part; false when there is none.
    fn push_part(&mut self) -> Result<bool> {
        match &self.progress {
            Progress::Marks => {
                let (key, value) = self.marks.entry();
                self.chunks.push(Kind::Entry, &key, &value, &[]);
                self.progress = Progress::Items { after: None };
            }
            Progress::Items { after } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                match self.items.range::<Bytes, _>((from, Bound::Unbounded)).next() {
                    Some((key, item)) => {
                        let entry = item_entry(key, &item.value);
                        self.chunks.push(Kind::Entry, &entry.0, &entry.1, &[]);
                        self.progress = Progress::Items { after: Some(key.clone()) };
                    }
                    None => self.progress = Progress::Blocks,
                }
            }
            Progress::Blocks => match self.blocks.next() {
                Some(block) => self.push_block(&block)?,
                None => {
                    self.chunks.push(Kind::End, &[], &[], &[]);
                    self.progress = Progress::Ended;
                }
            },
            Progress::Ended => return Ok(false),
        }
        Ok(true)
    }

    /// Queues a block as it lies on the disk. Its checksum is verified on the way, at several GB/s; unpacking it to look at
    /// the records is the receiver's part, which must do so anyway.
    fn push_block(&mut self, block: &Block) -> Result<()> {
        let place = block.place().expect("only stored blocks are in a checkpoint");
        let stored = block.read_frame()?;
        assert_eq!(stored.len() as u64, block.stored_bytes(), "a place is read as a whole");
        let (key, value) = block_entry(block, place);
        self.chunks.push(Kind::Block, &key, &value, &stored);
        Ok(())
    }
}
