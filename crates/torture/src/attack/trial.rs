//! One attack on one program, from the start of its members to their exit.
//!
//! ```text
//!   start ▶ preload ▶ healthy load: warm up │ calm │ attack │ 5 s to settle, and a last look │ ▶ verdict ▶ kill
//! ```
//!
//! Attackers run on a low-priority runtime: on a machine with two cores they would otherwise take the
//! processor time that the healthy clients measure with.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::attacks::ground::{Ground, Ledger};
use super::catalogue::Attack;
use super::figures::load::HealthyLoad;
use super::figures::outcome::{AttackOutcome, Findings, NORMAL_WINDOW, SETTLE_TIMEOUT, Times, Usages};
use super::figures::process::{PeakMemory, ProcessUsage};
use super::preload;
use super::target::{AttackTarget, ClusterSetup, ProgramKind, ServerProgram};
use crate::bench::Environment;
use crate::failure::{ExperimentError, Result};

const WARM_UP: Duration = Duration::from_secs(1);
const CALM_MAX: Duration = Duration::from_secs(5);
const SETTLED_TIMEOUT: Duration = Duration::from_secs(60);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub struct Trial<'a> {
    pub bench: &'a Environment,
    pub attack: &'static Attack,
    pub program: &'a ServerProgram,
    pub members: u16,
    pub duration: Duration,
    /// Number of consecutive runs of the attack on the same members.
    pub repeats: u32,
    /// A 99th percentile below this is always accepted.
    pub p99_floor: Duration,
    pub attackers: Handle,
}

impl Trial<'_> {
    pub async fn run(&self) -> Result<AttackOutcome> {
        let setup = self.setup();
        let mut target = AttackTarget::start(self.bench, self.program, &setup)?;
        let port = target.client_ports()[0];
        // With a quota, the cache fill would use it up.
        if self.repeats > 1 && self.attack.quota_bytes.is_none() {
            preload::fill_caches(port).await?;
        }
        preload::fill(port, &self.attack.preload).await?;
        let ids = target.ids().await?;
        let load = HealthyLoad::start(&target.client_ports()).await?;
        tokio::time::sleep(WARM_UP).await;
        let calm = Instant::now();
        tokio::time::sleep(self.duration.min(CALM_MAX)).await;

        let pids = target.pids();
        let mut usages = Usages { before: ProcessUsage::of_all(&pids), ..Usages::default() };
        let peak = PeakMemory::watch(pids.clone());
        let attack = Instant::now();
        let (ids, ledger) = (Arc::new(ids), Arc::new(Ledger::default()));
        let mut ended = None;
        for number in 0..self.repeats.max(1) {
            match number {
                0 => {}
                1 => {
                    ended = wait(&mut target, Instant::now() + SETTLE_TIMEOUT, None, &mut usages).await;
                    usages.first = Some(ProcessUsage::of_all(&pids));
                }
                _ => tokio::time::sleep(NORMAL_WINDOW).await,
            }
            if ended.is_some() {
                break;
            }
            let ground = Ground {
                kind: self.program.kind,
                ports: target.places.iter().map(|place| (place.client_port, place.peer_port)).collect(),
                pids: pids.clone().into(),
                ids: Arc::clone(&ids),
                ends: Instant::now() + self.duration,
                ledger: Arc::clone(&ledger),
            };
            let ends = ground.ends;
            let strike = self.attackers.spawn((self.attack.strike)(ground));
            ended = wait(&mut target, ends, Some(&pids), &mut usages).await;
            strike.abort();
        }
        let over = Instant::now();
        if ended.is_none() {
            ended = wait(&mut target, over + SETTLE_TIMEOUT, None, &mut usages).await;
            usages.left = settled(&pids, usages.first).await;
            tokio::time::sleep(NORMAL_WINDOW).await;
        }
        usages.rss_bytes_peak = peak.finish();
        let samples = load.finish().await;
        Ok(AttackOutcome::of(Findings {
            attack: self.attack.name,
            bounds: self.attack.bounds,
            program: name(self.program.kind).to_owned(),
            members: setup.members,
            samples,
            p99_floor: self.p99_floor,
            times: Times { calm, attack, over, frozen: ledger.frozen() },
            usages,
            acts: ledger.acts(),
            breaks: ledger.breaks(),
            lost: ledger.lost(),
            ended,
        }))
    }

    /// Returns the failing outcome of a trial that could not run.
    pub fn failed(&self, failure: &ExperimentError) -> AttackOutcome {
        let now = Instant::now();
        AttackOutcome::of(Findings {
            attack: self.attack.name,
            bounds: self.attack.bounds,
            program: name(self.program.kind).to_owned(),
            members: self.members,
            samples: Vec::new(),
            p99_floor: self.p99_floor,
            times: Times { calm: now, attack: now, over: now, frozen: Vec::new() },
            usages: Usages::default(),
            acts: 0,
            breaks: 0,
            lost: 0,
            ended: Some(failure.to_string()),
        })
    }

    fn setup(&self) -> ClusterSetup {
        let quota = self.attack.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}"));
        ClusterSetup {
            members: self.members.max(self.attack.members_min),
            flags: quota.into_iter().collect(),
            descriptors_max: self.attack.descriptors_max,
        }
    }
}

pub fn name(kind: ProgramKind) -> &'static str {
    match kind {
        ProgramKind::KvServer => "kv-server",
        ProgramKind::Etcd => "etcd",
    }
}

/// Waits until no more descriptors are open than after the first repetition, at most a minute, and
/// returns the usage. Slow closing is not a leak.
async fn settled(pids: &[u32], first: Option<ProcessUsage>) -> ProcessUsage {
    let began = Instant::now();
    loop {
        let usage = ProcessUsage::of_all(pids);
        let is_settled = first.is_none_or(|first| usage.descriptors <= first.descriptors);
        if is_settled || began.elapsed() > SETTLED_TIMEOUT {
            return usage;
        }
        tokio::time::sleep(EXIT_POLL_INTERVAL).await;
    }
}

/// Waits until a deadline or until a member exits. Retains the latest usage of `pids`, which is
/// unavailable after an exit.
async fn wait(
    target: &mut AttackTarget,
    until: Instant,
    pids: Option<&[u32]>,
    usages: &mut Usages,
) -> Option<String> {
    while Instant::now() < until {
        if let Some(ended) = target.ended() {
            return Some(ended);
        }
        if let Some(pids) = pids {
            usages.over = ProcessUsage::of_all(pids);
        }
        tokio::time::sleep_until(until.min(Instant::now() + EXIT_POLL_INTERVAL)).await;
    }
    target.ended()
}
