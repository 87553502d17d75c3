//! Fair sharing of a limit among clients.
//!
//! * A connection leaves at least as much free as it holds. The first takes at most half of the limit,
//!   a second one a quarter.
//! * All connections of one caller leave at least a third of their sum free, so a quarter of the limit
//!   remains for other callers however many connections one caller opens.
//! * A caller is over its share if little is free and it holds more than an equal part of the limit. It
//!   should then release its unused part, so shares shrink as more callers arrive.
//!
//! The caller of a connection is its user or, without one, its address.
//!
//! Independent of clocks, locks, and the resource that is shared.

use std::collections::HashMap;

/// Maximum ratio of a caller's total to the free part.
const CALLER_FACTOR: u64 = 3;
/// Little is free when less than 1/`FREE_PART` of the limit is.
const FREE_PART: u64 = 4;

/// A connection and its caller. Connection numbers are unique within a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ClientId {
    pub caller: u64,
    pub connection: u64,
}

impl ClientId {
    /// Returns the id of a caller with a single connection.
    pub const fn alone(number: u64) -> ClientId {
        ClientId { caller: number, connection: number }
    }
}

/// Amounts held, including the requested amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareUse {
    pub total: u64,
    pub caller: u64,
    pub connection: u64,
}

impl ShareUse {
    /// Returns the free amount, after the request, that the connection and its caller must leave.
    pub fn needs(&self) -> u64 {
        let of_caller = self.caller.saturating_add(self.connection.saturating_mul(CALLER_FACTOR + 1));
        let is_alone = self.caller == self.connection;
        if is_alone { self.connection } else { self.connection.max(of_caller.div_ceil(CALLER_FACTOR)) }
    }

    /// Reports whether the connection and its caller leave enough of `bound` free.
    pub fn leaves_enough(&self, bound: u64) -> bool {
        if crate::mutant("first-come-first-served") {
            return self.total <= bound;
        }
        bound.checked_sub(self.total).is_some_and(|free| self.needs() <= free)
    }

    /// Reports whether the caller should release its unused part, given the number of callers that hold
    /// something.
    pub fn is_over(&self, bound: u64, callers: usize) -> bool {
        bound.saturating_sub(self.total) < bound / FREE_PART && self.caller > bound / (callers as u64 + 1)
    }
}

/// Amounts of a shared limit held by each client.
#[derive(Debug, Default)]
pub struct Shares {
    total: u64,
    connections: HashMap<ClientId, u64>,
    callers: HashMap<u64, u64>,
}

impl Shares {
    /// Returns the amounts held if the client took `weight` more.
    pub fn with(&self, client: ClientId, weight: u64) -> ShareUse {
        ShareUse {
            total: self.total + weight,
            caller: self.callers.get(&client.caller).map_or(0, |held| *held) + weight,
            connection: self.held(client) + weight,
        }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the amount held by a client.
    pub fn held(&self, client: ClientId) -> u64 {
        self.connections.get(&client).map_or(0, |held| *held)
    }

    /// Returns the number of callers that hold something.
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    pub fn add(&mut self, client: ClientId, weight: u64) {
        if weight > 0 {
            self.total += weight;
            *self.connections.entry(client).or_default() += weight;
            *self.callers.entry(client.caller).or_default() += weight;
        }
    }

    /// Releases an amount that `add` added.
    pub fn remove(&mut self, client: ClientId, weight: u64) {
        if weight > 0 {
            self.total -= weight;
            subtract(&mut self.connections, client, weight);
            subtract(&mut self.callers, client.caller, weight);
        }
    }
}

/// Subtracts `weight`, and removes an entry that reaches zero.
fn subtract<K: Eq + std::hash::Hash>(held: &mut HashMap<K, u64>, key: K, weight: u64) {
    let own = held.get_mut(&key).expect("what is given back was held");
    *own -= weight;
    if *own == 0 {
        held.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each client in order as much as it can take.
    fn fill(bound: u64, clients: impl Iterator<Item = ClientId>) -> (Shares, Vec<u64>) {
        let mut shares = Shares::default();
        let taken = clients.map(|client| {
            while shares.with(client, 1).leaves_enough(bound) {
                shares.add(client, 1);
            }
            shares.held(client)
        });
        let taken = taken.collect();
        (shares, taken)
    }

    #[test]
    fn a_caller_with_any_number_of_connections_leaves_a_quarter() {
        let of = |caller| move |connection| ClientId { caller, connection };
        let (mut shares, taken) = fill(64, (0..1000).map(of(1)).chain((0..10).map(of(2))));
        assert_eq!((&taken[..6], taken[..1000].iter().sum::<u64>()), (&[32, 8, 4, 2, 1, 0][..], 47));
        assert_eq!(taken[1000..1003], [8, 2, 1], "of the rest");
        shares.remove(of(1)(0), 32);
        assert_eq!((shares.total(), shares.callers()), (26, 2));
    }

    #[test]
    fn a_caller_alone_on_each_connection_leaves_as_much_as_it_holds() {
        assert_eq!(fill(64, (0..6).map(ClientId::alone)).1, [32, 16, 8, 4, 2, 1]);
    }

    #[test]
    fn a_share_shrinks_as_others_come() {
        let held = |total, caller| ShareUse { total, caller, connection: 0 };
        for (total, caller, callers, is_over) in [
            (75, 75, 1, false),
            (76, 76, 1, true),
            (76, 38, 1, false),
            (100, 10, 9, false),
            (100, 10, 10, true),
        ] {
            assert_eq!(held(total, caller).is_over(100, callers), is_over, "{caller} of {total}, {callers}");
        }
    }
}
