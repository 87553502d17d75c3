//! The reader's handle.
//!
//! * A read holds the lock, shared, to walk over the index, and releases it before it reads a block.
//! * Reads never write and never wait for the maintainer's disk operations. The thread that needs a
//!   cold block reads it.
//! * Revisions and sizes are read without the lock, so a writer does not delay them.
//! * Handles stay valid when another store is installed: the next call reads the new state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::hash;
use super::lock::{LockPurpose, LockStats};
use super::range_read::{Counting, RangeQuery, RangeRead, find_one, load, missing_record, pair_bytes};
use super::shared::StoreShared;
use super::state::{KEYS_PER_HOLD, RecordSource, resolve_revision};
use crate::digest::SpanDigest;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::range::KeyRange;
use crate::types::{
    Fetch, GetResult, KeyValue, KvHash, LogIndex, LogPosition, RangeOptions, RangeResult, Revision, Size,
};

/// Memory of a key in a list, in addition to its bytes.
const LISTED_KEY_BYTES: usize = 64;

/// Handle for reads. Clones are cheap and read the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<StoreShared>,
}

impl Store {
    /// Returns the current main revision; 1 in an empty store.
    pub fn revision(&self) -> i64 {
        self.shared.state.published().revision()
    }

    /// Returns the revision of the latest compaction; -1 if there was none.
    pub fn compact_revision(&self) -> i64 {
        self.shared.state.published().compact_revision()
    }

    /// Sets the function that is called after each entry that published a revision, and after an install.
    /// It runs on the applying thread, without a lock, and must not block: it should set a flag or unpark a
    /// thread. It can be set once; returns false if it was already set.
    pub fn wake_with(&self, wake: Arc<dyn Fn() + Send + Sync>) -> bool {
        self.shared.wake.set(wake).is_ok()
    }

    /// Returns the last completely applied entry of the log.
    pub fn applied(&self) -> LogPosition {
        self.shared.state.read(LockPurpose::Lookup).applied
    }

    /// Reads a key at revision `at` (≤ 0: the current one), like [`Store::range`] without a list. Does not
    /// allocate if the record is in memory and was read before.
    ///
    /// Errors: see [`Store::range`].
    pub fn get(&self, key: &[u8], at: i64) -> Result<GetResult> {
        self.shared.again_if_installed(at, || self.shared.get(key, at, None))
    }

    /// Reads `range` at revision `at` (≤ 0: the current one).
    ///
    /// Errors: `Compacted` below the compact revision, `FutureRevision` above the current one, `Corrupt` or
    /// `Io` if a cold block cannot be read.
    pub fn range(&self, range: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult> {
        self.range_metered(range, at, options, &())
    }

    /// Reads like [`Store::range`], with a meter that may stop the read.
    ///
    /// Errors: see [`Store::range`], and `Interrupted` from the meter.
    pub fn range_metered(
        &self,
        range: &KeyRange,
        at: i64,
        options: &RangeOptions,
        meter: &dyn Meter,
    ) -> Result<RangeResult> {
        self.shared.range(RangeQuery { range, at, options, counting: Counting::Limited, own: None, meter })
    }

    /// Reads like [`Store::range_metered`], but the count is the number of returned pairs: keys after the
    /// limit are not read.
    pub fn page_metered(
        &self,
        range: &KeyRange,
        at: i64,
        options: &RangeOptions,
        meter: &dyn Meter,
    ) -> Result<RangeResult> {
        self.shared.range(RangeQuery { range, at, options, counting: Counting::Skip, own: None, meter })
    }

    /// Computes the hash of the history up to `at` (0: the current revision), equal to etcd's HashKV. Reads
    /// every block.
    ///
    /// Errors: see [`Store::range`].
    pub fn hash_kv(&self, at: i64) -> Result<KvHash> {
        self.hash_kv_metered(at, &())
    }

    /// Computes [`Store::hash_kv`] with a meter that is called for each block.
    ///
    /// Errors: see [`Store::hash_kv`], and `Interrupted` from the meter.
    pub fn hash_kv_metered(&self, at: i64, meter: &dyn Meter) -> Result<KvHash> {
        hash::hash_kv(&self.shared, at, meter)
    }

    /// Returns the hashes of the last compactions that this process finished, at most 10. `hash_kv` returns
    /// them for their revisions.
    pub fn compaction_hashes(&self) -> Vec<KvHash> {
        self.shared.hashes.lock().iter().copied().collect()
    }

    /// Returns the digest of the changes by the entries above `after` and up to `to`: equal on members that
    /// applied them identically.
    pub fn span_digest(&self, after: LogIndex, to: LogIndex) -> SpanDigest {
        self.shared.state.read(LockPurpose::Lookup).digest.span(after, to)
    }

    /// Returns the first and last log index between which digests are available; `None` before the first
    /// entry.
    pub fn digests_kept(&self) -> Option<(LogIndex, LogIndex)> {
        self.shared.state.read(LockPurpose::Lookup).digest.kept()
    }

    /// Returns the space usage on disk and in memory.
    pub fn size(&self) -> Size {
        self.shared.state.published().size()
    }

    /// Returns the size of removed block files that are still open.
    pub fn removed_bytes(&self) -> u64 {
        self.shared.removed_bytes.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the size of the current pair of `key`, without reading a block: for a pair
    /// in a sealed block, the block's raw bytes.
    pub fn pair_bytes_max(&self, key: &[u8]) -> u64 {
        let state = self.shared.state.read(LockPurpose::Lookup);
        match find_one(&state, key, state.revision) {
            Ok(Some((_, RecordSource::Open { record, .. }))) => record.len() as u64,
            Ok(Some((_, RecordSource::Sealed(block)))) => u64::from(block.identity.raw_bytes),
            Ok(None) | Err(_) => 0, // A corrupt index is reported by the read itself.
        }
    }

    /// Estimates the number of records, including superseded ones.
    pub fn records(&self) -> u64 {
        let published = self.shared.state.published();
        let bytes = published.raw_bytes() + published.bytes_at_risk() as u64;
        // At least four bytes per record, while the mean is unknown.
        bytes / published.record_bytes().max(4)
    }

    /// Returns the mean raw size of a record, to estimate the size of a range. Does not take the lock.
    pub fn record_bytes(&self) -> u64 {
        self.shared.state.published().record_bytes()
    }

    /// Reports whether all blocks fit into the cache. Reads then usually need no disk access; otherwise a
    /// record may cost the decoding of a block.
    pub fn fits_in_cache(&self) -> bool {
        self.shared.cache.fits(self.shared.state.published().raw_bytes())
    }

    /// Reports whether an entry of `bytes` can be added without reaching [`crate::Pressure::Full`].
    pub fn has_room(&self, bytes: usize) -> bool {
        self.shared.state.published().bytes_at_risk() + bytes < self.shared.options.checkpoint_full_bytes
    }

    /// Returns the number and maximum duration of lock holds for this purpose since the store was opened;
    /// empty without [`crate::StoreOptions::lock_clock`].
    pub fn lock_stats(&self, hold: LockPurpose) -> LockStats {
        self.shared.state.lock_stats(hold)
    }

    /// Returns all keys of a lease in key order. The lock is held for a thousand keys at a time, so a
    /// concurrent change may be visible in part. `meter` accounts for the keys and their encoded form.
    ///
    /// Errors: `Interrupted`.
    pub fn keys_of_lease(&self, lease: i64, meter: &dyn Meter) -> Result<Vec<Bytes>> {
        let (mut keys, mut after) = (Vec::new(), Bytes::new());
        loop {
            let state = self.shared.state.read(LockPurpose::Walk);
            let more = state.leased.keys_of(lease, &after, KEYS_PER_HOLD);
            drop(state);
            let Some(last) = more.last() else { return Ok(keys) };
            after = last.clone();
            let bytes: usize = more.iter().map(|key| LISTED_KEY_BYTES + 2 * key.len()).sum();
            meter.check()?;
            meter.hold(0, bytes as u64)?;
            keys.extend(more);
        }
    }

    /// Counts the keys of a lease up to `max` during one lock hold.
    pub fn count_keys_of_lease(&self, lease: i64, max: usize) -> usize {
        self.shared.state.read(LockPurpose::Walk).leased.count_of(lease, max)
    }

    /// Returns the first key of a lease from `from` on, in key order.
    pub fn first_key_of_lease(&self, lease: i64, from: &[u8]) -> Option<Bytes> {
        self.shared.state.read(LockPurpose::Lookup).leased.first_of(lease, from)
    }

    /// Returns the first lease from `from` on that has a live key.
    pub fn attached_lease_from(&self, from: i64) -> Option<i64> {
        self.shared.state.read(LockPurpose::Lookup).leased.lease_from(from)
    }

    /// Returns the number of live keys with a lease.
    pub fn leased_keys(&self) -> usize {
        self.shared.state.read(LockPurpose::Lookup).leased.len()
    }

    /// Returns the value of an item.
    pub fn item(&self, key: &[u8]) -> Option<Bytes> {
        self.shared.state.read(LockPurpose::Lookup).items.get(key).cloned()
    }

    /// Returns all items with the key prefix `prefix`, in key order.
    pub fn items(&self, prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
        let state = self.shared.state.read(LockPurpose::Lookup);
        let from =
            state.items.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        let matching = from.take_while(|(key, _)| key.starts_with(prefix));
        matching.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

impl StoreShared {
    pub(super) fn range(&self, query: RangeQuery<'_>) -> Result<RangeResult> {
        self.again_if_installed(query.at, || self.try_range(query))
    }

    /// Runs a read. A read of the current revision restarts, once per install, if a store was installed
    /// that has compacted its revision.
    fn again_if_installed<T>(&self, at: i64, read: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match read() {
                Err(Error::Compacted { .. }) if at <= 0 => {}
                other => return other,
            }
        }
    }

    /// Implements the most frequent read: one lookup under the lock, one pair.
    fn get(&self, key: &[u8], at: i64, own: Option<i64>) -> Result<GetResult> {
        let state = self.state.read(LockPurpose::Walk);
        let revision = own.unwrap_or(state.revision);
        let at = resolve_revision(at, revision, state.compact_revision)?;
        let found = find_one(&state, key, at)?;
        drop(state);
        Ok(GetResult { kv: self.load_one(found)?, revision, at })
    }

    fn try_range(&self, query: RangeQuery<'_>) -> Result<RangeResult> {
        let RangeQuery { range, at, options, counting, own, meter } = query;
        if let (Some(key), Fetch::Full) = (range.as_one_key(), options.fetch) {
            let GetResult { kv, revision, at } = self.get(key, at, own)?;
            if let Some(kv) = &kv {
                meter.hold(1, 2 * pair_bytes(kv))?;
            }
            return Ok(RangeResult { count: i64::from(kv.is_some()), kvs: Vec::from_iter(kv), revision, at });
        }
        let state = self.state.read(LockPurpose::Walk);
        let revision = own.unwrap_or(state.revision);
        let at = resolve_revision(at, revision, state.compact_revision)?;
        let mut read = RangeRead::new(range, at, options, counting).metered(meter);
        if own.is_none() {
            read.use_known_count(&self.counts);
        }
        read.walk(&state, KEYS_PER_HOLD)?;
        let mut pin = (!read.is_done()).then(|| self.pins.pin(at, &state));
        drop(state);
        loop {
            read.collect()?;
            if read.must_load() {
                read.load(&self.cache)?;
            }
            if read.is_done() {
                if let Some(count) = read.counted().filter(|_| own.is_none()) {
                    self.counts.insert(range, at, count);
                }
                return Ok(RangeResult { kvs: read.kvs, count: read.count, revision, at });
            }
            let state = self.state.read(LockPurpose::Walk);
            pin.as_mut().map_or(Ok(()), |pin| pin.check(&state))?;
            read.walk(&state, KEYS_PER_HOLD)?;
        }
    }

    pub(super) fn load_one(&self, found: Option<(Revision, RecordSource)>) -> Result<Option<KeyValue>> {
        let Some((revision, source)) = found else { return Ok(None) };
        load(revision, &source, &self.cache)?.map(Some).ok_or_else(missing_record)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::{MemoryBackend, StoreOptions};

    /// Runs `work` on another thread and returns its result. Times out if it needs the lock that this
    /// thread holds.
    fn on_other_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (answer, answers) = mpsc::channel();
        #[expect(clippy::disallowed_methods, reason = "a concurrent reader needs a thread")]
        thread::spawn(move || answer.send(work()));
        answers.recv_timeout(Duration::from_secs(20)).ok()
    }

    fn open(options: StoreOptions) -> (crate::Writer, Store, crate::Maintainer) {
        crate::open(Box::new(MemoryBackend::new()), options).unwrap()
    }

    #[test]
    fn published_stats_are_read_while_a_writer_holds_the_lock() {
        let (mut writer, store, _maintainer) = open(StoreOptions::default());
        writer.begin().put(b"key", &[7; 1000], 0);
        writer.compact(2).unwrap();
        let held = store.shared.state.write(LockPurpose::Change);
        let reader = store.clone();
        let published = on_other_thread(move || {
            let revisions = (reader.revision(), reader.compact_revision());
            let rooms = (reader.has_room(1 << 20), reader.has_room(64 << 20), reader.fits_in_cache());
            (revisions, rooms, reader.size().in_use, reader.record_bytes())
        });
        drop(held);
        let (revisions, rooms, in_use, record_bytes) = published.expect("a figure waited for the writer");
        assert_eq!((revisions, rooms, record_bytes), ((2, 2), (true, false, true), 0));
        assert!(in_use > 1000, "{in_use} bytes in use");
    }

    #[test]
    fn readers_continue_during_a_large_request() {
        let (mut writer, store, _maintainer) = open(StoreOptions::default());
        let mut request = writer.begin();
        let changes = StoreOptions::default().changes_per_hold as u64;
        for key in 0..3 * changes {
            request.put(&key.to_be_bytes(), b"value", 0);
        }
        let reader = store.clone();
        let seen = on_other_thread(move || {
            reader.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap().count
        });
        assert_eq!(seen, Some(0), "the request holds the lock, or shows its changes");
        request.finish();
        let count = |limit| store.range(&KeyRange::all(), 0, &RangeOptions { limit, ..Default::default() });
        assert_eq!(count(1).unwrap().count as u64, 3 * changes);
    }

    #[test]
    fn large_operations_take_the_lock_in_bounded_steps() {
        const KEYS: u64 = 20_000;
        let clock = Some((|| Duration::ZERO) as fn() -> Duration);
        let (mut writer, store, mut maintainer) =
            open(StoreOptions { lock_clock: clock, ..StoreOptions::default() });
        for key in 0..KEYS {
            writer.begin().put(&key.to_be_bytes(), b"value", 0);
        }
        let lock_stats = |hold| store.lock_stats(hold).count;
        let first = RangeOptions { limit: 1, ..RangeOptions::default() };
        let count_only = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
        let counted = || store.range(&KeyRange::all(), 0, &count_only).unwrap().count as u64;
        let (walks, before) = (KEYS / KEYS_PER_HOLD as u64, lock_stats(LockPurpose::Walk));
        assert_eq!(counted(), KEYS);
        assert_eq!(lock_stats(LockPurpose::Walk), before + 1, "a count is a sum over leaves");
        assert_eq!(store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap().count as u64, KEYS);
        assert!(lock_stats(LockPurpose::Walk) > before + walks);
        let mut request = writer.begin();
        request.put(b"a", b"value", 0);
        let before = lock_stats(LockPurpose::Walk);
        let own = request.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap();
        assert_eq!(own.count as u64, KEYS + 1);
        assert!(
            lock_stats(LockPurpose::Walk) > before + walks,
            "a request reads its own changes under one hold"
        );
        let (changes, before) =
            (KEYS / StoreOptions::default().changes_per_hold as u64, lock_stats(LockPurpose::Change));
        let deleted = request.delete_range(&KeyRange::all(), crate::Previous::Skip).unwrap();
        assert_eq!(deleted.count as u64, KEYS + 1);
        assert!(lock_stats(LockPurpose::Change) >= before + changes, "a large delete under one hold");
        assert_eq!(request.page(&KeyRange::all(), 0, &first).unwrap().kvs, []);
        // At the published revision the counts of changed leaves cannot be used.
        let before = lock_stats(LockPurpose::Walk);
        let other = KeyRange::new(b"\0".to_vec().into(), b"\xff".to_vec().into());
        assert_eq!(store.range(&other, 0, &count_only).unwrap().count as u64, KEYS);
        assert!(lock_stats(LockPurpose::Walk) > before + walks / 2);
        request.finish();
        assert_eq!(counted(), 0);
        // Without live keys a walk passes whole leaves. So does the search for any key.
        let before = (lock_stats(LockPurpose::Walk), lock_stats(LockPurpose::Hash));
        assert_eq!(store.range(&KeyRange::all(), 0, &first).unwrap().kvs, []);
        assert_eq!(lock_stats(LockPurpose::Walk), before.0 + 1, "tombstones are walked one by one");
        writer.compact(store.revision()).unwrap();
        writer.end_entry(LogPosition::new(1, 1)).unwrap();
        while maintainer.compact_step(1000).unwrap() == crate::CompactProgress::More {}
        assert!(
            lock_stats(LockPurpose::Prune) >= walks,
            "{} holds prune {KEYS} keys",
            lock_stats(LockPurpose::Prune)
        );
    }

    #[test]
    fn pages_at_one_revision_do_not_count_the_rest_again() {
        const KEYS: u64 = 100_000;
        let (mut writer, store, _maintainer) = open(StoreOptions::default());
        let mut request = writer.begin();
        for key in 0..KEYS {
            request.put(&key.to_be_bytes(), b"value", 0);
        }
        let at = request.finish();
        // Every leaf has changed: its count is not that of the previous revision.
        writer.begin().delete_range(&KeyRange::all(), crate::Previous::Skip).unwrap();
        let (mut rest, mut left, mut steps) = (KeyRange::all(), KEYS, 0);
        while left > 0 {
            let options = RangeOptions { limit: 50, fetch: Fetch::KeysOnly };
            let mut read = RangeRead::new(&rest, at, &options, Counting::Limited);
            read.use_known_count(&store.shared.counts);
            while !read.is_done() {
                read.walk(&store.shared.state.read(LockPurpose::Walk), KEYS_PER_HOLD).unwrap();
                read.collect().unwrap();
                steps += 1;
            }
            assert_eq!(read.counted(), Some(left as i64), "a page's count is that of the rest");
            store.shared.counts.insert(&rest, at, left as i64);
            let found = store.range(&rest, at, &options).unwrap();
            assert_eq!((found.count as u64, &found.kvs), (left, &read.kvs));
            left -= found.kvs.len() as u64;
            rest = rest.resumed_at([&found.kvs.last().unwrap().key[..], &[0]].concat().into());
        }
        // One hold per page, plus the first full count.
        let pages = KEYS / 50;
        assert!(steps < 2 * pages, "{steps} holds for {pages} pages");
    }

    /// A compaction during a range read does not restart its walk.
    #[test]
    fn a_compaction_waits_for_the_reads_that_it_overtakes() {
        let (mut writer, store, mut maintainer) = open(StoreOptions::default());
        let put_all = |writer: &mut crate::Writer| {
            for key in 0..3000u64 {
                writer.begin().put(&key.to_be_bytes(), b"value", 0);
            }
        };
        put_all(&mut writer);
        let shared = &store.shared;
        let (all, at) = (KeyRange::all(), store.revision());
        let mut read = RangeRead::new(&all, at, &RangeOptions::default(), Counting::Limited);
        let state = shared.state.read(LockPurpose::Walk);
        read.walk(&state, KEYS_PER_HOLD).unwrap();
        let mut pin = shared.pins.pin(at, &state);
        drop(state);

        put_all(&mut writer);
        writer.compact(store.revision()).unwrap();
        writer.end_entry(LogPosition::new(1, 1)).unwrap();
        let step = |maintainer: &mut crate::Maintainer| {
            std::iter::repeat_with(|| maintainer.compact_step(1000).unwrap())
                .find(|progress| *progress != crate::CompactProgress::More)
        };
        assert_eq!(step(&mut maintainer), Some(crate::CompactProgress::Waiting));
        let early = store.range(&all, at, &RangeOptions::default());
        assert!(matches!(early, Err(Error::Compacted { .. })), "a read that begins now is refused");
        while !read.is_done() {
            let state = shared.state.read(LockPurpose::Walk);
            pin.check(&state).unwrap();
            read.walk(&state, KEYS_PER_HOLD).unwrap();
        }
        read.load(&shared.cache).unwrap();
        assert_eq!(read.kvs.len(), 3000);
        assert!(read.kvs.iter().all(|kv| kv.mod_revision <= at));
        drop(pin);
        assert!(matches!(step(&mut maintainer), Some(crate::CompactProgress::Finished { .. })));
    }
}
