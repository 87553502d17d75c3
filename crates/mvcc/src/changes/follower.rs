//! A reader of changes that a compaction waits for.
//!
//! A reader that follows the newest revision reads some milliseconds after it was published. A compaction may
//! be applied in between. It takes effect at once for other reads, but its records are removed only after the
//! follower has read them. So the follower misses no change.
//!
//! Invariants:
//! - The next revision to read is pinned. A compaction above it waits before it removes a record.
//! - An installed store has the changes from the next revision on, or has compacted it. Only then a read
//!   fails with `Compacted`.
//!
//! A follower must read on, or be dropped: until then no compaction frees space.

use super::events::Changes;
use super::read::{check_from, find};
use crate::error::Result;
use crate::store::{LockPurpose, Store};

/// Reads changes from a position on. Created by `Store::follow`.
pub struct Follower {
    store: Store,
    /// The next main revision to read. Pinned.
    next: i64,
    /// The generation of the store in which `next` was last found readable.
    generation: u64,
}

impl Store {
    /// A follower whose first change is the next one to be published.
    pub fn follow(&self) -> Follower {
        let state = self.shared.state.read(LockPurpose::Lookup);
        let (next, generation) = (state.revision + 1, state.generation);
        self.shared.pins.add(next);
        drop(state);
        Follower { store: self.clone(), next, generation }
    }
}

impl Follower {
    /// The next main revision to read.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// As `Store::changes` from the next revision on. The position stays.
    ///
    /// Errors: `Compacted` only if a store was installed that has compacted the next revision.
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

    /// Continues at `next`. Changes before it are no longer needed.
    pub fn advance(&mut self, next: i64) {
        assert!(next >= self.next, "a follower goes forward");
        let pins = &self.store.shared.pins;
        pins.add(next);
        pins.remove(self.next);
        self.next = next;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.store.shared.pins.remove(self.next);
    }
}
