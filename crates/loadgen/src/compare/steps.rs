//! A load at several rates, open loop: given rates, or a search for the highest one.
//!
//! Each step has an uncounted warm-up at the same rate. A step that does not reach its rate stops after
//! twice its time and does not meet the limit.

use super::find_rate::{Search, Slo, TrialOutcome};
use super::findings::{self, FindingKind, Findings};
use super::measure::{self, Cost, curve};
use super::plan::{ComparisonPlan, ComparisonStep, Monitor, Subject};
use super::side::Side;
use crate::run::Run;
use crate::run::results::{KindResults, Measurement};
use crate::server::ServerFigures;
use crate::stats::percentile;
use bench_report::metric::Middle;
use bench_report::model::{Load, Method, Notice, Pace, Report, RowResult, SideResult, StepSeconds, Sweep};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub enum Rates {
    Given(Vec<f64>),
    /// The highest rate that meets the limit; the search starts at `from`.
    Highest {
        from: f64,
        slo: Slo,
    },
}

pub struct SteppedLoad {
    pub rates: Rates,
    pub step: Duration,
    pub warm_up: Duration,
    /// The load of the report.
    pub load: Load,
    /// Its run; total and pace are set per step.
    pub run: Run,
    pub title: String,
}

/// Tries all rates. Completed steps stay in `report`, in a row each of its last suite, as does the verdict
/// of a search.
pub async fn run(
    plan: &ComparisonPlan,
    subject: &Subject,
    stepped: &SteppedLoad,
    report: &mut Report,
    monitor: &mut dyn Monitor,
) -> Result<(), String> {
    let begin = Instant::now();
    let side = Side::start(plan, subject, stepped.run.endpoints.len()).await;
    let side = side.map_err(|error| error.to_string())?;
    report.sides[0].version.clone_from(&side.version);
    report.setup.members = side.cluster_len.unwrap_or(side.members().len());
    report.setup.rounds = 1;
    let [warm_up, measured] = [stepped.warm_up, stepped.step].map(|duration| duration.as_secs_f64());
    report.setup.steps = Some(StepSeconds { warm_up, measured });
    match &stepped.rates {
        Rates::Given(rates) => {
            for (index, rate) in rates.iter().enumerate() {
                show(monitor, subject, *rate, index + 1, rates.len());
                one(&side, stepped, *rate, None, report, monitor).await?;
                report.took_seconds = begin.elapsed().as_secs_f64();
            }
        }
        Rates::Highest { from, slo } => {
            let mut search = Search::from(*from);
            let mut tried = 0;
            while let Some(rate) = search.next() {
                tried += 1;
                show(monitor, subject, rate, tried, tried);
                let outcome = one(&side, stepped, rate, Some(*slo), report, monitor).await?;
                let trial = search.judge(outcome);
                name_trial(report, trial);
                report.search = Some(search.verdict_of(*slo));
                report.took_seconds = begin.elapsed().as_secs_f64();
            }
        }
    }
    Ok(())
}

/// Returns the rows of a run that was observed elsewhere: the whole, then each kind of operation, if there
/// are several.
pub fn rows_of_run(
    measurement: &Measurement,
    spent: Option<ServerFigures>,
    foreign_cpu: Option<f64>,
    load: &Load,
    title: &str,
) -> Vec<RowResult> {
    let members = spent.iter().flat_map(|spent| &spent.processes).map(|process| process.name.clone());
    let members: Vec<_> = members.collect();
    let row = |id: String, title: String, cost: Cost, notices: Vec<Notice>| {
        let mut result = SideResult { members: members.clone(), ..side_of(&cost) };
        result.add(cost.round(None), Middle::Median);
        let planned = cost.measurement.planned;
        let id_is_run = id == "run";
        RowResult {
            id,
            title,
            load: Load { total: planned, ..load.clone() },
            method: Method { rounds: 1, total_published: planned, ..Method::default() },
            command: if id_is_run { load.command() } else { String::new() },
            published: Vec::new(),
            sides: vec![result],
            notices,
            failed: None,
            copy_of: None,
        }
    };
    let mut whole = Cost::of_run(measurement.clone(), spent);
    whole.foreign_cpu = foreign_cpu;
    let notices = findings::of(&whole).into_iter().map(|(_, notice)| notice).collect();
    let mut rows = vec![row("run".into(), title.into(), whole, notices)];
    for (number, part) in measurement.parts.iter().enumerate() {
        let planned = part.tally.succeeded_len() + part.tally.failed_len();
        let KindResults { tally, wall, .. } = part.clone();
        let whole = Measurement { tally, wall, planned, ..Measurement::default() };
        let id = format!("kind-{}", number + 1);
        if planned > 0 {
            rows.push(row(id, part.kind().to_owned(), Cost::of_run(whole, None), Vec::new()));
        }
    }
    rows
}

fn side_of(cost: &Cost) -> SideResult {
    let tally = &cost.measurement.tally;
    SideResult {
        curve: curve(&tally.latencies_ns),
        service_curve: cost.service_differs().then(|| curve(&tally.services_ns)),
        ..SideResult::default()
    }
}

/// Names repeated trials of a rate, each of which has a row.
fn name_trial(report: &mut Report, trial: usize) {
    if trial > 1 {
        let row = report.last_row();
        row.id = format!("{}-{trial}", row.id);
        row.title = format!("{}, trial {trial}", row.title);
    }
}

fn show(monitor: &mut dyn Monitor, subject: &Subject, rate: f64, number: usize, rows: usize) {
    let row = format!("{rate:.0} requests/s");
    monitor.step(&ComparisonStep {
        suite: "rates",
        row: &row,
        side: &subject.name,
        round: 1,
        rounds: 1,
        row_number: number,
        rows,
    });
}

/// Measures a step and logs its result.
async fn one(
    side: &Side,
    stepped: &SteppedLoad,
    rate: f64,
    slo: Option<Slo>,
    report: &mut Report,
    monitor: &mut dyn Monitor,
) -> Result<TrialOutcome, String> {
    let load = Run {
        total: ((rate * stepped.step.as_secs_f64()).round() as u64).max(1),
        pace: Pace::Open(rate),
        seconds_max: Some(stepped.step * 2),
        warm_up: stepped.warm_up,
        ..stepped.run.clone()
    };
    let cost = measure::run(side, load, monitor).await.map_err(|error| error.to_string())?;
    let outcome = slo.map_or(TrialOutcome::Met, |slo| outcome(&cost, slo));
    monitor.remark(&said(&cost, rate, slo.map(|slo| (slo, outcome))));
    let row = row(side, stepped, rate, &cost, slo.map(|slo| (slo, outcome)));
    let suite = report.suites.last_mut().expect("the caller pushed the suite of the steps");
    suite.rows.push(row);
    Ok(outcome)
}

fn latency_ms(cost: &Cost, percent: f64) -> f64 {
    cost.measurement.tally.percentile_ns(percent) as f64 / 1e6
}

/// Reports whether the load met the limit; if not, whether the servers were the reason.
fn outcome(cost: &Cost, slo: Slo) -> TrialOutcome {
    let measurement = &cost.measurement;
    let latency_ms = latency_ms(cost, slo.percent);
    let whole = !measurement.capped && measurement.partial.is_none() && measurement.tally.failed_len() == 0;
    if whole && slo.is_met_by(latency_ms) {
        return slo.outcome(latency_ms);
    }
    if is_of_callers(cost, slo) {
        return TrialOutcome::Flagged;
    }
    let found = findings::of(cost);
    let blamed = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::GeneratorCpu
                | FindingKind::GeneratorLate
                | FindingKind::StoodStill
                | FindingKind::Foreign
        )
    };
    if found.iter().any(|(kind, _)| blamed(kind)) { TrialOutcome::Flagged } else { TrialOutcome::Missed }
}

/// Reports whether the servers responded within the limit, and only a lack of callers limited the rate.
fn is_of_callers(cost: &Cost, slo: Slo) -> bool {
    let Measurement { tally, partial, .. } = &cost.measurement;
    let services = &tally.services_ns;
    let all_answered = partial.is_none() && tally.failed_len() + tally.unanswered.sent() == 0;
    if services.is_empty() || !all_answered {
        return false;
    }
    // During a server stall few calls are slow, and all due ones lack a caller.
    let (_, slow_share) = cost.measurement.slow(services, (slo.ms * 1e6) as u64 + 1);
    let service_ms = percentile::value(services, slo.percent) as f64 / 1e6;
    slo.is_met_by(service_ms) && slow_share <= 1.0 - slo.percent / 100.0
}

/// Formats a step in one line.
fn said(cost: &Cost, rate: f64, verdict: Option<(Slo, TrialOutcome)>) -> String {
    let tally = &cost.measurement.tally;
    let percent = verdict.map_or(99.0, |(slo, _)| slo.percent);
    let failed = match tally.failed_len() {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    let verdict = verdict.map_or(String::new(), |(slo, outcome)| format!(": {}", said_of(slo, outcome)));
    let reached = cost.measurement.per_second();
    let latency = match tally.counted_len() {
        0 => String::new(),
        _ => format!(", p{percent} {:.2} ms", latency_ms(cost, percent)),
    };
    format!("  {rate:.0}/s: {reached:.0}/s reached{latency}{failed}{verdict}")
}

fn said_of(slo: Slo, outcome: TrialOutcome) -> String {
    match outcome {
        TrialOutcome::MetClearly | TrialOutcome::Met => format!("{slo} was met"),
        TrialOutcome::Missed => format!("{slo} was not met"),
        TrialOutcome::Flagged => {
            format!("{slo} was not met, but the servers were not the bottleneck: does not count")
        }
    }
}

fn row(
    side: &Side,
    stepped: &SteppedLoad,
    rate: f64,
    cost: &Cost,
    verdict: Option<(Slo, TrialOutcome)>,
) -> RowResult {
    let found = findings::of(cost);
    let mut findings = Findings::default();
    findings.add(0, &found);
    let mut round = cost.round(side.rest_resident_bytes);
    round.notices = found.into_iter().map(|(_, notice)| notice).collect();
    let planned = cost.measurement.planned;
    let mut result = SideResult {
        members: side.members().iter().map(|member| member.name.clone()).collect(),
        ..side_of(cost)
    };
    result.add(round, Middle::Median);
    let mut notices = findings.notices(&["the run".into()], 1);
    if let Some((slo, outcome)) = verdict {
        notices.push(Notice::remark(said_of(slo, outcome)));
    }
    let sweep = Sweep { axis: "requests/s".into(), line: stepped.title.clone(), x: rate };
    RowResult {
        id: format!("rate-{rate:.0}"),
        title: format!("{}, {rate:.0} requests/s intended", stepped.title),
        load: Load { pace: Pace::Open(rate), total: planned, ..stepped.load.clone() },
        method: Method {
            members: side.cluster_len.unwrap_or(side.members().len()),
            rounds: 1,
            total_published: planned,
            sweep: Some(sweep),
            ..Method::default()
        },
        command: String::new(),
        published: Vec::new(),
        sides: vec![result],
        notices,
        failed: None,
        copy_of: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::failure::CallFailure;
    use crate::run::recorder::{CallSample, Tally};

    const SLO: Slo = Slo { percent: 99.0, ms: 100.0 };

    /// Returns the cost of ten seconds with ten callers, with these latencies and service times in
    /// milliseconds.
    fn cost(calls: &[(u64, u64, u64)], failed: u64) -> Cost {
        let mut tally = Tally::new();
        for &(count, latency, service) in calls {
            let [latency, service] = [latency, service].map(Duration::from_millis);
            let sample =
                CallSample { unix_second: 1, began: Duration::ZERO, latency, service, body_bytes: 0 };
            (0..count).for_each(|_| tally.record(&sample));
        }
        tally.failed_times(&CallFailure::unavailable("gone"), failed);
        let wall = Duration::from_secs(10);
        Cost::of_run(Measurement { tally, wall, clients: 10, ..Measurement::default() }, None)
    }

    #[test]
    fn a_miss_is_the_servers_only_if_more_callers_would_not_have_helped() {
        for (name, calls, failed, expected) in [
            ("all in time", &[(5_000, 20, 20)][..], 0, TrialOutcome::MetClearly),
            ("replies in time, sent late", &[(2_000, 20, 20), (3_000, 900, 20)], 0, TrialOutcome::Flagged),
            ("slow replies", &[(400, 900, 150)], 0, TrialOutcome::Missed),
            (
                "no reply for a second",
                &[(4_500, 20, 20), (10, 1_000, 1_000), (490, 500, 20)],
                0,
                TrialOutcome::Missed,
            ),
            ("refused", &[(2_000, 20, 20), (3_000, 900, 20)], 1, TrialOutcome::Missed),
        ] {
            assert_eq!(outcome(&cost(calls, failed), SLO), expected, "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_is_no_zero() {
        let none = cost(&[], 3);
        assert_eq!(said(&none, 5.0, None), "  5/s: 0/s reached, 3 failed");
        let metrics = none.round(None).metrics;
        let latencies = [metrics.mean_ms, metrics.p50_ms, metrics.p99_ms, metrics.p999_ms, metrics.max_ms];
        assert_eq!((latencies, metrics.requests_per_second), ([None; 5], Some(0.0)));
    }
}
