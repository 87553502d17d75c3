//! One attack on one program, from the start of its members to their end.
//!
//! ```text
//!   start ▶ preload ▶ healthy load: warm up │ calm │ attack │ 5 s to settle, and a last look │ ▶ verdict ▶ kill
//! ```
//!
//! Attackers run on a runtime with low priority: on a machine with two cores they would otherwise take the
//! processor time that the healthy clients measure with.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::attacks::ground::{Ground, Ledger};
use super::catalogue::Attack;
use super::figures::load::HealthyLoad;
use super::figures::outcome::{AttackOutcome, Findings, NORMAL_WINDOW, SETTLE_WITHIN, Times, Usages};
use super::figures::process::{PeakMemory, ProcessUsage};
use super::preload;
use super::target::{AttackTarget, ClusterSetup, ProgramKind, ServerProgram};
use crate::bench::Environment;
use crate::failure::{ExperimentError, Result};

const WARM_UP: Duration = Duration::from_secs(1);
const CALM_MAX: Duration = Duration::from_secs(5);
const ENDED_ASKED_EVERY: Duration = Duration::from_millis(50);

pub struct Trial<'a> {
    pub bench: &'a Environment,
    pub attack: &'static Attack,
    pub program: &'a ServerProgram,
    pub members: u16,
    pub duration: Duration,
    /// A 99th percentile below this is good.
    pub p99_floor: Duration,
    /// Where attackers run.
    pub attackers: Handle,
}

impl Trial<'_> {
    pub async fn run(&self) -> Result<AttackOutcome> {
        let setup = self.setup();
        let mut target = AttackTarget::start(self.bench, self.program, &setup)?;
        preload::fill(target.client_ports()[0], &self.attack.preload).await?;
        let ids = target.ids().await?;
        let load = HealthyLoad::start(&target.client_ports()).await?;
        tokio::time::sleep(WARM_UP).await;
        let calm = Instant::now();
        tokio::time::sleep(self.duration.min(CALM_MAX)).await;

        let pids = target.pids();
        let mut usages = Usages { before: ProcessUsage::of_all(&pids), ..Usages::default() };
        let peak = PeakMemory::watch(pids.clone());
        let attack = Instant::now();
        let ground = Ground {
            kind: self.program.kind,
            ports: target.places.iter().map(|place| (place.client_port, place.peer_port)).collect(),
            pids: pids.clone().into(),
            ids: Arc::new(ids),
            ends: attack + self.duration,
            ledger: Arc::new(Ledger::default()),
        };
        let ledger = Arc::clone(&ground.ledger);
        let strike = self.attackers.spawn((self.attack.strike)(ground));
        let mut ended = wait(&mut target, attack + self.duration, Some(&pids), &mut usages).await;
        strike.abort();
        let over = Instant::now();
        if ended.is_none() {
            ended = wait(&mut target, over + SETTLE_WITHIN, None, &mut usages).await;
            usages.left = ProcessUsage::of_all(&pids);
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

    /// The outcome of a trial that could not be made, which is a bad one.
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

/// Waits until a moment, or until a member has ended. Keeps the newest usage of `pids`: there is none after
/// an end.
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
        tokio::time::sleep_until(until.min(Instant::now() + ENDED_ASKED_EVERY)).await;
    }
    target.ended()
}
