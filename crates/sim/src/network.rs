//! Messages on their way: late, lost, twice, in another order, or not at all between members that cannot talk.

use std::collections::BTreeSet;

use raft_node::Outbound;

use crate::chance::Chance;

/// What the network does to messages.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    /// Lost, of a thousand.
    pub loss: u64,
    /// Delivered twice, of a thousand; never one that must not be.
    pub twice: u64,
    /// Longest delay in microseconds. Later messages overtake earlier ones.
    pub delay_max: u64,
}

impl Weather {
    pub fn calm() -> Weather {
        Weather { loss: 0, twice: 0, delay_max: 2_000 }
    }

    pub fn rough(chance: &mut Chance) -> Weather {
        Weather {
            loss: chance.within(0, 80),
            twice: chance.within(0, 50),
            delay_max: *chance.pick(&[1_000, 5_000, 30_000, 200_000]),
        }
    }
}

pub(crate) struct Network {
    pub weather: Weather,
    /// Ordered pairs that cannot talk.
    cut: BTreeSet<(u64, u64)>,
}

impl Network {
    pub fn new() -> Network {
        Network { weather: Weather::calm(), cut: BTreeSet::new() }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn reaches(&self, from: u64, to: u64) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Separates a random part of the members from the rest, in both directions or in one.
    pub fn partition(&mut self, ids: &[u64], chance: &mut Chance) {
        let inside: BTreeSet<u64> = ids.iter().copied().filter(|_| chance.per_mille(500)).collect();
        let one_way = chance.per_mille(250);
        for a in ids {
            for b in ids {
                if inside.contains(a) && !inside.contains(b) {
                    self.cut.insert((*a, *b));
                    if !one_way {
                        self.cut.insert((*b, *a));
                    }
                }
            }
        }
    }

    /// When the copies of `message` arrive, from now; none if it is lost.
    pub fn arrivals(&self, from: u64, message: &Outbound, chance: &mut Chance) -> Vec<u64> {
        if !self.reaches(from, message.to) || chance.per_mille(self.weather.loss) {
            return Vec::new();
        }
        let copies = if message.may_arrive_twice() && chance.per_mille(self.weather.twice) { 2 } else { 1 };
        (0..copies).map(|_| chance.within(50, self.weather.delay_max + 51)).collect()
    }
}
