//! A run and its cost: the load, with the servers' counters read before and after it.
//!
//! Order: counters of /metrics, counters of the kernel, the run, counters of the kernel, /metrics. A metrics
//! page costs a server a millisecond or two, which must not count for the run.

use super::plan::{LOOK, Monitor};
use super::samples::{Samples, round};
use super::side::Side;
use crate::output::summary::Summary;
use crate::output::text::chain;
use crate::run;
use crate::run::results::Measurement;
use crate::server::{self, ForeignCpu, ServerFigures, ServerMetrics};
use crate::stats::percentile;
use crate::stats::progress::Control;
use bench_report::metric::Metrics;
use bench_report::model::{CurvePoint, Round, Series};
use hdrhistogram::Histogram;
use std::sync::Arc;

/// Below this number, the memory of watchers is lost in other growth.
const WATCHERS_MIN: usize = 1000;

/// Below this number, a single request decides the percentile.
const P9999_REQUESTS_MIN: u64 = 10_000;

#[derive(Debug)]
pub struct Cost {
    pub measurement: Measurement,
    /// Sum of the members' rates, for a row that measures them one after the other.
    pub summed_per_second: Option<f64>,
    /// `None` if the servers have no such counters.
    pub spent: Option<ServerFigures>,
    pub server_metrics: Option<ServerMetrics>,
    /// Round trips since the side was ready: probes are too rare for a single run.
    pub metrics_since_ready: Option<ServerMetrics>,
    /// Reason if server metrics were lost during the run.
    pub lost: Option<String>,
    /// Numbers of measured and of all members, if they differ.
    pub unmeasured: Option<(usize, usize)>,
    pub leader: Option<usize>,
    pub leader_changed: bool,
    /// CPU time of other programs on this machine, as a share of all its processors.
    pub foreign_cpu: Option<f64>,
    /// Growth of the members' resident memory per watcher, while the watchers were created.
    pub watcher_resident_bytes: Option<f64>,
    samples: Samples,
}

pub async fn run(side: &Side, plan: run::Run, monitor: &mut dyn Monitor) -> Result<Cost, run::Error> {
    let probes = side.probes();
    let leader = side.leader().await;
    let watchers = plan.watching.as_ref().map_or(0, |watching| watching.streams * watching.per_stream);
    let before_watchers = server::read(&probes).await.ok();
    let prepared = tokio::task::spawn_blocking(|| plan.prepare()).await.expect("preparing does not panic")?;
    let metrics_before = side.server_metrics().await;
    let spent_before = server::read(&probes).await.ok();
    let grown = before_watchers.zip(spent_before.as_ref()).map(|(before, after)| {
        (after.resident_bytes() as f64 - before.resident_bytes() as f64) / watchers as f64
    });
    let mut foreign = ForeignCpu::begin();
    let (measurement, samples) = load(prepared, side.pids(), monitor).await?;
    foreign.end();
    let spent_after = server::read(&probes).await;
    let metrics_after = side.server_metrics().await;
    let leader_after = side.leader().await;

    let spent = spent_after.and_then(|later| {
        spent_before.as_ref().map(|earlier| server::spent(&probes, earlier, &later)).transpose()
    });
    let lost = spent.as_ref().err().filter(|error| side.is_local() || error.is_restart());
    let lost = lost.map(|error| chain(error));
    let spent = spent.ok().flatten();
    let counted_since_ready = metrics_after.as_ref().zip(side.metrics_when_ready.as_ref());
    let counted_since_ready = counted_since_ready.filter(|_| lost.is_none());
    let counted = metrics_after.as_ref().zip(metrics_before.as_ref()).filter(|_| lost.is_none());
    let foreign_cpu = foreign.share(measurement.client_cpu, &probes, spent.as_ref());
    let differences = |later: &Vec<ServerMetrics>, earlier: &Vec<ServerMetrics>| {
        sum(later.iter().zip(earlier).map(|(later, earlier)| later.since(earlier)))
    };
    Ok(Cost {
        summed_per_second: None,
        measurement,
        spent,
        server_metrics: counted.map(|(later, earlier)| differences(later, earlier)),
        metrics_since_ready: counted_since_ready.map(|(later, earlier)| differences(later, earlier)),
        lost,
        leader_changed: leader_after.is_some() && leader_after != leader,
        unmeasured: (side.cluster_len.filter(|_| !side.is_complete())).map(|all| (probes.len(), all)),
        leader,
        foreign_cpu,
        watcher_resident_bytes: grown.filter(|_| watchers >= WATCHERS_MIN),
        samples,
    })
}

/// Sets the metrics of the round trips between members, if available.
pub fn add_round_trips(metrics: &mut Metrics, of: &ServerMetrics) {
    metrics.peer_round_trip_mean_ms = of.round_trips.mean().map(|seconds| seconds * 1e3);
    metrics.peer_round_trip_p99_ms = of.round_trips.at_most(99.0).map(|seconds| seconds * 1e3);
}

/// Returns the sum over all members since an earlier reading; `None` if one has no metrics.
pub async fn counted_since(side: &Side, earlier: &[ServerMetrics]) -> Option<ServerMetrics> {
    let now = side.server_metrics().await?;
    Some(sum(now.iter().zip(earlier).map(|(later, earlier)| later.since(earlier))))
}

fn sum(all: impl Iterator<Item = ServerMetrics>) -> ServerMetrics {
    let mut total = ServerMetrics::default();
    for one in all {
        total.syncs.merge(&one.syncs);
        total.round_trips.merge(&one.round_trips);
        if let Some(bytes) = one.peer_sent_bytes {
            total.peer_sent_bytes = Some(total.peer_sent_bytes.unwrap_or(0.0) + bytes);
        }
    }
    total
}

/// Executes a run on its worker threads. Dropping the future stops the run.
async fn load(
    prepared: run::PreparedRun,
    pids: Vec<u32>,
    monitor: &mut dyn Monitor,
) -> Result<(Measurement, Samples), run::Error> {
    struct StopOnDrop(Arc<Control>);
    impl Drop for StopOnDrop {
        fn drop(&mut self) {
            self.0.stop("its result was dropped");
        }
    }
    let run = prepared.begin();
    let _stop = StopOnDrop(run.control());
    let mut samples = Samples::begin(pids);
    while !run.progress().finished {
        tokio::time::sleep(LOOK).await;
        samples.tick();
        monitor.progress(&run);
    }
    samples.take();
    run.finish().map(|measurement| (measurement, samples))
}

impl Cost {
    /// Returns the cost of a run that was observed elsewhere.
    pub fn of_run(measurement: Measurement, spent: Option<ServerFigures>) -> Self {
        let measured = spent.as_ref().map_or(0, |spent| spent.processes.len());
        let members = spent.as_ref().and_then(|spent| spent.members);
        Self {
            measurement,
            summed_per_second: None,
            spent,
            server_metrics: None,
            metrics_since_ready: None,
            lost: None,
            unmeasured: members.filter(|&members| members != measured).map(|members| (measured, members)),
            leader: None,
            leader_changed: false,
            foreign_cpu: None,
            watcher_resident_bytes: None,
            samples: Samples::begin(Vec::new()),
        }
    }

    /// Returns the end of the sent positions.
    pub fn sent(&self) -> u64 {
        self.measurement.tally.taken_len()
    }

    /// Adds a later run of the same row.
    pub fn merge(&mut self, other: Cost) {
        self.summed_per_second = self.summed_per_second.zip(other.summed_per_second).map(|(a, b)| a + b);
        let (ours, theirs) = (&mut self.measurement, other.measurement);
        // The series over time is that of the first run.
        let slices = ours.tally.slices.clone();
        let last_sent = ours.wall + theirs.tally.last_sent;
        ours.tally.merge(&theirs.tally);
        (ours.tally.slices, ours.tally.last_sent) = (slices, last_sent);
        ours.wall += theirs.wall;
        ours.busiest_thread = ours.busiest_thread.max(theirs.busiest_thread);
        ours.client_cpu += theirs.client_cpu;
        ours.sent_bytes += theirs.sent_bytes;
        ours.received_bytes += theirs.received_bytes;
        ours.planned += theirs.planned;
        ours.capped |= theirs.capped;
        ours.partial = ours.partial.take().or(theirs.partial);
        match (&mut self.spent, other.spent) {
            (Some(ours), Some(theirs)) => ours.merge(&theirs),
            (spent, _) => *spent = None,
        }
        self.server_metrics =
            self.server_metrics.take().zip(other.server_metrics).map(|(a, b)| sum([a, b].into_iter()));
        self.metrics_since_ready = other.metrics_since_ready;
        self.leader_changed |= other.leader_changed;
        self.lost = self.lost.take().or(other.lost);
        self.foreign_cpu = self.foreign_cpu.zip(other.foreign_cpu).map(|(a, b)| a.max(b));
    }

    /// Converts the run to the report's format, without notices.
    pub fn round(&self, rest_resident_bytes: Option<u64>) -> Round {
        let Measurement { tally, wall, planned, partial, .. } = &self.measurement;
        let summary = Summary::of(&self.measurement);
        Round {
            planned: *planned,
            succeeded: tally.succeeded_len(),
            failed: self.measurement.failed_len(),
            unanswered: self.measurement.unanswered().sent(),
            seconds: round(wall.as_secs_f64(), 4),
            metrics: self.metrics(rest_resident_bytes).finite(),
            errors: summary.errors,
            series: self.series(),
            notices: Vec::new(),
            partial: partial.clone(),
        }
    }

    fn metrics(&self, rest_resident_bytes: Option<u64>) -> Metrics {
        let Measurement { tally, client_cpu, sent_bytes, received_bytes, .. } = &self.measurement;
        let requests = tally.succeeded_len() as f64;
        let latencies = &tally.latencies_ns;
        let per = |value: f64| Some(value / requests);
        let millis = |ns: u64| Some(ns as f64 / 1e6).filter(|_| !latencies.is_empty());
        let at = |histogram: &Histogram<u64>, percent: f64| millis(percentile::value(histogram, percent));
        let mut metrics = Metrics {
            requests_per_second: Some(self.measurement.per_second()),
            summed_requests_per_second: self.summed_per_second,
            mean_ms: Some(tally.mean_ns / 1e6).filter(|_| !latencies.is_empty()),
            p50_ms: millis(tally.percentile_ns(50.0)),
            p90_ms: millis(tally.percentile_ns(90.0)),
            p99_ms: millis(tally.percentile_ns(99.0)),
            p999_ms: millis(tally.percentile_ns(99.9)),
            p9999_ms: millis(tally.percentile_ns(99.99)).filter(|_| latencies.len() >= P9999_REQUESTS_MIN),
            max_ms: millis(tally.slowest_ns),
            client_cpu_micros: per(client_cpu.as_secs_f64() * 1e6),
            rest_resident_mb: rest_resident_bytes.map(|bytes| bytes as f64 / 1e6),
            client_sent_bytes: per(*sent_bytes as f64),
            client_received_bytes: per(*received_bytes as f64),
            errors: Some(self.measurement.failed_len() as f64),
            ..Metrics::default()
        };
        if self.service_differs() {
            let services = &tally.services_ns;
            metrics.service_mean_ms = Some(services.mean() / 1e6);
            metrics.service_p50_ms = at(services, 50.0);
            metrics.service_p99_ms = at(services, 99.0);
            metrics.service_p999_ms = at(services, 99.9);
            metrics.service_max_ms = millis(services.max());
        }
        let seconds = self.measurement.wall.as_secs_f64();
        metrics.client_mb_per_second = Some((sent_bytes + received_bytes) as f64 / 1e6 / seconds);
        self.add_server_metrics(&mut metrics, requests, seconds);
        if self.unmeasured.is_some() {
            metrics.forget_sums_of_members();
        }
        metrics
    }

    fn add_server_metrics(&self, metrics: &mut Metrics, requests: f64, seconds: f64) {
        if let Some(spent) = &self.spent {
            let leader = self.leader.and_then(|leader| spent.processes.get(leader));
            metrics.server_cpu_micros = Some(spent.cpu_seconds() * 1e6 / requests);
            metrics.server_user_micros = spent.user_seconds().map(|user| user * 1e6 / requests);
            let system = spent.user_seconds().map(|user| spent.cpu_seconds() - user);
            metrics.server_system_micros = system.map(|system| system.max(0.0) * 1e6 / requests);
            metrics.server_user_processors = spent.user_seconds().map(|user| user / seconds);
            metrics.server_system_processors = system.map(|system| system.max(0.0) / seconds);
            let members = spent.processes.len() as f64;
            metrics.resident_mb = Some(spent.resident_bytes() as f64 / members / 1e6);
            metrics.leader_cpu_micros = leader.map(|process| process.cpu_seconds * 1e6 / requests);
            let peak = spent.resident_peak_bytes_max().unwrap_or(spent.resident_bytes_max());
            metrics.peak_resident_mb = Some(peak as f64 / 1e6).filter(|peak| *peak > 0.0);
            let written = spent.bytes_written().map(|bytes| bytes as f64);
            metrics.written_bytes = written.map(|bytes| bytes / requests);
            metrics.written_mb_per_second = written.map(|bytes| bytes / 1e6 / seconds);
        }
        if let Some(server_metrics) = &self.server_metrics {
            metrics.sync_mean_ms = server_metrics.syncs.mean().map(|seconds| seconds * 1e3);
            metrics.sync_p99_ms = server_metrics.syncs.at_most(99.0).map(|seconds| seconds * 1e3);
            metrics.syncs_per_request = Some(server_metrics.syncs.count() / requests);
            metrics.syncs_per_second = Some(server_metrics.syncs.count() / seconds);
            metrics.peer_sent_bytes = server_metrics.peer_sent_bytes.map(|bytes| bytes / requests);
            metrics.peer_mb_per_second = server_metrics.peer_sent_bytes.map(|bytes| bytes / 1e6 / seconds);
        }
        if let Some(server_metrics) = &self.metrics_since_ready {
            add_round_trips(metrics, server_metrics);
        }
    }

    /// Reports whether at least one request in a hundred was sent later than intended.
    pub fn service_differs(&self) -> bool {
        let tally = &self.measurement.tally;
        tally.delayed * 100 >= tally.succeeded_len().max(1)
    }

    fn series(&self) -> Series {
        let slices = &self.measurement.tally.slices;
        let width = slices.width().as_secs_f64();
        let mut series = Series { slice_seconds: width, ..Series::default() };
        for slice in slices.iter() {
            let of_any = |value: f64| if slice.count == 0 { 0.0 } else { round(value, 3) };
            series.requests_per_second.push(round(slice.count as f64 / width, 0));
            series.mean_ms.push(of_any(slice.sum_ns as f64 / slice.count as f64 / 1e6));
            let p99 = slice.latencies.percentile(99.0).unwrap_or_default().as_secs_f64() * 1e3;
            series.p99_ms.push(of_any(p99.min(slice.greatest_ns as f64 / 1e6)));
            series.max_ms.push(of_any(slice.greatest_ns as f64 / 1e6));
        }
        self.samples.fill(&mut series);
        series
    }
}

/// Returns the points of a percentile plot: evenly spaced up to the median, then increasingly dense towards
/// 100.
pub fn curve(histogram: &Histogram<u64>) -> Vec<CurvePoint> {
    const STEPS_PER_HALVING: i32 = 5;
    if histogram.is_empty() {
        return Vec::new();
    }
    let mut percents: Vec<f64> = (0..5).map(|tenth| f64::from(tenth) * 10.0).collect();
    let mut step = 0;
    loop {
        let rest = 50.0 * 0.5_f64.powf(f64::from(step) / f64::from(STEPS_PER_HALVING));
        // Only the slowest request is closer to 100.
        if rest / 100.0 * (histogram.len() as f64) < 1.0 {
            break;
        }
        percents.push(100.0 - rest);
        step += 1;
    }
    percents.push(100.0);
    let point = |percent: f64| {
        let ms = percentile::value(histogram, percent) as f64 / 1e6;
        CurvePoint { percent: round(percent, 6), ms: round(ms, 4) }
    };
    percents.into_iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_to_the_slowest_request() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (1..=10_000_u64).for_each(|micros| histogram.record(micros * 1000).unwrap());
        let curve = curve(&histogram);
        assert!(curve.windows(2).all(|pair| pair[0].percent < pair[1].percent && pair[0].ms <= pair[1].ms));
        let last = curve.last().unwrap();
        assert_eq!(last.percent, 100.0);
        assert!((last.ms - 10.0).abs() < 0.02, "{last:?}");
        let near = |percent: f64| curve.iter().find(|point| point.percent >= percent).unwrap().ms;
        assert!((near(50.0) - 5.0).abs() < 0.02 && (near(99.0) - 9.9).abs() < 0.05, "{curve:?}");
        assert!(curve.len() < 100 && super::curve(&Histogram::new(3).unwrap()).is_empty());
    }
}
