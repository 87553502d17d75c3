//! Slots for claims that are being checked.
//!
//! Invariants:
//! - At most [`PLACES_MAX`] claims are checked concurrently, and equal claims once.
//! - A claim from an address without a slot evicts the oldest claim of the address with the most slots, so
//!   that an address that fills all slots does not delay other addresses.
//! - Otherwise a claim evicts the oldest one of the same address, if that is at least [`KEPT_FOR`] old.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Maximum number of concurrent checks. A further claim evicts an older one, or is dropped and repeated with
/// the sender's next attempt.
pub(super) const PLACES_MAX: usize = 4;
/// Minimum age for an eviction by the same address. Four intercontinental round trips, enough to verify an
/// honest claim.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(1);

/// Source of a claim: an address, or None for a Unix socket. A 64-bit IPv6 network counts as one address.
type ClaimSource = Option<IpAddr>;

#[derive(Debug)]
struct ClaimPlace {
    id: u64,
    urls: Vec<String>,
    source: ClaimSource,
    began: Instant,
    displaced: Arc<Notify>,
}

/// Slot of one check.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub number: u64,
    /// Notified when the slot is reassigned.
    pub displaced: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct ClaimPlaces {
    /// Slots by number: the first is the oldest.
    held: BTreeMap<u64, ClaimPlace>,
    next: u64,
}

impl ClaimPlaces {
    /// Acquires a slot to check that the member `id` is at `urls`, if one is available. The caller releases
    /// it with [`ClaimPlaces::end`].
    pub fn begin(&mut self, id: u64, urls: &[String], source: ClaimSource, now: Instant) -> Option<Ticket> {
        let source = source.map(network);
        if self.held.values().any(|place| place.id == id && place.urls == urls) {
            return None;
        }
        if self.held.len() >= PLACES_MAX {
            let number = self.displaceable(source, now)?;
            let place = self.held.remove(&number).expect("it was found there");
            place.displaced.notify_one();
        }
        let (number, displaced) = (self.next, Arc::default());
        self.next += 1;
        let place =
            ClaimPlace { id, urls: urls.to_vec(), source, began: now, displaced: Arc::clone(&displaced) };
        self.held.insert(number, place);
        Some(Ticket { number, displaced })
    }

    pub fn end(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// Returns the slot that a claim from `source` may evict.
    fn displaceable(&self, source: ClaimSource, now: Instant) -> Option<u64> {
        let count = |source| self.held.values().filter(|place| place.source == source).count();
        let most = self.held.iter().max_by_key(|(number, place)| (count(place.source), Reverse(**number)));
        let (oldest, of) = most?;
        let ours = count(source);
        if ours == 0 || ours + 1 < count(of.source) {
            return Some(*oldest);
        }
        let own = self.held.iter().find(|(_, place)| place.source == source);
        own.filter(|(_, place)| now >= place.began + KEPT_FOR).map(|(number, _)| *number)
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => address.into(),
            None => IpAddr::from((address.to_bits() >> 64 << 64).to_be_bytes()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acquires a slot and returns its number.
    fn take(places: &mut ClaimPlaces, id: u64, source: &str, now: Instant) -> Option<u64> {
        let urls = vec![format!("http://{source}:{id}")];
        places.begin(id, &urls, Some(source.parse().unwrap()), now).map(|ticket| ticket.number)
    }

    fn sources(places: &ClaimPlaces) -> Vec<String> {
        places.held.values().map(|place| place.source.unwrap().to_string()).collect()
    }

    #[test]
    fn an_address_that_fills_all_places_delays_no_other() {
        let (mut places, now) = (ClaimPlaces::default(), Instant::now());
        for id in 0..100 {
            assert_eq!(take(&mut places, id, "10.0.0.1", now).is_some(), id < PLACES_MAX as u64);
        }
        assert!(take(&mut places, 7, "10.0.0.2", now).is_some(), "the newest of an address with none");
        assert!(take(&mut places, 8, "10.0.0.3", now).is_some());
        assert_eq!(sources(&places), ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        for id in 200..300 {
            assert_eq!(take(&mut places, id, "10.0.0.1", now), None, "{id}");
        }
        assert!(take(&mut places, 9, "10.0.0.1", now + KEPT_FOR).is_some(), "its own oldest");
        assert_eq!(sources(&places), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let (mut places, now) = (ClaimPlaces::default(), Instant::now());
        let taken = (0..100).filter_map(|id| take(&mut places, id, &format!("fd00::{id:x}"), now)).count();
        assert_eq!(taken, PLACES_MAX);
        assert!(take(&mut places, 100, "::ffff:10.0.0.2", now).is_some());
        assert_eq!(sources(&places).last().unwrap(), "10.0.0.2");
    }

    #[tokio::test]
    async fn the_same_claim_is_checked_once_at_a_time_and_a_displaced_one_is_told() {
        let (mut places, now) = (ClaimPlaces::default(), Instant::now());
        let urls = ["http://a:1".to_owned()];
        let first = places.begin(1, &urls, None, now).unwrap();
        assert!(places.begin(1, &urls, None, now).is_none());
        // A forged claim of the same ID at another address does not block this one.
        for id in 0..PLACES_MAX as u64 {
            take(&mut places, id, "10.0.0.1", now);
        }
        assert_eq!(places.held.len(), PLACES_MAX);
        take(&mut places, 9, "10.0.0.9", now);
        assert!(places.held.contains_key(&first.number), "the address with most places lost one");
        for id in 20..24 {
            take(&mut places, id, &format!("10.0.1.{id}"), now);
        }
        assert!(!places.held.contains_key(&first.number));
        first.displaced.notified().await;
        places.end(first.number);
        assert_eq!(places.held.len(), PLACES_MAX);
    }
}
