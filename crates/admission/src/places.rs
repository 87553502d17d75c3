//! Places for connections, of which there is a fixed number: a new one displaces another.
//!
//! * While all places are taken, a newcomer displaces an idle one, of a caller that has as many places as its
//!   own or more: of the caller that has most, its own among equals, what has been idle for the longest time.
//!   What was never used since it came, [`UNUSED_WITHIN`] ago, goes first.
//! * What is in use is displaced where nothing is idle, and only to the good of a caller that has fewer. So
//!   connections of fewer callers than there are places keep no newcomer out. More callers than that, each
//!   with one in use, do.
//! * Else the newcomer is refused.
//! * A newcomer costs at most [`LOOKS_MAX`] looks, at [`LOOKS_AT_ONE_MAX`] places of a caller, which take
//!   turns: of more, the one displaced is the best of those that were looked at.
//!
//! Knows nothing of what is done on a connection. Its owner ends it when it was displaced.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Places that one newcomer looks at: some 20 µs.
const LOOKS_MAX: usize = 256;
const LOOKS_AT_ONE_MAX: usize = 64;

/// Time for the first bytes of a client, a TLS handshake included.
const UNUSED_WITHIN: Duration = Duration::from_secs(1);
/// Of the time of use: it was used at all.
const USED: u64 = 1 << 63;

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
    /// No caller is without any.
    callers: HashMap<u64, HeldPlaces>,
    /// How many a caller has, and the caller.
    by_size: BTreeSet<(usize, u64)>,
}

/// Of one caller.
#[derive(Debug, Default)]
struct HeldPlaces {
    /// In the order of arrival.
    holders: BTreeMap<u64, Arc<Holder>>,
    /// Where the next look begins.
    hand: Cell<u64>,
}

/// What has a place, or places of several kinds: a connection.
#[derive(Debug, Default)]
pub struct Holder {
    /// What is under way, such as calls.
    in_use: AtomicUsize,
    /// When it came, or was used last, in nanoseconds.
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
        Arc::new(Holder { used: AtomicU64::new(Holder::now()), ..Holder::default() })
    }

    /// It is the last one to be displaced of those that are idle.
    pub fn touch(&self) {
        self.used.store(Holder::now() | USED, Relaxed);
    }

    fn now() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        let passed = Instant::now().saturating_duration_since(*START.get_or_init(Instant::now));
        passed.as_nanos() as u64 & !USED
    }

    /// Less for what is to be displaced first.
    fn rank(&self, now: u64) -> u64 {
        let used = self.used.load(Relaxed);
        let is_new = now.saturating_sub(used) < UNUSED_WITHIN.as_nanos() as u64;
        if is_new { used | USED } else { used }
    }

    pub fn begin(self: &Arc<Self>) -> InUse {
        self.in_use.fetch_add(1, Relaxed);
        InUse(Arc::clone(self))
    }

    /// Returns when another has its place, also to an owner that asks later. To be awaited by one at a time.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
        self.displaced.notify_one();
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
        taken.change(caller, |held| drop(held.insert(number, Arc::clone(holder))));
        Some(Place { places: Arc::clone(self), caller, number })
    }
}

/// How well a place is to be displaced: the places of its caller, whether that is the newcomer, and when it
/// was used. Then its caller, and its number.
type Candidate = ((usize, bool, Reverse<u64>), u64, u64);

impl TakenPlaces {
    /// Frees a place for a caller. False if none may be taken from its holder.
    fn displace(&mut self, newcomer: u64) -> bool {
        let own = self.callers.get(&newcomer).map_or(0, |held| held.holders.len());
        let (mut looks, now) = (LOOKS_MAX, Holder::now());
        // Of the caller with most, what was used least lately. A caller whose places are all in use must not
        // displace the one of a caller that has just come.
        let (mut idle, mut in_use): (Option<Candidate>, Option<Candidate>) = (None, None);
        for &(size, caller) in self.by_size.range((own, 0)..).rev() {
            if looks == 0 || idle.as_ref().is_some_and(|((largest, ..), ..)| *largest > size) {
                break;
            }
            let Some(held) = self.callers.get(&caller) else { continue };
            let (begin, mut has_idle) = (held.hand.get(), false);
            for (number, holder) in held.turn(begin).take(looks.min(LOOKS_AT_ONE_MAX)) {
                looks -= 1;
                let is_idle = holder.is_idle();
                // The next look begins there as well while something in it is idle.
                has_idle |= is_idle;
                held.hand.set(if has_idle { begin } else { number + 1 });
                let rank = (size, caller == newcomer, Reverse(holder.rank(now)));
                let best = match is_idle {
                    true => &mut idle,
                    false if size > own + 1 => &mut in_use,
                    false => continue,
                };
                if best.as_ref().is_none_or(|(best, ..)| *best < rank) {
                    *best = Some((rank, caller, number));
                }
            }
        }
        let Some((_, caller, number)) = idle.or(in_use) else { return false };
        if let Some(holder) = self.remove(caller, number) {
            holder.displaced.notify_one();
        }
        true
    }

    fn remove(&mut self, caller: u64, number: u64) -> Option<Arc<Holder>> {
        let removed = self.change(caller, |held| held.remove(&number));
        self.total -= usize::from(removed.is_some());
        removed
    }

    /// Changes the places of a caller.
    fn change<R>(&mut self, caller: u64, change: impl FnOnce(&mut BTreeMap<u64, Arc<Holder>>) -> R) -> R {
        let held = &mut self.callers.entry(caller).or_default().holders;
        self.by_size.remove(&(held.len(), caller));
        let changed = change(held);
        match held.len() {
            0 => drop(self.callers.remove(&caller)),
            size => drop(self.by_size.insert((size, caller))),
        }
        changed
    }
}

impl HeldPlaces {
    /// All places, from one on.
    fn turn(&self, begin: u64) -> impl Iterator<Item = (u64, &Holder)> {
        let turn = self.holders.range(begin..).chain(self.holders.range(..begin));
        turn.map(|(number, holder)| (*number, &**holder))
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
            self.0.taken.lock().callers.get(&caller).map_or(0, |held| held.holders.len())
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
        assert!(taken.total == 0 && taken.callers.is_empty() && taken.by_size.is_empty());
    }

    #[test]
    fn of_callers_with_equally_many_a_newcomer_loses_its_own() {
        let mut held = Held(Places::new(3), Vec::new());
        assert!((0..3).all(|caller| held.take(caller, false)) && held.take(1, false));
        assert_eq!(held.displaced(), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_caller_what_was_never_used_is_displaced_first() {
        let mut held = Held(Places::new(2), Vec::new());
        assert!(held.take(1, false));
        held.1[0].1.touch();
        assert!(held.take(1, false));
        tokio::time::advance(UNUSED_WITHIN).await;
        assert!(held.take(1, false));
        assert!(held.1[0].1.displaced().now_or_never().is_none(), "it was used");
        let silent = &held.1[1].1;
        assert!((0..2).all(|_| silent.displaced().now_or_never().is_some()), "to any owner");
    }

    #[test]
    fn a_newcomer_looks_at_a_bounded_number_of_places() {
        let many = 16 * LOOKS_MAX;
        let mut held = Held(Places::new(many), Vec::new());
        // The idle ones are where no look begins.
        assert!((0..many).all(|number| held.take(1, number < many - 8)));
        let newcomers = many / LOOKS_AT_ONE_MAX + 8;
        let lost: usize = (0..newcomers)
            .map(|_| {
                assert!(held.take(2, true));
                let is_lost = |(_, holder, _, in_use): &mut Taken| {
                    holder.displaced().now_or_never().is_some() && in_use.is_some()
                };
                held.1.extract_if(.., is_lost).count()
            })
            .sum();
        let idle = held
            .1
            .iter()
            .filter(|(caller, _, place, in_use)| *caller == 1 && in_use.is_none() && place.is_some());
        assert_eq!(idle.filter(|(_, holder, ..)| holder.displaced().now_or_never().is_none()).count(), 0);
        assert_eq!(lost, newcomers - 8);
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
