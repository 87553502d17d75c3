//! Executes the steps of a member, and checks the invariants after each.

mod turn; // what a member calls for after each step, and what it says of itself

use bytes::Bytes;
use raft_node::{Event, SyncRelease};

use super::event::{DownMembers, FaultPhase, WorldEvent};
use super::state::World;
use crate::count::Statistic;
use crate::member::MemberError;
use crate::plan::MILLISECOND;

const TICK: u64 = 100 * MILLISECOND;

/// Maximum ticks that a driver processes per turn, regardless of its clock.
const TICKS_PER_TURN: u64 = 2;
/// Probability, per thousand, that the log thread is interrupted between two results of a sync.
const INTERRUPTED: u64 = 60;

impl World {
    #[expect(clippy::too_many_lines, reason = "an arm for each event")]
    pub fn happen(&mut self, what: WorldEvent) -> Result<(), MemberError> {
        match what {
            WorldEvent::Tick { to, boot } => self.tick(to, boot),
            WorldEvent::Burst { to, boot, ticks } => self.burst(to, boot, ticks),
            WorldEvent::Deliver { from, to, bytes, inbox } => self.deliver(from, to, bytes, inbox),
            WorldEvent::Unreachable { to, boot, peer } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::Unreachable { peer })?;
                self.turn(to)
            }
            WorldEvent::Unreachable { .. } => Ok(()),
            WorldEvent::Sync { to, boot } => self.sync(to, boot),
            WorldEvent::Release { to, boot } => self.release(to, boot),
            WorldEvent::Apply { to, boot } => self.apply(to, boot),
            WorldEvent::Maintain { to, boot } => self.maintain(to, boot),
            WorldEvent::Checkpoint { to, boot } if !self.is_away(to, boot) => {
                match self.store_stall_left(to) {
                    Some(left) => {
                        self.after(left, WorldEvent::Checkpoint { to, boot });
                        Ok(())
                    }
                    None => self.checkpoint(to),
                }
            }
            WorldEvent::Checkpoint { .. } => Ok(()),
            WorldEvent::Stream { number } => self.stream(number),
            WorldEvent::Report { to, boot, peer, outcome } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::SnapshotReported { peer, outcome })?;
                self.turn(to)
            }
            WorldEvent::Report { .. } => Ok(()),
            WorldEvent::LoseDisk { to, unreachable } => {
                if self.phase == FaultPhase::Faults {
                    self.lost_disk(to, &unreachable);
                }
                Ok(())
            }
            WorldEvent::Inquire { to, boot } => self.inquire(to, boot),
            WorldEvent::Asked { to, asker, boot, round } => self.asked(to, asker, boot, round),
            WorldEvent::Answered { to, boot, round, peer, answer } => {
                self.answered(to, (boot, round), peer, answer)
            }
            WorldEvent::LevelAsked { to, asker, boot, began } => {
                self.level_asked(to, asker, boot, began);
                Ok(())
            }
            WorldEvent::LevelAnswered { to, boot, began, peer, level } => {
                self.level_answered(to, boot, began, (peer, level))
            }
            WorldEvent::Hub { to, boot } => self.hub(to, boot),
            WorldEvent::Watch { client } => self.watch(client),
            WorldEvent::Lease { to, event } => self.lease_event(to, event),
            WorldEvent::Client { client, member } => self.client(client, member),
            WorldEvent::Restart { to } if self.may_start(to) => self.boot(to),
            WorldEvent::Restart { .. } => Ok(()),
            WorldEvent::Crash { to } => {
                if self.phase == FaultPhase::Faults {
                    self.crash(to);
                }
                Ok(())
            }
            WorldEvent::Vouch { to, boot, peer } => {
                self.vouch(to, boot, peer);
                Ok(())
            }
            WorldEvent::Promote { to } => self.promote_eagerly(to),
            WorldEvent::Stop { to } => {
                self.stop(to);
                Ok(())
            }
            WorldEvent::Fault { schedule } => self.fault(schedule),
            WorldEvent::Reduce => self.reduce(),
            WorldEvent::Heal => self.heal(),
        }
    }

    /// Reports whether this run of the member has stopped.
    pub fn is_away(&self, id: u64, boot: u64) -> bool {
        let site = self.see(id);
        site.up.is_none() || site.boots != boot
    }

    pub fn pause_left(&self, id: u64) -> Option<u64> {
        self.see(id).paused_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    /// Reports whether the member is down until the end of the phase.
    pub(super) fn stays_down(&self, id: u64) -> bool {
        self.phase == FaultPhase::Reduced && self.absent.get(&id) == Some(&DownMembers::Down)
    }

    pub fn store_stall_left(&self, id: u64) -> Option<u64> {
        self.see(id).store_stalled_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    pub fn boot(&mut self, id: u64) -> Result<(), MemberError> {
        let Some(running) = self.prepare_start(id) else { return Ok(()) };
        self.place_member(id);
        let (now, truth) = (self.now, self.truth.clone());
        let site = &mut self.sites[id as usize - 1];
        site.fill_disks(now);
        let clock = self.boot_clocks[id as usize - 1];
        let counts = match site.boot(running, &truth, &mut self.chances.members, clock, now) {
            Err(MemberError::Disk(id)) => {
                self.count(Statistic::FailedStarts);
                return Err(MemberError::Disk(id));
            }
            booted => booted?,
        };
        counts.into_iter().for_each(|count| self.count(count));
        self.follow_addresses(id)?;
        let boot = self.see(id).boots;
        let first = self.chances.members.within(1, TICK);
        self.after(first, WorldEvent::Tick { to: id, boot });
        let first = self.chances.members.within(1, self.config.maintain_wait_max);
        self.after(first, WorldEvent::Maintain { to: id, boot });
        self.turn(id)?;
        self.inquire(id, boot)
    }

    fn tick(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        // Clocks drift by up to one part in fifty, and more with a clock fault.
        let next = self.chances.members.within(TICK - TICK / 50, TICK + TICK / 50);
        let clock = self.see(to).clock;
        let stretch = if clock.until > self.now { clock.stretch } else { 1000 };
        self.after(next * stretch / 1000, WorldEvent::Tick { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(()); // A member that stands still misses ticks.
        }
        self.site(to).handle(Event::Tick)?;
        self.turn(to)?;
        self.probe(to);
        self.check_one_at_a_time(to)?;
        self.check_logs(to)
    }

    fn burst(&mut self, to: u64, boot: u64, ticks: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) || self.pause_left(to).is_some() {
            return Ok(());
        }
        for _ in 0..ticks.min(TICKS_PER_TURN) {
            self.site(to).handle(Event::Tick)?;
        }
        if ticks > TICKS_PER_TURN {
            self.after(MILLISECOND, WorldEvent::Burst { to, boot, ticks: ticks - TICKS_PER_TURN });
        }
        self.turn(to)
    }

    /// Delivers a message. `inbox` is the run of the member whose inbox already holds it.
    fn deliver(&mut self, from: u64, to: u64, bytes: Bytes, inbox: Option<u64>) -> Result<(), MemberError> {
        if let Some(left) = self.pause_left(to) {
            let Some(inbox) = inbox.or_else(|| self.let_in(to, &bytes)) else {
                self.count(Statistic::InboxesFull);
                return Ok(());
            };
            // Messages received during the pause are delivered together, in order only if
            // connections preserve it.
            let jitter_max = if self.network.is_fifo() { 1 } else { 3 * MILLISECOND };
            let jitter = self.chances.network.within(0, jitter_max);
            self.after(left + jitter, WorldEvent::Deliver { from, to, bytes, inbox: Some(inbox) });
            return Ok(());
        }
        let site = self.see(to);
        if let Some(up) = site.up.as_ref().filter(|_| inbox == Some(site.boots)) {
            up.entrance.took(&bytes);
        }
        if self.see(to).up.is_none() || !self.greets(from, to) {
            return Ok(());
        }
        self.note_link(from, to);
        self.site(to).handle(Event::Message { from, bytes })?;
        self.turn(to)
    }

    /// Queues a message for a paused member. Returns its run, unless the inbox is full.
    fn let_in(&self, to: u64, message: &[u8]) -> Option<u64> {
        let site = self.see(to);
        let is_taken = site.up.as_ref().is_none_or(|up| up.entrance.receive(message));
        is_taken.then_some(site.boots)
    }

    fn sync(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let stalled = self.see(to).disk_delay.stalled_until.saturating_sub(self.now);
        let left = self.pause_left(to).unwrap_or(0).max(stalled);
        if left > 0 {
            self.after(left, WorldEvent::Sync { to, boot });
            return Ok(());
        }
        if self.see(to).up.as_ref().is_some_and(|up| !up.released.is_empty()) {
            self.after(MILLISECOND, WorldEvent::Sync { to, boot }); // The log thread is not done with the sync before.
            return Ok(());
        }
        let begins = |world: &World| world.see(to).synced.as_ref().map(|log| log.start());
        let before = begins(self);
        self.site(to).sync()?;
        if begins(self) != before {
            self.count(Statistic::Trims);
        }
        self.release(to, boot)
    }

    /// Processes the results of a sync in order. Sometimes the log thread is interrupted, and the
    /// driver continues.
    fn release(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, WorldEvent::Release { to, boot });
            return Ok(());
        }
        let waits = self.see(to).up.as_ref().is_some_and(|up| up.node.waits_for_sync());
        while let Some(released) = self.site(to).up.as_mut().and_then(|up| up.released.pop_front()) {
            match released {
                SyncRelease::Durable(durable) => self.site(to).handle(Event::Durable(durable))?,
                SyncRelease::Promise(message) => self.send(to, vec![message])?,
            }
            let has_more = self.see(to).up.as_ref().is_some_and(|up| !up.released.is_empty());
            if has_more && self.chances.members.per_mille(INTERRUPTED) {
                let pause = self.chances.members.within(10, 4 * MILLISECOND);
                self.after(pause, WorldEvent::Release { to, boot });
                break;
            }
        }
        // The driver is only woken if it waits for the sync; otherwise it sees the result with its
        // next input.
        if waits { self.turn(to) } else { Ok(()) }
    }

    fn apply(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, WorldEvent::Apply { to, boot });
            return Ok(());
        }
        if self.see(to).is_full() {
            if let Some(left) = self.store_stall_left(to) {
                self.after(left, WorldEvent::Apply { to, boot });
                return Ok(());
            }
            self.checkpoint(to)?; // As the real one, it waits for that before it goes on.
        }
        let installs = |world: &World| world.see(to).up.as_ref().map(|up| up.applier.machine().installs);
        let before = (self.see(to).applied(), installs(self));
        let Some(done) = self.site(to).apply_next()? else { return Ok(()) };
        if !self.see(to).up.as_ref().is_none_or(|up| up.work.is_empty()) {
            let soon = self.chances.members.within(10, 2 * MILLISECOND);
            self.after(soon, WorldEvent::Apply { to, boot });
        }
        let index = self.see(to).applied();
        if (index, installs(self)) != before {
            // A member without a store must receive one first.
            self.site(to).wiped = false;
        }
        if installs(self) != before.1 {
            self.count(Statistic::Installs);
        }
        self.note_lease_clock(to);
        let membership = done.membership.clone();
        self.answer(to, done)?;
        self.note_members(to, membership)?;
        self.site(to).handle(Event::Applied { index })?;
        self.turn(to)
    }

    /// Runs the store's thread: a checkpoint, or some compaction steps.
    fn maintain(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let next = self.chances.members.within(1, self.config.maintain_wait_max);
        self.after(next, WorldEvent::Maintain { to, boot });
        if self.pause_left(to).is_some() || self.store_stall_left(to).is_some() {
            return Ok(());
        }
        if self.chances.members.per_mille(500) {
            self.checkpoint(to)?;
        } else if self.site(to).sweep()? {
            self.count(Statistic::Sweeps);
        }
        Ok(())
    }

    fn checkpoint(&mut self, id: u64) -> Result<(), MemberError> {
        let at = self.site(id).checkpoint()?;
        self.count(Statistic::Checkpoints);
        self.site(id).handle(Event::Checkpointed { at })?;
        self.turn(id)
    }
}
