//! Values with 32-bit numbers: half the size of a pointer, and one allocation for all.

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

    /// The numbers of all values.
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
