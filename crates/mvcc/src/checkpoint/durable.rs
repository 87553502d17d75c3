//! The durable side of a store: its backend, block files, marks and items.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::catalogue::{self, Marks, block_entry, crc_of, item_entry, item_key};
use crate::backend::{Backend, Update};
use crate::block::{Block, BlockFiles, BlockSource, codec};
use crate::error::Result;
use crate::store::PendingCheckpoint;
use crate::types::BytesWritten;

pub(crate) struct DurableStore {
    pub backend: Box<dyn Backend>,
    pub files: BlockFiles,
    pub marks: Marks,
    /// Items of the durable checkpoint, shared with exports. Changing them during an export copies the map.
    pub items: Arc<BTreeMap<Bytes, StoredItem>>,
    pub written: BytesWritten,
    /// Records dropped by compactions since the store was opened.
    pub dropped_records: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredItem {
    pub value: Bytes,
    /// Checksum of its entry, for the digest.
    pub crc: u32,
}

impl DurableStore {
    pub fn adopt(&mut self, files: BlockFiles, marks: Marks, items: BTreeMap<Bytes, StoredItem>) {
        self.written.installed += files.allocated();
        let replaced = mem::replace(&mut self.files, files);
        self.files.replace(replaced);
        (self.marks, self.items) = (marks, Arc::new(items));
    }

    pub fn allocated(&self) -> u64 {
        self.files.allocated()
    }

    pub fn append(&mut self, frame: &[u8]) -> Result<BlockSource> {
        Ok(BlockSource::Stored(self.files.append(&mut *self.backend, frame)?))
    }

    /// Appends blocks to the block files, without a sync.
    pub fn store(&mut self, sealed: &[Arc<Block>]) -> Result<(Vec<Arc<Block>>, u64)> {
        let (mut stored, mut bytes_written, mut bytes) = (Vec::with_capacity(sealed.len()), 0, Vec::new());
        for block in sealed {
            let BlockSource::Memory(decoded) = &block.content else { unreachable!("blocks are stored once") };
            bytes.clear();
            codec::store(decoded, &mut bytes);
            bytes_written += bytes.len() as u64;
            let content = self.append(&bytes)?;
            stored.push(Arc::new(Block { identity: block.identity, content, dead: block.dead.clone() }));
        }
        Ok((stored, bytes_written))
    }

    /// Writes a checkpoint to the catalogue. From then on a restart finds this checkpoint.
    pub fn write_entries(&mut self, checkpoint: &PendingCheckpoint, stored: &[Arc<Block>]) -> Result<()> {
        let mut update = Update::default();
        assert!(checkpoint.compact_revision >= self.marks.compact_revision, "compactions go forward");
        let mut marks = self.marks;
        (marks.applied, marks.revision) = (checkpoint.applied, checkpoint.revision);
        marks.compact_revision = checkpoint.compact_revision;
        for block in stored {
            let entry = block_entry(block, block.location().expect("stored just now"));
            marks.blocks.add(crc_of(&entry.1));
            update.puts.push(entry);
        }
        // Copies the map only if an export shares it.
        if !checkpoint.items.is_empty() {
            let items = Arc::make_mut(&mut self.items);
            for (key, value) in &checkpoint.items {
                if let Some(old) = items.remove(key) {
                    marks.items.remove(old.crc);
                }
                match value {
                    Some(value) => {
                        let entry = item_entry(key, value);
                        let crc = crc_of(&entry.1);
                        marks.items.add(crc);
                        items.insert(key.clone(), StoredItem { value: value.clone(), crc });
                        update.puts.push(entry);
                    }
                    None => update.removals.push(item_key(key)),
                }
            }
        }
        self.update_marks(marks, update)
    }

    /// Applies one atomic update, including `marks`.
    pub fn update_marks(&mut self, marks: Marks, mut update: Update) -> Result<()> {
        assert!(marks.revision >= self.marks.revision, "the durable revision never goes back");
        assert!(
            marks.compacted <= marks.compact_revision,
            "physical compaction never overtakes the logical one"
        );
        assert!(marks.applied >= self.marks.applied, "the durable applied index never goes back");
        if base::mutant("applied-apart") {
            let early = Marks { applied: marks.applied, ..self.marks };
            self.backend.update(Update { puts: vec![early.entry()], removals: Vec::new() })?;
        }
        update.puts.push(marks.entry());
        let put_bytes: usize = update.puts.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.written.catalogue += put_bytes as u64;
        self.backend.update(update)?;
        self.marks = marks;
        Ok(())
    }

    /// Removes a block's entry. If another block has the same key, its entry replaces this one.
    pub fn remove_entry(&self, marks: &mut Marks, update: &mut Update, block: &Block) {
        let entry = block_entry(block, block.location().expect("only stored blocks have entries"));
        marks.blocks.remove(crc_of(&entry.1));
        update.removals.push(catalogue::block_key(block.identity.first));
    }
}
