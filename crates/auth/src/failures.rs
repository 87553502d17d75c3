//! Rate limit for invalid token signatures, per address and in total.
//!
//! Verifying a signature takes up to a millisecond on a serving thread, and a client may send a
//! different invalid token with each request. Failures are therefore limited per second. Beyond the
//! limit, unknown tokens are rejected without verification.
//!
//! * Valid tokens do not count: a proxy with thousands of users is not slowed down.
//! * Beyond the total, an address without a failure in this second may still have one.
//! * The number of addresses is limited as well. A client with a network of thousands cannot use
//!   them up: a network must leave as many free slots as it occupies.
//! * The caller provides the current second. Counts of earlier seconds are dropped.
//!
//! Must not depend on tokens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use parking_lot::Mutex;

use super::turns::network;

/// Maximum failures per address and second: at most some 16 ms of a core. A client with an expired
/// token sends a handful of requests before it requests a new one; expired tokens are rejected
/// before verification.
const OF_ADDRESS_MAX: u32 = 16;
/// Maximum failures per second in total: at most some quarter of a core.
const TOTAL_MAX: u32 = 256;
/// Maximum addresses per second. Further ones are rejected: verifying even one token of each would
/// exceed a core. Their clients can still log in at this member.
const ADDRESSES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub struct Failures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    second: u64,
    total: u32,
    by_address: HashMap<Option<IpAddr>, u32>,
    addresses: HashMap<Option<IpAddr>, usize>,
}

impl Failures {
    /// Returns the result of `verify`, unless the address has exhausted its failures in this
    /// second. None counts as a failure.
    ///
    /// Failures are counted after verification, so that valid tokens verified concurrently do not
    /// use up the limit. It can thus be exceeded by the number of threads.
    pub fn verified<T>(
        &self,
        address: Option<IpAddr>,
        second: u64,
        verify: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let address = address.map(network);
        if !self.0.lock().has_left(address, second) {
            return None;
        }
        let verified = verify();
        if verified.is_none() {
            self.0.lock().add(address, second);
        }
        verified
    }
}

impl Counts {
    fn has_left(&mut self, address: Option<IpAddr>, second: u64) -> bool {
        if self.second != second {
            *self = Counts { second, ..Counts::default() };
        }
        match self.by_address.get(&address) {
            Some(count) => *count < OF_ADDRESS_MAX && self.total < TOTAL_MAX,
            None => {
                let of_network = self.addresses.get(&address.map(wide_network)).copied().unwrap_or(0);
                of_network < ADDRESSES_MAX - self.by_address.len()
            }
        }
    }

    /// Counts a failure, if the second in which its verification started is still the current one.
    fn add(&mut self, address: Option<IpAddr>, second: u64) {
        if self.second == second {
            let count = self.by_address.entry(address).or_default();
            if *count == 0 {
                *self.addresses.entry(address.map(wide_network)).or_default() += 1;
            }
            *count += 1;
            self.total += 1;
        }
    }
}

/// Returns the network that may belong to a single owner: a 16-bit prefix for IPv4, 32 bits for
/// IPv6.
fn wide_network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() >> 16 << 16)),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 96 << 96)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from_bits(number).into())
    }

    /// Returns how many of 100 invalid tokens of an address are verified.
    fn wrong(failures: &Failures, from: Option<IpAddr>, second: u64) -> u32 {
        let mut looked_at = 0;
        for _ in 0..100 {
            let verified: Option<()> = failures.verified(from, second, || {
                looked_at += 1;
                None
            });
            assert_eq!(verified, None);
        }
        looked_at
    }

    #[test]
    fn an_address_has_so_many_wrong_tokens_in_a_second() {
        let failures = Failures::default();
        assert_eq!(wrong(&failures, address(1), 1), OF_ADDRESS_MAX);
        assert_eq!(failures.verified(address(1), 1, || Some("right")), None, "it has no more");
        assert_eq!(failures.verified(address(2), 1, || Some("right")), Some("right"));
        assert_eq!(failures.verified(None, 1, || Some("right")), Some("right"), "in this process");
        assert_eq!(failures.verified(address(1), 2, || Some("right")), Some("right"), "a second later");
        assert_eq!(wrong(&failures, address(1), 2), OF_ADDRESS_MAX);
    }

    #[test]
    fn right_tokens_count_for_nothing() {
        let failures = Failures::default();
        for _ in 0..10 * TOTAL_MAX {
            assert_eq!(failures.verified(address(1), 1, || Some(())), Some(()));
        }
        assert_eq!(wrong(&failures, address(1), 1), OF_ADDRESS_MAX);
    }

    /// Verifies a number of tokens, each while the previous ones are being verified. Returns the
    /// last result.
    fn at_the_same_time(failures: &Failures, number: u32, last: Option<()>) -> Option<()> {
        failures.verified(address(1), 1, || match number {
            1 => last,
            _ => at_the_same_time(failures, number - 1, last),
        })
    }

    #[test]
    fn tokens_that_are_verified_at_the_same_time_count_when_they_turn_out_wrong() {
        let failures = Failures::default();
        assert_eq!(at_the_same_time(&failures, 10 * OF_ADDRESS_MAX, Some(())), Some(()));
        assert_eq!(wrong(&failures, address(1), 1), OF_ADDRESS_MAX);
        let failures = Failures::default();
        assert_eq!(at_the_same_time(&failures, OF_ADDRESS_MAX, None), None);
        assert_eq!(wrong(&failures, address(1), 1), 0);
    }

    #[test]
    fn a_failure_counts_in_the_second_in_which_it_was_begun() {
        let failures = Failures::default();
        let late: Option<()> = failures.verified(address(1), 1, || {
            assert_eq!(wrong(&failures, address(2), 2), OF_ADDRESS_MAX);
            None
        });
        assert_eq!(late, None);
        assert_eq!(wrong(&failures, address(1), 2), OF_ADDRESS_MAX);
        assert_eq!(wrong(&failures, address(2), 2), 0);
        // A clock that was set back resets the counts.
        assert_eq!(wrong(&failures, address(2), 1), OF_ADDRESS_MAX);
    }

    /// Returns the first address of a separate network.
    fn network_of_v4(number: u32) -> Option<IpAddr> {
        address(number << 16)
    }

    #[test]
    fn many_addresses_have_a_number_together_and_each_has_one() {
        let failures = Failures::default();
        let full = TOTAL_MAX / OF_ADDRESS_MAX;
        assert!((0..full).all(|number| wrong(&failures, network_of_v4(number), 1) == OF_ADDRESS_MAX));
        let addresses = ADDRESSES_MAX as u32;
        assert!((full..addresses).all(|number| wrong(&failures, network_of_v4(number), 1) == 1));
        assert_eq!(wrong(&failures, network_of_v4(addresses), 1), 0);
        assert_eq!(wrong(&failures, network_of_v4(addresses), 2), OF_ADDRESS_MAX);
    }

    #[test]
    fn whoever_has_thousands_of_addresses_leaves_those_of_other_networks_their_places() {
        let v4 = |number: u32| address(0x0a01_0000 + number);
        let v6 = |number: u32| Some(Ipv6Addr::new(0x2001, 0xdb8, 0, number as u16, 0, 0, 0, 1).into());
        let attackers: [fn(u32) -> Option<IpAddr>; 2] = [v4, v6];
        for attacker in attackers {
            let failures = Failures::default();
            let mut looked_at = 0;
            for number in 0..2000 {
                let verified: Option<()> = failures.verified(attacker(number), 1, || {
                    looked_at += 1;
                    None
                });
                assert_eq!(verified, None);
            }
            assert_eq!(looked_at, ADDRESSES_MAX / 2);
            let honest = Some(Ipv4Addr::new(192, 0, 2, 1).into());
            assert_eq!(failures.verified(honest, 1, || Some("right")), Some("right"));
        }
    }
}
