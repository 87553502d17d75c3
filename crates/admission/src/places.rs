//! A fixed number of places for connections. A newcomer beyond it displaces an unproven connection, or is
//! rejected.
//!
//! ```text
//!   Silent ──first request──▶ Open ──first call with permission──▶ Kept
//!     └── displaced first        └── displaced next                   └── never displaced
//! ```
//!
//! * A connection is [`Use::Silent`] until its first request, [`Use::Open`] while all of its requests were of
//!   a kind that anyone may send, and [`Use::Kept`] from its first call with permission on.
//! * A newcomer displaces a silent connection. An open one is displaced only while the silent ones hold less
//!   than a part of the places ([`SILENT_PART`]): connections that have just arrived have time for their
//!   first request, and a flood of silent ones displaces its own.
//! * Of each kind, the oldest connection of the caller with the most of that kind is displaced.
//! * Kept connections hold their places until they close. While they hold all of them, newcomers are
//!   rejected.
//!
//! Independent of a connection's protocol. The owner of a displaced connection closes it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Silent connections are displaced before open ones while they hold more than this part of the places.
const SILENT_PART: usize = 8;

/// A fixed number of places.
#[derive(Debug)]
pub struct Places {
    places_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    /// Places in use, not counting displaced connections.
    total: usize,
    next: u64,
    silent: DisplaceableSet,
    open: DisplaceableSet,
    /// Numbers of displaced places that their owners have not dropped yet.
    displaced: HashSet<u64>,
}

/// Connections that a newcomer may displace, by caller and order of arrival.
#[derive(Debug, Default)]
struct DisplaceableSet {
    callers: HashMap<u64, BTreeMap<u64, Arc<Holder>>>,
    /// Size, oldest number, and caller of each entry of `callers`. The last one loses its oldest connection.
    by_size: BTreeSet<(usize, Reverse<u64>, u64)>,
    total: usize,
}

/// How a connection was used so far. The order is that of the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Silent,
    Open,
    Kept,
}

/// The owner of a place: a connection. It takes one place.
#[derive(Debug, Default)]
pub struct Holder {
    /// A [`Use`] as a number, so that a call on a kept connection costs one load.
    used: AtomicU8,
    held: Mutex<Option<HeldPlace>>,
    displaced: Notify,
}

/// The place that a holder has taken.
#[derive(Debug)]
struct HeldPlace {
    places: Arc<Places>,
    caller: u64,
    number: u64,
}

/// The right of a holder to its place, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Holder>);

impl Holder {
    pub fn new() -> Arc<Holder> {
        Arc::default()
    }

    /// Notes a request that anyone may send.
    pub fn note_open(self: &Arc<Self>) {
        self.change_use(Use::Open);
    }

    /// Records a call with permission, or a known client: the connection is never displaced afterwards.
    pub fn keep(self: &Arc<Self>) {
        self.change_use(Use::Kept);
    }

    /// Reports whether the connection keeps its places until it closes.
    pub fn is_kept(&self) -> bool {
        self.used.load(Relaxed) == Use::Kept as u8
    }

    fn change_use(self: &Arc<Self>, to: Use) {
        if self.used.load(Relaxed) >= to as u8 {
            return;
        }
        // Held by `Places::take` too: a place is entered with the use that is read under this lock.
        let held = self.held.lock();
        if self.used.fetch_max(to as u8, Relaxed) >= to as u8 {
            return;
        }
        if let Some(HeldPlace { places, caller, number }) = &*held {
            places.taken.lock().change_use(*caller, *number, to);
        }
    }

    fn current_use(&self) -> Use {
        match self.used.load(Relaxed) {
            0 => Use::Silent,
            1 => Use::Open,
            _ => Use::Kept,
        }
    }

    /// Returns when the place was given to another holder, also if that happened before the call. To be
    /// awaited by one task at a time.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
        self.displaced.notify_one();
    }
}

impl Places {
    pub fn new(places_max: usize) -> Arc<Places> {
        Arc::new(Places { places_max, taken: Mutex::default() })
    }

    /// Takes a free place, or that of a displaceable holder. `None` while kept holders have all of them.
    pub fn take(self: &Arc<Self>, caller: u64, holder: &Arc<Holder>) -> Option<Place> {
        let mut held = holder.held.lock();
        let mut taken = self.taken.lock();
        if taken.total >= self.places_max && !taken.displace(self.places_max / SILENT_PART) {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        taken.total += 1;
        if let Some(set) = taken.set_of(holder.current_use()) {
            set.insert(caller, number, Arc::clone(holder));
        }
        *held = Some(HeldPlace { places: Arc::clone(self), caller, number });
        Some(Place(Arc::clone(holder)))
    }
}

impl TakenPlaces {
    /// The displaceable holders of this use; none are kept.
    fn set_of(&mut self, used: Use) -> Option<&mut DisplaceableSet> {
        match used {
            Use::Silent => Some(&mut self.silent),
            Use::Open => Some(&mut self.open),
            Use::Kept => None,
        }
    }

    /// Frees the place of a displaceable holder. False if there is none.
    fn displace(&mut self, silent_min: usize) -> bool {
        let prefers_silent = self.silent.total > silent_min || self.open.total == 0;
        let (first, second) = if prefers_silent {
            (&mut self.silent, &mut self.open)
        } else {
            (&mut self.open, &mut self.silent)
        };
        let Some((number, holder)) = first.pop().or_else(|| second.pop()) else { return false };
        self.displaced.insert(number);
        self.total -= 1;
        holder.displaced.notify_one();
        true
    }

    fn change_use(&mut self, caller: u64, number: u64, to: Use) {
        let removed = self.silent.remove(caller, number).or_else(|| self.open.remove(caller, number));
        if let (Some(holder), Some(set)) = (removed, self.set_of(to)) {
            set.insert(caller, number, holder);
        }
    }

    /// Takes back a place that its owner has dropped.
    fn free(&mut self, caller: u64, number: u64) {
        if self.displaced.remove(&number) {
            return;
        }
        drop(self.silent.remove(caller, number).or_else(|| self.open.remove(caller, number)));
        self.total -= 1;
    }
}

impl DisplaceableSet {
    fn insert(&mut self, caller: u64, number: u64, holder: Arc<Holder>) {
        self.change(caller, |held| drop(held.insert(number, holder)));
    }

    fn remove(&mut self, caller: u64, number: u64) -> Option<Arc<Holder>> {
        self.callers.contains_key(&caller).then(|| self.change(caller, |held| held.remove(&number)))?
    }

    /// Removes the oldest holder of the caller with the most; of several such callers, the oldest of all.
    fn pop(&mut self) -> Option<(u64, Arc<Holder>)> {
        let &(.., caller) = self.by_size.last()?;
        self.change(caller, BTreeMap::pop_first)
    }

    /// Changes the holders of a caller.
    fn change<R>(&mut self, caller: u64, change: impl FnOnce(&mut BTreeMap<u64, Arc<Holder>>) -> R) -> R {
        let rank = |held: &BTreeMap<u64, Arc<Holder>>| {
            held.first_key_value().map(|(oldest, _)| (held.len(), Reverse(*oldest), caller))
        };
        let held = self.callers.entry(caller).or_default();
        let before = rank(held);
        let changed = change(held);
        let after = rank(held);
        if let Some(before) = before {
            self.by_size.remove(&before);
            self.total -= before.0;
        }
        match after {
            Some(after) => {
                self.by_size.insert(after);
                self.total += after.0;
            }
            None => drop(self.callers.remove(&caller)),
        }
        changed
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(HeldPlace { places, caller, number }) = self.0.held.lock().take() {
            places.taken.lock().free(caller, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Holders that have taken a place, with their callers and places.
    struct Bench(Arc<Places>, Vec<(u64, Arc<Holder>, Option<Place>)>);

    impl Bench {
        fn new(places_max: usize) -> Bench {
            Bench(Places::new(places_max), Vec::new())
        }

        fn take(&mut self, caller: u64, used: Use) -> bool {
            let holder = Holder::new();
            let place = self.0.take(caller, &holder);
            let has_place = place.is_some();
            holder.change_use(used);
            if has_place {
                self.1.push((caller, holder, place));
            }
            has_place
        }

        /// Drops displaced holders, as their owners do, and returns their callers.
        fn displaced(&mut self) -> Vec<u64> {
            let gone = self.1.extract_if(.., |(_, holder, _)| holder.displaced().now_or_never().is_some());
            gone.map(|(caller, ..)| caller).collect()
        }
    }

    #[test]
    fn kept_holders_are_never_displaced_and_newcomers_beyond_capacity_are_refused() {
        let mut bench = Bench::new(8);
        assert!((0..8).all(|_| bench.take(1, Use::Kept)));
        // However few connections the newcomer's caller has.
        assert!((2..100).all(|caller| !bench.take(caller, Use::Silent)));
        assert_eq!(bench.displaced(), [0; 0]);
        bench.1.pop();
        assert!(bench.take(2, Use::Silent) && bench.take(3, Use::Silent));
        assert_eq!(bench.displaced(), [2], "the only one that may be");
    }

    #[test]
    fn of_silent_holders_the_oldest_of_the_caller_with_most_is_displaced() {
        let mut bench = Bench::new(4);
        assert!([1, 2, 2, 3].iter().all(|caller| bench.take(*caller, Use::Silent)));
        assert!(bench.take(4, Use::Silent));
        assert_eq!(bench.displaced(), [2]);
        assert!(bench.take(5, Use::Silent));
        assert_eq!(bench.displaced(), [1], "the oldest of those with equally many");
        let mut flood = (0..1000).map(|_| {
            assert!(bench.take(9, Use::Silent));
            bench.displaced()
        });
        assert_eq!(flood.by_ref().take(4).flatten().count(), 4);
        assert!(flood.flatten().all(|caller| caller == 9), "a flood displaces its own");
    }

    #[test]
    fn a_flood_of_silent_holders_displaces_neither_open_nor_kept_ones() {
        let mut bench = Bench::new(32);
        assert!((0..8).all(|_| bench.take(1, Use::Open)) && (0..8).all(|_| bench.take(1, Use::Kept)));
        for number in 0..1000 {
            assert!(bench.take(2 + number % 100, Use::Silent));
            assert!(bench.displaced().iter().all(|caller| *caller != 1), "{number}");
        }
    }

    #[test]
    fn open_holders_leave_newcomers_time_for_their_first_request() {
        let mut bench = Bench::new(32);
        assert!((0..32).all(|number| bench.take(number % 16, Use::Open)));
        assert!((0..4).all(|_| bench.take(100, Use::Silent)));
        assert!(bench.displaced().iter().all(|caller| *caller < 16));
        assert!(bench.1.iter().filter(|(caller, ..)| *caller == 100).count() == 4);
        for (_, holder, _) in bench.1.iter().filter(|(caller, ..)| *caller == 100) {
            holder.keep();
        }
        assert!((0..100).all(|number| bench.take(number % 50, Use::Open)));
        assert!(bench.displaced().iter().all(|caller| *caller != 100));
    }

    #[test]
    fn a_holder_that_was_kept_before_is_never_displaced() {
        let (places, holder) = (Places::new(1), Holder::new());
        holder.keep();
        let place = places.take(1, &holder).unwrap();
        assert!(places.take(2, &Holder::new()).is_none());
        drop(place);
        assert!(places.take(2, &Holder::new()).is_some());
    }

    #[test]
    fn places_are_free_again_when_they_are_dropped() {
        let mut bench = Bench::new(4);
        assert!((0..100).all(|number| bench.take(number % 7, Use::Silent)));
        bench.1.clear();
        let taken = bench.0.taken.lock();
        assert!(taken.total == 0 && taken.displaced.is_empty());
        for set in [&taken.silent, &taken.open] {
            assert!(set.callers.is_empty() && set.by_size.is_empty() && set.total == 0);
        }
    }
}
