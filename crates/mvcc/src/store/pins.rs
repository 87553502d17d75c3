//! Revisions needed by reads in progress.
//!
//! A read with several lock holds pins its revision before it releases the lock for the first time. A
//! compaction takes effect immediately for later reads, but prunes the index only when no older
//! revision is pinned, so reads in progress neither fail nor restart. Pins of later reads do not delay
//! it, because reads cannot start below the compact revision.
//!
//! A pin is taken under the lock, at a revision that is not compacted. An installed store has the same
//! history up to that revision, or has compacted it. Only in the latter case a read in progress fails.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::state::{StoreData, check_not_compacted};
use crate::error::Result;

/// Pinned revisions, each with its number of pins. Its lock is taken after the store's lock, never
/// before it.
#[derive(Default)]
pub(crate) struct Pins {
    counts: Mutex<BTreeMap<i64, usize>>,
}

/// Keeps the history at a revision in the index.
pub(super) struct Pin<'p> {
    pins: &'p Pins,
    at: i64,
    /// Generation of the store in which the revision was last found readable.
    generation: u64,
}

impl Pins {
    pub(super) fn pin(&self, at: i64, state: &StoreData) -> Pin<'_> {
        assert!(at >= state.compact_revision, "a compacted revision is pinned");
        self.add(at);
        Pin { pins: self, at, generation: state.generation }
    }

    /// Adds a pin at a readable revision, or with an older pin held by the caller.
    pub fn add(&self, at: i64) {
        *self.counts.lock().entry(at).or_default() += 1;
    }

    pub fn remove(&self, at: i64) {
        let mut counts = self.counts.lock();
        let count = counts.get_mut(&at).expect("a pin is removed once");
        *count -= 1;
        if *count == 0 {
            counts.remove(&at);
        }
    }

    pub fn any_below(&self, revision: i64) -> bool {
        self.counts.lock().first_key_value().is_some_and(|(at, _)| *at < revision)
    }
}

impl Pin<'_> {
    /// Checks that the revision is still readable. Must be called during each later lock hold, before the
    /// index is read.
    ///
    /// Errors: `Compacted` if an installed store has compacted the revision.
    pub fn check(&mut self, state: &StoreData) -> Result<()> {
        if state.generation != self.generation {
            check_not_compacted(self.at, state.compact_revision)?;
            self.generation = state.generation;
        }
        Ok(())
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.remove(self.at);
    }
}
