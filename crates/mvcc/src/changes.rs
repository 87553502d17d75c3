//! Events: the changes of the store, read back from the blocks in revision order.
//!
//!   changes(from) ──▶ lock: clone the blocks from `from` on ──▶ unlock ──▶ load ──▶ Changes ──▶ Change …
//!
//! * Only whole main revisions up to the published one are returned.
//! * Every change above the compact revision is returned, including puts that were superseded later. At
//!   the compact revision, a key that one request changed several times has at least its last change.
//! * A read that races with a compaction returns all changes or `Compacted`: the compact revision is
//!   checked while holding the lock under which the blocks are cloned, and blocks never change.
//!
//! # Followers
//!
//! A follower is a reader of the latest changes. A compaction applied between their publication and the
//! read takes effect immediately for other reads, but removes records only after the follower has read
//! them.
//!
//! - The next revision to read is pinned. A compaction above it waits before it removes a record.
//! - An installed store has the changes from the next revision on, or has compacted it. Only in the
//!   latter case a read fails with `Compacted`.
//!
//! A follower must continue to read or be dropped: otherwise compactions do not free space.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::{Block, DecodedBlock, Record, RecordBody};
use crate::error::{Error, Result};
use crate::store::{LockPurpose, RecordSource, Store, StoreData, StoreShared, load_all, missing_record};
use crate::types::{KeyValue, KeyValueRef, Revision};

/// Minimum size of a block when counting the bytes of a read. It limits the number of blocks cloned
/// under one lock acquisition: 1000 for 1 MiB, some ten microseconds.
const BLOCK_BYTES_MIN: usize = 1 << 10;

impl Store {
    /// Returns the changes of the main revisions from `from` on. At least one revision is included; further
    /// ones until about `bytes_max` raw bytes (exceeded by at most a block or one large revision). Empty if
    /// `from` is above the latest revision.
    ///
    /// Errors: `Compacted` if `from` is below the compact revision; at that revision changes are still
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

/// Part of the changes at a main revision.
#[derive(Debug)]
pub struct RevisionPart {
    pub changes: Changes,
    /// Start of the next part; `None` after the last one.
    pub next: Option<Revision>,
}

impl Store {
    /// Returns the changes at the main revision of `from`, starting there, up to the end of a block. For
    /// revisions too large for one read. Empty if there are none.
    ///
    /// Errors: see [`Store::changes`].
    pub fn changes_within(&self, from: Revision) -> Result<RevisionPart> {
        let found = {
            let state = self.shared.state.read(LockPurpose::Walk);
            check_from(from.main, &state)?;
            find_within(&state, from)
        };
        let changes = found.load(&self.shared)?;
        // If a sealed block was read, the revision may continue in the next block.
        let sealed = changes.sealed.last().map(|block| block.last());
        let next = sealed.filter(|last| last.main == from.main).map(Revision::next);
        Ok(RevisionPart { changes, next })
    }
}

fn check_from(from: i64, state: &StoreData) -> Result<()> {
    let compacted = state.compact_revision;
    if from < compacted { Err(Error::Compacted { requested: from, compacted }) } else { Ok(()) }
}

/// Blocks found under the lock, to be loaded without it.
struct FoundBlocks {
    blocks: Vec<Arc<Block>>,
    changes: Changes,
}

fn find(state: &StoreData, from: i64, bytes_max: usize) -> FoundBlocks {
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
        // Do not split a revision that continues in the next block.
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

/// Finds the block, sealed or open, in which a part of a main revision starts.
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
    /// Loads the blocks. They are not added to the cache, because history would fill it with old blocks.
    pub fn load(self, shared: &StoreShared) -> Result<Changes> {
        let FoundBlocks { blocks, mut changes } = self;
        let loaded = blocks.iter().map(|block| shared.cache.load_without_caching(block));
        changes.sealed = loaded.collect::<Result<_>>()?;
        Ok(changes)
    }
}

/// Number of keys looked up per lock acquisition: some 100 µs in a large index.
const LOOKUPS_PER_HOLD: usize = 250;

impl Store {
    /// Returns for each key and event revision the key at the previous main revision. `None` if the key did
    /// not exist then, or if that revision is compacted. Records of the same block are loaded together.
    ///
    /// The caller limits the number of keys, and thereby the memory of the result.
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

/// A change of a key. The fields borrow from the blocks of `Changes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Put { revision: Revision, kv: KeyValueRef<'a> },
    Delete { revision: Revision, key: &'a [u8] },
}

impl<'a> Change<'a> {
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put { revision, .. } | Change::Delete { revision, .. } => *revision,
        }
    }

    pub fn key(&self) -> &'a [u8] {
        match self {
            Change::Put { kv, .. } => kv.key,
            Change::Delete { key, .. } => key,
        }
    }

    pub(crate) fn of(record: Record<'a>) -> Self {
        let Record { revision, key, body } = record;
        match body {
            RecordBody::Tombstone => Change::Delete { revision, key },
            RecordBody::Put { create, version, lease, value } => {
                let (create_revision, mod_revision) = (create, revision.main);
                let kv = KeyValueRef { key, value, create_revision, mod_revision, version, lease };
                Change::Put { revision, kv }
            }
        }
    }
}

/// All changes from `from` to the main revision `through`, or a part of a main revision.
#[derive(Debug)]
pub struct Changes {
    pub(super) from: Revision,
    pub(super) through: i64,
    pub(super) revision: i64,
    pub(super) sealed: Vec<Arc<DecodedBlock>>,
    /// Main revision of the open block's first record, and its records from `from` to `through`.
    pub(super) open: (i64, Vec<Bytes>),
}

impl Changes {
    /// Returns the last main revision that was read, after which the next read should start. Less than
    /// `from` if the result is empty.
    pub fn through(&self) -> i64 {
        self.through
    }

    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the changes in revision order. Decoding takes some twenty nanoseconds per change without
    /// copying.
    pub fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        let (from, through) = (self.from, self.through);
        let sealed = self.sealed.iter().flat_map(move |block| block.records_from(from));
        let (base, open) = &self.open;
        let open = open.iter().map(|record| {
            let (record, _) = Record::decode(*base, record).expect("encoded by this process");
            record
        });
        sealed.chain(open).take_while(move |record| record.revision.main <= through).map(Change::of)
    }
}

/// Reads changes from a position on. Created by `Store::follow`.
pub struct ChangeReader {
    store: Store,
    /// Next main revision to read. Pinned.
    next: i64,
    /// Generation of the store in which `next` was last found readable.
    generation: u64,
}

impl Store {
    /// Creates a follower that starts with the next published change.
    pub fn follow(&self) -> ChangeReader {
        let state = self.shared.state.read(LockPurpose::Lookup);
        let (next, generation) = (state.revision + 1, state.generation);
        self.shared.pins.add(next);
        drop(state);
        ChangeReader { store: self.clone(), next, generation }
    }
}

impl ChangeReader {
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Returns the changes from the next revision on like [`Store::changes`], without moving the position.
    ///
    /// Errors: `Compacted` only if an installed store has compacted the next revision.
    pub fn changes(&mut self, bytes_max: usize) -> Result<Changes> {
        let found = {
            let state = self.store.shared.state.read(LockPurpose::Walk);
            if state.generation != self.generation {
                check_from(self.next, &state)?;
                self.generation = state.generation;
            }
            find(&state, self.next, bytes_max)
        };
        found.load(&self.store.shared)
    }

    /// Moves the position to `next`. Changes before it are no longer needed.
    pub fn advance(&mut self, next: i64) {
        assert!(next >= self.next, "a follower goes forward");
        let pins = &self.store.shared.pins;
        pins.add(next);
        pins.remove(self.next);
        self.next = next;
    }
}

impl Drop for ChangeReader {
    fn drop(&mut self) {
        self.store.shared.pins.remove(self.next);
    }
}
