//! The largest names of a stream, by weight, in bounded memory: Space-Saving (Metwally and others, 2005).
//!
//! * There are at most `capacity` counters. A new name takes over the smallest one, and its count.
//! * A count is never too small. It is too large by at most the sum of all weights divided by `capacity`.
//! * A name with a true weight above that bound always has a counter.
//!
//! A known name costs one look-up in a hash table. A new name costs a scan of all counters as well.

use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Sketch {
    capacity: usize,
    counters: Vec<Counter>,
    /// Index of each name in `counters`. The hash is keyed: clients cannot make names collide.
    places: HashMap<Arc<[u8]>, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub name: Arc<[u8]>,
    pub count: u64,
}

impl Sketch {
    /// Returns an empty sketch. `capacity` must be at least 1.
    pub fn new(capacity: usize) -> Sketch {
        assert!(capacity > 0, "a sketch has a counter");
        Sketch { capacity, counters: Vec::new(), places: HashMap::new() }
    }

    pub fn add(&mut self, name: &[u8], weight: u64) {
        if weight == 0 {
            return;
        }
        if let Some(place) = self.places.get(name) {
            let count = &mut self.counters[*place].count;
            *count = count.saturating_add(weight);
            return;
        }
        let name: Arc<[u8]> = name.into();
        let place = self.counters.len();
        if place < self.capacity {
            self.counters.push(Counter { name: Arc::clone(&name), count: weight });
            self.places.insert(name, place);
            return;
        }
        let smallest = self.counters.iter().enumerate().min_by_key(|(_, counter)| counter.count);
        let (place, _) = smallest.expect("a sketch has a counter");
        let counter = &mut self.counters[place];
        self.places.remove(&counter.name);
        counter.name = Arc::clone(&name);
        counter.count = counter.count.saturating_add(weight);
        self.places.insert(name, place);
    }

    /// Returns the count of a name; 0 if it has no counter.
    pub fn count(&self, name: &[u8]) -> u64 {
        self.places.get(name).map_or(0, |place| self.counters[*place].count)
    }

    /// Returns the `most` largest counters, largest first; equal ones by name.
    pub fn largest(&self, most: usize) -> Vec<Counter> {
        let mut counters = self.counters.clone();
        counters.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        counters.truncate(most);
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_takes_over_the_smallest_counter() {
        let mut sketch = Sketch::new(2);
        for (name, weight) in [("a", 5), ("b", 2), ("c", 1), ("zero", 0)] {
            sketch.add(name.as_bytes(), weight);
        }
        let counts = ["a", "b", "c", "zero"].map(|name| sketch.count(name.as_bytes()));
        assert_eq!(counts, [5, 0, 3, 0]);
        let largest: Vec<_> = sketch.largest(9).into_iter().map(|counter| counter.count).collect();
        assert_eq!(largest, [5, 3]);
    }

    #[test]
    fn a_flood_of_random_names_hides_no_large_one_and_takes_no_more_memory() {
        let mut sketch = Sketch::new(100);
        for number in 0..10_000u32 {
            sketch.add(&number.to_be_bytes(), 1);
            if number % 50 == 0 {
                sketch.add(b"victim", 1);
            }
        }
        assert_eq!((sketch.counters.len(), sketch.places.len()), (100, 100));
        // 200 of 10,200 are above the bound of a hundredth.
        assert!((200..=302).contains(&sketch.count(b"victim")), "{}", sketch.count(b"victim"));
    }

    #[test]
    fn counts_are_within_the_bound() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..300 {
            let mut sketch = Sketch::new(10);
            let (mut exact, mut total) = (HashMap::new(), 0);
            for _ in 0..next(400) {
                let most = next(40) + 1;
                let (name, weight) = (next(most), next(9) + 1);
                sketch.add(&name.to_be_bytes(), weight);
                *exact.entry(name).or_insert(0) += weight;
                total += weight;
            }
            let bound = total / 10;
            for (name, weight) in exact {
                let count = sketch.count(&name.to_be_bytes());
                let is_right =
                    if count == 0 { weight <= bound } else { (weight..=weight + bound).contains(&count) };
                assert!(is_right, "{count} for {weight}, bound {bound}");
            }
        }
    }
}
