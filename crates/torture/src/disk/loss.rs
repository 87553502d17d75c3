//! Which unsynced changes a power loss drops: one pattern per image, drawn from a seed.
//!
//! Independent of files: decides for a sequence of changes.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Loss patterns, from harsh to mild to unusual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    Synced,
    /// Each unsynced change survives or is lost independently.
    Subset,
    /// Like `Subset`; each 512-byte sector of a surviving write is decided independently.
    Torn512,
    /// Like `Subset`; each 4096-byte page of a surviving write is decided independently.
    Torn4096,
    /// Changes of a file survive up to some point, and none after it.
    Prefix,
    /// Names as the process saw them, bytes only where synced: empty files under final names.
    NamesOnly,
    /// Bytes as the process saw them, names only where synced.
    BytesOnly,
    /// All changes survive: the process died, the machine did not.
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

pub struct Loss {
    manner: Manner,
    chance: SmallRng,
    /// Probability that an unsynced change survives, in random patterns.
    keeps: f64,
}

pub struct Fates {
    /// Index of the first lost change.
    kept_until: usize,
    at: usize,
}

pub struct ChangeLoss<'a> {
    lost: bool,
    /// Unit of partial losses, and the generator that decides.
    torn: Option<(usize, &'a mut SmallRng)>,
}

impl Loss {
    pub fn new(manner: Manner, seed: u64) -> Loss {
        let mut chance = SmallRng::seed_from_u64(seed);
        // Mostly lost, evenly split and mostly kept find different faults.
        let keeps = [0.1, 0.5, 0.9][chance.random_range(0..3)];
        Loss { manner, chance, keeps }
    }

    pub fn nothing() -> Loss {
        Loss::new(Manner::Nothing, 0)
    }

    /// Reports whether the next unsynced change of a name survives.
    pub fn keeps_name(&mut self) -> bool {
        match self.manner {
            Manner::Synced | Manner::BytesOnly => false,
            Manner::NamesOnly | Manner::Nothing => true,
            Manner::Subset | Manner::Torn512 | Manner::Torn4096 | Manner::Prefix => {
                self.chance.random_bool(self.keeps)
            }
        }
    }

    /// Prepares the losses of a file with `changes` unsynced changes.
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

    /// Returns the surviving ranges of a write from `begin` to `end`.
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
