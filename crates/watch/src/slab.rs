//! Slab with 32-bit indexes: half the size of a pointer, and a single allocation. Also lists of
//! watchers ordered by next revision.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(value);
                slot
            }
            None => {
                self.slots.push(Some(value));
                u32::try_from(self.slots.len() - 1).expect("limits keep the number of values below 2^32")
            }
        }
    }

    pub fn remove(&mut self, slot: u32) -> T {
        let value = self.slots[slot as usize].take().expect("a value is removed once");
        self.free.push(slot);
        value
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.slots).filter_map(|(number, value)| value.as_ref().map(|_| number))
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.slots[slot as usize].as_ref().expect("a number refers to a value")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].as_mut().expect("a number refers to a value")
    }
}

/// Lists of watchers by revision. A watcher stores its revision and its index in the list.
#[derive(Default)]
pub(crate) struct Positions {
    lists: BTreeMap<i64, Vec<u32>>,
    len: usize,
}

impl Positions {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a watcher, and returns its index.
    pub fn insert(&mut self, next: i64, watcher: u32) -> u32 {
        let list = self.lists.entry(next).or_default();
        list.push(watcher);
        self.len += 1;
        list.len() as u32 - 1
    }

    /// Removes the watcher at an index, and returns the watcher that moved there.
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

    pub fn first_from(&self, from: i64) -> Option<i64> {
        self.lists.range(from..).next().map(|(next, _)| *next)
    }

    pub fn last(&self) -> Option<i64> {
        self.lists.last_key_value().map(|(next, _)| *next)
    }

    /// Returns up to `max` watchers with a revision between the two. They stay in their lists.
    pub fn between(&self, from: i64, through: i64, max: usize) -> Vec<u32> {
        if through < from {
            return Vec::new();
        }
        self.lists.range(from..=through).flat_map(|(_, list)| list).take(max).copied().collect()
    }
}
