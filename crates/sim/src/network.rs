//! Messages in flight: delayed, lost, duplicated, reordered, or blocked between members.

use std::collections::{BTreeMap, BTreeSet};

use raft_node::{Lane, Outbound};

use crate::chance::Chance;
use crate::count::Statistic;

/// Faults that apply to every message.
#[derive(Clone, Debug)]
pub(crate) struct NetworkFaults {
    pub loss: u64,
    /// Duplicated messages per thousand, except messages that must not be duplicated.
    pub twice: u64,
    /// Maximum delay in microseconds. Later messages may overtake earlier ones.
    pub delay_max: u64,
}

impl NetworkFaults {
    pub fn calm() -> NetworkFaults {
        NetworkFaults { loss: 0, twice: 0, delay_max: 2_000 }
    }

    pub fn rough(chance: &mut Chance) -> NetworkFaults {
        NetworkFaults {
            loss: chance.within(0, 120),
            twice: chance.within(0, 80),
            delay_max: *chance.pick(&[1_000, 5_000, 30_000, 200_000, 600_000]),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The receiver is unreachable; the sender's transport may notice.
    Cut,
    Lost,
    Once(u64),
    Twice(u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeliveryOrder {
    /// In send order, like over TCP: a late message delays all later ones.
    Fifo,
    Any,
}

/// Lane of a single direction between two members.
type LinkId = (u64, u64, bool);

/// Handling of messages that are sent on a broken connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backlog {
    Lost,
    /// Delivered together when the connection works again.
    Delivered,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DelayTail {
    pub messages: u64,
    pub delay_max: u64,
}

pub(crate) struct Network {
    pub faults: NetworkFaults,
    pub tail: DelayTail,
    order: DeliveryOrder,
    cut: BTreeSet<(u64, u64)>,
    /// Broken connections, with the end of the failure and the handling of their messages.
    broken: BTreeMap<LinkId, (u64, Backlog)>,
    /// Arrival time of the last message on each connection.
    newest: BTreeMap<LinkId, u64>,
}

impl Network {
    pub fn new(order: DeliveryOrder) -> Network {
        Network {
            faults: NetworkFaults::calm(),
            tail: DelayTail::default(),
            order,
            cut: BTreeSet::new(),
            broken: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn is_fifo(&self) -> bool {
        self.order == DeliveryOrder::Fifo
    }

    pub fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    pub fn break_lane(&mut self, from: u64, to: u64, lane: Lane, until: u64, backlog: Backlog) {
        self.broken.insert((from, to, lane == Lane::Urgent), (until, backlog));
    }

    pub fn reaches(&self, from: u64, to: u64) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Adds a partition of some shape to the existing ones, and returns the shape.
    pub fn partition(&mut self, ids: &[u64], leader: Option<u64>, chance: &mut Chance) -> Statistic {
        let shapes = [
            Statistic::Splits,
            Statistic::OneWays,
            Statistic::Isolations,
            Statistic::Bridges,
            Statistic::Rings,
        ];
        let shape = *chance.pick(&shapes);
        let one = *chance.pick(ids);
        let inside: BTreeSet<u64> = ids.iter().copied().filter(|_| chance.per_mille(500)).collect();
        let one_way = chance.per_mille(300);
        for a in ids {
            for b in ids.iter().filter(|b| *b != a) {
                let cut = match shape {
                    Statistic::Splits => inside.contains(a) != inside.contains(b),
                    Statistic::OneWays => inside.contains(a) && !inside.contains(b),
                    Statistic::Isolations => {
                        let leader = leader.unwrap_or(one);
                        *a == leader || (*b == leader && !one_way)
                    }
                    // One member sees both halves, which do not see each other.
                    Statistic::Bridges => *a != one && *b != one && inside.contains(a) != inside.contains(b),
                    // Each member sees only two neighbours.
                    _ => {
                        ids.len() > 3
                            && !matches!(a.abs_diff(*b), 1)
                            && a.abs_diff(*b) + 1 != ids.len() as u64
                    }
                };
                if cut {
                    self.cut.insert((*a, *b));
                }
            }
        }
        shape
    }

    pub fn fate(&mut self, now: u64, from: u64, message: &Outbound, chance: &mut Chance) -> Delivery {
        if !self.reaches(from, message.to) {
            return Delivery::Cut;
        }
        if chance.per_mille(self.faults.loss) {
            return Delivery::Lost;
        }
        let connection = (from, message.to, message.lane == Lane::Urgent);
        let broken = self.broken.get(&connection).copied().filter(|(until, _)| *until > now);
        if let Some((_, Backlog::Lost)) = broken {
            return Delivery::Lost;
        }
        let repaired = broken.map_or(now, |(until, _)| until);
        let twice = message.may_arrive_twice() && chance.per_mille(self.faults.twice);
        let mut arrival = || {
            let mut delay = chance.within(50, self.faults.delay_max + 51);
            if self.tail.messages > 0 && chance.per_mille(self.tail.messages) {
                delay = chance.within(0, self.tail.delay_max);
            }
            let at = repaired + delay;
            if self.order == DeliveryOrder::Any {
                return at - now;
            }
            let newest = self.newest.entry(connection).or_default();
            *newest = at.max(*newest);
            *newest - now
        };
        if twice { Delivery::Twice(arrival(), arrival()) } else { Delivery::Once(arrival()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_cuts_and_heals() {
        let ids = [1, 2, 3, 4, 5];
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut network = Network::new(DeliveryOrder::Any);
            let shape = network.partition(&ids, Some(3), &mut Chance::new(seed));
            match shape {
                Statistic::Isolations => assert!(ids.iter().all(|id| *id == 3 || !network.reaches(3, *id))),
                Statistic::Rings => {
                    assert!(network.reaches(1, 5) && network.reaches(2, 3) && !network.reaches(1, 3))
                }
                Statistic::Splits => {
                    assert!(
                        ids.iter()
                            .all(|a| ids.iter().all(|b| network.reaches(*a, *b) == network.reaches(*b, *a)))
                    );
                }
                _ => {}
            }
            seen.insert(shape as usize);
            network.heal();
            assert!(ids.iter().all(|a| ids.iter().all(|b| network.reaches(*a, *b))));
        }
        assert_eq!(seen.len(), 5);
    }

    /// Returns the arrival times of ten messages sent to member 2 at time `now`; None for lost
    /// ones.
    fn arrivals(network: &mut Network, now: u64, lane: Lane) -> Vec<Option<u64>> {
        let mut chance = Chance::new(now);
        // The second byte of a message is its kind; kind 0 may be duplicated.
        let message = Outbound { to: 2, lane, bytes: bytes::Bytes::from_static(&[1, 0]) };
        let mut arrival = || match network.fate(now, 1, &message, &mut chance) {
            Delivery::Once(delay) => Some(now + delay),
            Delivery::Lost | Delivery::Cut => None,
            Delivery::Twice(..) => panic!("nothing is doubled on a calm network"),
        };
        (0..10).map(|_| arrival()).collect()
    }

    #[test]
    fn a_connection_in_order_delays_what_follows_a_late_message() {
        for (order, is_sorted) in [(DeliveryOrder::Fifo, true), (DeliveryOrder::Any, false)] {
            let mut network = Network::new(order);
            network.tail = DelayTail { messages: 300, delay_max: 9_000_000 };
            assert_eq!(arrivals(&mut network, 5, Lane::Bulk).is_sorted(), is_sorted, "{order:?}");
        }
    }

    #[test]
    fn a_broken_connection_loses_or_keeps_what_is_sent_on_it() {
        let mut network = Network::new(DeliveryOrder::Fifo);
        network.break_lane(1, 2, Lane::Bulk, 1_000_000, Backlog::Delivered);
        assert!(arrivals(&mut network, 5, Lane::Bulk).iter().all(|at| *at > Some(1_000_000)));
        assert!(arrivals(&mut network, 5, Lane::Urgent).iter().all(|at| *at < Some(1_000_000)));
        network.break_lane(1, 2, Lane::Urgent, 1_000_000, Backlog::Lost);
        assert_eq!(arrivals(&mut network, 5, Lane::Urgent), [None; 10]);
        assert!(arrivals(&mut network, 1_000_000, Lane::Urgent).iter().all(Option::is_some));
    }
}
