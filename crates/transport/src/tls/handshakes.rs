//! Handshakes in flight. When the table is full, the oldest handshake of the address with the most is
//! evicted: a handshake takes milliseconds, so the oldest of many is one that its client has abandoned. An
//! address evicts handshakes of other addresses only while it does not have more than they do.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A handshake uses some 20 KiB, and at most 64 KiB of received data: 64 MiB in total. As many full
/// handshakes with RSA keys take about a core second, less than their deadline.
pub const HANDSHAKES_MAX: usize = 1024;

/// All handshakes of a port.
#[derive(Clone, Default)]
pub struct Handshakes(Arc<Mutex<OpenHandshakes>>);

#[derive(Default)]
struct OpenHandshakes {
    next_number: u64,
    total: usize,
    /// Handshakes by number, so the first of an address is its oldest.
    open: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
}

impl OpenHandshakes {
    fn remove(&mut self, remote: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let of_address = self.open.get_mut(&remote)?;
        let removed = of_address.remove(&number);
        if of_address.is_empty() {
            self.open.remove(&remote);
        }
        self.total -= usize::from(removed.is_some());
        removed
    }

    /// Returns the oldest handshake of the address with the most; ties go to the address with the oldest.
    fn displaced(&self) -> Option<(IpAddr, u64)> {
        let most = |(_, open): &(_, &BTreeMap<u64, _>)| (open.len(), open.keys().next().map(|first| !first));
        let (remote, open) = self.open.iter().max_by_key(most)?;
        open.keys().next().map(|number| (*remote, *number))
    }
}

/// A handshake in flight; counted until it is dropped.
pub struct Handshake {
    all: Handshakes,
    remote: IpAddr,
    number: u64,
    displaced: Arc<Notify>,
}

impl Handshakes {
    /// Registers a handshake of a client at `remote`.
    pub fn begin(&self, remote: IpAddr) -> Handshake {
        let displaced = Arc::new(Notify::new());
        let remote = network_of(remote);
        let mut all = self.0.lock();
        let number = all.next_number;
        all.next_number += 1;
        all.total += 1;
        all.open.entry(remote).or_default().insert(number, Arc::clone(&displaced));
        if all.total > HANDSHAKES_MAX
            && let Some((remote, number)) = all.displaced()
            && let Some(oldest) = all.remove(remote, number)
        {
            oldest.notify_one();
        }
        Handshake { all: self.clone(), remote, number, displaced }
    }
}

/// Returns the address to count: an IPv6 host has a 64-bit network to choose from.
fn network_of(remote: IpAddr) -> IpAddr {
    match remote {
        IpAddr::V4(_) => remote,
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}

impl Handshake {
    /// Completes when this handshake must be abandoned for newer ones.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.remote, self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Returns the handshakes evicted since the last call.
    fn displaced(open: &[Handshake]) -> Vec<usize> {
        let is_displaced = |at: &usize| open[*at].displaced().now_or_never().is_some();
        (0..open.len()).filter(is_displaced).collect()
    }

    #[test]
    fn a_full_table_gives_up_the_oldest_of_the_address_that_has_most() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (attackers, other) in
            [(["10.0.0.1", "10.0.0.1"], "10.0.0.2"), (["2001:db8::1", "2001:db8::2"], "2001:db8:0:1::1")]
        {
            let attackers = attackers.map(address);
            let handshakes = Handshakes::default();
            let others: Vec<Handshake> = (0..3).map(|_| handshakes.begin(address(other))).collect();
            let mut open = Vec::new();
            for at in 0..HANDSHAKES_MAX - others.len() {
                open.push(handshakes.begin(attackers[at % 2]));
            }
            assert!(displaced(&others).is_empty() && displaced(&open).is_empty());
            open.push(handshakes.begin(attackers[0]));
            assert_eq!((displaced(&others), displaced(&open)), (vec![], vec![0]), "{other}");
            let newest = handshakes.begin(address(other));
            assert_eq!((displaced(&others), displaced(&open)), (vec![], vec![1]), "{other}");
            drop((others, open, newest));
            let all = handshakes.0.lock();
            assert!(all.total == 0 && all.open.is_empty());
        }
    }

    #[test]
    fn of_addresses_with_one_each_the_oldest_is_given_up() {
        let handshakes = Handshakes::default();
        let address = |at: usize| IpAddr::from((at as u32).to_be_bytes());
        let open: Vec<_> = (0..=HANDSHAKES_MAX).map(|at| handshakes.begin(address(at))).collect();
        assert_eq!(displaced(&open), [0]);
    }
}
