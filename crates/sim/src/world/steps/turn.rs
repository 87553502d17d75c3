//! A turn of a member: executes its effects and checks its gauges.

use raft_node::{Event, LogIndex, Outbound, Role, Term, apply_brief_first};

use super::super::event::WorldEvent;
use super::super::state::World;
use crate::count::Statistic;
use crate::member::{Job, LocalDone, LocalTurn, MemberError, SimMember, TaskResult, is_task};
use crate::network::Delivery;
use crate::oracle::{goes_on, logs_match};
use crate::plan::MILLISECOND;
use crate::requests::{RequestId, is_member_change};

/// Probability, per thousand, that the apply thread owns the machine when the driver would apply a
/// brief entry.
const APPLYING: u64 = 100;
/// Probability, per thousand, that a transport detects an undeliverable message.
const NOTICED: u64 = 300;

impl World {
    pub(super) fn answer(&mut self, member: u64, done: LocalDone) -> Result<(), MemberError> {
        let truth = self.truth.clone();
        let truth = truth.get();
        let position = done.entry.unwrap_or_default();
        for (request, outcome) in done.answered {
            self.site(member).answered(request);
            if is_task(request) {
                self.plan_lease_step(request, TaskResult::Applied(outcome));
                continue;
            }
            if is_member_change(request) {
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

    pub(crate) fn read(&mut self, member: u64, request: RequestId) -> Result<(), MemberError> {
        self.site(member).answered(request);
        if is_task(request) {
            self.plan_lease_step(request, TaskResult::Readable);
            return Ok(());
        }
        self.check_prompt(request)?;
        let store = self.see(member).up.as_ref().expect("only a running member is read").store.clone();
        let (truth, access) = (self.truth.clone(), self.access(member));
        let client = self.clients.may_read(request, &store, &access, &truth.get(), &mut self.report)?;
        self.rest(client);
        Ok(())
    }

    pub(super) fn check_logs(&self, id: u64) -> Result<(), MemberError> {
        let last = |site: &SimMember| site.up.as_ref().map(|up| up.node.gauges().last_index);
        let one = self.see(id);
        for other in self.sites.iter().filter(|other| other.id != id) {
            let (Some(last_one), Some(last_other)) = (last(one), last(other)) else { continue };
            // raft-rs returns 0 for entries outside of a log.
            let term = |site: &SimMember, index| {
                site.up.as_ref().and_then(|up| up.node.term_at(index)).filter(|term| *term > Term(0))
            };
            logs_match(last_one.min(last_other), |index| term(one, index), |index| term(other, index))?;
        }
        Ok(())
    }

    /// Runs turns of a member until it has no more work.
    pub(crate) fn turn(&mut self, id: u64) -> Result<(), MemberError> {
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

    /// Checks the gauges of a member against its previous ones and those of all other members.
    fn observe(&mut self, id: u64) -> Result<(), MemberError> {
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
            self.count(Statistic::Elections);
            self.tell(|| format!("member {id} leads: {gauges:?}"));
        }
        self.check_majorities(id, before, gauges)?;
        if gauges.role == Role::Leader {
            self.plan_lease_turns(id, gauges.term);
        }
        Ok(())
    }

    /// Executes the effects of a turn. Returns true if entries were applied, of which the node was
    /// notified.
    fn perform(&mut self, id: u64, mut turn: LocalTurn) -> Result<bool, MemberError> {
        self.send(id, turn.effects.send)?;
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
            self.after(soon, WorldEvent::Checkpoint { to: id, boot });
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
            let disk_delay = self.see(id).disk_delay;
            let slow = if disk_delay.until > self.now { disk_delay.sync_max } else { 3 * MILLISECOND };
            let delay = self.chances.members.within(100, slow);
            self.after(delay, WorldEvent::Sync { to: id, boot });
            if std::mem::take(&mut self.site(id).doomed) {
                self.after(delay / 2, WorldEvent::Crash { to: id });
            }
        }
        if applies {
            let delay = self.chances.members.within(10, 2 * MILLISECOND);
            self.after(delay, WorldEvent::Apply { to: id, boot });
        }
        if applied != before {
            self.site(id).handle(Event::Applied { index: applied })?;
        }
        Ok(applied != before)
    }

    /// Applies brief entries in the driver, as [`apply_brief_first`] decides. Returns the jobs for
    /// the apply thread.
    fn apply_brief(&mut self, id: u64, jobs: Vec<Job>) -> Result<Vec<Job>, MemberError> {
        apply_brief_first(jobs, |job| {
            let up = self.site(id).up.as_mut().expect("it turned just now");
            if !up.applier.is_brief(&job) || self.chances.members.per_mille(APPLYING) {
                return Ok(Some(job));
            }
            let done = self.site(id).apply_job(job)?;
            if done.entry.is_some() {
                self.site(id).wiped = false;
                self.count(Statistic::BriefEntries);
            }
            self.note_lease_clock(id);
            self.answer(id, done)?;
            Ok(None)
        })
    }

    pub(super) fn send(&mut self, from: u64, messages: Vec<Outbound>) -> Result<(), MemberError> {
        for message in messages {
            let to = message.to;
            if !self.may_send(from, to) {
                continue;
            }
            let fate = match self.is_dialled(from, to)? {
                true => self.network.fate(self.now, from, &message, &mut self.chances.network),
                false => Delivery::Cut,
            };
            match fate {
                Delivery::Once(delay) => {
                    self.after(delay, WorldEvent::Deliver { from, to, bytes: message.bytes, inbox: None })
                }
                Delivery::Twice(one, two) => {
                    self.report.add(Statistic::MessagesTwice, 1);
                    self.after(
                        one,
                        WorldEvent::Deliver { from, to, bytes: message.bytes.clone(), inbox: None },
                    );
                    self.after(two, WorldEvent::Deliver { from, to, bytes: message.bytes, inbox: None });
                }
                Delivery::Lost => self.report.add(Statistic::MessagesLost, 1),
                Delivery::Cut => {
                    self.report.add(Statistic::MessagesLost, 1);
                    if self.chances.network.per_mille(NOTICED) {
                        let boot = self.see(from).boots;
                        self.after(MILLISECOND, WorldEvent::Unreachable { to: from, boot, peer: to });
                    }
                }
            }
        }
        Ok(())
    }
}
