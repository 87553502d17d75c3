//! Leases on the members: the leader's lease clock, and client requests, which each member forwards to the
//! leader.
//!
//! `state_machine::{LedTerm, Turns, RenewalBatch}` decide; their commands and read points go through the
//! node, as in the server's `member/lease_clock`. A task resumes with a delay after its result, and the
//! member may have crashed, paused or lost its leadership in between.

use raft_node::{RequestOrigin, Role, Term};
use state_machine::command::{self, Kind, LeaseExpire};
use state_machine::{
    Chosen, LEASE_TURN, LedTerm, Remaining, RenewalBatch, RenewalStep, Response, leases_in_command, remaining,
};

use super::event::{FaultPhase, WorldEvent};
use super::state::World;
use crate::count::Statistic;
use crate::member::{CommandRoute, LeaseEvent, Leasing, MemberError, Question, TaskResult, Then};
use crate::oracle::Breach;
use crate::plan::{MILLISECOND, SECOND};
use crate::requests::{AfterLeaseAnswer, LeaseQuestion, RequestId, numbered};

const TURN: u64 = LEASE_TURN.as_micros() as u64;
/// Maximum time that the renewal of an expired lease waits for its revocation.
const REVOKE_TIMEOUT: u64 = SECOND;
/// Interval between two checks for the revocation.
const CHECK_INTERVAL: u64 = 20 * MILLISECOND;
/// Timeout of a forwarded request.
const RESPONSE_TIMEOUT: u64 = 3 * SECOND;
/// Final period without proposals by leaders, so that all members apply the same entries.
const LAST: u64 = 700 * MILLISECOND;
/// Time allowed, in a phase without faults, until all members have a leader.
const SETTLED: u64 = 8 * SECOND;

impl World {
    /// Processes a lease event on the member `to`.
    pub(super) fn lease_event(&mut self, to: u64, event: LeaseEvent) -> Result<(), MemberError> {
        if let LeaseEvent::Turn { boot, .. } | LeaseEvent::Step { boot, .. } | LeaseEvent::Look { boot, .. } =
            &event
            && self.is_away(to, *boot)
        {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, WorldEvent::Lease { to, event });
            return Ok(());
        }
        if self.see(to).up.is_none() {
            return Ok(());
        }
        match event {
            LeaseEvent::Turn { boot, term } => self.lease_turn(to, boot, term)?,
            LeaseEvent::Step { task, end, .. } => self.lease_step(to, task, &end)?,
            LeaseEvent::Asked { from, request, question } => self.lease_asked(to, from, request, question),
            LeaseEvent::Look { question, .. } => self.look_for_revoked(question),
            LeaseEvent::Answered { request, answers } => return self.lease_answered(request, answers),
        }
        self.turn(to)
    }

    fn leasing(&mut self, id: u64) -> &mut Leasing {
        &mut self.site(id).up.as_mut().expect("only a running member has leases").leasing
    }

    /// Returns the term of a member, if it leads.
    fn led_term(&self, id: u64) -> Option<Term> {
        let gauges = self.see(id).up.as_ref()?.node.gauges();
        (gauges.role == Role::Leader).then_some(gauges.term)
    }

    /// Updates the lease clock of a member after it applied an entry.
    pub(super) fn note_lease_clock(&mut self, id: u64) {
        let now = self.now;
        if let Some(up) = self.site(id).up.as_mut() {
            up.leasing.note_clock(now);
        }
    }

    /// Schedules the lease clock of a new leader, once per term.
    pub(super) fn plan_lease_turns(&mut self, id: u64, term: Term) {
        if self.leasing(id).planned.replace(term) == Some(term) {
            return;
        }
        let (boot, delay) = (self.see(id).boots, self.chances.leases.within(1, TURN));
        self.after(delay, WorldEvent::Lease { to: id, event: LeaseEvent::Turn { boot, term } });
    }

    fn lease_turn(&mut self, id: u64, boot: u64, term: Term) -> Result<(), MemberError> {
        self.check_overdue()?;
        if self.led_term(id) != Some(term) {
            self.leasing(id).end();
            return Ok(());
        }
        if self.now + LAST > self.end {
            return Ok(());
        }
        self.after(TURN, WorldEvent::Lease { to: id, event: LeaseEvent::Turn { boot, term } });
        self.raise_level(id)?;
        match self.leasing(id).led.filter(|led| led.term == term) {
            Some(led) => self.work(id, led.term),
            None if self.lease_tasks.is_beginning(id, term) => {}
            None => self.ask_for(id, Then::Lead { term }),
        }
        Ok(())
    }

    /// Runs the lease clock once, and proposes its commands.
    fn work(&mut self, id: u64, term: Term) {
        let now = self.now;
        loop {
            let leasing = self.leasing(id);
            let (clock, table) = (leasing.clock_at(term, now), leasing.table.clone());
            let work = leasing.turns().turn(clock, &table);
            if let Some(chosen) = work.record {
                self.propose_for(id, chosen.record(term, clock), Then::Recorded { term });
            }
            let mut due = work.expired.as_slice();
            while !due.is_empty() {
                let store = &self.see(id).up.as_ref().expect("it leads").store;
                let count = leases_in_command(due, |lease, max| store.count_keys_of_lease(lease, max));
                let ids = due[..count].to_vec();
                due = &due[count..];
                let expire = Kind::LeaseExpire(LeaseExpire { term: term.0, now: clock, ids: ids.clone() });
                self.propose_for(id, expire, Then::Expired { term, ids });
            }
            if !work.has_more {
                return;
            }
        }
    }

    pub(super) fn propose_for(&mut self, id: u64, kind: Kind, then: Then) {
        let task = self.lease_tasks.add(id, then);
        let command = numbered(command::encode(kind), task);
        if !self.site(id).up.as_mut().expect("it is up").propose(
            RequestOrigin::Member,
            command,
            task,
            CommandRoute::Batched,
        ) {
            self.plan_lease_step(task, TaskResult::Failed);
        }
    }

    fn ask_for(&mut self, id: u64, then: Then) {
        let task = self.lease_tasks.add(id, then);
        if !self.site(id).up.as_mut().expect("it is up").ask(RequestOrigin::Member, task) {
            self.plan_lease_step(task, TaskResult::Failed);
        }
    }

    /// Schedules the next step of a task after its result.
    pub(super) fn plan_lease_step(&mut self, task: RequestId, end: TaskResult) {
        let Some(to) = self.lease_tasks.member(task) else { return };
        let (boot, delay) = (self.see(to).boots, self.chances.leases.within(5, 2 * MILLISECOND));
        self.after(delay, WorldEvent::Lease { to, event: LeaseEvent::Step { boot, task, end } });
    }

    fn lease_step(&mut self, id: u64, task: RequestId, end: &TaskResult) -> Result<(), MemberError> {
        let now = self.now;
        let is_done = matches!(end, TaskResult::Readable | TaskResult::Applied(Ok(_)));
        let Some(then) = self.lease_tasks.take(task) else { return Ok(()) };
        match then {
            Then::Lead { term } | Then::LeadFor { term, .. }
                if is_done && self.led_term(id) == Some(term) =>
            {
                let led = self.leasing(id).begin(term, now);
                if let Then::LeadFor { question, .. } = then {
                    self.work_on(question, led);
                }
            }
            Then::Lead { .. } | Then::Raised => {}
            Then::LeadFor { question, .. } => self.reply(question, None),
            Then::Recorded { term } => {
                let leasing = self.leasing(id);
                if leasing.led.is_some_and(|led| led.term == term) {
                    leasing.turns().recorded();
                }
            }
            Then::Expired { term, ids } => {
                let leasing = self.leasing(id);
                if leasing.led.is_some_and(|led| led.term == term) {
                    let (table, clock) = (leasing.table.clone(), leasing.clock_at(term, now));
                    match end {
                        TaskResult::Applied(Ok(Response::LeaseExpire(_))) => {
                            leasing.turns().expired(&ids, &table)
                        }
                        _ => leasing.turns().not_expired(&ids, clock),
                    }
                }
            }
            Then::Answer { question } => {
                let led = self.lease_tasks.question(question).and_then(|question| question.led);
                let still_leads = led.is_some_and(|led| self.led_term(id) == Some(led.term));
                let is_recorded = matches!(end, TaskResult::Applied(Ok(_)));
                if !(is_recorded || is_done && still_leads) {
                    self.reply(question, None);
                } else if let Some(waiting) = self.lease_tasks.question(question) {
                    waiting.waiting -= 1;
                    if waiting.waiting == 0 {
                        self.go_on(question);
                    }
                }
            }
        }
        Ok(())
    }

    /// Forwards a client request to the leader that the member knows of.
    pub(super) fn ask_leader(&mut self, member: u64, request: RequestId, question: LeaseQuestion) {
        if let LeaseQuestion::Renew(ids, _) = &question {
            let truth = self.truth.clone();
            ids.iter().for_each(|id| truth.get().times.asked(*id));
        }
        self.pass_on(member, request, question);
    }

    fn pass_on(&mut self, member: u64, request: RequestId, question: LeaseQuestion) {
        let leader = self.see(member).up.as_ref().and_then(|up| up.node.gauges().leader);
        let asked = LeaseEvent::Asked { from: member, request, question };
        match leader {
            None => self.gone(request),
            Some(leader) if leader == member => self.after(0, WorldEvent::Lease { to: leader, event: asked }),
            Some(leader) => {
                let give_up = LeaseEvent::Answered { request, answers: None };
                self.after(RESPONSE_TIMEOUT, WorldEvent::Lease { to: member, event: give_up });
                if let Some(delay) = self.lease_delay(member, leader) {
                    self.after(delay, WorldEvent::Lease { to: leader, event: asked });
                }
            }
        }
    }

    /// Returns the delay of a message, if both directions are connected.
    fn lease_delay(&mut self, from: u64, to: u64) -> Option<u64> {
        let is_open = self.network.reaches(from, to) && self.network.reaches(to, from);
        let delay = self.chances.leases.within(50, self.network.faults.delay_max + 51);
        is_open.then_some(delay)
    }

    fn lease_asked(&mut self, leader: u64, from: u64, request: RequestId, question: LeaseQuestion) {
        let asked =
            Question { leader, from, request, question, led: None, batch: None, waiting: 0, revoked: None };
        let number = self.lease_tasks.add_question(asked);
        match self.led_term(leader) {
            None => self.reply(number, None),
            Some(term) => match self.leasing(leader).led.filter(|led| led.term == term) {
                Some(led) => self.work_on(number, led),
                None => self.ask_for(leader, Then::LeadFor { term, question: number }),
            },
        }
    }

    /// Starts processing a request.
    fn work_on(&mut self, number: u64, led: LedTerm) {
        let now = self.now;
        let Some(Question { leader, question, .. }) = self.lease_tasks.question(number) else { return };
        let (leader, question) = (*leader, question.clone());
        let leasing = self.leasing(leader);
        let (clock, table) = (leasing.clock_at(led.term, now), leasing.table.clone());
        // Its state after the clock was read.
        let led = leasing.led.filter(|newest| newest.term == led.term).unwrap_or(led);
        let batch = match question {
            LeaseQuestion::Renew(ids, when_expired) => {
                Some(RenewalBatch::new(&table, ids, when_expired, led, clock))
            }
            LeaseQuestion::Remaining(_) => None,
        };
        let Some(question) = self.lease_tasks.question(number) else { return };
        question.led = Some(led);
        match batch {
            Some(batch) => {
                question.batch = Some(batch);
                self.go_on(number);
            }
            None => self.require(number, Chosen::default(), true),
        }
    }

    /// Runs the next step of a request after its dependencies have completed.
    fn go_on(&mut self, number: u64) {
        let now = self.now;
        let Some(Question { leader, led: Some(led), .. }) = self.lease_tasks.question(number) else { return };
        let (leader, led) = (*leader, *led);
        let leasing = self.leasing(leader);
        let (table, clock) = (leasing.table.clone(), leasing.clock_at(led.term, now));
        let Some(question) = self.lease_tasks.question(number) else { return };
        let step = match (&mut question.batch, &question.question) {
            (Some(batch), _) => batch.next(&table),
            (None, LeaseQuestion::Remaining(id)) => {
                let answers = remaining(&table, &[*id], clock);
                self.reply(number, Some(answers));
                return;
            }
            (None, LeaseQuestion::Renew(..)) => unreachable!("renewals are a batch"),
        };
        match step {
            RenewalStep::Require { record, must_confirm } => self.require(number, record, must_confirm),
            RenewalStep::AwaitRevoked(ids) => {
                question.revoked = Some((ids, now + REVOKE_TIMEOUT));
                self.look_for_revoked(number);
            }
            RenewalStep::Answer(ttls) => self.reply(number, Some(ttls.into_iter().map(renewed).collect())),
        }
    }

    /// Requests the read point and proposal that a response depends on.
    fn require(&mut self, number: u64, record: Chosen, must_confirm: bool) {
        let now = self.now;
        let Some(question) = self.lease_tasks.question(number) else { return };
        let (leader, Some(led)) = (question.leader, question.led) else { return };
        question.waiting = u32::from(must_confirm) + u32::from(!record.is_empty());
        if !record.is_empty() {
            let clock = self.leasing(leader).clock_at(led.term, now);
            self.propose_for(leader, record.record(led.term, clock), Then::Answer { question: number });
        }
        if must_confirm {
            self.ask_for(leader, Then::Answer { question: number });
        }
    }

    /// Continues when the expired leases are revoked, or after a timeout.
    fn look_for_revoked(&mut self, number: u64) {
        let now = self.now;
        let Some(question) = self.lease_tasks.question(number) else { return };
        let (leader, Some((ids, until))) = (question.leader, question.revoked.clone()) else { return };
        let is_there = self.leasing(leader).table.get_all(&ids).iter().any(Option::is_some);
        if is_there && now < until {
            let event = LeaseEvent::Look { boot: self.see(leader).boots, question: number };
            self.after(CHECK_INTERVAL, WorldEvent::Lease { to: leader, event });
        } else {
            self.go_on(number);
        }
    }

    /// Sends the leader's response to the forwarding member.
    fn reply(&mut self, number: u64, answers: Option<Vec<Remaining>>) {
        let Some(Question { leader, from, request, .. }) = self.lease_tasks.take_question(number) else {
            return;
        };
        let delay = if from == leader { Some(0) } else { self.lease_delay(leader, from) };
        if let Some(delay) = delay {
            let event = LeaseEvent::Answered { request, answers };
            self.after(delay, WorldEvent::Lease { to: from, event });
        }
    }

    fn lease_answered(
        &mut self,
        request: RequestId,
        answers: Option<Vec<Remaining>>,
    ) -> Result<(), MemberError> {
        let Some(answers) = answers else {
            self.gone(request);
            return Ok(());
        };
        let truth = self.truth.clone();
        match self.clients.lease_answered(request, &answers, &mut truth.get(), &mut self.report)? {
            AfterLeaseAnswer::Nothing => {}
            AfterLeaseAnswer::Rest { client } => self.rest(client),
            AfterLeaseAnswer::AskAgain { member, question } => self.pass_on(member, request, question),
        }
        Ok(())
    }

    /// Checks, in a phase without faults, that expired leases are soon revoked, whatever the load.
    fn check_overdue(&self) -> Result<(), Breach> {
        if self.phase == FaultPhase::Faults {
            return Ok(());
        }
        match self.truth.get().times.overdue(self.phase_began + SETTLED) {
            Some(what) => Err(Breach(what)),
            None => Ok(()),
        }
    }

    /// Checks at the end that no expired lease is left, and counts the expirations.
    pub(super) fn check_leases(&mut self) -> Result<(), Breach> {
        self.check_overdue()?;
        let expired = self.truth.get().times.expired;
        self.report.add(Statistic::LeasesExpired, expired);
        Ok(())
    }
}

fn renewed(ttl: i64) -> Remaining {
    Remaining { ttl, granted_ttl: ttl }
}
