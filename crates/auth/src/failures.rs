//! How many signatures of tokens turn out wrong in a second, by the address that sent them.
//!
//! To verify a signature takes up to a millisecond of a serving thread, and a client may send another wrong
//! token with each request. So the wrong ones of an address in a second are bounded, and those of all
//! addresses. Past the bound tokens that are not known are refused without a look at their signatures.
//!
//! * A right token counts for nothing: a proxy with thousands of users is not slowed down.
//! * Past the number of all, an address without a wrong token in this second still has one.
//! * Addresses are bounded as well. A client with a network of thousands cannot use them up: the addresses of
//!   a network leave as many places as they have.
//! * A second is that of the caller. Nothing is kept of an earlier one.
//!
//! Knows no tokens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use parking_lot::Mutex;

use super::turns::network;

/// Of one address in a second: at most some 16 ms of a core. A client whose token has ended sends a handful
/// of requests with it before it asks for a new one; an ended token is refused before its signature is looked
/// at.
const OF_ADDRESS_MAX: u32 = 16;
/// Of all addresses: at most some quarter of a core.
const TOTAL_MAX: u32 = 256;
/// Addresses in a second. Further ones are refused: their first tokens would be more than a core verifies.
/// Their clients can still log in at this member.
const ADDRESSES_MAX: usize = 1024;

/// Wrong signatures of this second.
#[derive(Debug, Default)]
pub struct Failures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    second: u64,
    total: u32,
    by_address: HashMap<Option<IpAddr>, u32>,
    /// How many addresses of a network are in `by_address`.
    addresses: HashMap<Option<IpAddr>, usize>,
}

impl Failures {
    /// What `verify` returns, unless the address has no further failure in this second. None counts as one.
    ///
    /// Counted when it has turned out: right tokens that many threads verify at the same time do not use up
    /// what an address has. So there may be as many more failures as there are threads.
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

    /// A failure of the second in which it was begun.
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

/// What one owner may have: 16 bits of IPv4, 32 bits of IPv6.
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

    /// How many of many wrong tokens of an address are verified.
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

    /// What a number of tokens comes to of which each is verified while those before it are.
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
        // A clock that was set back begins anew.
        assert_eq!(wrong(&failures, address(2), 1), OF_ADDRESS_MAX);
    }

    /// The first address of a separate network.
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
