//! Opening a store: what the catalogue names is read back, checked and turned into an index.
//!
//! * Everything durable is looked at: catalogue entries one by one and as a whole, headers of files, every block. What is
//!   damaged stops the start; it is never skipped.
//! * Each key's history grows as it did when it was written. Records that compaction found dead are left out: their
//!   successors may be gone.
//! * Memory is bounded: the index, one block at a time, and what `restoring` gathers.
//! * What a start leaves on the disk is what it found, but for the leftovers of a crash: bytes behind the last named block
//!   of the newest file, and files in which no named block lies.
//! * A store that refuses to open is left as it is, for `inspect` and for whoever sets it aside.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::backend::{Backend, Update};
use crate::block::OpenBlock;
use crate::block_file::BlockFiles;
use crate::catalogue::{self, BlockEntry, Digest, Entry, Marks, crc_of, damaged};
use crate::compaction::Compaction;
use crate::directory::{Block, BlockCache, Content, Directory};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::maintainer::{Durable, DurableItem, Maintainer};
use crate::restoring::Restoring;
use crate::state::{Shared, State};
use crate::store::Store;
use crate::types::{Options, Written};
use crate::writer::Writer;

/// Opens a store as its backend last persisted it; an empty backend becomes an empty store at revision 1.
///
/// Errors: `Corrupt` if anything durable is damaged, `Io` or `Catalogue` if the disk refuses.
pub fn open(mut backend: Box<dyn Backend>, options: Options) -> Result<(Writer, Store, Maintainer)> {
    let Loaded { is_new, files, marks, items, mut state } = load(&mut *backend, &options, 0)?;
    let (items, written) = (Arc::new(items), Written::default());
    let mut durable = Durable { backend, files, marks, items, written };
    if is_new {
        // So that even an empty store has a format version, and a size.
        durable.update_marks(Marks::EMPTY, Update::default())?;
        state.stored_bytes = durable.allocated();
    }
    let shared = Arc::new(Shared {
        state: RwLock::new(state),
        cache: BlockCache::new(options.cache_bytes, options.block_bytes),
        hashes: Mutex::new(VecDeque::new()),
        options,
    });
    let store = Store { shared: shared.clone() };
    let maintainer = Maintainer { shared, durable, compaction: Compaction::default(), is_poisoned: false };
    Ok((Writer { store: store.clone() }, store, maintainer))
}

/// A store read back: its durable side, and the state that it amounts to.
pub(crate) struct Loaded {
    pub is_new: bool,
    pub files: BlockFiles,
    pub marks: Marks,
    pub items: BTreeMap<Bytes, DurableItem>,
    pub state: State,
}

/// Reads a store back. `generation`: stores that this process installed before.
pub(crate) fn load(backend: &mut dyn Backend, options: &Options, generation: u64) -> Result<Loaded> {
    let Found { is_new, marks, blocks, items } = read_catalogue(backend)?;
    if is_new && !backend.files()?.is_empty() {
        // The first thing that a new store writes is its marks. Blocks without a catalogue have lost it.
        return Err(damaged("it is empty, but there are block files"));
    }
    let mut files = BlockFiles::new(options.block_file_bytes, generation);
    let mut directory = Directory::default();
    for entry in blocks {
        adopt(backend, &mut files, &mut directory, entry, marks.revision)?;
    }
    // Only now is it known which files nothing is in.
    files.clean(backend)?;
    let index = rebuild_index(&directory)?;
    assert_eq!(marks.items.count as usize, items.len(), "the digest was checked");
    assert_eq!(marks.blocks.count as usize, directory.len(), "every block that is named was adopted");
    let state = State {
        index,
        directory,
        open: OpenBlock::default(),
        revision: marks.revision,
        compact_revision: marks.compact_revision,
        compact_revision_before: None,
        applied: marks.applied,
        items: items.iter().map(|(key, item)| (key.clone(), item.value.clone())).collect(),
        items_changed: BTreeMap::new(),
        is_inside_entry: false,
        is_cut_wanted: false,
        cut: None,
        unpersisted_bytes: 0,
        uncut_bytes: 0,
        stored_bytes: files.allocated() + backend.catalogue_bytes(),
        generation,
    };
    Ok(Loaded { is_new, files, marks, items, state })
}

/// A catalogue, checked as a whole.
struct Found {
    is_new: bool,
    marks: Marks,
    /// In revision order.
    blocks: Vec<BlockEntry>,
    items: BTreeMap<Bytes, DurableItem>,
}

/// Reads all entries, each with its checksum, and holds them against the digests in the marks. After this the catalogue is
/// what some checkpoint wrote, as a whole.
fn read_catalogue(backend: &mut dyn Backend) -> Result<Found> {
    let entries = backend.catalogue()?;
    let is_new = entries.is_empty();
    let (mut marks, mut blocks, mut items) = (is_new.then_some(Marks::EMPTY), Vec::new(), BTreeMap::new());
    let (mut blocks_digest, mut items_digest) = (Digest::default(), Digest::default());
    for (key, value) in &entries {
        match catalogue::read(key, value)? {
            Entry::Marks(found) => marks = Some(found),
            Entry::Block(entry) => {
                blocks_digest.add(crc_of(value));
                blocks.push(entry);
            }
            Entry::Item(key, item) => {
                items_digest.add(crc_of(value));
                items.insert(key, DurableItem { value: item, crc: crc_of(value) });
            }
        }
    }
    // Without marks nothing says how much should be there, so nothing that is there can be trusted to be all.
    let marks = marks.ok_or_else(|| damaged("the marks are missing"))?;
    if (marks.blocks, marks.items) != (blocks_digest, items_digest) {
        return Err(damaged("entries are missing or from another checkpoint"));
    }
    // sled gives keys in order, and other backends need not: the order is ours to make sure of.
    blocks.sort_by_key(|entry| entry.identity.first);
    Ok(Found { is_new, marks, blocks, items })
}

/// Takes in one block of the catalogue. Its bytes are not looked at yet; `rebuild_index` reads every one of them.
fn adopt(
    backend: &mut dyn Backend,
    files: &mut BlockFiles,
    directory: &mut Directory,
    entry: BlockEntry,
    revision: i64,
) -> Result<()> {
    let newest = directory.len().checked_sub(1).and_then(|position| directory.get(position));
    // Two blocks that overlap would answer one revision twice. Neither the writer nor compaction makes such a pair; a
    // catalogue put together from two stores could hold one, entry by entry intact.
    let overlaps = newest.is_some_and(|newest| newest.identity.last >= entry.identity.first);
    if overlaps || entry.identity.last.main > revision {
        return Err(damaged("blocks overlap, or reach beyond the newest revision"));
    }
    let place = files.adopt(backend, entry.file, entry.offset, entry.bytes)?;
    directory.push(Arc::new(Block {
        identity: entry.identity,
        content: Content::Stored(place),
        dead: entry.dead,
    }));
    Ok(())
}

/// Reads all blocks and replays their records: one checksum and one decompression per block, and the sorting of its keys.
fn rebuild_index(directory: &Directory) -> Result<Index> {
    let block = |position| directory.get(position).expect("within its length");
    let contradicted = |(position, what)| contradiction(block(position), what);
    let mut restoring = Restoring::new();
    for position in 0..directory.len() {
        // Past the cache, which would only keep the newest of them.
        let decoded = block(position).load()?;
        // Both lists ascend, so one step through them together finds which records are dead.
        let mut dead = block(position).dead.unpack().into_iter().peekable();
        for record in decoded.records() {
            if dead.next_if_eq(&record.revision).is_none() {
                restoring.add(position, &record).map_err(contradicted)?;
            }
        }
        if dead.next().is_some() {
            return Err(contradiction(
                block(position),
                "the catalogue lists a dead record that is not there",
            ));
        }
    }
    restoring.finish().map_err(contradicted)
}

/// The error for records that are intact, each for itself, and cannot have been written one after the other.
fn contradiction(block: &Block, what: &'static str) -> Error {
    block.place().map_or_else(|| damaged(what), |place| place.damaged(what))
}
