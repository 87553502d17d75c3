//! Volatile lease state of a running member: its boot clock, its last anchor, and the term it
//! leads.

use std::time::Duration;

use raft_node::Term;
use state_machine::{Anchor, LeaderTurns, LeaseTable, LedTerm};

use crate::chance::Chance;
use crate::oracle::DRIFT;

/// Boot clock of a member's machine, with a constant drift. It is never set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootClock {
    /// Value at the start of the simulation.
    start: u64,
    /// Speed in thousandths of true time.
    rate: u64,
}

impl BootClock {
    pub fn new(chance: &mut Chance) -> BootClock {
        BootClock { start: chance.within(0, 1 << 40), rate: chance.within(1000 - DRIFT, 1001 + DRIFT) }
    }

    pub fn at(self, now: u64) -> Duration {
        Duration::from_micros(self.start + now * self.rate / 1000)
    }
}

pub(crate) struct Leasing {
    pub table: LeaseTable,
    pub boot_clock: BootClock,
    /// Last applied lease clock, and the time of its application.
    pub newest: Anchor,
    /// Last term in which it started to lead.
    pub led: Option<LedTerm>,
    /// Last term for which turns are scheduled.
    pub planned: Option<Term>,
    /// Turns of the term that it leads, after the first one.
    pub turns: Option<LeaderTurns>,
}

impl Leasing {
    pub fn new(table: LeaseTable, boot_clock: BootClock, now: u64) -> Leasing {
        let newest = Anchor { clock: table.clock(), boot: boot_clock.at(now) };
        Leasing { table, boot_clock, newest, led: None, planned: None, turns: None }
    }

    /// Updates the anchor after an apply.
    pub fn note_clock(&mut self, now: u64) {
        let clock = self.table.clock();
        if clock != self.newest.clock {
            self.newest = Anchor { clock, boot: self.boot_clock.at(now) };
        }
    }

    /// Starts to lead a term, unless it has already started. All entries of earlier terms must be
    /// applied.
    pub fn begin(&mut self, term: Term, now: u64) -> LedTerm {
        if let Some(led) = self.led.filter(|led| led.term == term) {
            return led;
        }
        self.turns = None;
        *self.led.insert(LedTerm::begin(term, self.newest, self.boot_clock.at(now)))
    }

    /// Returns the lease clock of a term, or the last applied one if the term is over: commands
    /// with it are rejected.
    pub fn clock_at(&mut self, term: Term, now: u64) -> i64 {
        let (newest, boot) = (self.newest, self.boot_clock.at(now));
        let led = self.led.as_mut().filter(|led| led.term == term);
        led.map_or(newest.clock, |led| led.read(newest, boot))
    }

    pub fn turns(&mut self) -> &mut LeaderTurns {
        let table = &self.table;
        self.turns.get_or_insert_with(|| LeaderTurns::new(table))
    }

    pub fn end(&mut self) {
        self.turns = None;
        self.table.unlist_granted();
    }
}
