//! Turns: who is next among those that wait, found without a look at all of them.
//!
//! Who cannot be served before so much is free is *parked* under that number and keeps its turn. It is looked
//! at again when so much is free, or when its owner says that less may do.

use std::collections::{BTreeSet, HashMap};

#[derive(Default)]
pub(super) struct Turns {
    next: u64,
    /// What has to be free, and the turn. Zero for those that are ready.
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

    /// Gives the last turn, to one that may have had an earlier one.
    pub fn move_to_end(&mut self, key: u64) {
        self.next += 1;
        self.place(key, 0, self.next);
    }

    /// Puts off one that has a turn until so much is free.
    pub fn park(&mut self, key: u64, needed: u64) {
        let (_, turn) = self.places[&key];
        self.place(key, needed, turn);
    }

    pub fn wake(&mut self, key: u64) {
        if let Some((1.., turn)) = self.places.get(&key) {
            self.place(key, 0, *turn);
        }
    }

    /// The first that is ready while so much is free. Those that it is enough for become ready one by one.
    pub fn next(&mut self, free: u64) -> Option<u64> {
        if let Some((needed, _, key)) = self.order.range((1, 0, 0)..).next()
            && *needed <= free
        {
            self.wake(*key);
        }
        self.ready().next()
    }

    /// Those that are ready, in turn.
    pub fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.order.iter().take_while(|(needed, ..)| *needed == 0).map(|(.., key)| *key)
    }

    /// The least that has to be free for one that is parked.
    pub fn needed(&self) -> Option<u64> {
        self.order.range((1, 0, 0)..).next().map(|(needed, ..)| *needed)
    }
}
