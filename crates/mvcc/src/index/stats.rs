//! Memory usage of the index, computed from its contents.
//!
//! The result depends only on the keys and their histories, not on the order of insertion, the shape of
//! leaves, the capacity of vectors or the allocator. Members with the same index report the same value.
//!
//! Each constant is a measured cost with the server's allocator, rounded up (`examples/memory.rs`).

use super::history::KeyHistory;

/// Memory of a key with one record, without the bytes of the key: 24 of history, 4 of end, and its
/// share of the leaf's unused capacity, of the leaf and of the tree. Measured: 33 to 50, more if every
/// other key is a long one.
const KEY_BYTES: u64 = 64;
/// Additional memory of a boxed history: 72 + 32 with its vector of revisions, and two allocations.
const MANY_BYTES: u64 = 128;
/// Memory of a revision in a vector that may be half full.
const RECORD_BYTES: u64 = 32;
/// Memory of a closed generation: 48, in a vector that may be half full, and a separate vector of
/// revisions.
const ENDED_BYTES: u64 = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexStats {
    pub keys: u64,
    pub key_bytes: u64,
    pub records: u64,
    /// Boxed histories.
    pub many: u64,
    /// Generations before the latest one of their key.
    pub ended: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryShape {
    many: u64,
    ended: u64,
}

impl HistoryShape {
    pub fn of(history: &KeyHistory) -> Self {
        HistoryShape { many: u64::from(history.is_many()), ended: history.ended() as u64 }
    }
}

impl IndexStats {
    pub fn add_key(&mut self, key_bytes: usize, history: &KeyHistory) {
        self.keys += 1;
        self.key_bytes += key_bytes as u64;
        self.records += 1;
        self.add(HistoryShape::of(history));
    }

    pub fn add_record(&mut self, before: HistoryShape, after: HistoryShape) {
        self.records += 1;
        self.remove(before);
        self.add(after);
    }

    /// Counts a pruned key; `after` is `None` if the key was removed.
    pub fn prune(
        &mut self,
        key_bytes: usize,
        dropped: usize,
        before: HistoryShape,
        after: Option<HistoryShape>,
    ) {
        self.records -= dropped as u64;
        self.remove(before);
        match after {
            Some(after) => self.add(after),
            None => {
                self.keys -= 1;
                self.key_bytes -= key_bytes as u64;
            }
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        let superseded = self.records.saturating_sub(self.keys);
        self.key_bytes
            + KEY_BYTES * self.keys
            + MANY_BYTES * self.many
            + RECORD_BYTES * superseded
            + ENDED_BYTES * self.ended
    }

    fn add(&mut self, shape: HistoryShape) {
        self.many += shape.many;
        self.ended += shape.ended;
    }

    fn remove(&mut self, shape: HistoryShape) {
        self.many -= shape.many;
        self.ended -= shape.ended;
    }
}
