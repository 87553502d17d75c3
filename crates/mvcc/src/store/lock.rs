//! The lock of the state, statistics that are read without it, and measurements of the time it is held.
//!
//!   write ─▶ WriteGuard ─drop─▶ publish statistics ─▶ unlock ─▶ measure
//!   statistics: revision, compact revision, sizes         atomics, read without the lock
//!
//! Invariants:
//! - Every exclusive hold publishes the statistics before it unlocks. A thread that reads a published
//!   revision and then takes the lock finds the state at that revision or a later one.
//! - `revision` and `compact_revision` never decrease. Sizes are approximate: each is correct by
//!   itself.
//! - Measurements do not affect results. Without a clock in the options no time is read.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::state::StoreData;
use crate::types::Size;

/// Purpose of a lock hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockPurpose {
    /// Reads a key, an item or a few numbers.
    Lookup,
    /// Finds or counts keys of a range.
    Walk,
    /// Changes keys for a request.
    Change,
    /// Completes an entry, and may make a checkpoint pending.
    EndEntry,
    /// Takes a checkpoint, or swaps its blocks.
    Checkpoint,
    /// Removes history from the index.
    Prune,
    /// Replaces old blocks with rewritten ones, or selects blocks to rewrite.
    Rewrite,
    /// Looks up records for a hash.
    Hash,
    /// Pins the blocks of a checkpoint, or installs a received store.
    Transfer,
}

impl LockPurpose {
    pub const ALL: [LockPurpose; 9] = [
        LockPurpose::Lookup,
        LockPurpose::Walk,
        LockPurpose::Change,
        LockPurpose::EndEntry,
        LockPurpose::Checkpoint,
        LockPurpose::Prune,
        LockPurpose::Rewrite,
        LockPurpose::Hash,
        LockPurpose::Transfer,
    ];
}

pub(crate) struct StateLock {
    state: RwLock<StoreData>,
    published: PublishedStats,
    trace: LockTrace,
}

/// Statistics that every request needs without waiting for the writer.
#[derive(Default)]
pub(crate) struct PublishedStats {
    revision: AtomicI64,
    compact_revision: AtomicI64,
    allocated_bytes: AtomicU64,
    in_use_bytes: AtomicU64,
    memory_bytes: AtomicU64,
    raw_bytes: AtomicU64,
    record_bytes: AtomicU64,
    bytes_at_risk: AtomicUsize,
}

impl PublishedStats {
    /// Returns the latest published main revision.
    pub fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    pub fn compact_revision(&self) -> i64 {
        self.compact_revision.load(Ordering::Acquire)
    }

    pub fn size(&self) -> Size {
        let allocated = self.allocated_bytes.load(Ordering::Relaxed);
        let in_use = self.in_use_bytes.load(Ordering::Relaxed).min(allocated);
        Size { allocated, in_use, memory: self.memory_bytes.load(Ordering::Relaxed).min(allocated) }
    }

    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes.load(Ordering::Relaxed)
    }

    pub fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Ordering::Relaxed)
    }

    /// Returns the raw bytes that are not in a checkpoint.
    pub fn bytes_at_risk(&self) -> usize {
        self.bytes_at_risk.load(Ordering::Relaxed)
    }

    fn publish(&self, state: &StoreData) {
        let Size { allocated, in_use, memory } = state.size();
        self.allocated_bytes.store(allocated, Ordering::Relaxed);
        self.in_use_bytes.store(in_use, Ordering::Relaxed);
        self.memory_bytes.store(memory, Ordering::Relaxed);
        // The mean takes a division, so avoid computing it for every put.
        if self.raw_bytes.load(Ordering::Relaxed) != state.block_table.raw_bytes() {
            self.raw_bytes.store(state.block_table.raw_bytes(), Ordering::Relaxed);
            self.record_bytes.store(state.block_table.record_bytes(), Ordering::Relaxed);
        }
        self.bytes_at_risk.store(state.bytes_at_risk(), Ordering::Relaxed);
        self.compact_revision.store(state.compact_revision, Ordering::Release);
        self.revision.store(state.revision, Ordering::Release);
    }
}

impl StateLock {
    pub fn new(state: StoreData, clock: Option<fn() -> Duration>) -> Self {
        let published = PublishedStats::default();
        published.publish(&state);
        StateLock {
            state: RwLock::new(state),
            published,
            trace: LockTrace { clock, purposes: Default::default() },
        }
    }

    pub fn published(&self) -> &PublishedStats {
        &self.published
    }

    pub fn read(&self, purpose: LockPurpose) -> ReadGuard<'_> {
        let guard = self.state.read();
        ReadGuard { timer: self.trace.begin(purpose), guard: Some(guard) }
    }

    pub fn write(&self, purpose: LockPurpose) -> WriteGuard<'_> {
        let guard = self.state.write();
        WriteGuard { timer: self.trace.begin(purpose), published: &self.published, guard: Some(guard) }
    }

    /// Returns the statistics of this purpose since the store was opened; empty without a clock.
    pub fn lock_stats(&self, purpose: LockPurpose) -> LockStats {
        let PurposeTrace { count, longest } = &self.trace.purposes[purpose as usize];
        let longest = Duration::from_nanos(longest.load(Ordering::Relaxed));
        LockStats { count: count.load(Ordering::Relaxed), longest }
    }
}

pub(crate) struct ReadGuard<'l> {
    timer: Timer<'l>,
    guard: Option<RwLockReadGuard<'l, StoreData>>,
}

impl Deref for ReadGuard<'_> {
    type Target = StoreData;

    fn deref(&self) -> &StoreData {
        self.guard.as_ref().expect("present until the drop")
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.timer.end();
    }
}

pub(crate) struct WriteGuard<'l> {
    timer: Timer<'l>,
    published: &'l PublishedStats,
    guard: Option<RwLockWriteGuard<'l, StoreData>>,
}

impl WriteGuard<'_> {
    /// Unlocks, and passes the lock to a waiting thread. Otherwise a writer that continues would take the
    /// lock again before a reader has woken up.
    pub fn unlock_fairly(mut self) {
        self.published.publish(&self);
        if let Some(guard) = self.guard.take() {
            RwLockWriteGuard::unlock_fair(guard);
        }
    }
}

impl Deref for WriteGuard<'_> {
    type Target = StoreData;

    fn deref(&self) -> &StoreData {
        self.guard.as_ref().expect("present until the drop")
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut StoreData {
        self.guard.as_mut().expect("present until the drop")
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.published.publish(&guard);
            drop(guard);
        }
        self.timer.end();
    }
}

/// Number of lock holds for a purpose, and the longest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    pub count: u64,
    pub longest: Duration,
}

struct LockTrace {
    clock: Option<fn() -> Duration>,
    purposes: [PurposeTrace; LockPurpose::ALL.len()],
}

#[derive(Default)]
struct PurposeTrace {
    count: AtomicU64,
    /// Longest hold in nanoseconds.
    longest: AtomicU64,
}

impl LockTrace {
    fn begin(&self, purpose: LockPurpose) -> Timer<'_> {
        let began = self.clock.map(|clock| (clock, clock()));
        Timer { began, purposes: &self.purposes[purpose as usize] }
    }
}

struct Timer<'l> {
    began: Option<(fn() -> Duration, Duration)>,
    purposes: &'l PurposeTrace,
}

impl Timer<'_> {
    fn end(&mut self) {
        let Some((clock, began)) = self.began.take() else { return };
        let held = clock().saturating_sub(began).as_nanos();
        let held = u64::try_from(held).unwrap_or(u64::MAX);
        // Most holds are shorter than the longest one, so they cost one load.
        if held > self.purposes.longest.load(Ordering::Relaxed) {
            self.purposes.longest.fetch_max(held, Ordering::Relaxed);
        }
        self.purposes.count.fetch_add(1, Ordering::Relaxed);
    }
}
