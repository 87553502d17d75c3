//! Repeated kill -9 of a single member or of any of three, under load and during start-up.
//!
//! ```text
//!   cycle: start ▶ (a third of all kills: dead again before it serves) ▶ ready ▶ check ▶ load ▶ kill -9
//! ```
//!
//! * Each check reads all data and compares it with everything ever acknowledged: the previous read is the
//!   baseline of the next check, together with the requests since then and all requests of unknown fate.
//! * Three members must also agree with each other: equal hashes of the complete history at the same
//!   revision.
//! * A failed start is a fault, even if the data are correct.
//!
//! A kill does not show the effects of a power loss, because the kernel retains all writes. See
//! `power_loss`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use testkit::Process;

use crate::bench::{Environment, ScratchDir, say};
use crate::clients::client::MemberClient;
use crate::clients::filling::{self, Filling};
use crate::clients::record::{self, ClaimLog, Violations};
use crate::clients::workload::{AfterFailure, RunningWorkload, Workload};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace};
use crate::report::ExperimentReport;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const LOAD_MILLISECONDS: std::ops::Range<u64> = 5..250;
/// Maximum time from exec to kill during the start-up of a member without a filling.
const START_TIME: Duration = Duration::from_millis(60);
/// Cycles between two progress lines.
const REPORT_INTERVAL: u64 = 100;

#[derive(Clone, Copy, Debug)]
pub struct KillOptions {
    pub cycles: u64,
    pub members: u16,
    /// Number of keys in the cluster before the first kill.
    pub keys: u64,
    pub seed: u64,
}

/// Runs cycles until enough are done, or until a violation is found.
pub fn run(bench: &Environment, order: &KillOptions) -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.or_say("start a runtime")?;
    runtime.block_on(async {
        let mut story = Story::begin(bench, order)?;
        story.fill(order.keys).await?;
        while story.kills < order.cycles && story.report.bad() == 0 {
            story.cycle().await?;
        }
        if story.report.bad() == 0 {
            story.last_check().await?;
        }
        Ok(story.end())
    })
}

/// A cluster and the record of its clients.
struct Story {
    scratch: ScratchDir,
    places: Vec<MemberPlace>,
    running: Vec<Option<Process>>,
    chance: SmallRng,
    seed: u64,
    began: Instant,
    cycles: u64,
    kills: u64,
    filling: Filling,
    /// Approximate time from exec to ready.
    start_time: Duration,
    record: ClaimLog,
    report: ExperimentReport,
}

impl Story {
    fn begin(bench: &Environment, order: &KillOptions) -> Result<Story> {
        let scratch = bench.directory("kill")?;
        let ports: Vec<(u16, u16)> = (0..order.members).map(|number| bench.ports(number)).collect();
        let url = |(number, (_, peer)): (usize, &(u16, u16))| format!("m{number}=http://127.0.0.1:{peer}");
        let cluster = ports.iter().enumerate().map(url).collect::<Vec<_>>().join(",");
        let place = |(number, ports): (usize, &(u16, u16))| {
            let alone = MemberPlace::alone(&bench.server, scratch.join(&format!("m{number}")), *ports);
            let flags = [filling::QUOTA, "--snapshot-count=300", "--snapshot-catchup-entries=20"];
            let flags = flags.map(str::to_owned).to_vec();
            MemberPlace { name: format!("m{number}"), cluster: cluster.clone(), flags, ..alone }
        };
        let places: Vec<MemberPlace> = ports.iter().enumerate().map(place).collect();
        Ok(Story {
            running: places.iter().map(|_| None).collect(),
            places,
            scratch,
            chance: SmallRng::seed_from_u64(order.seed),
            seed: order.seed,
            began: Instant::now(),
            cycles: 0,
            kills: 0,
            filling: Filling::default(),
            start_time: START_TIME,
            record: ClaimLog::default(),
            report: ExperimentReport::default(),
        })
    }

    /// Puts the initial keys, and measures the time of a start with them.
    async fn fill(&mut self, keys: u64) -> Result<()> {
        if keys == 0 {
            return Ok(());
        }
        for number in 0..self.places.len() {
            self.start(number)?;
        }
        self.await_ready()?;
        let client = MemberClient::connect(self.places[0].client_port, CALL_TIMEOUT).await?;
        self.filling = Filling::make(&client, keys).await?;
        self.record = ClaimLog::after(self.filling.baseline());
        for number in 0..self.places.len() {
            self.kill(number, "after it was filled")?;
        }
        let began = Instant::now();
        for number in 0..self.places.len() {
            self.start(number)?;
        }
        self.await_ready()?;
        self.start_time = began.elapsed();
        Ok(())
    }

    /// Starts the members that are down, checks the data, loads the cluster, and kills some or all members.
    async fn cycle(&mut self) -> Result<()> {
        self.cycles += 1;
        self.start_all()?;
        self.check().await?;
        let load = self.load();
        tokio::time::sleep(self.within(LOAD_MILLISECONDS, Duration::from_millis)).await;
        for victim in self.victims() {
            self.kill(victim, "under load")?;
            // A remaining quorum continues to serve. In half of the cases the killed member restarts
            // during the load.
            if self.places.len() > 1 && self.chance.random_bool(0.5) {
                tokio::time::sleep(self.within(LOAD_MILLISECONDS, Duration::from_millis)).await;
                self.start(victim)?;
            }
        }
        self.collect(load).await;
        if self.cycles.is_multiple_of(REPORT_INTERVAL) {
            say(&format!(
                "{} kills in {} cycles, {} writes acknowledged, revision {}, {} s",
                self.kills,
                self.cycles,
                self.record.acknowledged(),
                self.record.baseline().revision,
                self.began.elapsed().as_secs()
            ));
        }
        Ok(())
    }

    /// Starts the members that are down. Half of those starts are killed first.
    fn start_all(&mut self) -> Result<()> {
        for number in 0..self.places.len() {
            while self.running[number].is_none() {
                self.start(number)?;
                if self.chance.random_bool(0.33) {
                    let most = self.start_time.as_micros() as u64;
                    std::thread::sleep(self.within(0..most, Duration::from_micros));
                    self.kill(number, "during start-up")?;
                }
            }
        }
        self.await_ready()
    }

    fn await_ready(&mut self) -> Result<()> {
        for number in 0..self.places.len() {
            let ready = member::wait_ready(self.running[number].as_ref().expect("just started"));
            if let Err(failure) = ready {
                let kept = self.scratch.keep();
                self.report
                    .violation(&format!("start of member {number}"), format!("{failure} (kept in {kept})"));
                return Err(ExperimentError::new(format!(
                    "seed {}: a start failed: {failure}; kept in {kept}",
                    self.seed
                )));
            }
        }
        Ok(())
    }

    fn start(&mut self, number: usize) -> Result<()> {
        self.running[number] = Some(self.places[number].start(&[])?);
        Ok(())
    }

    fn kill(&mut self, number: usize, when: &str) -> Result<()> {
        let Some(process) = self.running[number].take() else { return Ok(()) };
        let end = member::kill(process)?;
        if let Some(code) = end.status.code() {
            // It exited before the signal arrived.
            let kept = self.scratch.keep();
            self.report.violation(
                &format!("member {number} {when}"),
                format!("ended with {code}: {} (kept in {kept})", end.said),
            );
        }
        self.kills += 1;
        self.report.count(when);
        Ok(())
    }

    /// Selects mostly one member, sometimes several, occasionally all.
    fn victims(&mut self) -> Vec<usize> {
        let members = self.places.len();
        let mut victims: Vec<usize> = (0..members).collect();
        let dying = match self.chance.random_range(0..10) {
            0 => members,
            1 | 2 => members.min(2),
            _ => 1,
        };
        let first = self.chance.random_range(0..members);
        victims.rotate_left(first);
        victims.truncate(dying);
        victims
    }

    fn load(&self) -> RunningWorkload {
        let began = self.began;
        let workload = Workload {
            seed: self.seed,
            life: self.cycles,
            clients: 8,
            big: 0.03,
            ports: self.places.iter().map(|place| place.client_port).collect(),
            after_failure: if self.places.len() > 1 { AfterFailure::Next } else { AfterFailure::End },
            probes_every: None,
            position: Arc::new(move || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        };
        workload.start()
    }

    async fn collect(&mut self, load: RunningWorkload) {
        let violations = self.record.add(load.finish().await);
        self.note_violations(violations);
    }

    /// Compares the state of the cluster with its responses.
    async fn check(&mut self) -> Result<()> {
        let member = self.chance.random_range(0..self.places.len());
        let mut client = MemberClient::connect(self.places[member].client_port, CALL_TIMEOUT).await?;
        let violations = self.record.check(&mut client, &mut self.chance).await?;
        self.note_violations(violations);
        let lost = self.filling.check(&mut client, &mut self.chance).await?;
        self.note_violations(vec![("filling", lost)]);
        if self.places.len() > 1 {
            let ports: Vec<u16> = self.places.iter().map(|place| place.client_port).collect();
            let revision = self.record.baseline().revision;
            let violations = record::check_equal(&ports, revision, CALL_TIMEOUT).await?;
            self.note_violations(violations);
        }
        Ok(())
    }

    async fn last_check(&mut self) -> Result<()> {
        self.start_all()?;
        self.check().await
    }

    fn note_violations(&mut self, violations: Violations) {
        let (cycle, seed) = (self.cycles, self.seed);
        for (kind, violations) in violations.into_iter().filter(|(_, found)| !found.is_empty()) {
            let trial = format!("{kind}, cycle {cycle} of seed {seed} (kept in {})", self.scratch.keep());
            violations.into_iter().for_each(|violation| self.report.violation(&trial, violation));
        }
    }

    fn within(&mut self, range: std::ops::Range<u64>, unit: fn(u64) -> Duration) -> Duration {
        unit(self.chance.random_range(range))
    }

    fn end(self) -> ExperimentReport {
        say(&format!(
            "{} kills in {} cycles, {} writes acknowledged, revision {}",
            self.kills,
            self.cycles,
            self.record.acknowledged(),
            self.record.baseline().revision
        ));
        self.report
    }
}
