//! What a power cut takes of that which was not synced: one way per image, drawn from a seed.
//!
//! Knows nothing of files: it is asked about one change after the other.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The ways to lose, from harsh to mild and to odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    /// Only what was synced is left.
    Synced,
    /// Each unsynced change by itself is kept or lost.
    Subset,
    /// As `Subset`, and each 512-byte sector of a kept write by itself.
    Torn512,
    /// As `Subset`, and each 4096-byte page of a kept write by itself.
    Torn4096,
    /// All changes of a file up to some point, none after it.
    Prefix,
    /// Names as the process saw them, bytes only where synced: empty files under final names.
    NamesOnly,
    /// Bytes as the process saw them, names only where synced.
    BytesOnly,
    /// Nothing is lost: the process died, the machine did not.
    Nothing,
}

impl Manner {
    pub const ALL: [Manner; 8] = [
        Manner::Synced,
        Manner::Subset,
        Manner::Torn512,
        Manner::Torn4096,
        Manner::Prefix,
        Manner::NamesOnly,
        Manner::BytesOnly,
        Manner::Nothing,
    ];
}

/// One power cut's losses.
pub struct Loss {
    manner: Manner,
    chance: SmallRng,
    /// How likely an unsynced change is kept, where chance decides.
    keeps: f64,
}

/// The losses of one file.
pub struct Fates {
    /// Changes from this one on are lost.
    kept_until: usize,
    at: usize,
}

/// What becomes of one change.
pub struct ChangeLoss<'a> {
    lost: bool,
    /// The unit in which parts of it are lost, and the chance that decides.
    torn: Option<(usize, &'a mut SmallRng)>,
}

impl Loss {
    pub fn new(manner: Manner, seed: u64) -> Loss {
        let mut chance = SmallRng::seed_from_u64(seed);
        // Mostly lost, mostly kept, and even odds find different faults.
        let keeps = [0.1, 0.5, 0.9][chance.random_range(0..3)];
        Loss { manner, chance, keeps }
    }

    pub fn nothing() -> Loss {
        Loss::new(Manner::Nothing, 0)
    }

    /// Whether the next unsynced change of a name is kept.
    pub fn keeps_name(&mut self) -> bool {
        match self.manner {
            Manner::Synced | Manner::BytesOnly => false,
            Manner::NamesOnly | Manner::Nothing => true,
            Manner::Subset | Manner::Torn512 | Manner::Torn4096 | Manner::Prefix => {
                self.chance.random_bool(self.keeps)
            }
        }
    }

    /// Prepares for a file with so many unsynced changes.
    pub fn fates(&mut self, changes: usize) -> Fates {
        let kept_until = match self.manner {
            Manner::Synced | Manner::NamesOnly => 0,
            Manner::Prefix => self.chance.random_range(0..=changes),
            _ => changes,
        };
        Fates { kept_until, at: 0 }
    }
}

impl Fates {
    pub fn next<'a>(&mut self, loss: &'a mut Loss) -> ChangeLoss<'a> {
        self.at += 1;
        let drawn = match loss.manner {
            Manner::Subset | Manner::Torn512 | Manner::Torn4096 => !loss.chance.random_bool(loss.keeps),
            _ => false,
        };
        let unit = match loss.manner {
            Manner::Torn512 => Some(512),
            Manner::Torn4096 => Some(4096),
            _ => None,
        };
        ChangeLoss {
            lost: drawn || self.at > self.kept_until,
            torn: unit.map(|unit| (unit, &mut loss.chance)),
        }
    }
}

impl ChangeLoss<'_> {
    pub fn whole() -> ChangeLoss<'static> {
        ChangeLoss { lost: false, torn: None }
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The parts of a write from `begin` to `end` that are kept.
    pub fn kept(&mut self, begin: usize, end: usize) -> Vec<(usize, usize)> {
        let Some((unit, chance)) = &mut self.torn else { return vec![(begin, end)] };
        let mut kept = Vec::new();
        let mut from = begin;
        while from < end {
            let to = ((from / *unit + 1) * *unit).min(end);
            if chance.random_bool(0.5) {
                kept.push((from, to));
            }
            from = to;
        }
        kept
    }
}
