//! Loads a store at start: checks everything that the catalogue refers to, and rebuilds the index.
//!
//! * Corruption stops the start; it is never skipped. A store that cannot be opened is left unchanged,
//!   for `inspect`.
//! * Each key's history is rebuilt in its original order. Records listed as dead are skipped, because
//!   later records may have been removed.
//! * Memory is limited: the index, one block at a time, and the pending records of `IndexBuilder`.
//! * The only changes on disk remove leftovers: bytes after the last block of each file, and files
//!   without a block.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::catalogue::{self, BlockEntry, CatalogueEntry, Digest, Marks, crc_of, damaged};
use super::durable::StoredItem;
use super::index_builder::IndexBuilder;
use crate::backend::Backend;
use crate::block::{Block, BlockFiles, BlockSource, BlockTable, OpenBlock};
use crate::digest::ChangeDigest;
use crate::error::{Error, Result};
use crate::index::{Index, LeasedKeys};
use crate::store::StoreData;
use crate::types::StoreOptions;

pub(crate) struct RecoveredStore {
    pub is_new: bool,
    pub files: BlockFiles,
    pub marks: Marks,
    pub items: BTreeMap<Bytes, StoredItem>,
    pub state: StoreData,
}

/// Loads a store. `generation` is the number of stores that this process installed before.
pub(crate) fn load(
    backend: &mut dyn Backend,
    options: &StoreOptions,
    generation: u64,
) -> Result<RecoveredStore> {
    let CheckedCatalogue { is_new, marks, blocks, items } = read_catalogue(backend)?;
    if is_new && !backend.files()?.is_empty() {
        // A new store writes its marks first, so block files without a catalogue mean that the catalogue was
        // lost.
        return Err(damaged("it is empty, but there are block files"));
    }
    let mut files = BlockFiles::new(options.block_file_bytes, generation);
    let mut block_table = BlockTable::default();
    for entry in blocks {
        adopt(backend, &mut files, &mut block_table, entry, marks.revision)?;
    }
    // Requires all blocks to be known.
    files.clean(backend)?;
    let (index, leased) = rebuild_index(&block_table)?;
    assert_eq!(marks.items.count as usize, items.len(), "the digest was checked");
    assert_eq!(marks.blocks.count as usize, block_table.len(), "every block that is named was adopted");
    let state = StoreData {
        index,
        leased,
        caller_memory_bytes: 0,
        block_table,
        open: OpenBlock::default(),
        block_bytes: options.block_bytes,
        revision: marks.revision,
        compact_revision: marks.compact_revision,
        compact_revision_before: None,
        applied: marks.applied,
        items: items.iter().map(|(key, item)| (key.clone(), item.value.clone())).collect(),
        items_changed: BTreeMap::new(),
        is_inside_entry: false,
        is_checkpoint_requested: false,
        pending: None,
        unpersisted_bytes: 0,
        bytes_since_checkpoint: 0,
        stored_bytes: files.allocated(),
        digest: ChangeDigest::default(),
        generation,
    };
    Ok(RecoveredStore { is_new, files, marks, items, state })
}

struct CheckedCatalogue {
    is_new: bool,
    marks: Marks,
    /// Entries in revision order.
    blocks: Vec<BlockEntry>,
    items: BTreeMap<Bytes, StoredItem>,
}

/// Reads all entries and verifies the digests in the marks, which proves that all entries are from one
/// checkpoint.
fn read_catalogue(backend: &mut dyn Backend) -> Result<CheckedCatalogue> {
    let entries = backend.catalogue()?;
    let is_new = entries.is_empty();
    let (mut marks, mut blocks, mut items) = (is_new.then_some(Marks::EMPTY), Vec::new(), BTreeMap::new());
    let (mut blocks_digest, mut items_digest) = (Digest::default(), Digest::default());
    for (key, value) in &entries {
        match catalogue::read(key, value)? {
            CatalogueEntry::Marks(found) => marks = Some(found),
            CatalogueEntry::Block(entry) => {
                blocks_digest.add(crc_of(value));
                blocks.push(entry);
            }
            CatalogueEntry::Item(key, item) => {
                items_digest.add(crc_of(value));
                items.insert(key, StoredItem { value: item, crc: crc_of(value) });
            }
        }
    }
    // Without marks, the expected entries are unknown.
    let marks = marks.ok_or_else(|| damaged("the marks are missing"))?;
    if (marks.blocks, marks.items) != (blocks_digest, items_digest) {
        return Err(damaged("entries are missing or from another checkpoint"));
    }
    // A backend may return entries in any order.
    blocks.sort_by_key(|entry| entry.identity.first);
    Ok(CheckedCatalogue { is_new, marks, blocks, items })
}

fn adopt(
    backend: &mut dyn Backend,
    files: &mut BlockFiles,
    block_table: &mut BlockTable,
    entry: BlockEntry,
    revision: i64,
) -> Result<()> {
    let newest = block_table.len().checked_sub(1).and_then(|position| block_table.get(position));
    // Overlapping blocks would contain a revision twice. The writer and compaction never create them, but
    // a catalogue with entries of two stores could.
    let overlaps = newest.is_some_and(|newest| newest.identity.last >= entry.identity.first);
    if overlaps || entry.identity.last.main > revision {
        return Err(damaged("blocks overlap, or reach beyond the newest revision"));
    }
    let location = files.adopt(backend, entry.file, entry.offset, entry.bytes)?;
    block_table.push(Arc::new(Block {
        identity: entry.identity,
        content: BlockSource::Stored(location),
        dead: entry.dead,
    }));
    Ok(())
}

/// Reads all blocks and adds their records to an index: one checksum, one decompression and one sort
/// per block.
fn rebuild_index(block_table: &BlockTable) -> Result<(Index, LeasedKeys)> {
    let block = |position| block_table.get(position).expect("within its length");
    let mismatched = |(position, what)| mismatch(block(position), what);
    let mut builder = IndexBuilder::new();
    for position in 0..block_table.len() {
        // Bypass the cache, which would retain only the latest blocks.
        let decoded = block(position).load()?;
        // Both lists ascend, so one pass finds the dead records.
        let mut dead = block(position).dead.unpack().into_iter().peekable();
        for record in decoded.records() {
            if dead.next_if_eq(&record.revision).is_none() {
                builder.add(position, &record).map_err(mismatched)?;
            }
        }
        if dead.next().is_some() {
            return Err(mismatch(block(position), "the catalogue lists a dead record that is not there"));
        }
    }
    builder.finish().map_err(mismatched)
}

/// Builds the error for intact records that cannot have been written in this order.
fn mismatch(block: &Block, what: &'static str) -> Error {
    block.location().map_or_else(|| damaged(what), |location| location.damaged(what))
}
