//! Members are added, promoted, replaced, moved and removed under load, while some are killed, paused and cut off.
//!
//! ```text
//!   round: load ▶ ten steps (who was away returns ▶ change ∥ fault ▶ equal lists) ▶ all return ▶ end of load ▶ check
//! ```
//!
//! * The plan keeps a majority of the voters running, so every change and every start must succeed.
//! * After each step all voters that run have the same list of members, the one that the steps led to.
//! * After each round all that was ever acknowledged is there, and all members have the same history.
//! * The longest time without an acknowledged write is measured and reported. It is no verdict: it depends on the
//!   machine.

mod cluster; // processes by place
mod links; // what members send each other, and can be cut
mod operator; // calls that change the membership
mod plan; // what happens, by the seed
mod silence; // times without an acknowledged write

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::cluster::{Cluster, EXISTING, State, url};
use self::links::Way;
use self::plan::{At, Change, Fault, FaultKind, Plan, Step};
use self::silence::{Period, Silence};
use crate::bench::{Bench, say};
use crate::clients::client::Client;
use crate::clients::record::{Record, Violations, check_equal};
use crate::clients::workload::{AfterFailure, Running, Workload};
use crate::failure::{Failure, Result};
use crate::member::{PATIENCE, Place, Process};
use crate::report::Report;

/// Changes between two checks of the data.
const ROUND: u64 = 10;
/// Two for each place, used or not.
const CLIENTS: u64 = 2 * plan::PLACES as u64;
/// Between two looks at a learner that catches up, and at a command that runs.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub changes: u64,
    pub seed: u64,
}

/// Changes the members until enough changes are made, or until something is wrong.
pub fn run(bench: &Bench, order: &Order) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("start a runtime: {error}")))?;
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
    cluster: Cluster,
    plan: Plan,
    /// Apart from the plan's: how often it is asked depends on what the clients did.
    chance: SmallRng,
    seed: u64,
    began: Instant,
    rounds: u64,
    changes: u64,
    record: Record,
    silence: Silence,
    report: Report,
}

impl Experiment {
    async fn begin(bench: &Bench, order: &Order) -> Result<Experiment> {
        Ok(Experiment {
            cluster: Cluster::start(bench).await?,
            plan: Plan::new(order.seed),
            chance: SmallRng::seed_from_u64(!order.seed),
            seed: order.seed,
            began: Instant::now(),
            rounds: 0,
            changes: 0,
            record: Record::default(),
            silence: Silence::default(),
            report: Report::default(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Steps under load, and the check after them.
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
            periods.push(Period { from, to: self.now(), what, has_fault });
            if let Err(failure) = made {
                made = Err(Failure::new(format!("{step:?}: {failure}")));
                break;
            }
        }
        if made.is_ok() {
            made = self.bring_all_back().await;
        }
        let to = self.now();
        let claims = load.finish().await;
        let answered = claims.iter().filter_map(|claim| claim.answer.map(|answer| answer.at));
        self.silence.add((from, to), answered.collect(), &periods).iter().for_each(|line| say(line));
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

    fn load(&self) -> Running {
        let began = self.began;
        let workload = Workload {
            seed: self.seed,
            life: self.rounds,
            clients: CLIENTS,
            big: 0.01,
            // In an unused place nothing listens, and its clients wait for a member.
            ports: self.cluster.client_ports(),
            after_failure: AfterFailure::Again,
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

    async fn step(&mut self, step: &Step) -> Result<()> {
        for at in &step.returning {
            self.cluster.bring_back(*at)?;
        }
        self.cluster.settle().await?;
        let leader = match (step.change, step.fault) {
            (Change::Remove { at, leads: true }, _) | (_, Some(Fault { at, leads: true, .. })) => Some(at),
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

    async fn change(&mut self, step: &Step) -> Result<()> {
        match step.change {
            Change::Add { at, is_learner, cut } => self.add(at, is_learner, cut, step).await,
            Change::Promote { at } => {
                let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
                self.with_fault(step, operator::promote(&ports, id)).await?;
                self.cluster.member_mut(at)?.is_learner = false;
                self.end_fault(step)
            }
            Change::Remove { at, .. } => {
                let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
                self.with_fault(step, operator::remove(&ports, id)).await?;
                self.end_fault(step)?;
                self.cluster.drop_removed(at)
            }
            Change::Replace { old, new } => self.replace(old, new, step).await,
            Change::MoveLeader { at } => {
                let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
                self.with_fault(step, operator::lead(&ports, id)).await?;
                self.end_fault(step)
            }
            Change::Move { at } => self.move_member(at, step).await,
            Change::Return { at } => {
                self.strike(step).await?;
                self.end_fault(step)?;
                self.cluster.restart_removed(at).await
            }
            Change::Stranger { at } => {
                self.strike(step).await?;
                self.end_fault(step)?;
                self.cluster.start_stranger(at)
            }
        }
    }

    async fn add(&mut self, at: At, is_learner: bool, cut: Option<u64>, step: &Step) -> Result<()> {
        let place = self.cluster.place(at, None);
        let (ports, peer_url) = (self.asked(step), url(&place));
        self.with_fault(step, operator::add(&ports, &peer_url, is_learner)).await?;
        self.cluster.adopt(at, place, is_learner).await?;
        self.end_fault(step)?;
        // A joiner asks any member who is in the cluster: one that does not know of it would refuse it.
        self.cluster.settle().await?;
        if let Some(cut) = cut {
            self.cluster.launch(at)?;
            tokio::time::sleep(Duration::from_micros(cut)).await;
            self.cluster.kill(at)?;
            self.report.count("kill of a joiner");
        }
        self.cluster.bring_back(at)
    }

    /// Runs the operator's command, and starts the new member when the command has added it.
    async fn replace(&mut self, old: At, new: At, step: &Step) -> Result<()> {
        let name = self.cluster.member(old)?.place.name.clone();
        // The command removes a silent member before it adds the new one.
        let is_silent = matches!(self.cluster.member(old)?.state, State::Paused | State::Down);
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
        let end = tokio::task::block_in_place(|| command.wait_end())?;
        if !end.status.success() {
            return Err(Failure::new(format!("member replace, {}: {}", end.status, end.said)));
        }
        self.cluster.member_mut(new)?.is_learner = false;
        self.cluster.drop_removed(old)
    }

    fn replace_command(&self, old: &str, place: &Place, ports: &[u16]) -> Result<Process> {
        let endpoints: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut command = Command::new(&self.cluster.bench.server);
        command.args(["member", "replace", old]).arg(format!("{}={}", place.name, url(place)));
        command.arg(format!("--endpoints={}", endpoints.join(",")));
        command.arg(format!("--timeout={}", PATIENCE.as_secs()));
        Process::spawn(&mut command)
    }

    /// Stops a member, changes its address in the list, and starts it there.
    async fn move_member(&mut self, at: At, step: &Step) -> Result<()> {
        self.cluster.kill(at)?;
        let (ports, id) = (self.asked(step), self.cluster.member(at)?.id);
        let Way { peer_port, dialled_port, .. } = self.cluster.other_side(at)?;
        let mut moved = self.cluster.member(at)?.place.clone();
        (moved.peer_port, moved.advertised_peer_port) = (peer_port, dialled_port);
        // The flags of its first start name its first address, and are compared with each other.
        moved.flags.push(EXISTING.to_owned());
        self.with_fault(step, operator::update(&ports, id, &url(&moved))).await?;
        self.cluster.member_mut(at)?.place = moved;
        self.end_fault(step)?;
        self.cluster.bring_back(at)
    }

    /// Client ports of the members that are asked for a change: not the one that the fault strikes. A member that is
    /// paused with a request in its socket would make the change when it runs on, long after the next ones.
    fn asked(&self, step: &Step) -> Vec<u16> {
        let mut ports = self.cluster.voters_up();
        let struck = step.fault.and_then(|fault| self.cluster.members.get(&fault.at));
        ports.retain(|port| struck.is_none_or(|member| member.place.client_port != *port));
        ports
    }

    /// Makes the call while the fault strikes.
    async fn with_fault(&self, step: &Step, call: impl Future<Output = Result<()>>) -> Result<()> {
        let (made, struck) = tokio::join!(call, self.strike(step));
        made.and(struck)
    }

    async fn strike(&self, step: &Step) -> Result<()> {
        let Some(fault) = step.fault else { return Ok(()) };
        let member = self.cluster.member(fault.at)?;
        tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
        if let Some(process) = &member.process {
            match fault.kind {
                FaultKind::Kill => process.begin_kill(),
                FaultKind::Pause => process.pause(),
                FaultKind::Cut => self.cluster.links.cut(fault.at),
            }
        }
        if fault.changes == 0 {
            tokio::time::sleep(Duration::from_millis(fault.lasts_ms)).await;
        }
        Ok(())
    }

    /// Ends the fault of this step, unless it lasts for longer.
    fn end_fault(&mut self, step: &Step) -> Result<()> {
        let Some(fault) = step.fault else { return Ok(()) };
        match fault.kind {
            FaultKind::Kill => self.cluster.kill(fault.at)?,
            FaultKind::Pause => self.cluster.member_mut(fault.at)?.state = State::Paused,
            FaultKind::Cut => self.cluster.member_mut(fault.at)?.state = State::CutOff,
        }
        let is_removed = matches!(step.change, Change::Remove { at, .. } if at == fault.at);
        match (fault.kind, fault.changes, is_removed) {
            // A removed member does not become ready: see `Return`.
            (FaultKind::Kill, _, true) => Ok(()),
            (FaultKind::Pause | FaultKind::Cut, _, true) | (_, 0, false) => self.cluster.bring_back(fault.at),
            (_, _, false) => Ok(()),
        }
    }

    fn count(&mut self, step: &Step) {
        let kind = match step.change {
            Change::Add { is_learner: false, .. } => "add a voter",
            Change::Add { .. } => "add a learner",
            Change::Promote { .. } => "promote",
            Change::Remove { leads: false, .. } => "remove",
            Change::Remove { .. } => "remove the leader",
            Change::Replace { .. } => "replace",
            Change::MoveLeader { .. } => "move the leader",
            Change::Move { .. } => "change an address",
            Change::Return { .. } => "start a removed member",
            Change::Stranger { .. } => "start a stranger",
        };
        self.report.count(kind);
        if let Some(fault) = step.fault {
            let kind = match (fault.kind, fault.changes) {
                (FaultKind::Kill, 0) => "kill",
                (FaultKind::Kill, _) => "kill for several changes",
                (FaultKind::Pause, 0) => "pause",
                (FaultKind::Pause, _) => "pause for several changes",
                (FaultKind::Cut, 0) => "cut",
                (FaultKind::Cut, _) => "cut for several changes",
            };
            self.report.count(kind);
        }
    }

    /// Nothing acknowledged is missing, and all members have the same history. All of them run.
    async fn check(&mut self) -> Result<()> {
        let ports = self.cluster.voters_up();
        let port = ports[self.chance.random_range(0..ports.len())];
        let mut client = Client::connect(port, PATIENCE).await?;
        let violations = self.record.check(&mut client, &mut self.chance).await?;
        self.note_all(violations);
        let revision = self.record.baseline().revision;
        let violations = check_equal(&ports, revision, PATIENCE).await?;
        self.note_all(violations);
        self.check_learner(revision).await
    }

    /// A learner answers no linearizable reads and no hashes. Its state is read.
    async fn check_learner(&mut self, revision: i64) -> Result<()> {
        let Some(learner) = self.cluster.members.values().find(|member| member.is_learner) else {
            return Ok(());
        };
        let mut client = Client::connect(learner.place.client_port, PATIENCE).await?;
        let deadline = Instant::now() + PATIENCE;
        let state = loop {
            // It answers that the revision is in the future while it lags.
            match client.applied(revision).await {
                Ok(state) => break state,
                Err(failure) if Instant::now() > deadline => return Err(failure),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
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

    fn end(self) -> Report {
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
