//! Values with 32-bit numbers: half the size of a pointer.
//!
//! Values are in chunks of a fixed size. So a slab of a million values grows without a copy of all of them, and
//! without twice the memory.

use std::ops::{Index, IndexMut};

/// Values in one chunk.
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 8;

pub(crate) struct Slab<T> {
    /// All but the last one are full.
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    /// Values and free places.
    places: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), free: Vec::new(), places: 0 }
    }
}

/// Chunk and place in it.
fn place(number: u32) -> (usize, usize) {
    ((number >> CHUNK_BITS) as usize, number as usize % CHUNK)
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            let (chunk, at) = place(number);
            self.chunks[chunk][at] = Some(value);
            return number;
        }
        let number = u32::try_from(self.places).expect("limits keep the number of values below 2^32");
        let (chunk, _) = place(number);
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[chunk].push(Some(value));
        self.places += 1;
        number
    }

    pub fn remove(&mut self, number: u32) -> T {
        let (chunk, at) = place(number);
        let value = self.chunks[chunk][at].take().expect("a value is removed once");
        self.free.push(number);
        value
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        let (chunk, at) = place(number);
        self.chunks.get(chunk)?.get(at)?.as_ref()
    }

    /// The numbers of all values.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let places = self.chunks.iter().flatten();
        (0u32..).zip(places).filter_map(|(number, value)| value.as_ref().map(|_| number))
    }

    pub fn len(&self) -> usize {
        self.places - self.free.len()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        let (chunk, at) = place(number);
        self.chunks[chunk][at].as_ref().expect("a number refers to a value")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        let (chunk, at) = place(number);
        self.chunks[chunk][at].as_mut().expect("a number refers to a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_across_chunks() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..3 * CHUNK).map(|value| slab.insert(value)).collect();
        assert!(numbers.iter().enumerate().all(|(value, number)| slab[*number] == value));
        for number in numbers.iter().step_by(2) {
            slab.remove(*number);
        }
        assert_eq!((slab.len(), slab.numbers().count()), (3 * CHUNK / 2, 3 * CHUNK / 2));
        assert!(slab.get(0).is_none() && slab.get(1) == Some(&1) && slab.get(4 * CHUNK as u32).is_none());
        for value in 0..3 * CHUNK / 2 {
            slab.insert(value);
        }
        assert_eq!((slab.len(), slab.places), (3 * CHUNK, 3 * CHUNK));
    }
}
