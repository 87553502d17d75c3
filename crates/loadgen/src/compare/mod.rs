//! Suites measured: each row on one or two systems, in turn.
//!
//! ```text
//!   per row:  start A, start B ─▶ warm up both ─▶ A B, A B, … rounds ─▶ read back ─▶ medians ─▶ kill both
//! ```
//!
//! * The speed of a machine drifts. Only figures taken in turn can be divided by each other, so rounds
//!   alternate and figures are medians.
//! * Every process of a comparison is a child of this one and ends with it. No other process is touched.
//! * Errors and lost writes of either side are part of the result.
//! * A row that fails is reported, and the next one is measured: a comparison of hours runs unattended.
//! * A row that is over too soon is begun again with more requests, the same number for both sides.
//! * A row has a budget of seconds. The row says what the budget cut: requests of a run, rounds, warm-up
//!   runs.

mod plan; // what is measured, and the receiver of its progress

mod cluster; // processes of one program
mod side; // one system on one row

mod load; // the workload of a row
mod measure; // one run and its cost
mod samples; // processor time and memory over time

mod findings; // notices that a run's figures need
mod read_back; // whether the store holds what it acknowledged
mod row; // all rounds of one row

mod find_rate; // search for the highest rate within a limit
pub mod steps; // one load at several rates

pub use cluster::Program;
pub use find_rate::Slo;
pub use findings::COMPARED_SECONDS_MIN;
pub use plan::{ComparisonPlan, ComparisonStep, Monitor, Subject, SubjectOrigin};

use crate::server::machine;
use bench_report::model::{
    DiskInfo, FORMAT, MeasurementSetup, Notice, Placement, Report, RowResult, RowSpec, Side, SideResult,
    SuiteResult,
};
use bench_report::suite::SuiteRow;
use std::time::Instant;

/// As git shows them.
const COMMIT_DIGITS: usize = 12;

/// An empty report of this plan, or why the plan is invalid.
pub fn report(plan: &ComparisonPlan, command: String) -> Result<Report, String> {
    plan.check()?;
    let local = plan.subjects.iter().any(|subject| matches!(subject.origin, SubjectOrigin::Program(_)));
    let mut machine = machine::describe();
    machine.disk = (local && plan.media.is_empty()).then(|| machine::disk(&plan.data_dir));
    let media = plan.media.iter().filter(|_| local);
    machine.media = media.map(|(name, dir)| (name.clone(), machine::disk(dir))).collect();
    machine.wal_disk = plan.wal_dir.as_deref().filter(|_| local).map(machine::disk);
    let rows = plan.suites.iter().flat_map(|suite| &suite.rows);
    let media = machine.media.iter().map(|(_, disk)| disk);
    let disks = machine.disk.iter().chain(&machine.wal_disk).chain(media);
    let notices = disks.filter_map(in_memory).chain(notices(plan)).collect();
    Ok(Report {
        format: FORMAT,
        title: plan.title.clone(),
        command,
        loadgen: env!("CARGO_PKG_VERSION").into(),
        commit: build_commit(),
        started_unix_seconds: machine::unix_seconds(),
        took_seconds: 0.0,
        machine,
        setup: MeasurementSetup {
            members: plan.members.or(rows.map(|row| row.spec.members).max()).unwrap_or(1),
            rounds: plan.rounds.unwrap_or(bench_report::suite::ROUNDS),
            scale: plan.scale,
            run_seconds_max: plan.row_seconds,
            threads: plan.threads,
            placement: if local { Placement::FreshLocal } else { Placement::Existing },
            steps: None,
        },
        sides: plan.subjects.iter().map(side::describe).collect(),
        suites: Vec::new(),
        notices,
        partial: None,
        search: None,
    })
}

/// The commit that this program was built from, shortened.
pub fn build_commit() -> Option<String> {
    let (commit, remark) = env!("BUILD_COMMIT").split_once(' ').unwrap_or((env!("BUILD_COMMIT"), ""));
    let short: String = commit.chars().take(COMMIT_DIGITS).collect();
    (commit != "unknown").then(|| format!("{short} {remark}").trim_end().to_owned())
}

/// Memory is no disk: what is measured on it says nothing of writes that last.
fn in_memory(disk: &DiskInfo) -> Option<Notice> {
    disk.is_memory().then(|| {
        Notice::warning(format!(
            "{} is {}, in memory: a sync costs nothing there, and nothing survives a power failure.",
            disk.directory, disk.filesystem
        ))
    })
}

fn notices(plan: &ComparisonPlan) -> Vec<Notice> {
    let mut notices = Vec::new();
    if plan.scale != 1.0 {
        notices.push(Notice::remark(format!(
            "Totals are the published ones times {}; no row has fewer requests than clients.",
            plan.scale
        )));
    }
    if let Some(seconds) = plan.row_seconds {
        notices.push(Notice::remark(format!(
            "Each row was given {seconds} s of measuring, all sides and rounds together; \
             rows that would have taken longer say what was cut."
        )));
    }
    if plan.subjects.iter().any(|subject| matches!(subject.origin, SubjectOrigin::Program(_))) {
        notices.push(Notice::remark(
            "Client and servers shared one machine: rates are the machine's as much as \
             the server's; CPU per request and ratios say more.",
        ));
    }
    if plan.subjects.iter().any(|subject| matches!(subject.origin, SubjectOrigin::Endpoints(_))) {
        notices.push(Notice::remark(
            "A cluster that was running already shows CPU and memory only if it serves /metrics, \
             and not the bytes that it writes.",
        ));
    }
    notices
}

/// What an earlier run of the same comparison measured, which `report` is to contain: without the row that it
/// was interrupted in, and without those that failed.
pub fn resume(report: &mut Report, earlier: Report) -> Result<Vec<SuiteResult>, String> {
    let of_side = |side: &Side| (side.name.clone(), side.version_text.clone(), side.source.clone());
    let of_report = |report: &Report| {
        (report.format, report.commit.clone(), report.machine.host.clone(), report.setup.scale)
    };
    let sides = |report: &Report| report.sides.iter().map(of_side).collect::<Vec<_>>();
    if of_report(&earlier) != of_report(report) || sides(&earlier) != sides(report) {
        return Err("the file has figures of other programs or of another machine".into());
    }
    let mut suites = earlier.suites;
    if earlier.partial.is_some()
        && let Some(suite) = suites.last_mut()
    {
        suite.rows.pop();
    }
    suites.iter_mut().for_each(|suite| suite.rows.retain(|row| row.failed.is_none()));
    report.started_unix_seconds = earlier.started_unix_seconds;
    report.took_seconds = earlier.took_seconds;
    report.sides = earlier.sides;
    Ok(suites)
}

/// Measures all rows that are not among `earlier`. Completed rounds stay in `report` if this future is dropped.
pub async fn run(
    plan: &ComparisonPlan,
    report: &mut Report,
    earlier: &[SuiteResult],
    monitor: &mut dyn Monitor,
) {
    let (begin, took_before) = (Instant::now(), report.took_seconds);
    let media = plan.by_medium();
    let rows = media.len() * plan.suites.iter().map(|suite| suite.rows.len()).sum::<usize>();
    let mut row_number = 0;
    let mut without_gateway = vec![None; plan.subjects.len()];
    let suites =
        media.iter().flat_map(|(medium, plan)| plan.suites.iter().map(move |suite| (medium, plan, suite)));
    for (medium, plan, suite) in suites {
        report.suites.push(SuiteResult {
            id: suite.id.clone(),
            title: suite.title.clone(),
            about: suite.about.clone(),
            source_url: suite.source_url.clone(),
            medium: medium.clone(),
            rows: Vec::new(),
        });
        for row in &suite.rows {
            row_number += 1;
            let mut row = row.scaled(plan.scale, plan.rounds);
            row.spec.members = plan.members.unwrap_or(row.spec.members);
            let mut same = earlier.iter().filter(|other| other.id == suite.id && other.medium == *medium);
            if let Some(kept) = same.find_map(|other| other.rows.iter().find(|kept| is_same(kept, &row))) {
                report.suites.last_mut().expect("pushed above").rows.push(kept.clone());
                continue;
            }
            let known = measured_before(report, medium.as_deref(), &row.spec);
            let result = empty_result(&row, report.sides.len());
            report.suites.last_mut().expect("pushed above").rows.push(result);
            match known {
                Some((place, measured)) => {
                    let result = report.last_row();
                    result.spec = RowSpec { sweep: result.spec.sweep.take(), ..measured.spec };
                    result.sides = measured.sides;
                    result.copied(place);
                }
                None => {
                    let step = ComparisonStep {
                        suite: &suite.id,
                        row: &row.id,
                        side: "",
                        round: 0,
                        rounds: 0,
                        row_number,
                        rows,
                    };
                    row::measure(plan, &row, report, &mut without_gateway, monitor, step).await;
                }
            }
            report.took_seconds = took_before + begin.elapsed().as_secs_f64();
            monitor.row_measured(report);
        }
    }
}

fn is_same(measured: &RowResult, row: &SuiteRow) -> bool {
    measured.id == row.id && is_measured_as(&measured.spec, &row.spec)
}

/// The result of a row that sent the same, if there is one.
/// Whether a row was planned as `planned`: it may have been lengthened, and warmed up for less.
fn is_measured_as(measured: &RowSpec, planned: &RowSpec) -> bool {
    let RowSpec { total, warm_up_total, .. } = *planned;
    // As many keys as requests are still that.
    let keys = if measured.keys == measured.total { total } else { measured.keys };
    RowSpec { total, keys, warm_up_total, ..measured.clone() } == *planned
}

fn measured_before(report: &Report, medium: Option<&str>, spec: &RowSpec) -> Option<(String, RowResult)> {
    let suites = report.suites.iter().filter(|suite| suite.medium.as_deref() == medium);
    let rows = suites.flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)));
    let mut measured = rows.filter(|(_, row)| row.sides.iter().all(|side| side.median.is_some()));
    let planned = RowSpec { sweep: None, ..spec.clone() };
    let (suite, row) =
        measured.find(|(_, row)| is_measured_as(&RowSpec { sweep: None, ..row.spec.clone() }, &planned))?;
    Some((format!("{}/{}", suite.id, row.id), row.clone()))
}

fn empty_result(row: &SuiteRow, sides: usize) -> RowResult {
    RowResult {
        id: row.id.clone(),
        title: row.title.clone(),
        spec: row.spec.clone(),
        command: row.command(),
        published: row.published.clone(),
        sides: vec![SideResult::default(); sides],
        notices: Vec::new(),
        failed: None,
        copy_of: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interrupted_comparison_measured_is_taken_over_but_for_its_last_row() {
        let sample = include_str!("../../../bench-report/tests/data/report.json");
        let sample = || serde_json::from_str::<Report>(sample).unwrap();
        let rows = |suites: &[SuiteResult]| suites.iter().map(|suite| suite.rows.len()).sum::<usize>();
        let failed = |row: &&RowResult| row.failed.is_some();
        let lost = sample().suites.iter().flat_map(|suite| &suite.rows).filter(failed).count();
        let all = rows(&sample().suites) - lost;

        let mut report = Report { suites: Vec::new(), took_seconds: 0.0, ..sample() };
        assert_eq!(rows(&resume(&mut report, sample()).unwrap()), all);
        assert_eq!(report.took_seconds, sample().took_seconds);
        let mut interrupted = Report { partial: Some("interrupted".into()), ..sample() };
        interrupted.suites.last_mut().unwrap().rows.last_mut().unwrap().failed = None;
        let whole = Report { partial: None, ..interrupted.clone() };
        let kept = rows(&resume(&mut report, whole).unwrap());
        assert_eq!(rows(&resume(&mut report, interrupted).unwrap()), kept - 1);

        let mut other = sample();
        other.sides[1].version_text = Some("another one".into());
        resume(&mut report, other).unwrap_err();
    }

    #[test]
    fn a_lengthened_row_is_the_planned_one_with_its_keys() {
        let suites = bench_report::suite::find(&["docs-3.2".into()]).unwrap();
        let row = |id: &str| suites[0].rows.iter().find(|row| row.id == id).unwrap().scaled(1.0, None);
        let (one_key, distinct) = (row("put-1-one-key"), row("put-1"));
        for (measured, planned) in [(&one_key, &distinct), (&distinct, &one_key)] {
            let mut longer = (*measured).clone();
            longer.lengthen(70_000);
            assert!(is_measured_as(&longer.spec, &measured.spec));
            assert!(!is_measured_as(&longer.spec, &planned.spec));
        }
    }
}
