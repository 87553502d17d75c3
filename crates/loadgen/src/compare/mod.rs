//! Measures suites: each row on one or two systems, alternating.
//!
//! ```text
//!   per row:  start A, start B ─▶ warm up both ─▶ A B, A B, … rounds ─▶ read back ─▶ medians ─▶ kill both
//! ```
//!
//! * The speed of a machine drifts. Only alternating measurements are comparable, so rounds alternate and
//!   metrics are medians.
//! * Every process of a comparison is a child of this one and is stopped with it. No other process is
//!   touched.
//! * Errors and lost writes of either side are part of the result.
//! * A failed row is reported, and the next one is measured: a comparison of hours runs unattended.
//! * A run of the published size that is too short is repeated, equally often on both sides.
//! * A row has a budget of seconds. The row lists the reductions by the budget: requests of a run, rounds,
//!   warm-up runs.

mod plan; // the plan, and the receiver of its progress

mod cluster; // processes of a program
mod side; // a system on a row

mod measure; // a run and its cost
mod samples; // processor time and memory over time

mod findings; // notices about a run's metrics
mod read_back; // checks the acknowledged writes
mod row; // all rounds of a row

mod find_rate; // search for the highest rate within a limit
pub mod steps; // a load at several rates

pub use cluster::Program;
pub use find_rate::Slo;
pub use findings::COMPARED_SECONDS_MIN;
pub use plan::{ComparisonPlan, ComparisonStep, Monitor, Subject, SubjectOrigin};

use crate::server::machine;
use bench_report::model::{
    DiskInfo, FORMAT, Load, MeasurementSetup, Method, Notice, Placement, Report, RowResult, SideResult,
    SuiteResult,
};
use bench_report::suite::SuiteRow;
use std::time::Instant;

/// Length of git's abbreviated hashes.
const COMMIT_DIGITS: usize = 12;

/// Returns an empty report of this plan, or why the plan is invalid.
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
            members: plan.members.or(rows.map(|row| row.method.members).max()).unwrap_or(1),
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

/// Returns the abbreviated commit of this program.
pub fn build_commit() -> Option<String> {
    let (commit, remark) = env!("BUILD_COMMIT").split_once(' ').unwrap_or((env!("BUILD_COMMIT"), ""));
    let short: String = commit.chars().take(COMMIT_DIGITS).collect();
    (commit != "unknown").then(|| format!("{short} {remark}").trim_end().to_owned())
}

/// Warns about a directory in memory, which does not measure durable writes.
fn in_memory(disk: &DiskInfo) -> Option<Notice> {
    disk.is_memory().then(|| {
        Notice::warning(format!(
            "{} is {}, in memory: syncs are free and writes are not durable.",
            disk.directory, disk.filesystem
        ))
    })
}

fn notices(plan: &ComparisonPlan) -> Vec<Notice> {
    let mut notices = Vec::new();
    if plan.scale != 1.0 {
        notices.push(Notice::remark(format!(
            "Request totals are the published ones times {}, and at least five per client.",
            plan.scale
        )));
    }
    if let Some(seconds) = plan.row_seconds {
        notices.push(Notice::remark(format!(
            "Each row had a time budget of {seconds} s over all sides and rounds; rows that needed more \
             are marked. Rows with a published method ran completely."
        )));
    }
    if plan.subjects.iter().any(|subject| matches!(subject.origin, SubjectOrigin::Program(_))) {
        notices.push(Notice::remark(
            "Clients and servers shared one machine, which limits the rates; CPU per request and \
             ratios are more reliable. All servers had a quota of 16 GiB.",
        ));
    }
    if plan.subjects.iter().any(|subject| matches!(subject.origin, SubjectOrigin::Endpoints(_))) {
        notices.push(Notice::remark(
            "CPU and memory of an existing cluster require its /metrics; bytes written are unknown.",
        ));
    }
    notices
}

/// Copies the sides and times of an earlier run of the same comparison, and returns its rows. The error
/// names the difference.
pub fn resume(report: &mut Report, earlier: Report) -> Result<Vec<SuiteResult>, String> {
    let mut pairs = identity(report).into_iter().zip(identity(&earlier));
    if let Some(((what, now), (_, before))) = pairs.find(|(now, before)| now != before) {
        return Err(format!("{what}: {now:?} now, {before:?} in the file; start a new comparison"));
    }
    report.started_unix_seconds = earlier.started_unix_seconds;
    report.took_seconds = earlier.took_seconds;
    report.sides = earlier.sides;
    Ok(earlier.suites)
}

/// Returns the properties that all metrics of a report share, by name.
fn identity(report: &Report) -> Vec<(String, String)> {
    let Report { machine, setup, sides, .. } = report;
    let disks = |disks: &mut dyn Iterator<Item = &DiskInfo>| {
        disks.map(|disk| format!("{} on {}", disk.filesystem, disk.device)).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<_> = sides.iter().map(|side| side.name.as_str()).collect();
    let mut all = vec![
        ("format".to_owned(), report.format.to_string()),
        ("commit of loadgen".into(), report.commit.clone().unwrap_or_default()),
        ("host".into(), machine.host.clone()),
        ("--scale".into(), setup.scale.to_string()),
        ("--threads".into(), setup.threads.to_string()),
        ("file system of --data-dir".into(), disks(&mut machine.disk.iter())),
        ("file system of --wal-dir".into(), disks(&mut machine.wal_disk.iter())),
        ("file systems of --media".into(), disks(&mut machine.media.iter().map(|(_, disk)| disk))),
        ("sides".into(), names.join(", ")),
    ];
    for side in sides {
        // The version of a program that is started here is not known yet.
        let served = side.cluster.as_ref().map(|_| side.version.clone());
        for (what, value) in [
            ("--version", &side.version_text),
            ("place", &Some(side.source.clone())),
            ("program", &side.program),
            ("cluster ID", &side.cluster),
            ("version", &served),
        ] {
            all.push((format!("{} of {}", what, side.name), value.clone().unwrap_or_default()));
        }
    }
    all
}

/// Marks the row that is being measured as incomplete.
pub fn interrupted(report: &mut Report, reason: &str) {
    report.partial = Some(reason.into());
    if let Some(row) = report.suites.last_mut().and_then(|suite| suite.rows.last_mut()) {
        row.failed = Some(reason.into());
    }
}

/// Adds the missing rows of an earlier run to the report.
pub fn with_earlier(report: &Report, earlier: &[SuiteResult]) -> Report {
    let mut whole = report.clone();
    for old in earlier {
        match whole.suites.iter_mut().find(|suite| is_suite(suite, &old.id, old.medium.as_deref())) {
            Some(suite) => {
                let missing = |row: &&RowResult| suite.rows.iter().all(|other| other.id != row.id);
                let missing: Vec<_> = old.rows.iter().filter(missing).cloned().collect();
                suite.rows.extend(missing);
            }
            None => whole.suites.push(old.clone()),
        }
    }
    whole
}

fn is_suite(suite: &SuiteResult, id: &str, medium: Option<&str>) -> bool {
    suite.id == id && suite.medium.as_deref() == medium
}

/// Measures all rows that are missing in `earlier`. If this future is dropped, completed rounds stay in
/// `report`; it lacks rows of `earlier` that were not reached.
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
            row.method.members = plan.members.unwrap_or(row.method.members);
            let mut same = earlier.iter().filter(|other| is_suite(other, &suite.id, medium.as_deref()));
            let kept = same.find_map(|other| other.rows.iter().find(|kept| is_sound(kept, &row)));
            if let Some(kept) = kept {
                report.suites.last_mut().expect("pushed above").rows.push(kept.clone());
                continue;
            }
            let all = report.suites.iter().chain(earlier);
            let known = measured_before(all, medium.as_deref(), &row);
            let result = empty_result(&row, report.sides.len());
            report.suites.last_mut().expect("pushed above").rows.push(result);
            match known {
                Some((place, measured)) => {
                    let result = report.last_row();
                    result.method = Method { sweep: result.method.sweep.take(), ..measured.method };
                    result.load = measured.load;
                    (result.sides, result.notices) = (measured.sides, measured.notices);
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
            monitor.row_measured(&with_earlier(report, earlier));
        }
    }
}

/// Reports whether a row was measured completely with the current plan. Copies are made again.
fn is_sound(measured: &RowResult, row: &SuiteRow) -> bool {
    let is_same = measured.id == row.id && is_measured_as(measured, row);
    is_same && measured.failed.is_none() && measured.copy_of.is_none()
}

/// Reports whether a row was planned as `planned`: it may have been warmed up for less.
fn is_measured_as(measured: &RowResult, planned: &SuiteRow) -> bool {
    let key = |load: &Load, method: &Method| {
        let method = Method { sweep: None, warm_up_total: 0, ..method.clone() };
        (load.clone(), method)
    };
    key(&measured.load, &measured.method) == key(&planned.load, &planned.method)
}

/// Finds the complete result of a row with the same load on all sides.
fn measured_before<'a>(
    suites: impl Iterator<Item = &'a SuiteResult>,
    medium: Option<&str>,
    planned: &SuiteRow,
) -> Option<(String, RowResult)> {
    let suites = suites.filter(|suite| suite.medium.as_deref() == medium);
    let rows = suites.flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)));
    let (suite, row) = { rows }.find(|(_, row)| {
        let is_whole = row.failed.is_none() && row.sides.iter().all(|side| side.median.is_some());
        is_whole && is_measured_as(row, planned) && row.copy_of.is_none()
    })?;
    Some((format!("{}/{}", suite.id, row.id), row.clone()))
}

fn empty_result(row: &SuiteRow, sides: usize) -> RowResult {
    RowResult {
        id: row.id.clone(),
        title: row.title.clone(),
        load: row.load.clone(),
        method: row.method.clone(),
        command: row.load.command(),
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

    fn sample() -> Report {
        serde_json::from_str(include_str!("../../../bench-report/tests/data/report.json")).unwrap()
    }

    #[test]
    fn an_earlier_comparison_goes_on_unless_something_is_another_one() {
        let mut earlier = sample();
        (earlier.sides[0].version, earlier.sides[1].version) = ("3.6.1".into(), "3.7.3".into());
        earlier.sides[1].cluster = Some("c".into());
        let mut report = Report { suites: Vec::new(), took_seconds: 0.0, ..earlier.clone() };
        // The version of a program that is started here is not known yet.
        report.sides[0].version = String::new();
        assert_eq!(resume(&mut report, earlier.clone()), Ok(earlier.suites.clone()));
        assert_eq!((report.took_seconds, &report.sides), (earlier.took_seconds, &earlier.sides));
        type Change = fn(&mut Report);
        let changes: [(Change, &str); 8] = [
            (|it| it.sides[1].version_text = Some("x".into()), "--version of etcd: "),
            (|it| it.sides[1].source = "x".into(), "place of etcd: "),
            (
                |it| it.sides[0].program = Some("x".into()),
                "program of kv-server: \"\" now, \"x\" in the file",
            ),
            (|it| it.sides[1].cluster = Some("d".into()), "cluster ID of etcd: \"c\" now, \"d\" in the file"),
            (|it| it.sides[1].version = "3.6.1".into(), "version of etcd: \"3.7.3\" now, \"3.6.1\" in"),
            (
                |it| it.machine.disk.as_mut().unwrap().filesystem = "tmpfs".into(),
                "file system of --data-dir: ",
            ),
            (|it| it.setup.threads += 1, "--threads: "),
            (|it| drop(it.sides.pop()), "sides: "),
        ];
        for (change, reason) in changes {
            let mut other = earlier.clone();
            change(&mut other);
            let error = resume(&mut report, other).unwrap_err();
            assert!(error.starts_with(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn rows_of_an_earlier_comparison_stay_until_they_are_measured() {
        let whole = sample();
        let ids = |report: &Report| -> Vec<String> {
            let rows = report.suites.iter().flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)));
            rows.map(|(suite, row)| format!("{}/{}", suite.id, row.id)).collect()
        };
        let mut measured = Report { suites: vec![whole.suites[0].clone()], ..sample() };
        measured.suites[0].rows.truncate(1);
        interrupted(&mut measured, "stopped");
        let merged = with_earlier(&measured, &whole.suites);
        assert_eq!(ids(&merged), ids(&whole));
        assert_eq!(
            (merged.partial.as_deref(), &merged.suites[0].rows[0]),
            (Some("stopped"), &measured.suites[0].rows[0])
        );
        assert_eq!(merged.suites[0].rows[1..], whole.suites[0].rows[1..]);
        assert_eq!(with_earlier(&whole, &whole.suites), whole);
        // Rows on another medium are distinct.
        measured.suites[0].medium = Some("ssd".into());
        assert_eq!(ids(&with_earlier(&measured, &whole.suites)).len(), ids(&whole).len() + 1);
    }

    #[test]
    fn only_a_row_that_was_measured_whole_is_kept_or_copied() {
        let suites = bench_report::suite::find(&["docs-3.2".into()]).unwrap();
        let planned = suites[0].rows[0].scaled(1.0, None);
        let mut report = sample();
        report.suites.truncate(1);
        report.suites[0].rows.truncate(1);
        let row = &mut report.suites[0].rows[0];
        (row.id, row.failed, row.copy_of) = (planned.id.clone(), None, None);
        (row.load, row.method) = (planned.load.clone(), planned.method.clone());
        let place = format!("{}/{}", report.suites[0].id, planned.id);
        type Change = fn(&mut RowResult);
        let cases: [(Change, [bool; 2]); 5] = [
            (|_| {}, [true, true]),
            // A row of another write-up.
            (|row| row.id = "x".into(), [false, true]),
            (|row| row.failed = Some("a member ended".into()), [false, false]),
            (|row| row.copy_of = Some("a/b".into()), [false, false]),
            (|row| row.load.value_bytes += 1, [false, false]),
        ];
        for (number, (change, expected)) in cases.into_iter().enumerate() {
            let mut report = report.clone();
            change(&mut report.suites[0].rows[0]);
            let row = &report.suites[0].rows[0];
            let copied = measured_before(report.suites.iter(), None, &planned);
            assert_eq!([is_sound(row, &planned), copied.is_some()], expected, "{number}");
            assert!(number > 0 || copied.is_some_and(|(from, _)| from == place));
        }
    }
}
