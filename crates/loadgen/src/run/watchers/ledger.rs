//! The watched keys, and the record of the puts whose events watchers await.

use crate::client::failure::CallFailure;
use crate::run::worker::CallObserver;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct OpenWatchers {
    pub streams: usize,
    pub per_stream: usize,
    /// Watcher n watches key n modulo their number.
    pub keys: Arc<[Bytes]>,
    pub prev_kv: bool,
    pub awaits: Awaits,
    /// Also measure from the response of a put to its events.
    pub since_answer: bool,
}

/// Events that watchers await.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// Events of the load's puts: put n writes key n modulo their number.
    Puts,
    Nothing,
    /// The given number of existing events from this revision on.
    History {
        revision: i64,
        events: u64,
    },
}

/// Record of the puts, shared with the watchers.
#[derive(Debug)]
pub struct Ledger {
    epoch: Instant,
    /// For each key of the list, the index of its first equal.
    places: Vec<usize>,
    acknowledged: Vec<AtomicU64>,
    failed: Vec<AtomicU64>,
    /// Times by position, in nanoseconds after `epoch`; 0: not yet.
    started: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    loaders: AtomicUsize,
}

impl Ledger {
    pub fn new(watching: &OpenWatchers, loaders: usize, total: u64) -> Self {
        let mut first: HashMap<&Bytes, usize> = HashMap::new();
        let keys = watching.keys.iter().enumerate();
        let places = keys.map(|(place, key)| *first.entry(key).or_insert(place)).collect();
        let zeros = |len: usize| (0..len).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let puts = if watching.awaits == Awaits::Puts { total as usize } else { 0 };
        Self {
            epoch: Instant::now(),
            places,
            acknowledged: zeros(watching.keys.len()),
            failed: zeros(watching.keys.len()),
            started: zeros(puts),
            answered: zeros(puts),
            loaders: AtomicUsize::new(loaders),
        }
    }

    /// Returns the number of events of all watchers if `total` puts succeed.
    pub fn events(&self, watching: &OpenWatchers, total: u64) -> u64 {
        let (len, watchers) = (self.places.len(), watching.streams * watching.per_stream);
        if let Awaits::History { events, .. } = watching.awaits {
            return events * watchers as u64;
        }
        let of_each =
            |all: u64, place: usize| all / len as u64 + u64::from((place as u64) < all % len as u64);
        let mut watchers_of = vec![0; len];
        (0..len).for_each(|place| watchers_of[self.places[place]] += of_each(watchers as u64, place));
        (0..len).map(|place| of_each(total, place) * watchers_of[self.places[place]]).sum()
    }

    /// Returns the numbers of acknowledged and of failed puts of a key.
    pub(super) fn ended_puts(&self, key: usize) -> (u64, u64) {
        let place = self.places[key];
        (self.acknowledged[place].load(SeqCst), self.failed[place].load(SeqCst))
    }

    /// Reports whether a thread still sends.
    pub(super) fn is_loading(&self) -> bool {
        self.loaders.load(SeqCst) > 0
    }

    /// Marks a sending thread as finished.
    pub fn loader_ended(&self) {
        self.loaders.fetch_sub(1, SeqCst);
    }

    fn place(&self, position: u64) -> usize {
        self.places[(position % self.places.len() as u64) as usize]
    }

    /// Returns the start of an event's latency, and the time of the put's response if there was one; `None`
    /// if no such put was sent.
    pub(super) fn put(&self, position: u64) -> Option<(Instant, Option<Instant>)> {
        let position = usize::try_from(position).ok()?;
        let at = |times: &[AtomicU64]| match times.get(position).map(|time| time.load(SeqCst)) {
            None | Some(0) => None,
            Some(nanos) => Some(self.epoch + Duration::from_nanos(nanos)),
        };
        Some((at(&self.started)?, at(&self.answered)))
    }

    /// Returns the latency starts of the acknowledged puts of a key, in order.
    pub(super) fn acknowledged_puts(&self, key: usize) -> Vec<Instant> {
        let place = self.places[key];
        let positions = (0..self.answered.len() as u64).filter(|position| self.place(*position) == place);
        let puts = positions.filter_map(|position| self.put(position));
        let mut since: Vec<_> = puts.filter_map(|(since, answered)| answered.map(|_| since)).collect();
        since.sort_unstable();
        since
    }

    fn note(&self, times: &[AtomicU64], position: u64, moment: Instant) {
        let nanos = moment.saturating_duration_since(self.epoch).as_nanos() as u64;
        times[position as usize].store(nanos.max(1), SeqCst);
    }
}

impl CallObserver for Ledger {
    fn sent(&self, position: u64, clock_from: Instant) {
        self.note(&self.started, position, clock_from);
    }

    fn acknowledged(&self, position: u64, _key: Bytes, _revision: i64) {
        self.note(&self.answered, position, Instant::now());
        self.acknowledged[self.place(position)].fetch_add(1, SeqCst);
    }

    fn failed(&self, position: u64, _failure: &CallFailure) {
        self.failed[self.place(position)].fetch_add(1, SeqCst);
    }
}
