//! Watchers in the order of their next revision.

use std::collections::BTreeMap;

/// Lists of watchers by revision. A watcher knows its revision and its place in the list.
#[derive(Default)]
pub(crate) struct Positions {
    lists: BTreeMap<i64, Vec<u32>>,
    len: usize,
}

impl Positions {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a watcher, and returns its place.
    pub fn insert(&mut self, next: i64, watcher: u32) -> u32 {
        let list = self.lists.entry(next).or_default();
        list.push(watcher);
        self.len += 1;
        list.len() as u32 - 1
    }

    /// Removes the watcher at a place, and returns the one that moved to it.
    pub fn remove(&mut self, next: i64, place: u32) -> Option<u32> {
        let list = self.lists.get_mut(&next).expect("a watcher is in the list of its revision");
        list.swap_remove(place as usize);
        self.len -= 1;
        let moved = list.get(place as usize).copied();
        if list.is_empty() {
            self.lists.remove(&next);
        }
        moved
    }

    /// The first revision at or after `from`.
    pub fn first_from(&self, from: i64) -> Option<i64> {
        self.lists.range(from..).next().map(|(next, _)| *next)
    }

    pub fn last(&self) -> Option<i64> {
        self.lists.last_key_value().map(|(next, _)| *next)
    }

    /// Up to `max` watchers whose revision is between the two. They stay in their lists.
    pub fn between(&self, from: i64, through: i64, max: usize) -> Vec<u32> {
        if through < from {
            return Vec::new();
        }
        self.lists.range(from..=through).flat_map(|(_, list)| list).take(max).copied().collect()
    }
}
