//! One load at several rates, open loop: given rates, or those of a search for the highest.
//!
//! Each step has a warm-up at the same rate, which is not counted. A step whose rate is not reached ends
//! after twice its time and does not meet the limit.

use super::find_rate::{Search, Slo};
use super::findings::{self, Findings};
use super::measure::{self, Cost, curve};
use super::plan::{Monitor, Plan, Step, Subject};
use super::side::Side;
use crate::run;
use crate::run::schedule::Pace;
use bench_report::model::{Notice, Report, RowResult, RowSpec, SideResult, Sweep};
use std::time::Duration;

/// Which rates.
#[derive(Clone, Debug)]
pub enum Rates {
    Given(Vec<f64>),
    /// The highest that meets the limit; the search begins at `from`.
    Highest {
        from: f64,
        slo: Slo,
    },
}

/// A load and the rates to send it at.
pub struct Stepped {
    pub rates: Rates,
    pub step: Duration,
    pub warm_up: Duration,
    /// Total, pace and endpoints are set per step.
    pub load: run::Plan,
    /// The description of its rows in the report.
    pub spec: RowSpec,
    pub title: String,
}

/// Tries all rates; returns the highest that met the limit. Completed steps stay in `report`,
/// whose last suite gets a row per step.
pub async fn run(
    plan: &Plan,
    subject: &Subject,
    stepped: &Stepped,
    report: &mut Report,
    monitor: &mut dyn Monitor,
) -> Result<Option<f64>, String> {
    let side = Side::start(plan, subject, stepped.spec.members).await;
    let side = side.map_err(|error| error.to_string())?;
    report.sides[0].version.clone_from(&side.version);
    match &stepped.rates {
        Rates::Given(rates) => {
            for (index, rate) in rates.iter().enumerate() {
                show(monitor, subject, *rate, index + 1, rates.len());
                one(&side, stepped, *rate, None, report, monitor).await?;
            }
            Ok(None)
        }
        Rates::Highest { from, slo } => {
            let mut search = Search::from(*from);
            let mut tried = 0;
            while let Some(rate) = search.next() {
                tried += 1;
                show(monitor, subject, rate, tried, tried);
                let met = one(&side, stepped, rate, Some(*slo), report, monitor).await?;
                search.judge(met);
            }
            Ok(search.best())
        }
    }
}

fn show(monitor: &mut dyn Monitor, subject: &Subject, rate: f64, number: usize, rows: usize) {
    let row = format!("{rate:.0} requests/s");
    monitor.step(&Step {
        suite: "rates",
        row: &row,
        side: &subject.name,
        round: 1,
        rounds: 1,
        row_number: number,
        rows,
    });
}

/// Measures one step; returns whether it met the limit.
async fn one(
    side: &Side,
    stepped: &Stepped,
    rate: f64,
    slo: Option<Slo>,
    report: &mut Report,
    monitor: &mut dyn Monitor,
) -> Result<bool, String> {
    let load = |seconds: Duration| run::Plan {
        total: ((rate * seconds.as_secs_f64()).round() as u64).max(1),
        pace: Pace::Open(rate),
        seconds_max: Some(seconds * 2),
        ..stepped.load.clone()
    };
    if !stepped.warm_up.is_zero() {
        measure::run(side, load(stepped.warm_up), monitor).await.map_err(|error| error.to_string())?;
    }
    let cost = measure::run(side, load(stepped.step), monitor).await.map_err(|error| error.to_string())?;
    let met = slo.is_none_or(|slo| is_met(&cost, slo));
    let row = row(side, stepped, rate, &cost, slo.map(|slo| (slo, met)));
    let suite = report.suites.last_mut().expect("the caller pushed the suite of the steps");
    suite.rows.push(row);
    Ok(met)
}

fn is_met(cost: &Cost, slo: Slo) -> bool {
    let measurement = &cost.measurement;
    let tally = &measurement.tally;
    let latency_ms = tally.latencies_ns.value_at_percentile(slo.percent) as f64 / 1e6;
    let whole = !measurement.capped && measurement.partial.is_none() && tally.failed_len() == 0;
    whole && slo.is_met_by(latency_ms)
}

fn row(side: &Side, stepped: &Stepped, rate: f64, cost: &Cost, verdict: Option<(Slo, bool)>) -> RowResult {
    let found = findings::of(cost);
    let mut findings = Findings::default();
    findings.add(0, &found);
    let mut round = cost.round(side.rest_resident_bytes);
    round.notices = found.into_iter().map(|(_, notice)| notice).collect();
    let planned = cost.measurement.planned;
    let mut result = SideResult {
        members: side.members().iter().map(|member| member.name.clone()).collect(),
        curve: curve(&cost.measurement.tally.latencies_ns),
        service_curve: cost.service_differs().then(|| curve(&cost.measurement.tally.services_ns)),
        ..SideResult::default()
    };
    result.add(round);
    let mut notices = findings.notices(&["the run".into()], 1);
    if let Some((slo, met)) = verdict {
        notices.push(Notice::remark(format!("{slo} {}", if met { "was met" } else { "was not met" })));
    }
    let sweep = Sweep { axis: "requests/s".into(), line: stepped.title.clone(), x: rate };
    RowResult {
        id: format!("rate-{rate:.0}"),
        title: format!("{}, {rate:.0} requests/s intended", stepped.title),
        spec: RowSpec {
            rate: Some(rate),
            total: planned,
            total_published: planned,
            sweep: Some(sweep),
            ..stepped.spec.clone()
        },
        command: String::new(),
        published: Vec::new(),
        sides: vec![result],
        notices,
    }
}
