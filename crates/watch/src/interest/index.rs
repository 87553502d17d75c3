//! Index of all groups by key.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::group::InterestGroup;
use super::ranges::Ranges;
use crate::slab::Slab;

#[derive(Default)]
pub(crate) struct InterestIndex {
    pub groups: Slab<InterestGroup>,
    /// Groups with a single key. Several have the same key if their forms differ.
    exact: HashTable<u32>,
    ranges: Ranges,
    /// Seeded, because clients choose the keys. The order in the table does not affect results.
    hasher: RandomState,
    key_bytes: usize,
}

impl InterestIndex {
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Calls `visit` with each group that has a range containing `key`.
    pub fn visit(&self, key: &[u8], mut visit: impl FnMut(u32, &InterestGroup)) {
        self.visit_exact(key, &mut visit);
        self.ranges.visit(&self.groups, key, &mut |group| visit(group, &self.groups[group]));
    }

    /// Calls `visit` with each single-key group of `key`: one per form at most.
    pub fn visit_exact(&self, key: &[u8], mut visit: impl FnMut(u32, &InterestGroup)) {
        if !self.exact.is_empty() {
            let found = self.exact.iter_hash(self.hasher.hash_one(key));
            found.filter(|group| self.groups[**group].start() == key).for_each(|group| {
                visit(*group, &self.groups[*group]);
            });
        }
    }

    /// Returns the group with the same range and form as `wanted`; `None` if there is none.
    pub fn find(&self, wanted: &InterestGroup) -> Option<u32> {
        if !wanted.is_one_key() {
            return self.ranges.find(&self.groups, wanted);
        }
        let hash = self.hasher.hash_one(wanted.start());
        self.exact.find(hash, |group| self.groups[*group].is_same(wanted)).copied()
    }

    pub fn insert(&mut self, group: InterestGroup) -> u32 {
        self.key_bytes += group.key_bytes();
        let is_one_key = group.is_one_key();
        let slot = self.groups.insert(group);
        if is_one_key {
            let hash = |slot: &u32| self.hasher.hash_one(self.groups[*slot].start());
            self.exact.insert_unique(hash(&slot), slot, hash);
        } else {
            self.ranges.insert(&self.groups, slot);
        }
        slot
    }

    pub fn remove(&mut self, slot: u32) {
        let group = &self.groups[slot];
        assert!(group.members().is_empty(), "a group with watchers is removed");
        if group.is_one_key() {
            let hash = self.hasher.hash_one(group.start());
            let Ok(entry) = self.exact.find_entry(hash, |other| *other == slot) else {
                unreachable!("every group of one key is in the table");
            };
            entry.remove();
        } else {
            self.ranges.remove(&self.groups, slot);
        }
        self.key_bytes -= self.groups.remove(slot).key_bytes();
    }
}
