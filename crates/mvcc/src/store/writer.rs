//! The writer: applies the changes of requests, and completes entries.
//!
//!   begin ─▶ put · delete_range · range … ─▶ finish      one request, one main revision
//!   … ─▶ end_entry                                       one entry of the log, one or more requests
//!
//! * A request writes at the revision after the published one, and publishes it at the end. Readers see
//!   all of a request or none of it, so a large request can release the lock between bounded numbers of
//!   changes.
//! * A request that reads holds the lock like a reader: in bounded steps, and not while a block is
//!   loaded.
//! * Checkpoints are taken only at the end of an entry, so that the applied index matches the data.
//!   Readers may see half an entry, but a restart never does; etcd behaves the same.
//!
//! A put costs one copy of the value into the open block and one update of the index, and no disk
//! operation.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;

use super::lock::{LockPurpose, WriteGuard};
use super::range_read::{Counting, RangeQuery, find_one};
use super::reader::Store;
use super::shared::StoreShared;
use super::state::{BYTES_PER_HOLD, StoreData};
use crate::error::{Error, Result};
use crate::index::IndexWalk;
use crate::range::KeyRange;
use crate::types::{
    DeleteResult, KeyValue, LogPosition, Pressure, Previous, RangeOptions, RangeResult, Revision,
};

/// Maximum size of an item with its key. sled stores it in its pages.
pub const ITEM_BYTES_MAX: usize = 64 << 10;
/// Maximum size of an item's key. sled stores hundreds of keys in a page.
pub const ITEM_KEY_BYTES_MAX: usize = 256;

/// The handle for changes. A store has one, owned by the apply loop.
pub struct Writer {
    store: Store,
    notified: i64,
}

impl Writer {
    pub(crate) fn new(store: Store) -> Self {
        let notified = store.revision();
        Writer { store, notified }
    }

    /// Returns a reader's handle of the same store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Starts a request. Its changes share a main revision and become visible together.
    pub fn begin(&mut self) -> RevisionWriter<'_> {
        let shared = &self.store.shared;
        let base = shared.state.published().revision();
        RevisionWriter { shared, guard: RefCell::new(None), held: (0, 0), base, sub: 0 }
    }

    /// Compacts logically, with immediate effect: reads below `revision` fail from then on.
    /// `Maintainer::compact_step` frees the space.
    ///
    /// Errors: `Compacted` if `revision` ≤ the compact revision, `FutureRevision` above the current one.
    pub fn compact(&mut self, revision: i64) -> Result<()> {
        let mut state = self.store.shared.state.write(LockPurpose::EndEntry);
        if revision <= state.compact_revision {
            return Err(Error::Compacted { requested: revision, compacted: state.compact_revision });
        }
        if revision > state.revision {
            return Err(Error::FutureRevision { requested: revision, current: state.revision });
        }
        state.compact_revision_before = Some(state.compact_revision);
        state.compact_revision = revision;
        state.digest.add_compaction(revision);
        state.is_inside_entry = true;
        Ok(())
    }

    /// Sets or removes an item. Key and value together take at most `ITEM_BYTES_MAX`, the key
    /// `ITEM_KEY_BYTES_MAX`.
    pub fn set_item(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.set_layout_item(key, value);
        self.store.shared.state.write(LockPurpose::EndEntry).digest.add_item(key, value);
    }

    /// Sets an item like [`Writer::set_item`], but excludes it from the digest of the entry. For items with
    /// a layout that depends on restarts.
    pub fn set_layout_item(&mut self, key: &[u8], value: Option<&[u8]>) {
        assert!(key.len() <= ITEM_KEY_BYTES_MAX, "an item's key beyond its limit");
        assert!(key.len() + value.map_or(0, <[u8]>::len) <= ITEM_BYTES_MAX, "an item beyond its limit");
        let (key, value) = (Bytes::copy_from_slice(key), value.map(Bytes::copy_from_slice));
        let mut state = self.store.shared.state.write(LockPurpose::EndEntry);
        state.is_inside_entry = true;
        state.items.set(key.clone(), value.clone());
        state.items_changed.insert(key, value);
    }

    /// Sets the memory that the caller uses for clients' data, which counts in `Size::memory`.
    pub fn set_caller_memory(&mut self, bytes: u64) {
        self.store.shared.state.write(LockPurpose::EndEntry).caller_memory_bytes = bytes;
    }

    /// Completes an entry of the replicated log. Only here a checkpoint can become pending. Calls the
    /// listener of `Store::wake_with` if the entry has published a revision.
    pub fn end_entry(&mut self, applied: LogPosition) -> Result<Pressure> {
        let shared = &self.store.shared;
        let mut state = shared.state.write(LockPurpose::EndEntry);
        assert!(applied >= state.applied, "entries are applied in order");
        assert!(state.revision >= state.compact_revision, "nothing beyond the newest is compacted");
        state.applied = applied;
        state.digest.end_entry(applied.index);
        state.is_inside_entry = false;
        let is_due = state.is_checkpoint_due(shared.options.checkpoint_due_bytes);
        if is_due && !base::mutant("no-due-checkpoints") {
            state.take_checkpoint();
        }
        let pressure = if state.bytes_at_risk() >= shared.options.checkpoint_full_bytes {
            Pressure::Full
        } else if state.pending.is_some() {
            Pressure::Due
        } else {
            Pressure::Calm
        };
        let revision = state.revision;
        drop(state);
        if revision != self.notified {
            self.notified = revision;
            shared.notify();
        }
        Ok(pressure)
    }
}

/// Changes of a request. They become visible together, at `finish` or on drop. They cannot be undone.
pub struct RevisionWriter<'w> {
    shared: &'w Arc<StoreShared>,
    /// Kept between changes, until the limits of a hold are reached or the request reads.
    guard: RefCell<Option<WriteGuard<'w>>>,
    /// Number of changes during this hold, and the bytes copied for them.
    held: (usize, usize),
    base: i64,
    sub: i64,
}

impl<'w> RevisionWriter<'w> {
    /// Returns the current main revision, incremented by the first change.
    pub fn revision(&self) -> i64 {
        self.base + i64::from(self.sub > 0)
    }

    /// Reads like [`Store::range`], including the changes so far.
    pub fn range(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        self.read(range, at, options, Counting::Limited)
    }

    /// Reads like [`Store::page_metered`], including the changes so far.
    pub fn page(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        self.read(range, at, options, Counting::Skip)
    }

    fn read(
        &self,
        range: &KeyRange,
        at: i64,
        options: &RangeOptions,
        counting: Counting,
    ) -> Result<RangeResult> {
        drop(self.guard.take());
        self.shared.range(RangeQuery { range, at, options, counting, own: Some(self.revision()), meter: &() })
    }

    /// Returns the current value of a key, including the changes so far.
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let found = match &*self.guard.borrow() {
            Some(state) => find_one(state, key, self.revision())?,
            None => find_one(&self.shared.state.read(LockPurpose::Lookup), key, self.revision())?,
        };
        if found.as_ref().is_some_and(|(_, source)| source.block().is_some()) {
            // The block may have to be read from the disk.
            drop(self.guard.take());
        }
        self.shared.load_one(found)
    }

    /// Returns the first keys of a lease in key order, at most `keys_max`, including the changes so far.
    pub fn keys_of_lease(&self, lease: i64, keys_max: usize) -> Vec<Bytes> {
        match &*self.guard.borrow() {
            Some(state) => state.leased.keys_of(lease, b"", keys_max),
            None => self.shared.state.read(LockPurpose::Lookup).leased.keys_of(lease, b"", keys_max),
        }
    }

    /// Puts `value`, and returns the main revision of the change.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> i64 {
        assert!(!key.is_empty(), "the empty key does not exist");
        let revision = self.next_revision();
        self.locked().put(revision, key, value, lease);
        self.count_changes(1, key.len() + value.len());
        revision.main
    }

    /// Deletes every key of `range`, in key order. Has no effect without such a key.
    pub fn delete_range(&mut self, range: &KeyRange, previous: Previous) -> Result<DeleteResult> {
        let previous = match previous {
            Previous::Return => self.range(range, 0, &RangeOptions::default())?.kvs,
            Previous::Skip => Vec::new(),
        };
        let (mut count, mut rest) = (0, range.clone());
        loop {
            let first = self.next_revision();
            let keys_max = self.shared.options.changes_per_hold;
            let (deleted, walk) = self.locked().delete_some(&rest, first, keys_max);
            count += deleted;
            self.count_changes(deleted, 0);
            let IndexWalk::Paused(next) = walk else {
                if deleted == 0 {
                    self.release();
                }
                break;
            };
            self.release();
            rest = rest.resumed_at(next);
        }
        Ok(DeleteResult { count: count as i64, previous })
    }

    /// Publishes the changes, and returns the store's main revision after them.
    pub fn finish(self) -> i64 {
        self.revision()
    }

    fn next_revision(&self) -> Revision {
        Revision { main: self.base + 1, sub: self.sub }
    }

    /// Returns the state under the lock. The changes are published at the end of the request.
    fn locked(&mut self) -> &mut StoreData {
        let shared = self.shared;
        let state = self.guard.get_mut().get_or_insert_with(|| shared.state.write(LockPurpose::Change));
        assert_eq!(state.revision, self.base, "one writer at a time");
        state
    }

    fn count_changes(&mut self, changes: usize, bytes: usize) {
        self.sub += changes as i64;
        self.held = (self.held.0 + changes, self.held.1 + bytes);
        assert!(self.sub <= i64::from(u32::MAX), "fewer than 2^32 changes in one request");
        if self.held.0 >= self.shared.options.changes_per_hold || self.held.1 >= BYTES_PER_HOLD {
            self.release();
        }
    }

    fn release(&mut self) {
        self.held = (0, 0);
        if let Some(guard) = self.guard.take() {
            guard.unlock_fairly();
        }
    }
}

impl Drop for RevisionWriter<'_> {
    /// Publishes the changes. A request dropped without `finish` keeps the changes so far: its command is
    /// in the log, so every member does the same.
    fn drop(&mut self) {
        if self.sub > 0 {
            let revision = self.revision();
            let shared = self.shared;
            let state = self.guard.get_mut().get_or_insert_with(|| shared.state.write(LockPurpose::Change));
            assert!(revision > state.revision, "a request is published once");
            state.revision = revision;
        }
    }
}
