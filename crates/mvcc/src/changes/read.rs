//! Finds the blocks that hold a run of revisions, and keys as they were before an event.

use std::sync::Arc;

use super::events::Changes;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::store::{LockPurpose, RecordSource, Store, StoreData, StoreShared, load_all, missing_record};
use crate::types::{KeyValue, Revision};

/// What one block counts at least against the bytes of a read. It bounds the number of blocks that are cloned
/// under one hold of the lock: 1000 for 1 MiB, some ten microseconds.
const BLOCK_BYTES_MIN: usize = 1 << 10;

impl Store {
    /// The changes of the main revisions from `from` on: at least one revision, and no further one after
    /// about `bytes_max` raw bytes (a block more at most, or one large revision). Empty if `from` is above
    /// the newest revision.
    ///
    /// Errors: `Compacted` if `from` is below the compact revision. At that revision changes are still
    /// readable. `Corrupt` or `Io` if a cold block cannot be read.
    pub fn changes(&self, from: i64, bytes_max: usize) -> Result<Changes> {
        let found = {
            let state = self.shared.state.read(LockPurpose::Walk);
            check_from(from, &state)?;
            find(&state, from, bytes_max)
        };
        found.load(&self.shared)
    }
}

/// A part of the changes of one main revision.
#[derive(Debug)]
pub struct RevisionPart {
    pub changes: Changes,
    /// Where the next part begins; `None` after the last one.
    pub next: Option<Revision>,
}

impl Store {
    /// Changes of the main revision of `from`, from there on: those of one block. For revisions that are too
    /// large to be read at once. Empty if there are none.
    ///
    /// Errors: as `changes`.
    pub fn changes_within(&self, from: Revision) -> Result<RevisionPart> {
        let found = {
            let state = self.shared.state.read(LockPurpose::Walk);
            check_from(from.main, &state)?;
            find_within(&state, from)
        };
        let changes = found.load(&self.shared)?;
        // Where a block was read, the revision may go on in the next one.
        let sealed = changes.sealed.last().map(|block| block.last());
        let next = sealed.filter(|last| last.main == from.main).map(Revision::next);
        Ok(RevisionPart { changes, next })
    }
}

/// Refuses to read from a revision below the compact revision.
pub(super) fn check_from(from: i64, state: &StoreData) -> Result<()> {
    let compacted = state.compact_revision;
    if from < compacted { Err(Error::Compacted { requested: from, compacted }) } else { Ok(()) }
}

/// Blocks that were found under the lock, to be loaded without it.
pub(super) struct FoundBlocks {
    blocks: Vec<Arc<Block>>,
    /// Everything but the sealed blocks.
    changes: Changes,
}

/// Clones the blocks from `from` on.
pub(super) fn find(state: &StoreData, from: i64, bytes_max: usize) -> FoundBlocks {
    let (revision, start) = (state.revision, Revision::first_of(from));
    let open = (0, Vec::new());
    let changes = Changes { from: start, through: revision, revision, sealed: Vec::new(), open };
    let mut found = FoundBlocks { blocks: Vec::new(), changes };
    let (mut bytes, mut last) = (0, from - 1);
    for block in state.block_table.iter_from(state.block_table.position_from(start)) {
        let identity = &block.identity;
        if identity.first.main > revision {
            return found;
        }
        // A revision that continues in the next block is not split.
        let is_whole = identity.first.main > last || base::mutant("split-revision");
        if bytes >= bytes_max && is_whole && last >= from {
            found.changes.through = last;
            return found;
        }
        (bytes, last) =
            (bytes + BLOCK_BYTES_MIN.max(identity.raw_bytes as usize), identity.last.main.min(revision));
        found.blocks.push(block.clone());
    }
    let (base, records, through) =
        state.open.records_from(start, last, revision, bytes_max.saturating_sub(bytes));
    found.changes.open = (base, records);
    found.changes.through = through;
    found
}

/// The block in which a part of a main revision begins: a sealed one, or the open one.
fn find_within(state: &StoreData, from: Revision) -> FoundBlocks {
    let changes = Changes {
        from,
        through: from.main.min(state.revision),
        revision: state.revision,
        sealed: Vec::new(),
        open: (0, Vec::new()),
    };
    let mut found = FoundBlocks { blocks: Vec::new(), changes };
    match state.block_table.get(state.block_table.position_from(from)) {
        Some(block) => found.blocks.push(block.clone()),
        None => {
            let (base, records, _) =
                state.open.records_from(from, from.main, found.changes.through, usize::MAX);
            found.changes.open = (base, records);
        }
    }
    found
}

impl FoundBlocks {
    /// Loads the blocks. They are not added to the cache, which history would fill with old blocks.
    pub fn load(self, shared: &StoreShared) -> Result<Changes> {
        let FoundBlocks { blocks, mut changes } = self;
        let loaded = blocks.iter().map(|block| shared.cache.load_without_caching(block));
        changes.sealed = loaded.collect::<Result<_>>()?;
        Ok(changes)
    }
}

/// Keys looked up under one hold of the lock: some 100 µs in a large index.
const LOOKUPS_PER_HOLD: usize = 250;

impl Store {
    /// For each key and event revision: the key as it was at the main revision before it. `None` if the key
    /// did not exist then, or if that revision is compacted. Records of one block are loaded together.
    ///
    /// The caller bounds the number of keys, and so the memory of the result.
    ///
    /// Errors: `Corrupt` or `Io` if a cold block cannot be read.
    pub fn previous(&self, events: &[(&[u8], i64)]) -> Result<Vec<Option<KeyValue>>> {
        let mut found: Vec<(Revision, RecordSource)> = Vec::new();
        let mut exists = Vec::with_capacity(events.len());
        for events in events.chunks(LOOKUPS_PER_HOLD) {
            let state = self.shared.state.read(LockPurpose::Lookup);
            for (key, revision) in events {
                let before = revision - i64::from(!base::mutant("late-previous"));
                let readable = before >= state.compact_revision && before <= state.revision;
                let history = if readable { state.index.get(key) } else { None };
                let visible = history.and_then(|history| history.at(before));
                exists.push(visible.is_some());
                if let Some(visible) = visible {
                    let source = state.locate(visible.revision).ok_or_else(missing_record)?;
                    found.push((visible.revision, source));
                }
            }
        }
        let mut loaded = load_all(&found, &self.shared.cache, &())?;
        Ok(exists.into_iter().map(|exists| if exists { loaded.next() } else { None }).collect())
    }
}
