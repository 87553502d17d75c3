//! The state of the store, guarded by one lock.
//!
//! Lock holds take at most some hundred microseconds, except for the copy of a history of millions of
//! records that a compaction shortens. They do not include disk operations:
//! * The writer holds it exclusively for at most `Options::changes_per_hold` changes of a request.
//! * Readers hold it shared for at most a thousand keys or leaves of the index.
//! * The maintainer holds it exclusively to take a checkpoint, to swap blocks that it has written, or
//!   to prune a bounded number of keys.
//!
//! A request that changes many keys releases the lock in between. Its records are then in the index and
//! in the blocks, while `revision` is still the previous one. Concurrent operations handle this as
//! follows:
//! * Reads use a main revision ≤ `revision`, and each history returns the record visible there. A
//!   leaf's number of live keys is used only if the leaf has no later record (`index::walk`).
//! * No checkpoint is taken: the first change sets `is_inside_entry`. Blocks sealed by the request have
//!   a later last revision than any checkpoint.
//! * A compaction prunes and sweeps up to a compact revision ≤ `revision`, and only blocks of a
//!   checkpoint.
//! * A hash stops before the first record above its revision.
//! * The apply thread installs a received store, so never inside a request.
//!
//! Sealed blocks with `last.main` ≤ the revision of the last durable checkpoint are stored. Later ones
//! are in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use std::sync::Arc;

use super::items::Items;
use crate::block::{Block, BlockTable, DecodedBlock, OpenBlock, Record, RecordBody};
use crate::digest::ChangeDigest;
use crate::error::{Error, Result};
use crate::index::{Index, LeasedKeys};
use crate::range::KeyRange;
use crate::types::{LogPosition, Revision, Size};

use crate::index::IndexWalk;

/// Number of keys read per lock hold: some 100 µs, the maximum delay of a write by a range.
pub(super) const KEYS_PER_HOLD: usize = 1000;
/// Key and value bytes that a request copies per lock hold: some 100 µs.
pub(super) const BYTES_PER_HOLD: usize = 256 << 10;

/// The mutable state. `revision` and `applied` may be ahead of the durable marks.
pub(crate) struct StoreData {
    pub index: Index,
    pub leased: LeasedKeys,
    pub block_table: BlockTable,
    pub open: OpenBlock,
    /// Raw size at which the open block is sealed.
    pub block_bytes: usize,
    /// Latest main revision visible to readers. Records of the next revision belong to a request in
    /// progress.
    pub revision: i64,
    pub compact_revision: i64,
    /// Compact revision before the latest compaction; `None` if that was before a restart.
    pub compact_revision_before: Option<i64>,
    pub applied: LogPosition,
    pub items: Items,
    /// Memory that the owner of the writer uses for clients' data.
    pub caller_memory_bytes: u64,
    /// Items set, or removed (`None`), since the last checkpoint was taken.
    pub items_changed: BTreeMap<Bytes, Option<Bytes>>,
    /// True if the current entry has changed something. No checkpoint can then be taken.
    pub is_inside_entry: bool,
    /// True if `persist` was called inside an entry, so that the end of the entry takes a checkpoint.
    pub is_checkpoint_requested: bool,
    pub pending: Option<PendingCheckpoint>,
    /// Raw size of sealed blocks that are not stored yet, and the part of it that is not in a pending
    /// checkpoint.
    pub unpersisted_bytes: usize,
    pub bytes_since_checkpoint: usize,
    /// Size of block files after the maintainer's last change.
    pub stored_bytes: u64,
    /// Digest of the changes by entries since this state was opened or installed.
    pub digest: ChangeDigest,
    pub generation: u64,
}

/// Contents of a checkpoint, in addition to the blocks up to its revision.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    pub applied: LogPosition,
    pub revision: i64,
    pub compact_revision: i64,
    pub items: BTreeMap<Bytes, Option<Bytes>>,
}

/// Source of a record. Found under the lock, read without it.
#[derive(Clone)]
pub(crate) enum RecordSource {
    /// A record of the open block, with the base to decode it with.
    Open {
        base: i64,
        record: Bytes,
    },
    Sealed(Arc<Block>),
}

impl RecordSource {
    pub fn block(&self) -> Option<&Arc<Block>> {
        match self {
            RecordSource::Sealed(block) => Some(block),
            RecordSource::Open { .. } => None,
        }
    }
}

/// Resolves a requested revision; ≤ 0 is `newest`.
pub(super) fn resolve_revision(at: i64, newest: i64, compacted: i64) -> Result<i64> {
    let resolved = if at <= 0 { newest } else { at };
    if resolved > newest {
        return Err(Error::FutureRevision { requested: at, current: newest });
    }
    check_not_compacted(resolved, compacted)?;
    Ok(resolved)
}

/// Rejects revisions below the compact revision. At that revision all keys are still readable.
pub(super) fn check_not_compacted(at: i64, compacted: i64) -> Result<()> {
    if at < compacted { Err(Error::Compacted { requested: at, compacted }) } else { Ok(()) }
}

impl StoreData {
    /// Records a put. The caller publishes `revision.main` at the end of the request.
    pub fn put(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: i64) {
        // The index first, because it determines the version that the record stores.
        let (put, was_leased) = self.index.put(key, revision, lease != 0);
        if lease != 0 {
            self.leased.attach(key, lease);
        } else if was_leased {
            self.leased.detach(key);
        }
        assert_eq!(put.revision, revision, "the index records the given revision");
        let body = RecordBody::Put { create: put.create, version: put.version, lease, value };
        self.append(&Record { revision, key, body });
    }

    /// Deletes at most `keys_max` keys of `range` in key order, as the changes from `first` on. Returns the
    /// number of deleted keys, and where to continue.
    pub fn delete_some(&mut self, range: &KeyRange, first: Revision, keys_max: usize) -> (usize, IndexWalk) {
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let walk = self.index.delete_live(range, first, &mut KEYS_PER_HOLD.clone(), |key, is_leased| {
            if is_leased {
                self.leased.detach(key);
            }
            keys.extend_from_slice(key);
            ends.push(keys.len());
            ends.len() < keys_max && keys.len() < BYTES_PER_HOLD
        });
        let (mut revision, mut start) = (first, 0);
        for end in &ends {
            self.append(&Record { revision, key: &keys[start..*end], body: RecordBody::Tombstone });
            (revision, start) = (revision.next(), *end);
        }
        (ends.len(), walk)
    }

    /// Returns the source of the record at `revision`; `None` if it does not exist.
    pub fn locate(&self, revision: Revision) -> Option<RecordSource> {
        // The open block first: recent records are read most often.
        if let Some((base, record)) = self.open.find(revision) {
            return Some(RecordSource::Open { base, record });
        }
        self.block_table.find(revision).map(|block| RecordSource::Sealed(block.clone()))
    }

    /// Returns the raw size of records that are only in memory and in the log.
    pub fn bytes_at_risk(&self) -> usize {
        self.unpersisted_bytes + self.open.raw_bytes()
    }

    pub fn size(&self) -> Size {
        let (_, live_bytes) = self.block_table.bytes();
        let named_bytes = self.block_table.entry_bytes() + self.items.stored_bytes();
        let stored = self.stored_bytes + named_bytes + self.bytes_at_risk() as u64;
        let live = live_bytes + named_bytes + self.open.raw_bytes() as u64;
        let memory = self.memory_bytes();
        let allocated = stored.max(memory);
        Size { allocated, in_use: live.max(memory).min(allocated), memory }
    }

    /// Returns the memory that grows with clients' data: the index, leased keys, the block table, items,
    /// raw records not stored by a checkpoint, and the caller's memory. The block cache is bounded and does
    /// not count.
    fn memory_bytes(&self) -> u64 {
        let locations = self.block_table.memory_bytes();
        let contents = self.index.memory_bytes() + self.leased.memory_bytes() + self.items.memory_bytes();
        contents + self.caller_memory_bytes + locations + self.bytes_at_risk() as u64
    }

    /// Reports whether a checkpoint was requested, or has `bytes` to store.
    pub fn is_checkpoint_due(&self, bytes: usize) -> bool {
        self.is_checkpoint_requested || self.bytes_since_checkpoint + self.open.raw_bytes() >= bytes
    }

    /// Seals the open block and makes the current state the pending checkpoint, replacing one that was not
    /// taken yet.
    pub fn take_checkpoint(&mut self) {
        assert!(!self.is_inside_entry, "a checkpoint is a state between two entries");
        if !self.open.is_empty() {
            self.seal();
        }
        if let Some(waiting) = &self.pending {
            assert!(
                waiting.revision <= self.revision && waiting.applied <= self.applied,
                "checkpoints go forward"
            );
        }
        // The items of the replaced checkpoint still have to be written.
        let mut items = self.pending.take().map(|waiting| waiting.items).unwrap_or_default();
        items.append(&mut self.items_changed);
        let (applied, revision) = (self.applied, self.revision);
        self.pending =
            Some(PendingCheckpoint { applied, revision, compact_revision: self.compact_revision, items });
        self.bytes_since_checkpoint = 0;
        self.is_checkpoint_requested = false;
    }

    /// Adds a record of the request in progress to the open block. Seals the block when it is full.
    fn append(&mut self, record: &Record<'_>) {
        assert_eq!(record.revision.main, self.revision + 1, "changes belong to the request in progress");
        // No checkpoint from the first change to the end of the entry.
        self.is_inside_entry = true;
        self.digest.add_record(record);
        self.open.append(record, self.block_bytes);
        if self.open.raw_bytes() >= self.block_bytes {
            self.seal();
        }
    }

    /// Seals the open block. It stays in memory until a checkpoint has stored it.
    fn seal(&mut self) {
        let sealed: DecodedBlock = std::mem::take(&mut self.open).sealed();
        assert!(sealed.last().main <= self.revision + 1, "a block beyond the request in progress");
        self.unpersisted_bytes += sealed.raw().len();
        self.bytes_since_checkpoint += sealed.raw().len();
        assert!(
            self.bytes_since_checkpoint <= self.unpersisted_bytes,
            "what no cut covers is not persisted either"
        );
        self.block_table.push(Arc::new(Block::in_memory(sealed)));
    }
}
