//! Places for connections, of which there is a fixed number: a new one displaces another.
//!
//! * While all places are taken, a newcomer displaces an idle one, of a caller that has as many places as its
//!   own or more: of the caller that has most, what has been idle for the longest time.
//! * What is in use is displaced where nothing is idle, and only to the good of a caller that has fewer. So
//!   many connections of one caller, or of many callers, keep no newcomer out.
//! * Else the newcomer is refused.
//!
//! Knows nothing of what is done on a connection. Its owner ends it when it was displaced.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A number of places.
#[derive(Debug)]
pub struct Places {
    places_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    total: usize,
    next: u64,
    /// By caller, in the order of arrival. No caller is without any.
    callers: HashMap<u64, BTreeMap<u64, Arc<Holder>>>,
}

/// What has a place, or places of several kinds: a connection.
#[derive(Debug, Default)]
pub struct Holder {
    /// What is under way, such as calls.
    in_use: AtomicUsize,
    /// When it was used last, as a number that ascends.
    used: AtomicU64,
    displaced: Notify,
}

/// The place of a holder, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    caller: u64,
    number: u64,
}

/// While this is there, its holder is in use.
#[derive(Debug)]
pub struct InUse(Arc<Holder>);

impl Holder {
    pub fn new() -> Arc<Holder> {
        let holder = Holder::default();
        holder.touch();
        Arc::new(holder)
    }

    /// It is the last one to be displaced of those that are idle.
    pub fn touch(&self) {
        static USES: AtomicU64 = AtomicU64::new(0);
        self.used.store(USES.fetch_add(1, Relaxed), Relaxed);
    }

    pub fn begin(self: &Arc<Self>) -> InUse {
        self.in_use.fetch_add(1, Relaxed);
        InUse(Arc::clone(self))
    }

    /// Returns when another has its place. To be awaited by one owner.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }

    fn is_idle(&self) -> bool {
        self.in_use.load(Relaxed) == 0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.touch();
        self.0.in_use.fetch_sub(1, Relaxed);
    }
}

impl Places {
    pub fn new(places_max: usize) -> Arc<Places> {
        Arc::new(Places { places_max, taken: Mutex::default() })
    }

    /// A place, which may be that of another; `None` if there is none for this caller.
    pub fn take(self: &Arc<Self>, caller: u64, holder: &Arc<Holder>) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.total >= self.places_max && !taken.displace(caller) {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        taken.total += 1;
        taken.callers.entry(caller).or_default().insert(number, Arc::clone(holder));
        Some(Place { places: Arc::clone(self), caller, number })
    }
}

impl TakenPlaces {
    /// Frees a place for a caller. False if none may be taken from its holder.
    fn displace(&mut self, newcomer: u64) -> bool {
        let own = self.callers.get(&newcomer).map_or(0, BTreeMap::len);
        // Of the caller with most, what was used least lately.
        let least = |is_wanted: &dyn Fn(usize, &Holder) -> bool| {
            let callers = self.callers.iter().flat_map(|(caller, held)| {
                held.iter().map(move |(number, holder)| (*caller, held.len(), *number, &**holder))
            });
            let wanted = callers.filter(|(_, size, _, holder)| is_wanted(*size, holder));
            let found = wanted.max_by_key(|(caller, size, _, holder)| {
                (*size, *caller != newcomer, Reverse(holder.used.load(Relaxed)))
            });
            found.map(|(caller, _, number, _)| (caller, number))
        };
        // A caller whose places are all in use must not displace the one of a caller that has just come.
        let idle = least(&|size, holder| size >= own && holder.is_idle());
        let found = idle.or_else(|| least(&|size, _| size > own + 1));
        let Some((caller, number)) = found else { return false };
        if let Some(holder) = self.remove(caller, number) {
            holder.displaced.notify_one();
        }
        true
    }

    fn remove(&mut self, caller: u64, number: u64) -> Option<Arc<Holder>> {
        let held = self.callers.get_mut(&caller)?;
        let holder = held.remove(&number)?;
        self.total -= 1;
        if held.is_empty() {
            self.callers.remove(&caller);
        }
        Some(holder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It is not there any more if it was displaced.
        drop(self.places.taken.lock().remove(self.caller, self.number));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    type Taken = (u64, Arc<Holder>, Option<Place>, Option<InUse>);

    /// Holders that have a place, and their places.
    struct Held(Arc<Places>, Vec<Taken>);

    impl Held {
        fn take(&mut self, caller: u64, is_in_use: bool) -> bool {
            let holder = Holder::new();
            let place = self.0.take(caller, &holder);
            let has_place = place.is_some();
            let in_use = is_in_use.then(|| holder.begin());
            self.1.push((caller, holder, place, in_use));
            has_place
        }

        /// Ends those that were displaced, as their owners do, and says whose they were.
        fn displaced(&mut self) -> Vec<u64> {
            let gone = self.1.extract_if(.., |(_, holder, ..)| holder.displaced().now_or_never().is_some());
            gone.map(|(caller, ..)| caller).collect()
        }

        fn of(&self, caller: u64) -> usize {
            self.0.taken.lock().callers.get(&caller).map_or(0, BTreeMap::len)
        }
    }

    #[test]
    fn idle_places_of_the_caller_with_most_are_lost_first() {
        let mut held = Held(Places::new(8), Vec::new());
        assert!((0..6).all(|number| held.take(1, number < 3)) && held.take(2, false) && held.take(2, true));
        assert!(held.take(3, true) && held.take(3, true));
        assert_eq!((held.displaced(), held.of(1)), (vec![1, 1], 4));
        held.1[3].1.touch();
        assert!(held.take(1, true), "its own idle place");
        assert_eq!(held.displaced(), [1]);
        assert!(held.take(4, true));
        assert_eq!(held.displaced(), [2], "what is idle, also of a caller with few");
        // Of what is in use, down to what the newcomer has.
        assert!(held.take(4, true));
        assert_eq!((held.displaced(), held.of(1)), (vec![1], 3));
        assert!(!held.take(4, true), "no caller has more");
        held.1.clear();
        let taken = held.0.taken.lock();
        assert!(taken.total == 0 && taken.callers.is_empty());
    }

    #[test]
    fn callers_of_many_places_in_use_displace_no_idle_one_of_a_caller_with_few() {
        let mut held = Held(Places::new(9), Vec::new());
        assert!((0..8).all(|number| held.take(number % 2, true)) && held.take(2, false));
        assert!(!held.take(0, true) && !held.take(1, false), "both have four");
        assert_eq!(held.displaced(), [0; 0]);
        assert!(held.take(3, false));
        assert_eq!(held.displaced(), [2], "what is idle");
    }

    #[test]
    fn no_place_in_use_is_lost_while_an_equal_caller_has_idle_ones() {
        let mut held = Held(Places::new(8), Vec::new());
        assert!((0..4).all(|_| held.take(2, true)) && (0..4).all(|number| held.take(1, number > 0)));
        assert!(held.take(3, true));
        assert_eq!(held.displaced(), [1]);
        assert!(held.take(3, true));
        assert_eq!(held.displaced(), [2], "of those in use, one of the caller with most");
    }

    #[test]
    fn many_callers_of_few_connections_each_keep_no_newcomer_out() {
        let mut held = Held(Places::new(32), Vec::new());
        for number in 0..1000 {
            assert!(held.take(number % 100, false));
            held.displaced();
        }
        assert!(held.take(1000, true));
        held.displaced();
        assert_eq!((0..100).map(|caller| held.of(caller)).sum::<usize>(), 31);
        // One that sends what it has to send at once has its answer before it is the oldest.
        assert!((0..10).all(|_| held.take(7, false)));
        assert!(held.displaced().iter().all(|caller| *caller != 1000));
    }
}
