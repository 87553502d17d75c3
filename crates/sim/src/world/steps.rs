//! What happens to a member, one step at a time, and what must hold after each.

use bytes::Bytes;
use raft_node::{Event, LogIndex, Outbound, Released, Role, Term, apply_brief_first};

use super::happening::{Absence, Happening, Phase};
use super::state::World;
use crate::count::Count;
use crate::member::{End, Job, LocalDone, LocalTurn, Site, Trouble, is_task};
use crate::network::Fate;
use crate::oracle::{goes_on, logs_match};
use crate::plan::MILLISECOND;
use crate::requests::{RequestId, is_change};

const TICK: u64 = 100 * MILLISECOND;

/// What a driver takes at most in one turn, independent of its clock.
const TICKS_PER_TURN: u64 = 2;
/// How often, of a thousand, the log thread is interrupted between two things that a sync released.
const INTERRUPTED: u64 = 60;
/// How often, of a thousand, the apply thread has the machine when the driver would apply a brief entry.
const APPLYING: u64 = 100;
/// How often a transport notices, of a thousand, that a message went nowhere.
const NOTICED: u64 = 300;

impl World {
    pub fn happen(&mut self, what: Happening) -> Result<(), Trouble> {
        match what {
            Happening::Tick { to, boot } => self.tick(to, boot),
            Happening::Burst { to, boot, ticks } => self.burst(to, boot, ticks),
            Happening::Deliver { from, to, bytes, inbox } => self.deliver(from, to, bytes, inbox),
            Happening::Unreachable { to, boot, peer } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::Unreachable { peer })?;
                self.turn(to)
            }
            Happening::Unreachable { .. } => Ok(()),
            Happening::Sync { to, boot } => self.sync(to, boot),
            Happening::Release { to, boot } => self.release(to, boot),
            Happening::Apply { to, boot } => self.apply(to, boot),
            Happening::Maintain { to, boot } => self.maintain(to, boot),
            Happening::Checkpoint { to, boot } if !self.is_away(to, boot) => {
                match self.store_stall_left(to) {
                    Some(left) => {
                        self.after(left, Happening::Checkpoint { to, boot });
                        Ok(())
                    }
                    None => self.checkpoint(to),
                }
            }
            Happening::Checkpoint { .. } => Ok(()),
            Happening::Stream { number } => self.stream(number),
            Happening::Report { to, boot, peer, outcome } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::SnapshotReported { peer, outcome })?;
                self.turn(to)
            }
            Happening::Report { .. } => Ok(()),
            Happening::LoseDisk { to, unreachable } => {
                if self.phase == Phase::Faults {
                    self.lost_disk(to, &unreachable);
                }
                Ok(())
            }
            Happening::Inquire { to, boot } => self.inquire(to, boot),
            Happening::Asked { to, asker, boot } => self.asked(to, asker, boot),
            Happening::Answered { to, boot, peer, answer } => self.answered(to, boot, peer, answer),
            Happening::Hub { to, boot } => self.hub(to, boot),
            Happening::Watch { client } => self.watch(client),
            Happening::Lease { to, event } => self.lease_event(to, event),
            Happening::Client { client, member } => self.client(client, member),
            Happening::Restart { to } if self.may_start(to) => self.boot(to),
            Happening::Restart { .. } => Ok(()),
            Happening::Crash { to } => {
                if self.phase == Phase::Faults {
                    self.crash(to);
                }
                Ok(())
            }
            Happening::Vouch { to, boot, peer } => {
                self.vouch(to, boot, peer);
                Ok(())
            }
            Happening::Stop { to } => {
                self.stop(to);
                Ok(())
            }
            Happening::Fault { vice } => self.fault(vice),
            Happening::Reduce => self.reduce(),
            Happening::Heal => self.heal(),
        }
    }

    /// True if the member that this was meant for is down, or not the same run of it.
    pub fn is_away(&self, id: u64, boot: u64) -> bool {
        let site = self.see(id);
        site.up.is_none() || site.boots != boot
    }

    pub fn pause_left(&self, id: u64) -> Option<u64> {
        self.see(id).paused_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    /// True if the member is down until the end of the phase.
    pub(super) fn stays_down(&self, id: u64) -> bool {
        self.phase == Phase::Reduced && self.absent.get(&id) == Some(&Absence::Down)
    }

    /// How long the disk under the member's store still stands still.
    pub fn store_stall_left(&self, id: u64) -> Option<u64> {
        self.see(id).store_stalled_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    pub fn boot(&mut self, id: u64) -> Result<(), Trouble> {
        let Some(running) = self.prepare_start(id) else { return Ok(()) };
        let (now, truth) = (self.now, self.truth.clone());
        let site = &mut self.sites[id as usize - 1];
        site.fill_disks(now);
        let clock = (self.boot_clocks[id as usize - 1], now);
        let counts = match site.boot(running, &truth, &mut self.chances.members, clock) {
            Err(Trouble::Disk(id)) => {
                self.count(Count::FailedStarts);
                return Err(Trouble::Disk(id));
            }
            booted => booted?,
        };
        counts.into_iter().for_each(|count| self.count(count));
        let boot = self.see(id).boots;
        let first = self.chances.members.within(1, TICK);
        self.after(first, Happening::Tick { to: id, boot });
        let first = self.chances.members.within(1, self.temper.maintain_wait_max);
        self.after(first, Happening::Maintain { to: id, boot });
        self.turn(id)?;
        self.inquire(id, boot)
    }

    fn tick(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        // Clocks drift by up to one part in fifty, and more when theirs is out of order.
        let next = self.chances.members.within(TICK - TICK / 50, TICK + TICK / 50);
        let clock = self.see(to).clock;
        let stretch = if clock.until > self.now { clock.stretch } else { 1000 };
        self.after(next * stretch / 1000, Happening::Tick { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(()); // A member that stands still misses ticks.
        }
        self.site(to).handle(Event::Tick)?;
        self.turn(to)?;
        self.probe(to);
        self.check_one_at_a_time(to)?;
        self.check_logs(to)
    }

    fn burst(&mut self, to: u64, boot: u64, ticks: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) || self.pause_left(to).is_some() {
            return Ok(());
        }
        for _ in 0..ticks.min(TICKS_PER_TURN) {
            self.site(to).handle(Event::Tick)?;
        }
        if ticks > TICKS_PER_TURN {
            self.after(MILLISECOND, Happening::Burst { to, boot, ticks: ticks - TICKS_PER_TURN });
        }
        self.turn(to)
    }

    /// `inbox` is the run of the member in whose inbox the message waits already.
    fn deliver(&mut self, from: u64, to: u64, bytes: Bytes, inbox: Option<u64>) -> Result<(), Trouble> {
        if let Some(left) = self.pause_left(to) {
            let Some(inbox) = inbox.or_else(|| self.let_in(to, &bytes)) else {
                self.count(Count::InboxesFull);
                return Ok(());
            };
            // What came meanwhile is there at once; in order only where connections keep it.
            let jitter_max = if self.network.is_fifo() { 1 } else { 3 * MILLISECOND };
            let jitter = self.chances.network.within(0, jitter_max);
            self.after(left + jitter, Happening::Deliver { from, to, bytes, inbox: Some(inbox) });
            return Ok(());
        }
        let site = self.see(to);
        if let Some(up) = site.up.as_ref().filter(|_| inbox == Some(site.boots)) {
            up.entrance.took(&bytes);
        }
        if self.see(to).up.is_none() || !self.greets(from, to) {
            return Ok(());
        }
        self.site(to).handle(Event::Message { from, bytes })?;
        self.turn(to)
    }

    /// A message waits for a member that stands still. Returns its run, if the inbox takes it.
    fn let_in(&self, to: u64, message: &[u8]) -> Option<u64> {
        let site = self.see(to);
        let is_taken = site.up.as_ref().is_none_or(|up| up.entrance.receive(message));
        is_taken.then_some(site.boots)
    }

    fn sync(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let stalled = self.see(to).sloth.stalled_until.saturating_sub(self.now);
        let left = self.pause_left(to).unwrap_or(0).max(stalled);
        if left > 0 {
            self.after(left, Happening::Sync { to, boot });
            return Ok(());
        }
        if self.see(to).up.as_ref().is_some_and(|up| !up.released.is_empty()) {
            self.after(MILLISECOND, Happening::Sync { to, boot }); // The log thread is not done with the sync before.
            return Ok(());
        }
        let begins = |world: &World| world.see(to).synced.as_ref().map(|log| log.start());
        let before = begins(self);
        self.site(to).sync()?;
        if begins(self) != before {
            self.count(Count::Trims);
        }
        self.release(to, boot)
    }

    /// What a sync released, in its order. Sometimes the log thread is interrupted on the way, and the driver goes on.
    fn release(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, Happening::Release { to, boot });
            return Ok(());
        }
        while let Some(released) = self.site(to).up.as_mut().and_then(|up| up.released.pop_front()) {
            match released {
                Released::Durable(durable) => self.site(to).handle(Event::Durable(durable))?,
                Released::Promise(message) => self.send(to, vec![message]),
            }
            let has_more = self.see(to).up.as_ref().is_some_and(|up| !up.released.is_empty());
            if has_more && self.chances.members.per_mille(INTERRUPTED) {
                let pause = self.chances.members.within(10, 4 * MILLISECOND);
                self.after(pause, Happening::Release { to, boot });
                break;
            }
        }
        self.turn(to)
    }

    fn apply(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, Happening::Apply { to, boot });
            return Ok(());
        }
        if self.see(to).is_full() {
            if let Some(left) = self.store_stall_left(to) {
                self.after(left, Happening::Apply { to, boot });
                return Ok(());
            }
            self.checkpoint(to)?; // As the real one, it waits for that before it goes on.
        }
        let installs = |world: &World| world.see(to).up.as_ref().map(|up| up.applier.machine().installs);
        let before = (self.see(to).applied(), installs(self));
        let Some(done) = self.site(to).apply_next()? else { return Ok(()) };
        if !self.see(to).up.as_ref().is_none_or(|up| up.work.is_empty()) {
            let soon = self.chances.members.within(10, 2 * MILLISECOND);
            self.after(soon, Happening::Apply { to, boot });
        }
        let index = self.see(to).applied();
        if (index, installs(self)) != before {
            // The first thing that a member without a store gets is one.
            self.site(to).wiped = false;
        }
        if installs(self) != before.1 {
            self.count(Count::Installs);
        }
        self.note_lease_clock(to);
        let membership = done.membership.clone();
        self.answer(to, done)?;
        self.note_members(to, membership)?;
        self.site(to).handle(Event::Applied { index })?;
        self.turn(to)
    }

    /// The store's own thread: a checkpoint, or some compaction.
    fn maintain(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let next = self.chances.members.within(1, self.temper.maintain_wait_max);
        self.after(next, Happening::Maintain { to, boot });
        if self.pause_left(to).is_some() || self.store_stall_left(to).is_some() {
            return Ok(());
        }
        if self.chances.members.per_mille(500) {
            self.checkpoint(to)?;
        } else if self.site(to).sweep()? {
            self.count(Count::Sweeps);
        }
        Ok(())
    }

    fn checkpoint(&mut self, id: u64) -> Result<(), Trouble> {
        let at = self.site(id).checkpoint()?;
        self.count(Count::Checkpoints);
        self.site(id).handle(Event::Checkpointed { at })?;
        self.turn(id)
    }

    fn answer(&mut self, member: u64, done: LocalDone) -> Result<(), Trouble> {
        let truth = self.truth.clone();
        let truth = truth.get();
        let position = done.entry.unwrap_or_default();
        for (request, outcome) in done.answered {
            self.site(member).answered(request);
            if is_task(request) {
                self.plan_lease_step(request, End::Applied(outcome));
                continue;
            }
            if is_change(request) {
                self.change_answered(request, &outcome, position, &truth)?;
                continue;
            }
            self.check_prompt(request)?;
            let client =
                self.clients.write_answered(request, &outcome, position.index, &truth, &mut self.report)?;
            self.check_durable(position, &truth)?;
            self.served.get_or_insert(self.now);
            self.rest(client);
        }
        drop(truth);
        done.readable.into_iter().try_for_each(|request| self.read(member, request))
    }

    pub fn read(&mut self, member: u64, request: RequestId) -> Result<(), Trouble> {
        self.site(member).answered(request);
        if is_task(request) {
            self.plan_lease_step(request, End::Readable);
            return Ok(());
        }
        self.check_prompt(request)?;
        let store = self.see(member).up.as_ref().expect("only a running member is read").store.clone();
        let (truth, access) = (self.truth.clone(), self.access(member));
        let read = (&store, &access);
        let client = self.clients.may_read(request, read, &truth.get(), &mut self.report)?;
        self.rest(client);
        Ok(())
    }

    fn check_logs(&self, id: u64) -> Result<(), Trouble> {
        let last = |site: &Site| site.up.as_ref().map(|up| up.node.gauges().last_index);
        let one = self.see(id);
        for other in self.sites.iter().filter(|other| other.id != id) {
            let (Some(last_one), Some(last_other)) = (last(one), last(other)) else { continue };
            // raft-rs gives 0 for what a log no longer, or not yet, holds.
            let term = |site: &Site, index| {
                site.up.as_ref().and_then(|up| up.node.term_at(index)).filter(|term| *term > Term(0))
            };
            logs_match(last_one.min(last_other), |index| term(one, index), |index| term(other, index))?;
        }
        Ok(())
    }

    /// One turn of a member, and another as long as it has more to do.
    pub fn turn(&mut self, id: u64) -> Result<(), Trouble> {
        loop {
            let turn = self.site(id).turn()?;
            self.observe(id)?;
            self.note_caught_up(id);
            let more = turn.effects.more;
            let applied = self.perform(id, turn)?;
            if !more && !applied {
                self.plan_watching(id);
                return Ok(());
            }
        }
    }

    /// What a member says of itself must go on from what it said before, and agree with all others.
    fn observe(&mut self, id: u64) -> Result<(), Trouble> {
        let site = &mut self.sites[id as usize - 1];
        let node = &site.up.as_ref().expect("it turned just now").node;
        let gauges = node.gauges();
        let before = site.seen.replace(gauges);
        goes_on(before, gauges)?;
        if self.elections.observe(id, gauges)? {
            let last = self.truth.get().last();
            let found = node.term_at(last.index);
            if last.index > LogIndex::ZERO
                && found != Some(last.term)
                && self.elections.is_newest(gauges.term)
            {
                return Err(format!(
                    "member {id} leads term {} without entry {last:?}, which was applied: it has {found:?}",
                    gauges.term
                )
                .into());
            }
            self.count(Count::Elections);
            self.tell(|| format!("member {id} leads: {gauges:?}"));
        }
        self.check_majorities(id, before, gauges)?;
        if gauges.role == Role::Leader {
            self.plan_lease_turns(id, gauges.term);
        }
        Ok(())
    }

    /// Carries out what a turn calls for. True if something was applied, of which the node has heard.
    fn perform(&mut self, id: u64, mut turn: LocalTurn) -> Result<bool, Trouble> {
        self.send(id, turn.effects.send);
        for request in
            turn.proposals_failed.iter().map(|(id, _)| id).chain(turn.reads_failed.iter().map(|(id, _)| id))
        {
            self.site(id).answered(*request);
            self.gone(*request);
        }
        turn.readable.into_iter().try_for_each(|request| self.read(id, request))?;
        let boot = self.see(id).boots;
        turn.effects.snapshots.into_iter().for_each(|offer| self.begin_stream(id, offer));
        turn.effects.snapshots_ignored.into_iter().for_each(|at| self.site(id).discard(at));
        if turn.effects.checkpoint_wanted.is_some() {
            let soon = self.chances.members.within(MILLISECOND, 20 * MILLISECOND);
            self.after(soon, Happening::Checkpoint { to: id, boot });
        }
        let before = self.see(id).applied();
        turn.apply = self.apply_brief(id, turn.apply)?;
        let applied = self.see(id).applied();
        let up = self.site(id).up.as_mut().expect("it turned just now");
        let (idle_disk, idle_machine) = (up.jobs.is_empty(), up.work.is_empty());
        let (syncs, applies) =
            (!turn.effects.persist.is_empty() && idle_disk, !turn.apply.is_empty() && idle_machine);
        up.jobs.extend(turn.effects.persist);
        up.work.extend(turn.apply);
        if syncs {
            let sloth = self.see(id).sloth;
            let slow = if sloth.until > self.now { sloth.sync_max } else { 3 * MILLISECOND };
            let delay = self.chances.members.within(100, slow);
            self.after(delay, Happening::Sync { to: id, boot });
            if std::mem::take(&mut self.site(id).doomed) {
                self.after(delay / 2, Happening::Crash { to: id });
            }
        }
        if applies {
            let delay = self.chances.members.within(10, 2 * MILLISECOND);
            self.after(delay, Happening::Apply { to: id, boot });
        }
        if applied != before {
            self.site(id).handle(Event::Applied { index: applied })?;
        }
        Ok(applied != before)
    }

    /// The driver applies what is brief, as [`apply_brief_first`] decides. Returns what is for the apply thread.
    fn apply_brief(&mut self, id: u64, jobs: Vec<Job>) -> Result<Vec<Job>, Trouble> {
        apply_brief_first(jobs, |job| {
            let up = self.site(id).up.as_mut().expect("it turned just now");
            if !up.applier.is_brief(&job) || self.chances.members.per_mille(APPLYING) {
                return Ok(Some(job));
            }
            let done = self.site(id).apply_job(job)?;
            if done.entry.is_some() {
                self.site(id).wiped = false;
                self.count(Count::BriefEntries);
            }
            self.note_lease_clock(id);
            self.answer(id, done)?;
            Ok(None)
        })
    }

    fn send(&mut self, from: u64, messages: Vec<Outbound>) {
        for message in messages {
            let to = message.to;
            if !self.may_send(from, to) {
                continue;
            }
            let fate = self.network.fate(self.now, from, &message, &mut self.chances.network);
            match fate {
                Fate::Once(delay) => {
                    self.after(delay, Happening::Deliver { from, to, bytes: message.bytes, inbox: None })
                }
                Fate::Twice(one, two) => {
                    self.report.add(Count::MessagesTwice, 1);
                    self.after(
                        one,
                        Happening::Deliver { from, to, bytes: message.bytes.clone(), inbox: None },
                    );
                    self.after(two, Happening::Deliver { from, to, bytes: message.bytes, inbox: None });
                }
                Fate::Lost => self.report.add(Count::MessagesLost, 1),
                Fate::Cut => {
                    self.report.add(Count::MessagesLost, 1);
                    if self.chances.network.per_mille(NOTICED) {
                        let boot = self.see(from).boots;
                        self.after(MILLISECOND, Happening::Unreachable { to: from, boot, peer: to });
                    }
                }
            }
        }
    }
}
