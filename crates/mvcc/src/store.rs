//! The reader's handle.
//!
//! * A read takes the lock, shared, for the walk over the index, and lets go of it before it touches a block.
//! * Nothing here ever writes, and nothing waits for a disk that is being written to; a cold block is read by whoever
//!   wants it, on their own time.
//! * Handles outlive whatever is installed under them: the next call simply reads the new state.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::hash;
use crate::range::KeyRange;
use crate::revision::Revision;
use crate::state::{Shared, Source, State};
use crate::types::{Applied, Fetch, KeyValue, KvHash, RangeOptions, RangeResult, Size};
use crate::view::{KEYS_PER_HOLD, Reading, check_not_compacted, find_one, load, lost, resolve_revision};

/// Cheap to clone; every clone reads the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

impl Store {
    /// The newest main revision; 1 when nothing was ever written.
    pub fn revision(&self) -> i64 {
        self.shared.state.read().revision
    }

    /// The revision of the newest compaction; -1 when there was none.
    pub fn compact_revision(&self) -> i64 {
        self.shared.state.read().compact_revision
    }

    /// The last entry of the log whose changes are all here.
    pub fn applied(&self) -> Applied {
        self.shared.state.read().applied
    }

    /// Reads `range` as it was at revision `at` (≤ 0: the newest).
    ///
    /// Errors: `Compacted` below the compact revision (equal is fine), `FutureRevision` beyond the newest, `Corrupt` or
    /// `Io` when a cold block cannot be read back.
    pub fn range(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        match self.shared.range(range, at, options) {
            // Whoever asked for the newest named no revision that could be compacted: two compactions in quick
            // succession overtook a long read. The next attempt lets nobody in between.
            Err(Error::Compacted { .. }) if at <= 0 => {
                let state = self.shared.state.read();
                self.shared.range_locked(&state, state.revision, range, at, options)
            }
            other => other,
        }
    }

    /// Hash of the history up to `at` (0: the newest), equal to etcd's HashKV.
    ///
    /// Errors: as `range`. Reads every block.
    pub fn hash_kv(&self, at: i64) -> Result<KvHash> {
        hash::hash_kv(&self.shared, at)
    }

    /// Bytes on disk and in memory that this store takes, and the part that live records need. Estimated per block, as if its
    /// records were all alike; exact when nothing is superseded.
    pub fn size(&self) -> Size {
        let state = self.shared.state.read();
        let (_, live_bytes) = state.directory.bytes();
        let in_use = live_bytes + state.open.raw_bytes() as u64;
        let allocated = state.stored_bytes + state.bytes_at_risk() as u64;
        Size { allocated, in_use: in_use.min(allocated) }
    }

    /// Raw bytes of a record of this store, on average: what a range over so many keys may come to. Costs nothing to tell.
    pub fn record_bytes(&self) -> u64 {
        self.shared.state.read().directory.record_bytes()
    }

    /// Whether all records are read from memory, as a rule, once they were read or written: all blocks fit into the cache. Where they
    /// do not, a record may cost the unpacking of a block.
    pub fn fits_in_cache(&self) -> bool {
        self.shared.cache.holds(self.shared.state.read().directory.raw_bytes())
    }

    /// Whether an entry of `bytes` more can end without [`crate::Pressure::Full`].
    pub fn has_room(&self, bytes: usize) -> bool {
        self.shared.state.read().bytes_at_risk() + bytes < self.shared.options.checkpoint_full_bytes
    }

    /// A value that is not versioned: members, alarms and the like.
    pub fn item(&self, key: &[u8]) -> Option<Bytes> {
        self.shared.state.read().items.get(key).cloned()
    }

    /// All items whose key begins with `prefix`, in key order.
    pub fn items(&self, prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
        let state = self.shared.state.read();
        let from =
            state.items.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        let matching = from.take_while(|(key, _)| key.starts_with(prefix));
        matching.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

impl Shared {
    /// Reads a range at the newest published state, letting others in between.
    pub(crate) fn range(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        let state = self.state.read();
        let revision = state.revision;
        let at = resolve_revision(at, revision, state.compact_revision)?;
        if let (Some(key), Fetch::Full) = (range.as_one_key(), options.fetch) {
            // The commonest read of all: one look under the lock, one pair.
            let found = find_one(&state, key, at)?;
            drop(state);
            let kvs: Vec<_> = self.load_one(found, at)?.into_iter().collect();
            return Ok(RangeResult { count: kvs.len() as i64, kvs, revision, at });
        }
        let mut reading = Reading::new(range, at, options);
        reading.walk(&state, revision, KEYS_PER_HOLD)?;
        drop(state);
        loop {
            if reading.must_load() && !reading.load(&self.cache)? {
                return Err(self.gone(at));
            }
            if reading.is_done() {
                return Ok(RangeResult { kvs: reading.kvs, count: reading.count, revision, at });
            }
            let state = self.state.read();
            reading.walk(&state, state.revision, KEYS_PER_HOLD)?;
        }
    }

    /// Reads a range of `state`, whose lock the caller holds, as of `newest`.
    pub(crate) fn range_locked(
        &self,
        state: &State,
        newest: i64,
        range: &KeyRange,
        at: i64,
        options: &RangeOptions,
    ) -> Result<RangeResult> {
        let at = resolve_revision(at, newest, state.compact_revision)?;
        let mut reading = Reading::new(range, at, options);
        reading.walk(state, newest, usize::MAX)?;
        assert!(reading.is_done(), "nothing bounds a walk under a lock that is held anyway");
        if !reading.load(&self.cache)? {
            return Err(lost());
        }
        Ok(RangeResult { kvs: reading.kvs, count: reading.count, revision: newest, at })
    }

    /// Loads what `find_one` found at revision `at`.
    pub(crate) fn load_one(&self, found: Option<(Revision, Source)>, at: i64) -> Result<Option<KeyValue>> {
        let Some((revision, source)) = found else { return Ok(None) };
        match load(revision, &source, &self.cache)? {
            Some(kv) => Ok(Some(kv)),
            None => Err(self.gone(at)),
        }
    }

    /// Why a record that the index named is in no block: a compaction came in between, or something is damaged.
    fn gone(&self, at: i64) -> Error {
        match check_not_compacted(at, self.state.read().compact_revision) {
            Err(compacted) => compacted,
            Ok(()) => lost(),
        }
    }
}
