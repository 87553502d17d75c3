//! The state of the store, behind one lock.
//!
//! Who takes the lock, and for how long:
//! * the writer, exclusively, from the first change of a request to its end. A put is one index update and one append;
//! * readers, shared, for at most a thousand keys at a time, and never while they wait for the disk;
//! * the maintainer, exclusively, to cut a checkpoint, to swap blocks that it has already written, or to prune a bounded
//!   number of keys. Never across a write or a sync.
//!
//! * `revision` is what readers see as newest. Changes beyond it are a request in progress, which holds the lock.
//! * Sealed blocks with `last.main` ≤ the revision of the last persisted checkpoint are stored; all others are in memory.
//! * This lock and that of `hashes` are never held together. The cache has locks of its own, and is asked under this one
//!   only where a request reads behind its own changes.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

use crate::block::{Decoded, OpenBlock};
use crate::directory::{Block, BlockCache, Directory};
use crate::index::Index;
use crate::record::{Body, Record};
use crate::revision::Revision;
use crate::types::{Applied, KvHash, Options};

/// What the three handles of a store share.
pub(crate) struct Shared {
    pub state: RwLock<State>,
    pub cache: BlockCache,
    /// Hashes taken when compactions finished, newest last; etcd keeps ten as well.
    pub hashes: Mutex<VecDeque<KvHash>>,
    pub options: Options,
}

/// All that changes. Half of it mirrors what is durable, half of it is ahead of that; `revision` and `applied` are ahead,
/// the marks in `Durable` are not.
pub(crate) struct State {
    pub index: Index,
    pub directory: Directory,
    pub open: OpenBlock,
    /// Newest main revision that readers see.
    pub revision: i64,
    pub compact_revision: i64,
    /// The compact revision before the newest compaction; unknown if that was before a restart.
    pub compact_revision_before: Option<i64>,
    pub applied: Applied,
    pub items: BTreeMap<Bytes, Bytes>,
    /// Items set (or removed: `None`) since the last cut.
    pub items_changed: BTreeMap<Bytes, Option<Bytes>>,
    /// Whether the current entry has changed something: then no checkpoint may be cut.
    pub is_inside_entry: bool,
    /// Someone waits for a checkpoint; the next end of an entry cuts one.
    pub is_cut_wanted: bool,
    /// A checkpoint that waits for the maintainer.
    pub cut: Option<Cut>,
    /// Raw bytes of sealed blocks that are not stored yet, and the part of them that no cut covers.
    pub unpersisted_bytes: usize,
    pub uncut_bytes: usize,
    /// Bytes of files and catalogue, as the maintainer last saw them.
    pub stored_bytes: u64,
    /// Stores that were installed in place of this one since it was opened.
    pub generation: u64,
}

/// What one checkpoint makes durable, beside the blocks up to its revision.
#[derive(Debug)]
pub(crate) struct Cut {
    pub applied: Applied,
    pub revision: i64,
    pub compact_revision: i64,
    pub items: BTreeMap<Bytes, Option<Bytes>>,
}

/// Where a record is, found under the lock and read without it.
pub(crate) enum Source {
    /// A record of the open block, to be decoded against the block's base.
    Open {
        base: i64,
        record: Bytes,
    },
    Sealed(Arc<Block>),
}

impl Source {
    /// The sealed block that holds the record.
    pub fn block(&self) -> Option<&Arc<Block>> {
        match self {
            Source::Sealed(block) => Some(block),
            Source::Open { .. } => None,
        }
    }
}

impl State {
    /// Records a put. The caller publishes `revision.main` when the request ends.
    pub fn put(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: i64, block_bytes: usize) {
        // The index first: it knows which version of the key this is, and the record must say so.
        let put = self.index.put(key, revision);
        assert_eq!(put.revision, revision, "the index records what it was told");
        let body = Body::Put { create: put.create, version: put.version, lease, value };
        self.append(&Record { revision, key, body }, block_bytes);
    }

    /// Records the delete of a live key.
    pub fn delete(&mut self, revision: Revision, key: &[u8], block_bytes: usize) {
        self.index.delete(key, revision);
        self.append(&Record { revision, key, body: Body::Tombstone }, block_bytes);
    }

    /// Where the record at `revision` is. `None`: there is no such record any more.
    pub fn locate(&self, revision: Revision) -> Option<Source> {
        // Newest first: what was just written is the likeliest to be read.
        if let Some((base, record)) = self.open.find(revision) {
            return Some(Source::Open { base, record });
        }
        self.directory.find(revision).map(|block| Source::Sealed(block.clone()))
    }

    /// Raw bytes that a crash would lose to the log's replay.
    pub fn bytes_at_risk(&self) -> usize {
        self.unpersisted_bytes + self.open.raw_bytes()
    }

    /// Whether the checkpoint to come has grown to `bytes`.
    pub fn is_cut_due(&self, bytes: usize) -> bool {
        self.is_cut_wanted || self.uncut_bytes + self.open.raw_bytes() >= bytes
    }

    /// Seals the open block and makes the present state the next checkpoint, on top of one that still waits.
    pub fn cut(&mut self) {
        assert!(!self.is_inside_entry, "a checkpoint is a state between two entries");
        if !self.open.is_empty() {
            self.seal();
        }
        if let Some(waiting) = &self.cut {
            assert!(
                waiting.revision <= self.revision && waiting.applied <= self.applied,
                "checkpoints go forward"
            );
        }
        // A cut that still waits is superseded, but its items have to be written all the same.
        let mut items = self.cut.take().map(|waiting| waiting.items).unwrap_or_default();
        items.append(&mut self.items_changed);
        let (applied, revision) = (self.applied, self.revision);
        self.cut = Some(Cut { applied, revision, compact_revision: self.compact_revision, items });
        self.uncut_bytes = 0;
        self.is_cut_wanted = false;
    }

    /// Adds a record of the request in progress to the open block, and seals the block when it is full.
    fn append(&mut self, record: &Record<'_>, block_bytes: usize) {
        assert_eq!(record.revision.main, self.revision + 1, "changes belong to the request in progress");
        // From the first change to the end of the entry no checkpoint may be cut.
        self.is_inside_entry = true;
        self.open.append(record, block_bytes);
        if self.open.raw_bytes() >= block_bytes {
            self.seal();
        }
    }

    /// Closes the open block. It stays in memory, pinned, until a checkpoint has stored it; from here on it is immutable.
    fn seal(&mut self) {
        let sealed: Decoded = std::mem::take(&mut self.open).sealed();
        assert!(sealed.last().main <= self.revision + 1, "a block beyond the request in progress");
        self.unpersisted_bytes += sealed.raw().len();
        self.uncut_bytes += sealed.raw().len();
        assert!(self.uncut_bytes <= self.unpersisted_bytes, "what no cut covers is not persisted either");
        self.directory.push(Arc::new(Block::in_memory(sealed)));
    }
}
