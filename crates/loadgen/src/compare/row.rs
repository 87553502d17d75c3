//! All rounds of a row: starts the sides, warms them up, alternates measurements, reads back, stops the
//! sides.

use super::findings::{self, Findings};
use super::measure::{self, Cost, curve};
use super::plan::{ComparisonPlan, ComparisonStep, Monitor};
use super::read_back::{self, WrittenPositions};
use super::side::{self, Side};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::load::{self, Prepared};
use crate::output::text::chain;
use crate::run::results::Measurement;
use crate::run::{self, EndpointTarget, Run, gateway};
use bench_report::model::{Load, Notice, Protocol, Report, Target};
use bench_report::suite::SuiteRow;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Delay after the warm-up, so that pending writes of the servers finish.
const PAUSE: Duration = Duration::from_millis(300);
/// Minimum duration of a run, regardless of the budget.
const RUN_MIN: Duration = Duration::from_millis(500);
/// Bounds an unattended comparison when a server hangs; twice what the slowest row needs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Longer than any row.
const LEASE_SECONDS: i64 = 24 * 3600;
/// Lease TTL in an existing cluster, where leases are left to expire.
const EXISTING_LEASE_SECONDS: i64 = 3600;
/// Longer than etcd's members need to record a round trip.
const ROUND_TRIPS_AWAITED: Duration = Duration::from_secs(40);
const ROUND_TRIPS_RUN: Duration = Duration::from_secs(5);
/// Parent directory of the members of a row without a disk.
const RAM_DISK: &str = "/dev/shm";
/// Margin of a repeated run, because the speed of machines drifts by as much.
const REPEAT_MARGIN: f64 = 1.3;
const REPEATS_MAX: f64 = 1000.0;
/// Divisor of a row's budget for the warm-up.
const WARM_UP_SHARE: u32 = 4;

/// Measured time of a row, with its limit.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: Option<Duration>,
    used: Duration,
}

/// Reason for stopping a row early.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Side(#[from] side::Error),
    #[error("{name}")]
    Run { name: String, source: run::Error },
    #[error("{name}")]
    Admin { name: String, source: admin::Error },
    #[error("{name}")]
    Prepare { name: String, source: load::Error },
}

/// A side while its row is measured.
struct Runner {
    side: Side,
    name: String,
    /// Index among the subjects.
    index: usize,
    endpoints: Vec<Endpoint>,
    latencies: Histogram<u64>,
    services: Histogram<u64>,
    service_differs: bool,
    written: WrittenPositions,
    prepared: Prepared,
    /// Revision before the first run.
    revision_before: i64,
    /// Growth in the first run, which creates the watchers.
    watcher_resident_bytes: Option<f64>,
}

impl Budget {
    pub fn new(seconds: Option<f64>) -> Self {
        Self { limit: seconds.map(Duration::from_secs_f64), used: Duration::ZERO }
    }

    /// Returns the budget of a row. A row with a published method runs it completely.
    pub fn of(seconds: Option<f64>, row: &SuiteRow) -> Self {
        let has_method = row.warm_up_runs > 0 && row.method.rounds_published == Some(row.method.rounds);
        Self::new(seconds.filter(|_| !has_method))
    }

    fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }

    /// Returns an equal share of the remaining budget for each of `runs` runs.
    fn share(&self, runs: usize) -> Option<Duration> {
        self.left().map(|left| (left / runs.max(1) as u32).max(RUN_MIN))
    }

    /// Returns a fraction of the budget.
    fn part(&self, divisor: u32) -> Self {
        Self { limit: self.limit.map(|limit| limit / divisor), used: Duration::ZERO }
    }

    fn has(&self, wanted: Duration) -> bool {
        self.left().is_none_or(|left| left >= wanted)
    }
}

/// Measures the last row of `report`. `without_gateway` caches which subjects have no gateway, and why.
pub async fn measure(
    plan: &ComparisonPlan,
    row: &SuiteRow,
    report: &mut Report,
    without_gateway: &mut [Option<String>],
    monitor: &mut dyn Monitor,
    step: ComparisonStep<'_>,
) {
    let mut rounds = Rounds {
        plan,
        row: row.clone(),
        report,
        monitor,
        step,
        runners: Vec::new(),
        findings: Findings::default(),
    };
    let result = rounds.measure(without_gateway).await;
    let Rounds { report, monitor, findings, .. } = rounds;
    let result_row = report.last_row();
    let rounds = result_row.sides.iter().map(|side| side.rounds.len()).max().unwrap_or(0);
    let names: Vec<_> = plan.subjects.iter().map(|subject| subject.name.clone()).collect();
    result_row.notices.extend(findings.notices(&names, rounds));
    if let Err(error) = result {
        let reason = chain(&error);
        monitor.remark(&format!("{}: {reason}", row.id));
        result_row.notices.push(Notice::error(reason.clone()));
        result_row.failed = Some(reason.clone());
        for side in result_row.sides.iter_mut().filter(|side| side.rounds.is_empty()) {
            side.left_out.get_or_insert(reason.clone());
        }
    }
}

/// A row while it is measured.
struct Rounds<'a> {
    plan: &'a ComparisonPlan,
    row: SuiteRow,
    /// The report; its last row is the result.
    report: &'a mut Report,
    monitor: &'a mut dyn Monitor,
    step: ComparisonStep<'a>,
    runners: Vec<Runner>,
    findings: Findings,
}

impl Rounds<'_> {
    async fn measure(&mut self, without_gateway: &mut [Option<String>]) -> Result<(), Error> {
        self.start(without_gateway).await?;
        for runner in &mut self.runners {
            runner.prepare(self.plan, &self.row).await?;
        }
        let mut budget = Budget::of(self.plan.row_seconds, &self.row);
        self.warm_up(&mut budget).await?;
        tokio::time::sleep(PAUSE).await;
        self.rounds(budget).await?;
        if self.row.round_trips {
            self.round_trips().await?;
        }
        self.read_back().await
    }

    /// Continues the load until each side has measured a round trip between members, which is rare: etcd's
    /// members record one every half minute.
    async fn round_trips(&mut self) -> Result<(), Error> {
        let Self { plan, row, report, monitor, step, runners, .. } = self;
        for runner in runners.iter_mut() {
            let Some(ready) = runner.side.metrics_when_ready.clone() else { continue };
            let (begin, mut runs) = (Instant::now(), 0);
            let counted = loop {
                let counted = measure::counted_since(&runner.side, &ready).await;
                let has_one = counted.as_ref().is_none_or(|counted| counted.round_trips.count() > 0.0);
                if has_one || begin.elapsed() > ROUND_TRIPS_AWAITED {
                    break counted;
                }
                runs += 1;
                monitor.step(&ComparisonStep {
                    side: &runner.name,
                    round: 0,
                    rounds: row.method.rounds,
                    ..*step
                });
                runner.run(plan, row, row.load.total, Some(ROUND_TRIPS_RUN), *monitor).await?;
            };
            let side = &mut report.last_row().sides[runner.index];
            let last = side.rounds.last_mut().zip(counted);
            let Some((last, counted)) = last else { continue };
            measure::add_round_trips(&mut last.metrics, &counted);
            side.update(row.method.rounds_as);
            if runs == 0 {
                continue;
            }
            let text = format!(
                "{}: the load continued for {:.0} s after its rounds until a member had measured \
                 a round trip to another one.",
                runner.name,
                begin.elapsed().as_secs_f64()
            );
            report.last_row().notices.push(Notice::remark(text));
        }
        Ok(())
    }

    /// Starts the sides, except those that do not support the row's protocol.
    async fn start(&mut self, without_gateway: &mut [Option<String>]) -> Result<(), Error> {
        let in_memory = ComparisonPlan { data_dir: RAM_DISK.into(), wal_dir: None, ..self.plan.clone() };
        let plan = if self.row.ram_disk { &in_memory } else { self.plan };
        if self.row.ram_disk {
            let text = format!("Members stored their files in {RAM_DISK}, as published.");
            self.report.last_row().notices.push(Notice::remark(text));
        }
        for (index, subject) in self.plan.subjects.iter().enumerate() {
            self.monitor.step(&ComparisonStep { side: &subject.name, ..self.step });
            let needs_gateway = self.row.load.protocol == Protocol::HttpJson;
            if let Some(reason) = without_gateway[index].as_ref().filter(|_| needs_gateway) {
                self.report.last_row().sides[index].left_out = Some(reason.clone());
                continue;
            }
            let side = Side::start(plan, subject, self.row.method.members).await?;
            let described = &mut self.report.sides[index];
            described.version.clone_from(&side.version);
            described.command = described.command.take().or_else(|| side.command());
            if needs_gateway && let Err(reason) = gateway::probe(&side.endpoints()[0]).await {
                let reason = format!("{} has no JSON gateway: {reason}", subject.name);
                self.report.last_row().sides[index].left_out = Some(reason.clone());
                without_gateway[index] = Some(reason);
                continue;
            }
            let members = side.members().iter().map(|member| member.name.clone()).collect();
            self.report.last_row().sides[index].members = members;
            self.runners.push(Runner::new(side, subject.name.clone(), index));
        }
        Ok(())
    }

    async fn rounds(&mut self, mut budget: Budget) -> Result<(), Error> {
        let Self { plan, row, report, monitor, step, runners, findings } = self;
        let (sides, rounds) = (runners.len(), row.method.rounds);
        let mut longest = Duration::ZERO;
        // Runs of the published size in each round.
        let mut repeats = 1;
        for round in 1..=rounds {
            if round > 1 && !budget.has(longest) {
                let text = format!("{} of {rounds} rounds: the row's time budget was used up.", round - 1);
                report.last_row().notices.push(Notice::remark(text));
                break;
            }
            let begin = Instant::now();
            let mut costs: Vec<Cost> = Vec::with_capacity(sides);
            for (turn, runner) in runners.iter_mut().enumerate() {
                monitor.step(&ComparisonStep { side: &runner.name, round, rounds, ..*step });
                let share = budget.share(((rounds - round + 1) * sides - turn) * repeats);
                let cost = runner.run(plan, row, row.load.total, share, *monitor).await?;
                budget.used += cost.measurement.wall;
                costs.push(cost);
            }
            if round == 1 {
                repeats = repeats_needed(&costs, plan.round_seconds);
            }
            for (runner, cost) in runners.iter_mut().zip(&mut costs) {
                for _ in 1..repeats {
                    let share = budget.share((rounds - round + 1) * sides * repeats);
                    let more = runner.run(plan, row, row.load.total, share, *monitor).await?;
                    budget.used += more.measurement.wall;
                    cost.merge(more);
                }
            }
            for (runner, cost) in runners.iter_mut().zip(costs) {
                let found = findings::of_compared(&cost);
                findings.add(runner.index, &found);
                let mut measured = cost.round(runner.side.rest_resident_bytes);
                measured.metrics.watcher_resident_bytes = runner.watcher_resident_bytes;
                measured.notices = found.into_iter().map(|(_, notice)| notice).collect();
                report.last_row().sides[runner.index].add(measured, row.method.rounds_as);
                runner.keep(&cost);
            }
            longest = longest.max(begin.elapsed());
            for runner in runners.iter() {
                let side = &mut report.last_row().sides[runner.index];
                side.curve = curve(&runner.latencies);
                side.service_curve = runner.service_differs.then(|| curve(&runner.services));
            }
        }
        if repeats > 1 {
            let text = format!(
                "Each round is {repeats} runs of {} requests, because one run is shorter than {} s.",
                row.load.total, plan.round_seconds
            );
            report.last_row().notices.push(Notice::remark(text));
        }
        Ok(())
    }

    /// Runs as many warm-ups as the row defines and a fraction of the budget permits.
    async fn warm_up(&mut self, budget: &mut Budget) -> Result<(), Error> {
        let Self { plan, row, report, monitor, step, runners, .. } = self;
        let (runs, sides) = (row.warm_up_runs.max(1), runners.len());
        let mut part = budget.part(WARM_UP_SHARE);
        let mut longest = Duration::ZERO;
        let mut sent = 0;
        for done in 0..runs {
            if done > 0 && !part.has(longest) {
                let text = format!("{done} of {runs} warm-up runs: the row's time budget was used up.");
                report.last_row().notices.push(Notice::remark(text));
                break;
            }
            let begin = Instant::now();
            for (turn, runner) in runners.iter_mut().enumerate() {
                monitor.step(&ComparisonStep {
                    side: &runner.name,
                    round: 0,
                    rounds: row.method.rounds,
                    ..*step
                });
                let share = part.share((runs - done) * sides - turn);
                let cost = runner.run(plan, row, row.warm_up_run_total(), share, *monitor).await?;
                part.used += cost.measurement.wall;
            }
            sent += row.warm_up_run_total();
            longest = longest.max(begin.elapsed());
        }
        report.last_row().method.warm_up_total = sent;
        budget.used += part.used;
        Ok(())
    }

    async fn read_back(&mut self) -> Result<(), Error> {
        for runner in self.runners.iter().filter(|_| self.row.is_read_back()) {
            let checked = read_back::check(
                &runner.side,
                &self.row,
                &runner.prepared,
                &runner.written,
                runner.revision_before,
            )
            .await;
            let checked = checked.map_err(|source| Error::Admin { name: runner.name.clone(), source })?;
            let result = self.report.last_row();
            if !checked.is_good() {
                let what = checked.sample.clone().unwrap_or_else(|| {
                    format!(
                        "{} keys and {} revisions, expected {} and {}",
                        checked.keys_found,
                        checked.revisions_found,
                        checked.keys_expected,
                        checked.revisions_expected
                    )
                });
                result.notices.push(Notice::error(format!("{}: wrong store content: {what}", runner.name)));
            }
            result.sides[runner.index].read_back = Some(checked);
        }
        Ok(())
    }
}

/// Returns how many runs the fastest side needs for `seconds_min`.
fn repeats_needed(costs: &[Cost], seconds_min: f64) -> usize {
    let is_fit = |cost: &Cost| {
        let Measurement { events, capped, partial, .. } = &cost.measurement;
        !events && !capped && partial.is_none() && cost.measurement.failed_len() == 0
    };
    let seconds = costs.iter().map(|cost| cost.measurement.wall.as_secs_f64()).fold(f64::INFINITY, f64::min);
    if seconds >= seconds_min || costs.is_empty() || !costs.iter().all(is_fit) {
        return 1;
    }
    (REPEAT_MARGIN * seconds_min / seconds).clamp(1.0, REPEATS_MAX).ceil() as usize
}

impl Runner {
    fn new(side: Side, name: String, index: usize) -> Self {
        let histogram = || Histogram::new(3).expect("three digits are within the histogram's range");
        let (latencies, services) = (histogram(), histogram());
        Self {
            side,
            name,
            index,
            endpoints: Vec::new(),
            latencies,
            services,
            service_differs: false,
            written: WrittenPositions::default(),
            prepared: Prepared::default(),
            revision_before: 0,
            watcher_resident_bytes: None,
        }
    }

    /// Writes the data that the row reads, grants its leases, and selects its endpoints.
    async fn prepare(&mut self, plan: &ComparisonPlan, row: &SuiteRow) -> Result<(), Error> {
        let failed = |source| Error::Admin { name: self.name.clone(), source };
        let everyone = self.side.endpoints();
        let first = admin::AdminClient::connect(&everyone[0]).await.map_err(failed)?;
        let is_local = self.side.is_local();
        if !is_local {
            self.prepared.prefix = plan.prefix.clone();
        }
        let value = vec![b'x'; row.method.stored_value_bytes.max(row.load.value_bytes)];
        first.put(load::read_key(&row.load, &self.prepared), value.into()).await.map_err(failed)?;
        let seconds = if is_local { LEASE_SECONDS } else { EXISTING_LEASE_SECONDS };
        let created = self.prepared.create(&row.load, &everyone, seconds).await;
        created.map_err(|source| Error::Prepare { name: self.name.clone(), source })?;
        self.revision_before = first.revision().await.map_err(failed)?;
        self.endpoints = match row.load.target {
            Target::All | Target::EachSummed => everyone,
            Target::Leader => {
                let cluster = admin::cluster(&everyone).await.map_err(failed)?;
                vec![cluster.leader().map_err(failed)?.clone()]
            }
        };
        Ok(())
    }

    /// Runs `total` requests: against all endpoints, or for a summed row against each member separately.
    async fn run(
        &mut self,
        plan: &ComparisonPlan,
        row: &SuiteRow,
        total: u64,
        seconds_max: Option<Duration>,
        monitor: &mut dyn Monitor,
    ) -> Result<Cost, Error> {
        let parts: Vec<Vec<Endpoint>> = match row.load.target {
            Target::All | Target::Leader => vec![self.endpoints.clone()],
            Target::EachSummed => self.endpoints.iter().map(|endpoint| vec![endpoint.clone()]).collect(),
        };
        let share = seconds_max.map(|seconds| seconds / parts.len() as u32);
        // At most one client per request.
        let clients = row.load.clients.min(usize::try_from(total).unwrap_or(usize::MAX)).max(1);
        let load = Load { total, clients, conns: row.load.conns.min(clients), ..row.load.clone() };
        // Other values in each run: a write that is not executed leaves an older value.
        self.prepared.seed += 1;
        let mut whole: Option<Cost> = None;
        for endpoints in parts {
            let mut run = Run::of(&load, endpoints, &self.prepared);
            if load::follows_leader(&load, &run) {
                run.endpoints = self.side.all_endpoints();
                run.target = EndpointTarget::Leader;
            }
            (run.threads, run.seconds_max) = (plan.threads, share);
            run.request_timeout = Some(REQUEST_TIMEOUT);
            let cost = measure::run(&self.side, run, monitor).await;
            let mut cost = cost.map_err(|source| Error::Run { name: self.name.clone(), source })?;
            let sent = cost.sent();
            self.written.add(sent, cost.measurement.tally.failed_positions());
            if row.load.target == Target::EachSummed {
                cost.summed_per_second = Some(cost.measurement.per_second());
            }
            self.watcher_resident_bytes = self.watcher_resident_bytes.or(cost.watcher_resident_bytes);
            match &mut whole {
                None => whole = Some(cost),
                Some(whole) => whole.merge(cost),
            }
        }
        Ok(whole.expect("a row is sent to one endpoint at least"))
    }

    fn keep(&mut self, cost: &Cost) {
        let tally = &cost.measurement.tally;
        self.latencies.add(&tally.latencies_ns).expect("both histograms resize themselves");
        self.services.add(&tally.services_ns).expect("both histograms resize themselves");
        self.service_differs |= cost.service_differs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_by_the_runs_that_are_left() {
        let mut budget = Budget::new(Some(12.0));
        assert_eq!(budget.share(6), Some(Duration::from_secs(2)));
        budget.used = Duration::from_secs(11);
        assert_eq!(budget.share(6), Some(RUN_MIN));
        assert!(budget.has(Duration::from_secs(1)) && !budget.has(Duration::from_secs(2)));
        assert_eq!(budget.part(4).left(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_published_method_runs_completely() {
        let suites = bench_report::suite::find(&["arm-graviton2".into(), "core".into()]).unwrap();
        let of =
            |suite: usize, rounds| Budget::of(Some(1.0), &suites[suite].rows[0].scaled(1.0, rounds)).left();
        let limit = Some(Duration::from_secs(1));
        assert_eq!((of(0, None), of(0, Some(3)), of(1, None)), (None, limit, limit));
    }

    #[test]
    fn a_budget_without_a_limit_is_never_used_up() {
        let budget = Budget::new(None);
        assert_eq!(budget.share(3), None);
        assert!(budget.has(Duration::from_secs(1 << 20)));
    }

    #[test]
    fn a_short_run_is_repeated_equally_often_on_both_sides() {
        let run =
            |seconds: f64| Measurement { wall: Duration::from_secs_f64(seconds), ..Measurement::default() };
        let capped = || Measurement { capped: true, ..run(1.0) };
        for (sides, repeats) in [
            (vec![run(3.0), run(9.0)], 1),
            (vec![run(4.0), run(1.0)], 4),
            (vec![run(2.99), run(3.0)], 2),
            (vec![run(0.001), run(0.001)], 1000),
            (vec![run(1.0), capped()], 1),
        ] {
            let costs: Vec<_> = sides.into_iter().map(|side| Cost::of_run(side, None)).collect();
            assert_eq!(repeats_needed(&costs, 3.0), repeats);
            assert_eq!(repeats_needed(&costs, 0.0), 1);
        }
    }
}
