//! Messages on their way: late, lost, twice, in another order, or not at all between members that cannot talk.

use std::collections::BTreeSet;

use raft_node::Outbound;

use crate::chance::Chance;
use crate::count::Count;

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
            loss: chance.within(0, 120),
            twice: chance.within(0, 80),
            delay_max: *chance.pick(&[1_000, 5_000, 30_000, 200_000, 600_000]),
        }
    }
}

/// What became of a message that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// No way leads to the receiver; the sender's transport may notice.
    Cut,
    Lost,
    Once(u64),
    Twice(u64, u64),
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

    /// Cuts the members apart in some shape, on top of what is cut already, and tells which shape.
    pub fn partition(&mut self, ids: &[u64], leader: Option<u64>, chance: &mut Chance) -> Count {
        let shapes = [Count::Splits, Count::OneWays, Count::Isolations, Count::Bridges, Count::Rings];
        let shape = *chance.pick(&shapes);
        let one = *chance.pick(ids);
        let inside: BTreeSet<u64> = ids.iter().copied().filter(|_| chance.per_mille(500)).collect();
        let one_way = chance.per_mille(300);
        for a in ids {
            for b in ids.iter().filter(|b| *b != a) {
                let cut = match shape {
                    Count::Splits => inside.contains(a) != inside.contains(b),
                    Count::OneWays => inside.contains(a) && !inside.contains(b),
                    Count::Isolations => {
                        let leader = leader.unwrap_or(one);
                        *a == leader || (*b == leader && !one_way)
                    }
                    // One member sees both halves, which do not see each other.
                    Count::Bridges => *a != one && *b != one && inside.contains(a) != inside.contains(b),
                    // Everybody sees two neighbours only.
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

    /// What becomes of `message`, with delays from now.
    pub fn fate(&self, from: u64, message: &Outbound, chance: &mut Chance) -> Fate {
        if !self.reaches(from, message.to) {
            return Fate::Cut;
        }
        if chance.per_mille(self.weather.loss) {
            return Fate::Lost;
        }
        let twice = message.may_arrive_twice() && chance.per_mille(self.weather.twice);
        let mut delay = || chance.within(50, self.weather.delay_max + 51);
        if twice { Fate::Twice(delay(), delay()) } else { Fate::Once(delay()) }
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
            let mut network = Network::new();
            let shape = network.partition(&ids, Some(3), &mut Chance::new(seed));
            match shape {
                Count::Isolations => assert!(ids.iter().all(|id| *id == 3 || !network.reaches(3, *id))),
                Count::Rings => {
                    assert!(network.reaches(1, 5) && network.reaches(2, 3) && !network.reaches(1, 3))
                }
                Count::Splits => {
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
}
