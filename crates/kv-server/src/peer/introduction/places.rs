//! Claims that are being checked, and who made them.
//!
//! Invariants:
//! - At most [`PLACES_MAX`] claims are checked at a time, and the same claim once.
//! - A claim from an address that has none takes the oldest place of the address that has most. So an address
//!   that fills all places delays no other address.
//! - Of one address, a claim takes the oldest place if that has been held for [`KEPT_FOR`].

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A claim beyond it displaces an older one, or is not checked and comes again with the sender's next
/// attempt.
pub(super) const PLACES_MAX: usize = 4;
/// Four round trips between continents: an honest claim is verified in this time.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(1);

/// Where a claim comes from: an address, or a Unix socket. An IPv6 network of 64 bits is one address.
type ClaimSource = Option<IpAddr>;

#[derive(Debug)]
struct ClaimPlace {
    id: u64,
    urls: Vec<String>,
    source: ClaimSource,
    began: Instant,
    displaced: Arc<Notify>,
}

/// A place for one check.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub number: u64,
    /// Notified once when another claim has the place.
    pub displaced: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct ClaimPlaces {
    /// By number, so that the first is the oldest.
    held: BTreeMap<u64, ClaimPlace>,
    next: u64,
}

impl ClaimPlaces {
    /// A place to check that the member `id` is at `urls`, if there is one. To be followed by
    /// [`ClaimPlaces::end`].
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

    /// The place that a claim from `source` takes.
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

    /// Takes a place, and says whether there was one.
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
        // A liar's claim of the same id at another address does not hold up this one.
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
