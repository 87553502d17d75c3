//! Queue positions, which find the next waiter without a scan.
//!
//! A waiter that needs more free weight than there is gets *parked* under that weight and keeps its
//! position. It becomes ready when enough is free, or when [`Turns::wake`] reports that it may need less.

use std::collections::{BTreeSet, HashMap};

#[derive(Default)]
pub(super) struct Turns {
    next: u64,
    /// Free weight needed and position, by key. The weight is zero for ready waiters.
    places: HashMap<u64, (u64, u64)>,
    order: BTreeSet<(u64, u64, u64)>,
}

impl Turns {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn remove(&mut self, key: u64) {
        if let Some((needed, turn)) = self.places.remove(&key) {
            self.order.remove(&(needed, turn, key));
        }
    }

    fn place(&mut self, key: u64, needed: u64, turn: u64) {
        self.remove(key);
        self.places.insert(key, (needed, turn));
        self.order.insert((needed, turn, key));
    }

    /// Moves a new or existing key to the end of the queue.
    pub fn move_to_end(&mut self, key: u64) {
        self.next += 1;
        self.place(key, 0, self.next);
    }

    /// Parks a queued key until `needed` weight is free.
    pub fn park(&mut self, key: u64, needed: u64) {
        let (_, turn) = self.places[&key];
        self.place(key, needed, turn);
    }

    pub fn wake(&mut self, key: u64) {
        if let Some((1.., turn)) = self.places.get(&key) {
            self.place(key, 0, *turn);
        }
    }

    /// Returns the first ready key. Also wakes one parked key that needs at most `free`.
    pub fn next(&mut self, free: u64) -> Option<u64> {
        if let Some((needed, _, key)) = self.order.range((1, 0, 0)..).next()
            && *needed <= free
        {
            self.wake(*key);
        }
        self.ready().next()
    }

    /// Returns the ready keys in order.
    pub fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.order.iter().take_while(|(needed, ..)| *needed == 0).map(|(.., key)| *key)
    }

    /// Returns the smallest weight that any parked key needs.
    pub fn needed(&self) -> Option<u64> {
        self.order.range((1, 0, 0)..).next().map(|(needed, ..)| *needed)
    }
}
