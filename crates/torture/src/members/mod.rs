//! Membership changes under load: members are added, promoted, replaced, moved and removed, while some are
//! killed, paused and isolated.
//!
//! ```text
//!   round: load ▶ ten steps (absent members return ▶ change ∥ fault ▶ equal lists) ▶ all return ▶ end of load ▶ check
//! ```
//!
//! * The plan keeps a majority of the voters running and connected, so every change and every start must
//!   succeed.
//! * A cut within a single step is mended after its duration, even if the change is still pending.
//! * After each step all running voters have the membership that results from the steps.
//! * After each round all acknowledged writes are present, and all members have the same history.
//! * The longest time without an acknowledged write is measured per step and reported. It is not a verdict,
//!   because it depends on the machine.

mod cluster; // processes by place
mod links; // connections between members, with partitions
mod operator; // calls that change the membership
mod plan; // changes and faults, by seed
mod silence; // times without an acknowledged write

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use testkit::Process;

use self::cluster::{EXISTING, LiveCluster, MemberCondition, url};
use self::links::Way;
use self::plan::{At, Manner, MemberChange, MemberFault, MemberFaultKind, MembershipPlan, PlanStep, Ways};
use self::silence::{Period, Silence};
use crate::bench::{Environment, say};
use crate::clients::client::MemberClient;
use crate::clients::record::{ClaimLog, Violations, check_equal};
use crate::clients::workload::{AfterFailure, RunningWorkload, Workload};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace, PATIENCE};
use crate::report::ExperimentReport;

/// Changes between two checks of the data.
const ROUND: u64 = 10;
/// Two clients per place, used or not.
const CLIENTS: u64 = 2 * plan::PLACES as u64;
/// Interval between two probe puts to a member: the resolution of the times without an acknowledged write.
const PROBES_INTERVAL: Duration = Duration::from_millis(200);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub struct MembersOptions {
    pub changes: u64,
    pub seed: u64,
}

/// Makes changes until enough are done, or until a violation is found.
pub fn run(bench: &Environment, order: &MembersOptions) -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| ExperimentError::new(format!("start a runtime: {error}")))?;
    runtime.block_on(async {
        let mut experiment = Experiment::begin(bench, order).await?;
        while experiment.changes < order.changes && experiment.report.bad() == 0 {
            let steps = ROUND.min(order.changes - experiment.changes);
            if let Err(failure) = experiment.round(steps).await {
                experiment.note("step", &failure.to_string());
            }
        }
        Ok(experiment.end())
    })
}

struct Experiment {
    cluster: LiveCluster,
    plan: MembershipPlan,
    /// Independent of the plan's generator: the number of draws depends on the clients.
    chance: SmallRng,
    seed: u64,
    began: Instant,
    rounds: u64,
    changes: u64,
    record: ClaimLog,
    silence: Silence,
    report: ExperimentReport,
}

impl Experiment {
    async fn begin(bench: &Environment, order: &MembersOptions) -> Result<Experiment> {
        Ok(Experiment {
            cluster: LiveCluster::start(bench).await?,
            plan: MembershipPlan::new(order.seed),
            chance: SmallRng::seed_from_u64(!order.seed),
            seed: order.seed,
            began: Instant::now(),
            rounds: 0,
            changes: 0,
            record: ClaimLog::default(),
            silence: Silence::default(),
            report: ExperimentReport::default(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs steps under load, and the check after them.
    async fn round(&mut self, steps: u64) -> Result<()> {
        self.rounds += 1;
        let (load, from) = (self.load(), self.now());
        let mut periods = Vec::new();
        let mut made = Ok(());
        for _ in 0..steps {
            let (step, from) = (self.plan.step(), self.now());
            self.changes += 1;
            made = self.step(&step).await;
            let what = format!("change {}, {:?}, {:?}", self.changes, step.change, step.fault);
            let has_fault = step.fault.is_some() || !step.returning.is_empty();
            let fault = step.fault.as_ref().filter(|fault| fault.changes == 0);
            let lasts = fault.map_or(0, |fault| fault.lasts_ms * 1_000_000);
            periods.push(Period { from, to: self.now(), what, kind: period_kind(&step), has_fault, lasts });
            if let Err(failure) = made {
                made = Err(ExperimentError::new(format!("{step:?}: {failure}")));
                break;
            }
        }
        if made.is_ok() {
            made = self.bring_all_back().await;
        }
        let to = self.now();
        let claims = load.finish().await;
        let answered = claims.iter().filter_map(|claim| claim.answer.map(|answer| answer.at));
        self.silence.add(from, to, answered.collect(), &periods).iter().for_each(|line| say(line));
        let violations = self.record.add(claims);
        self.note_all(violations);
        made?;
        self.check().await?;
        say(&format!(
            "{} changes, {} writes acknowledged, revision {}, {} s",
            self.changes,
            self.record.acknowledged(),
            self.record.baseline().revision,
            self.began.elapsed().as_secs()
        ));
        Ok(())
    }

    fn load(&self) -> RunningWorkload {
        let began = self.began;
        let workload = Workload {
            seed: self.seed,
            life: self.rounds,
            clients: CLIENTS,
            big: 0.01,
            // Unused places have no listener; their clients wait for a member.
            ports: self.cluster.client_ports(),
            after_failure: AfterFailure::Again,
            probes_every: Some(PROBES_INTERVAL),
            position: Arc::new(move || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        };
        workload.start()
    }

    async fn bring_all_back(&mut self) -> Result<()> {
        for at in self.plan.recall() {
            self.cluster.bring_back(at)?;
        }
        self.cluster.settle().await?;
        self.cluster.ended()
    }

    async fn step(&mut self, step: &PlanStep) -> Result<()> {
        for at in &step.returning {
            self.cluster.bring_back(*at)?;
        }
        if step.is_settled {
            self.cluster.settle().await?;
        }
        let leader = match (step.change, &step.fault) {
            (MemberChange::Remove { at, leads: true }, _) => Some(at),
            (_, Some(MemberFault { at, leads: true, .. })) => Some(*at),
            _ => None,
        };
        if let Some(at) = leader {
            self.lead(at).await?;
        }
        self.change(step).await?;
        self.count(step);
        self.cluster.settle().await?;
        self.cluster.ended()
    }

    async fn lead(&self, at: At) -> Result<()> {
        operator::lead(&self.cluster.voters_up(), self.cluster.member(at)?.id).await
    }

    async fn change(&mut self, step: &PlanStep) -> Result<()> {
        match step.change {
            MemberChange::Add { at, is_learner, cut } => self.add(at, is_learner, cut, step).await,
            MemberChange::Promote { at } => {
                let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
                self.with_fault(step, operator::promote(&ports, id)).await?;
                self.cluster.member_mut(at)?.is_learner = false;
                self.end_fault(step)
            }
            MemberChange::Remove { at, .. } => {
                let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
                self.with_fault(step, operator::remove(&ports, id)).await?;
                self.end_fault(step)?;
                self.cluster.drop_removed(at)
            }
            MemberChange::Replace { old, new } => self.replace(old, new, step).await,
            MemberChange::MoveLeader { at } => {
                // Includes the target of the fault: it may lead, and keep the lead after a short fault.
                let (ports, id) = (self.cluster.voters_up(), self.cluster.member(at)?.id);
                self.with_fault(step, operator::lead(&ports, id)).await?;
                self.end_fault(step)
            }
            MemberChange::Move { at } => self.move_member(at, step).await,
            MemberChange::Return { at } => {
                self.strike(step).await?;
                self.end_fault(step)?;
                self.cluster.restart_removed(at).await
            }
            MemberChange::Stranger { at } => {
                self.strike(step).await?;
                self.end_fault(step)?;
                self.cluster.start_stranger(at)
            }
        }
    }

    async fn add(&mut self, at: At, is_learner: bool, cut: Option<u64>, step: &PlanStep) -> Result<()> {
        let place = self.cluster.place(at, None);
        let (ports, peer_url) = (self.asked(step), url(&place));
        self.with_fault(step, operator::add(&ports, &peer_url, is_learner)).await?;
        self.cluster.adopt(at, place, is_learner).await?;
        self.end_fault(step)?;
        // A joiner queries any member for the membership; a member with an old configuration would
        // reject it.
        self.cluster.settle().await?;
        if let Some(cut) = cut {
            self.cluster.launch(at)?;
            tokio::time::sleep(Duration::from_micros(cut)).await;
            self.cluster.kill(at)?;
            self.report.count("kill of a joiner");
        }
        self.cluster.bring_back(at)
    }

    /// Runs the operator's command, and starts the new member after the command has added it.
    async fn replace(&mut self, old: At, new: At, step: &PlanStep) -> Result<()> {
        let name = self.cluster.member(old)?.place.name.clone();
        // The command removes an unresponsive member before it adds the new one.
        let is_silent =
            matches!(self.cluster.member(old)?.state, MemberCondition::Paused | MemberCondition::Down);
        let place = self.cluster.place(new, is_silent.then_some(old));
        let ports = self.asked(step);
        let command = self.replace_command(&name, &place, &ports)?;
        self.strike(step).await?;
        self.cluster.adopt(new, place, true).await?;
        self.end_fault(step)?;
        if is_silent {
            self.cluster.drop_removed(old)?;
        }
        self.cluster.settle().await?;
        self.cluster.bring_back(new)?;
        let end = tokio::task::block_in_place(|| member::wait_end(command))?;
        if !end.status.success() {
            return Err(ExperimentError::new(format!("member replace, {}: {}", end.status, end.said)));
        }
        self.cluster.member_mut(new)?.is_learner = false;
        self.cluster.drop_removed(old)
    }

    fn replace_command(&self, old: &str, place: &MemberPlace, ports: &[u16]) -> Result<Process> {
        let endpoints: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let kvctl = self.cluster.bench.server.with_file_name("kvctl");
        let mut command = Command::new(&kvctl);
        command.args(["member", "replace", "--grace=0", old]).arg(format!("{}={}", place.name, url(place)));
        command.arg(format!("--endpoints={}", endpoints.join(",")));
        command.arg(format!("--timeout={}", PATIENCE.as_secs()));
        Process::spawn(command.env_clear()).attempt("start", &kvctl)
    }

    /// Stops a member, changes its peer URL, and starts it there.
    async fn move_member(&mut self, at: At, step: &PlanStep) -> Result<()> {
        self.cluster.kill(at)?;
        let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
        let Way { peer_port, dialled_port, .. } = self.cluster.other_side(at)?;
        let mut moved = self.cluster.member(at)?.place.clone();
        (moved.peer_port, moved.advertised_peer_port) = (peer_port, dialled_port);
        // The flags of its first start contain its first address, and are compared with each other.
        moved.flags.push(EXISTING.to_owned());
        self.with_fault(step, operator::update(&ports, id, &url(&moved))).await?;
        self.cluster.member_mut(at)?.place = moved;
        self.end_fault(step)?;
        self.cluster.bring_back(at)
    }

    /// Returns the client ports of the members that receive requests for changes. Excludes the
    /// targets of the fault: a paused member with a request in its socket would apply the change
    /// when it resumes, long after later ones. Also excludes lagging members that return, which may
    /// still consider themselves the leader.
    fn asked(&self, step: &PlanStep) -> Vec<u16> {
        let is_struck = |at: At| step.fault.as_ref().is_some_and(|fault| fault.strikes(at));
        let lags = |at: At| !step.is_settled && step.returning.contains(&at);
        let voters = self.cluster.members.iter().filter(|(_, member)| member.is_voter_up());
        let asked = voters.filter(|(at, _)| !is_struck(**at) && !lags(**at));
        asked.map(|(_, member)| member.place.client_port).collect()
    }

    /// Makes the call while the fault is active.
    async fn with_fault(&self, step: &PlanStep, call: impl Future<Output = Result<()>>) -> Result<()> {
        let (made, struck) = tokio::join!(call, self.strike(step));
        made.and(struck)
    }

    async fn strike(&self, step: &PlanStep) -> Result<()> {
        let Some(fault) = &step.fault else { return Ok(()) };
        let (process, links) = (&self.cluster.member(fault.at)?.process, &self.cluster.links);
        tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
        match fault.kind {
            MemberFaultKind::Kill => process.iter().for_each(|process| process.signal(Signal::KILL)),
            MemberFaultKind::Pause => process.iter().for_each(Process::pause),
            MemberFaultKind::Cut(ways, manner) => links.cut(fault.group(), ways, manner),
        }
        if fault.changes == 0 {
            tokio::time::sleep(Duration::from_millis(fault.lasts_ms)).await;
            // Mends the cut even if the change is still pending.
            if matches!(fault.kind, MemberFaultKind::Cut(..)) {
                fault.group().for_each(|at| links.mend(at));
            }
        }
        Ok(())
    }

    /// Reverts the fault of this step, unless it lasts longer.
    fn end_fault(&mut self, step: &PlanStep) -> Result<()> {
        let Some(fault) = &step.fault else { return Ok(()) };
        for struck in fault.group() {
            let is_removed = matches!(step.change, MemberChange::Remove { at, .. } if at == struck);
            match fault.kind {
                MemberFaultKind::Kill if is_removed => self.cluster.kill_removed(struck)?,
                MemberFaultKind::Kill => self.cluster.kill(struck)?,
                MemberFaultKind::Pause => self.cluster.member_mut(struck)?.state = MemberCondition::Paused,
                MemberFaultKind::Cut(..) => self.cluster.member_mut(struck)?.state = MemberCondition::CutOff,
            }
            match (fault.kind, fault.changes, is_removed) {
                // A removed member does not become ready: see `Return`.
                (MemberFaultKind::Kill, _, true) => {}
                (MemberFaultKind::Pause | MemberFaultKind::Cut(..), _, true) | (_, 0, false) => {
                    self.cluster.bring_back(struck)?;
                }
                (_, _, false) => {}
            }
        }
        Ok(())
    }

    fn count(&mut self, step: &PlanStep) {
        let kind = match step.change {
            MemberChange::Add { is_learner: false, .. } => "add a voter",
            MemberChange::Add { .. } => "add a learner",
            MemberChange::Promote { .. } => "promote",
            MemberChange::Remove { leads: false, .. } => "remove",
            MemberChange::Remove { .. } => "remove the leader",
            MemberChange::Replace { .. } => "replace",
            MemberChange::MoveLeader { .. } => "move the leader",
            MemberChange::Move { .. } => "change an address",
            MemberChange::Return { .. } => "start a removed member",
            MemberChange::Stranger { .. } => "start a stranger",
        };
        self.report.count(kind);
        if let Some(fault) = &step.fault {
            let kind = match fault.kind {
                MemberFaultKind::Kill => "kill",
                MemberFaultKind::Pause => "pause",
                MemberFaultKind::Cut(Ways::Both, Manner::Silent) => "silent cut",
                MemberFaultKind::Cut(Ways::Both, Manner::Closed) => "closed cut",
                MemberFaultKind::Cut(_, Manner::Silent) => "silent cut of one way",
                MemberFaultKind::Cut(_, Manner::Closed) => "closed cut of one way",
            };
            let of = if fault.others.is_empty() { "" } else { " of several" };
            let during = if fault.changes == 0 { "" } else { " for several changes" };
            self.report.count(&format!("{kind}{of}{during}"));
        }
    }

    /// Checks that no acknowledged write is missing, and that all members have the same history.
    /// All members must be running.
    async fn check(&mut self) -> Result<()> {
        let ports = self.cluster.voters_up();
        let port = ports[self.chance.random_range(0..ports.len())];
        let mut client = MemberClient::connect(port, PATIENCE).await?;
        let violations = self.record.check(&mut client, &mut self.chance).await?;
        self.note_all(violations);
        let revision = self.record.baseline().revision;
        let violations = check_equal(&ports, revision, PATIENCE).await?;
        self.note_all(violations);
        self.check_learner(revision).await
    }

    /// Checks the state of the learner, which rejects linearizable reads and hash requests.
    async fn check_learner(&mut self, revision: i64) -> Result<()> {
        let Some(learner) = self.cluster.members.values().find(|member| member.is_learner) else {
            return Ok(());
        };
        let mut client = MemberClient::connect(learner.place.client_port, PATIENCE).await?;
        let deadline = Instant::now() + PATIENCE;
        let state = loop {
            // A lagging learner rejects the revision as a future one.
            match client.applied(revision).await {
                Ok(state) => break state,
                Err(failure) if Instant::now() > deadline => return Err(failure),
                Err(_) => tokio::time::sleep(CHECK_INTERVAL).await,
            }
        };
        if state.keys != self.record.baseline().keys {
            let name = learner.place.name.clone();
            self.note("learner", &format!("{name} differs from the voters at revision {revision}"));
        }
        Ok(())
    }

    fn note_all(&mut self, violations: Violations) {
        for (kind, violations) in violations {
            violations.iter().for_each(|violation| self.note(kind, violation));
        }
    }

    fn note(&mut self, kind: &str, violation: &str) {
        let kept = self.cluster.keep();
        let trial = format!("{kind}, change {} of seed {} (kept in {kept})", self.changes, self.seed);
        self.report.violation(&trial, violation.to_owned());
    }

    fn end(self) -> ExperimentReport {
        say(&format!(
            "{} changes, {} writes acknowledged, {} members in the end",
            self.changes,
            self.record.acknowledged(),
            self.cluster.members.len()
        ));
        self.silence.lines().iter().for_each(|line| say(line));
        self.report
    }
}

/// Returns the category of a time without acknowledged writes.
fn period_kind(step: &PlanStep) -> &'static str {
    let leads = matches!(step.change, MemberChange::Remove { leads: true, .. });
    match step.fault.as_ref().map(|fault| (fault.kind, fault.leads)) {
        None if !step.returning.is_empty() => "a return",
        None if leads => "removal of the leader",
        None => "no fault",
        Some((MemberFaultKind::Kill, false)) => "kill",
        Some((MemberFaultKind::Kill, true)) => "kill of the leader",
        Some((MemberFaultKind::Pause, false)) => "pause",
        Some((MemberFaultKind::Pause, true)) => "pause of the leader",
        Some((MemberFaultKind::Cut(..), false)) => "cut",
        Some((MemberFaultKind::Cut(Ways::To, _), true)) => "cut of what the leader hears",
        Some((MemberFaultKind::Cut(..), true)) => "cut of the leader",
    }
}
