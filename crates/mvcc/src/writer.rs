//! The one writer: requests become changes, entries become checkpoints.
//!
//!   begin ─▶ put · delete_range · range … ─▶ finish      one request, one main revision
//!   … ─▶ end_entry                                       one entry of the log, perhaps many requests
//!
//! * A request takes the lock with its first change and holds it to its end, so readers see all of it or nothing. What it
//!   reads before that, it reads without.
//! * A checkpoint is cut only where an entry ends: applied index and data never disagree.
//!
//! One put: one copy of the value into the open block, one index update; no disk, no wait for one.
//!
//! Several requests of one entry are several main revisions, each visible as soon as it is finished: readers may see half
//! an entry, and a restart never does. That is etcd's own granularity, since it applies commands one by one.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLockWriteGuard;

use crate::error::{Error, Result};
use crate::range::KeyRange;
use crate::revision::Revision;
use crate::state::{Shared, State};
use crate::store::Store;
use crate::types::{Applied, Deleted, Fetch, KeyValue, Pressure, Previous, RangeOptions, RangeResult};
use crate::view::{find_one, load, lost};

/// An item and its key take at most this: the catalogue keeps them in pages, not in files of their own.
pub const ITEM_BYTES_MAX: usize = 64 << 10;

/// Only one exists per store; the apply loop owns it.
pub struct Writer {
    pub(crate) store: Store,
}

impl Writer {
    /// A reader's handle of the same store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Begins one request. Its changes share one main revision and appear to readers together.
    pub fn begin(&mut self) -> RevisionWriter<'_> {
        let shared = &self.store.shared;
        RevisionWriter { shared, guard: None, base: shared.state.read().revision, sub: 0 }
    }

    /// Logical compaction, effective at once: reads below `revision` fail from now on. The space comes back by
    /// `Maintainer::compact_step`.
    ///
    /// Errors: `Compacted` when `revision` ≤ the compact revision, `FutureRevision` beyond the newest.
    pub fn compact(&mut self, revision: i64) -> Result<()> {
        let mut state = self.store.shared.state.write();
        if revision <= state.compact_revision {
            return Err(Error::Compacted { requested: revision, compacted: state.compact_revision });
        }
        if revision > state.revision {
            return Err(Error::FutureRevision { requested: revision, current: state.revision });
        }
        state.compact_revision_before = Some(state.compact_revision);
        state.compact_revision = revision;
        state.is_inside_entry = true;
        Ok(())
    }

    /// Sets or removes an item that is not versioned. Key and value together take at most `ITEM_BYTES_MAX`.
    pub fn set_item(&mut self, key: &[u8], value: Option<&[u8]>) {
        assert!(key.len() + value.map_or(0, <[u8]>::len) <= ITEM_BYTES_MAX, "an item beyond its limit");
        let (key, value) = (Bytes::copy_from_slice(key), value.map(Bytes::copy_from_slice));
        let mut state = self.store.shared.state.write();
        state.is_inside_entry = true;
        match &value {
            Some(value) => state.items.insert(key.clone(), value.clone()),
            None => state.items.remove(&key),
        };
        state.items_changed.insert(key, value);
    }

    /// Ends one entry of the replicated log. Only here can a checkpoint be cut.
    pub fn end_entry(&mut self, applied: Applied) -> Result<Pressure> {
        let shared = &self.store.shared;
        let mut state = shared.state.write();
        assert!(applied >= state.applied, "entries are applied in order");
        assert!(state.revision >= state.compact_revision, "nothing beyond the newest is compacted");
        state.applied = applied;
        state.is_inside_entry = false;
        if state.is_cut_due(shared.options.checkpoint_due_bytes) {
            state.cut();
        }
        Ok(if state.bytes_at_risk() >= shared.options.checkpoint_full_bytes {
            Pressure::Full
        } else if state.cut.is_some() {
            Pressure::Due
        } else {
            Pressure::Calm
        })
    }
}

/// The changes of one request. They become visible together, at `finish` or when it is dropped; there is no undo.
pub struct RevisionWriter<'w> {
    shared: &'w Arc<Shared>,
    /// Taken with the first change.
    guard: Option<RwLockWriteGuard<'w, State>>,
    /// The main revision before this request.
    base: i64,
    /// Sub revision of the next change.
    sub: i64,
}

impl<'w> RevisionWriter<'w> {
    /// The current main revision; one more after the first change.
    pub fn revision(&self) -> i64 {
        self.base + i64::from(self.sub > 0)
    }

    /// As `Store::range`, and sees the changes made so far.
    pub fn range(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        match &self.guard {
            Some(state) => self.shared.range_locked(state, self.revision(), range, at, options),
            None => self.shared.range(range, at, options),
        }
    }

    /// The newest value of one key, changes made so far included.
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let found = match &self.guard {
            Some(state) => {
                let found = find_one(state, key, self.revision())?;
                return self.load_locked(found);
            }
            None => find_one(&self.shared.state.read(), key, self.base)?,
        };
        self.shared.load_one(found, self.base)
    }

    /// Puts `value`, and returns the main revision of the change.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> i64 {
        assert!(!key.is_empty(), "the empty key does not exist");
        let block_bytes = self.shared.options.block_bytes;
        let (state, revision) = self.next_change();
        state.put(revision, key, value, lease, block_bytes);
        revision.main
    }

    /// Deletes every key of `range`, in key order. No key, no change.
    pub fn delete_range(&mut self, range: &KeyRange, previous: Previous) -> Result<Deleted> {
        // Read before the lock is taken: nobody else writes meanwhile, and a cold block may be among it.
        let fetch = match previous {
            Previous::Skip => Fetch::KeysOnly,
            Previous::Return => Fetch::Full,
        };
        // Keys alone suffice where nobody asks for the old values: then no block is read at all.
        let doomed = self.range(range, 0, &RangeOptions { limit: 0, fetch })?.kvs;
        let block_bytes = self.shared.options.block_bytes;
        for kv in &doomed {
            let (state, revision) = self.next_change();
            state.delete(revision, &kv.key, block_bytes);
        }
        let count = doomed.len() as i64;
        Ok(Deleted { count, previous: if previous == Previous::Return { doomed } else { Vec::new() } })
    }

    /// Publishes the changes, and returns the store's main revision after them.
    pub fn finish(self) -> i64 {
        self.revision()
    }

    /// The locked state and the revision of the next change. The first one takes the lock, and nobody else sees the store until
    /// the request ends: what it shows is one main revision or none of it.
    fn next_change(&mut self) -> (&mut State, Revision) {
        let shared = self.shared;
        let state = self.guard.get_or_insert_with(|| shared.state.write());
        assert_eq!(state.revision, self.base, "one writer at a time");
        assert!(self.sub < i64::from(u32::MAX), "fewer than 2^32 changes in one request");
        let revision = Revision { main: self.base + 1, sub: self.sub };
        self.sub += 1;
        (state, revision)
    }

    /// Loads a record while the lock is held. A cold block is read from the disk under it: only a request that reads a key
    /// after it has changed another one pays that.
    fn load_locked(&self, found: Option<(Revision, crate::state::Source)>) -> Result<Option<KeyValue>> {
        let Some((revision, source)) = found else { return Ok(None) };
        load(revision, &source, &self.shared.cache)?.map(Some).ok_or_else(lost)
    }
}

impl Drop for RevisionWriter<'_> {
    /// Publishes. Dropped without `finish`, for instance by an early return, a request ends as far as it got: the log holds its
    /// command, so every member does the same.
    fn drop(&mut self) {
        let revision = self.revision();
        if let Some(state) = &mut self.guard {
            assert!(revision > state.revision, "a lock is taken only to change something");
            state.revision = revision;
        }
    }
}
