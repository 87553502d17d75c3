//! What happens to a member, one step at a time, and what must hold after each.

use bytes::Bytes;
use raft_node::{Event, Outbound};

use crate::clients::{Handed, RequestId, check_range};
use crate::count::Count;
use crate::laws::{goes_on, logs_match};
use crate::network::Fate;
use crate::plan::{CALM, Flaw, MILLISECOND, SECOND};
use crate::site::{LocalDone, LocalTurn, Site, Trouble};
use crate::world::{Happening, TICK, World};

/// Before the end nobody asks any more, and everybody must catch up.
const QUIET: u64 = 6 * SECOND;
/// What a driver takes at most in one turn, whatever its clock says.
const TICKS_PER_TURN: u64 = 2;
/// How often a transport notices, of a thousand, that a message went nowhere.
const NOTICED: u64 = 300;

impl World {
    pub fn happen(&mut self, what: Happening) -> Result<(), Trouble> {
        match what {
            Happening::Tick { to, boot } => self.tick(to, boot),
            Happening::Burst { to, boot, ticks } => self.burst(to, boot, ticks),
            Happening::Deliver { from, to, bytes } => self.deliver(from, to, bytes),
            Happening::Unreachable { to, boot, peer } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::Unreachable { peer })?;
                self.turn(to)
            }
            Happening::Unreachable { .. } => Ok(()),
            Happening::Sync { to, boot } => self.sync(to, boot),
            Happening::Apply { to, boot } => self.apply(to, boot),
            Happening::Maintain { to, boot } => self.maintain(to, boot),
            Happening::Checkpoint { to, boot } if !self.is_away(to, boot) => self.checkpoint(to),
            Happening::Checkpoint { .. } => Ok(()),
            Happening::Stream { number } => self.stream(number),
            Happening::Report { to, boot, peer, outcome } if !self.is_away(to, boot) => {
                self.site(to).handle(Event::SnapshotReported { peer, outcome })?;
                self.turn(to)
            }
            Happening::Report { .. } => Ok(()),
            Happening::Client { client, member } => self.client(client, member),
            Happening::Restart { to } if self.see(to).up.is_none() => self.boot(to),
            Happening::Restart { .. } => Ok(()),
            Happening::Crash { to } => {
                if !self.healed {
                    self.crash(to);
                }
                Ok(())
            }
            Happening::Fault => self.fault(),
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

    pub fn boot(&mut self, id: u64) -> Result<(), Trouble> {
        let (members, truth) = (self.plan.members, self.truth.clone());
        let site = &mut self.sites[id as usize - 1];
        let counts = match site.boot(members, &truth, &mut self.chance) {
            Err(Trouble::Disk(id)) => {
                self.count(Count::FailedStarts);
                return Err(Trouble::Disk(id));
            }
            booted => booted?,
        };
        counts.into_iter().for_each(|count| self.count(count));
        let boot = self.see(id).boots;
        let first = self.chance.within(1, TICK);
        self.after(first, Happening::Tick { to: id, boot });
        let first = self.chance.within(1, self.temper.maintain_wait_max);
        self.after(first, Happening::Maintain { to: id, boot });
        self.turn(id)
    }

    fn tick(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        // Clocks drift by up to one part in fifty, and more when theirs is out of order.
        let next = self.chance.within(TICK - TICK / 50, TICK + TICK / 50);
        let clock = self.see(to).clock;
        let stretch = if clock.until > self.now { clock.stretch } else { 1000 };
        self.after(next * stretch / 1000, Happening::Tick { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(()); // Whoever stands still misses ticks.
        }
        self.site(to).handle(Event::Tick)?;
        self.turn(to)?;
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

    fn deliver(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), Trouble> {
        if let Some(left) = self.pause_left(to) {
            // What came meanwhile is there at once, but in no order.
            let jitter = self.chance.within(0, 3 * MILLISECOND);
            self.after(left + jitter, Happening::Deliver { from, to, bytes });
            return Ok(());
        }
        if self.see(to).up.is_none() {
            return Ok(());
        }
        self.site(to).handle(Event::Message { from, bytes })?;
        self.turn(to)
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
        let begins = |world: &World| world.see(to).synced.as_ref().map(|log| log.start());
        let before = begins(self);
        let (durable, promises) = self.site(to).sync()?;
        if begins(self) != before {
            self.count(Count::Trims);
        }
        self.site(to).handle(Event::Durable(durable))?;
        self.send(to, promises);
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
            self.checkpoint(to)?; // As the real one, it waits for that before it goes on.
        }
        let installs = |world: &World| world.see(to).up.as_ref().map(|up| up.applier.machine().installs);
        let before = (self.see(to).applied(), installs(self));
        let Some(done) = self.site(to).apply_next()? else { return Ok(()) };
        if !self.see(to).up.as_ref().is_none_or(|up| up.work.is_empty()) {
            let soon = self.chance.within(10, 2 * MILLISECOND);
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
        self.answer(to, done)?;
        self.site(to).handle(Event::Applied { index })?;
        self.turn(to)
    }

    /// The store's own thread: a checkpoint, or some compaction.
    fn maintain(&mut self, to: u64, boot: u64) -> Result<(), Trouble> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let next = self.chance.within(1, self.temper.maintain_wait_max);
        self.after(next, Happening::Maintain { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(());
        }
        if self.chance.per_mille(500) {
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
            self.check_prompt(request)?;
            let client =
                self.clients.write_answered(request, &outcome, position.index, &truth, &mut self.report)?;
            self.check_durable(position)?;
            if self.healed && self.served_again.is_none() {
                self.served_again = Some(self.now);
            }
            self.rest(client);
        }
        drop(truth);
        done.readable.into_iter().try_for_each(|request| self.read(member, request))
    }

    fn read(&mut self, member: u64, request: RequestId) -> Result<(), Trouble> {
        self.check_prompt(request)?;
        let store = self.see(member).up.as_ref().expect("only a running member is read").store.clone();
        let truth = self.truth.clone();
        let client = self.clients.may_read(request, &store, &truth.get(), &mut self.report)?;
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
                site.up.as_ref().and_then(|up| up.node.term_at(index)).filter(|term| *term > 0)
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
            let more = turn.more;
            self.perform(id, turn)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// What a member says of itself must go on from what it said before, and agree with all others.
    fn observe(&mut self, id: u64) -> Result<(), Trouble> {
        let site = &mut self.sites[id as usize - 1];
        let node = &site.up.as_ref().expect("it turned just now").node;
        let gauges = node.gauges();
        goes_on(site.seen.replace(gauges), gauges)?;
        if self.elections.observe(id, gauges)? {
            let last = self.truth.get().last();
            let found = node.term_at(last.index);
            if last.index > 0 && found != Some(last.term) && self.elections.is_newest(gauges.term) {
                return Err(format!(
                    "member {id} leads term {} without entry {last:?}, which was applied: it has {found:?}",
                    gauges.term
                )
                .into());
            }
            self.count(Count::Elections);
            self.tell(|| format!("member {id} leads: {gauges:?}"));
        }
        Ok(())
    }

    fn perform(&mut self, id: u64, turn: LocalTurn) -> Result<(), Trouble> {
        self.send(id, turn.send);
        for request in
            turn.proposals_failed.iter().map(|(id, _)| id).chain(turn.reads_failed.iter().map(|(id, _)| id))
        {
            self.gone(*request);
        }
        turn.readable.into_iter().try_for_each(|request| self.read(id, request))?;
        let boot = self.see(id).boots;
        turn.snapshots.into_iter().for_each(|offer| self.begin_stream(id, offer));
        turn.snapshots_ignored.into_iter().for_each(|at| self.site(id).discard(at));
        if turn.checkpoint_wanted.is_some() {
            let soon = self.chance.within(MILLISECOND, 20 * MILLISECOND);
            self.after(soon, Happening::Checkpoint { to: id, boot });
        }
        let up = self.site(id).up.as_mut().expect("it turned just now");
        let (idle_disk, idle_machine) = (up.jobs.is_empty(), up.work.is_empty());
        let (syncs, applies) =
            (!turn.persist.is_empty() && idle_disk, !turn.apply.is_empty() && idle_machine);
        up.jobs.extend(turn.persist);
        up.work.extend(turn.apply);
        if syncs {
            let sloth = self.see(id).sloth;
            let slow = if sloth.until > self.now { sloth.sync_max } else { 3 * MILLISECOND };
            let delay = self.chance.within(100, slow);
            self.after(delay, Happening::Sync { to: id, boot });
            if std::mem::take(&mut self.site(id).doomed) {
                self.after(delay / 2, Happening::Crash { to: id });
            }
        }
        if applies {
            let delay = self.chance.within(10, 2 * MILLISECOND);
            self.after(delay, Happening::Apply { to: id, boot });
        }
        Ok(())
    }

    fn send(&mut self, from: u64, messages: Vec<Outbound>) {
        for message in messages {
            let to = message.to;
            let fate = self.network.fate(from, &message, &mut self.chance);
            match fate {
                Fate::Once(delay) => self.after(delay, Happening::Deliver { from, to, bytes: message.bytes }),
                Fate::Twice(one, two) => {
                    self.report.add(Count::MessagesTwice, 1);
                    self.after(one, Happening::Deliver { from, to, bytes: message.bytes.clone() });
                    self.after(two, Happening::Deliver { from, to, bytes: message.bytes });
                }
                Fate::Lost => self.report.add(Count::MessagesLost, 1),
                Fate::Cut => {
                    self.report.add(Count::MessagesLost, 1);
                    if self.chance.per_mille(NOTICED) {
                        let boot = self.see(from).boots;
                        self.after(MILLISECOND, Happening::Unreachable { to: from, boot, peer: to });
                    }
                }
            }
        }
    }

    /// Some clients know who leads, or led: whoever believes to lead is asked more than others.
    fn choose_member(&mut self) -> u64 {
        let leaders: Vec<u64> = self.sites.iter().filter(|site| site.leads()).map(|site| site.id).collect();
        if !leaders.is_empty() && self.chance.per_mille(300) {
            return *self.chance.pick(&leaders);
        }
        self.chance.within(1, self.plan.members + 1)
    }

    fn client(&mut self, client: u64, member: u64) -> Result<(), Trouble> {
        if self.now + QUIET > self.plan.seconds * SECOND + CALM {
            return Ok(()); // The story ends; nobody asks any more.
        }
        let member = if member == 0 { self.choose_member() } else { member };
        if let Some(left) = self.pause_left(member) {
            // The request waits in a socket, as messages of peers do.
            let jitter = self.chance.within(0, 3 * MILLISECOND);
            self.after(left + jitter, Happening::Client { client, member });
            return Ok(());
        }
        if self.see(member).up.is_none() {
            self.rest(client);
            return Ok(());
        }
        let (request, handed) = self.clients.ask(client, member, self.now, &self.temper, &mut self.chance);
        if let (Handed::Read, Flaw::ReadsAskNobody) = (&handed, self.plan.flaw) {
            return self.read(member, request);
        }
        let up = self.site(member).up.as_mut().expect("looked at just now");
        match handed {
            Handed::Propose(command) => up.node.offer(command, request),
            Handed::Read => up.node.ask(request),
            Handed::Serializable(range) => {
                let store = up.store.clone();
                check_range(&range, &store, &self.truth.get())?;
                self.report.add(Count::SerializableReads, 1);
                self.rest(client);
                return Ok(());
            }
        }
        self.turn(member)
    }

    fn rest(&mut self, client: u64) {
        let delay = self.chance.within(MILLISECOND, self.temper.think_max);
        self.after(delay, Happening::Client { client, member: 0 });
    }

    pub fn gone(&mut self, request: RequestId) {
        if let Some(client) = self.clients.gone(request) {
            self.report.add(Count::Unanswered, 1);
            self.rest(client);
        }
    }
}
