//! What a running member holds for leases besides its state: its boot clock, its newest anchor, the term it
//! leads.

use std::time::Duration;

use raft_node::Term;
use state_machine::{Anchor, LeaderTurns, LeaseTable, LedTerm};

use crate::chance::Chance;
use crate::oracle::DRIFT;

/// The boot clock of a member's machine: it runs a little too fast or too slow, and is never set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootClock {
    /// What it shows at the beginning of the simulation.
    start: u64,
    /// In thousandths of true time.
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

/// The leases of a running member.
pub(crate) struct Leasing {
    pub table: LeaseTable,
    pub boot_clock: BootClock,
    /// The newest lease clock that was applied, and when.
    pub newest: Anchor,
    /// The newest term in which it has begun to lead.
    pub led: Option<LedTerm>,
    /// The newest term for which turns are planned.
    pub planned: Option<Term>,
    /// The turns of the term that it leads, once it has had one.
    pub turns: Option<LeaderTurns>,
}

impl Leasing {
    pub fn new(table: LeaseTable, boot_clock: BootClock, now: u64) -> Leasing {
        let newest = Anchor { clock: table.clock(), boot: boot_clock.at(now) };
        Leasing { table, boot_clock, newest, led: None, planned: None, turns: None }
    }

    /// Something was applied.
    pub fn note_clock(&mut self, now: u64) {
        let clock = self.table.clock();
        if clock != self.newest.clock {
            self.newest = Anchor { clock, boot: self.boot_clock.at(now) };
        }
    }

    /// Begins to lead a term, unless it has begun already: everything of earlier terms is applied.
    pub fn begin(&mut self, term: Term, now: u64) -> LedTerm {
        if let Some(led) = self.led.filter(|led| led.term == term) {
            return led;
        }
        self.turns = None;
        *self.led.insert(LedTerm::begin(term, self.newest, self.boot_clock.at(now)))
    }

    /// The lease clock of a term. When it is over, the newest that was applied: commands with it are refused.
    pub fn clock_at(&mut self, term: Term, now: u64) -> i64 {
        let (newest, boot) = (self.newest, self.boot_clock.at(now));
        let led = self.led.as_mut().filter(|led| led.term == term);
        led.map_or(newest.clock, |led| led.read(newest, boot))
    }

    /// The turns of the term that was begun last.
    pub fn turns(&mut self) -> &mut LeaderTurns {
        let table = &self.table;
        self.turns.get_or_insert_with(|| LeaderTurns::new(table))
    }

    /// It does not lead any more.
    pub fn end(&mut self) {
        self.turns = None;
        self.table.unlist_granted();
    }
}
