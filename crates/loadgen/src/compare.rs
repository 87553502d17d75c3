//! Suites measured: each row on one or two systems, in turn.
//!
//! ```text
//!   per row:  start A, start B ─▶ warm up both ─▶ A B, A B, … rounds ─▶ read back ─▶ medians ─▶ kill both
//! ```
//!
//! * A machine's speed drifts; only figures taken in turn can be divided by each other, so rounds alternate and
//!   figures are medians.
//! * Every process of a comparison is a child of this one and ends with it; no other process is ever touched.
//! * Errors and lost writes of either side stand in the result: speed without correct answers is no speed.
//! * A row that fails is reported and the next one measured: a comparison of hours runs unattended.
//! * A row has a budget of seconds. What it cut away (requests of a run, rounds, runs of warming up) is said in the row.

mod cluster; // processes of one program
mod findings; // what the reader must know
mod measure; // one run and what it cost
mod read_back; // does the store hold what it acknowledged?
mod row; // all rounds of one row
mod samples; // processor and memory over time
mod side; // one system on one row
pub mod steps; // one load at several rates

pub use cluster::Program;
pub use measure::Cost;
pub use row::Budget;

use crate::endpoint::Endpoint;
use crate::machine;
use crate::report::model::{
    FORMAT, Notice, Placement, Report, RowResult, RowSpec, Setup, SideResult, SuiteResult,
};
use crate::run::Run;
use crate::suite::{Row, Suite};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    pub title: String,
    /// One or two.
    pub subjects: Vec<Subject>,
    pub suites: Vec<Suite>,
    /// Members of each fresh cluster, where the row's own number does not count.
    pub members: Option<usize>,
    /// Of every row, where the row's own number does not count.
    pub rounds: Option<usize>,
    pub scale: f64,
    /// Measured time of a row, all sides and rounds together.
    pub row_seconds: Option<f64>,
    /// Fresh clusters keep their files below it, and nothing stays behind.
    pub data_dir: PathBuf,
    /// Their logs, if elsewhere.
    pub wal_dir: Option<PathBuf>,
    /// Worker threads of the load generator.
    pub threads: usize,
}

/// A system that is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    pub name: String,
    pub origin: Origin,
}

/// Where it comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A program of which clusters are started.
    Program(PathBuf),
    /// A cluster that is there already.
    Endpoints(Vec<Endpoint>),
}

/// Told how far a comparison has come.
pub trait Watch {
    /// The next run begins.
    fn step(&mut self, step: &Step<'_>);
    /// A run goes on; several times a second.
    fn progress(&mut self, run: &Run);
    /// Something worth a line.
    fn remark(&mut self, text: &str);
}

/// Where a comparison stands.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    pub suite: &'a str,
    pub row: &'a str,
    pub side: &'a str,
    /// From 1; 0 while warming up.
    pub round: usize,
    pub rounds: usize,
    /// From 1, over all suites.
    pub row_number: usize,
    pub rows: usize,
}

impl Plan {
    /// One cluster that runs already, measured at several rates: see [`steps`].
    pub fn of_steps(title: String, subject: Subject, threads: usize) -> Self {
        Self {
            title,
            subjects: vec![subject],
            suites: Vec::new(),
            members: None,
            rounds: None,
            scale: 1.0,
            row_seconds: None,
            data_dir: PathBuf::new(),
            wal_dir: None,
            threads,
        }
    }

    /// An empty report of this plan, or why the plan makes no sense.
    pub fn report(&self, command: String) -> Result<Report, String> {
        self.check()?;
        let local = self.subjects.iter().any(|subject| matches!(subject.origin, Origin::Program(_)));
        let mut machine = machine::describe();
        machine.disk = local.then(|| machine::disk(&self.data_dir));
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        Ok(Report {
            format: FORMAT,
            title: self.title.clone(),
            command,
            loadgen: env!("CARGO_PKG_VERSION").into(),
            commit: machine::commit(),
            started_unix_seconds: machine::unix_seconds(),
            took_seconds: 0.0,
            machine,
            setup: Setup {
                members: self.members.or(rows.map(|row| row.spec.members).max()).unwrap_or(1),
                rounds: self.rounds.unwrap_or(crate::suite::ROUNDS),
                scale: self.scale,
                run_seconds_max: self.row_seconds,
                threads: self.threads,
                placement: if local { Placement::FreshLocal } else { Placement::Existing },
            },
            sides: self.subjects.iter().map(side::describe).collect(),
            suites: Vec::new(),
            notices: self.notices(),
            partial: None,
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.members == Some(0) {
            return Err("--members=0 leaves nothing to measure".into());
        }
        let no_rows = !self.suites.is_empty() && self.suites.iter().all(|suite| suite.rows.is_empty());
        if self.rounds == Some(0) || no_rows {
            return Err("without rows and rounds nothing is measured".into());
        }
        if self.scale.is_nan() || self.scale <= 0.0 {
            return Err(format!("--scale={} leaves nothing to measure", self.scale));
        }
        for subject in &self.subjects {
            match &subject.origin {
                Origin::Program(path) if !path.is_file() => {
                    return Err(format!("{}: there is no program {}", subject.name, path.display()));
                }
                Origin::Endpoints(endpoints) if endpoints.is_empty() => {
                    return Err(format!("{}: no endpoint given", subject.name));
                }
                Origin::Program(_) | Origin::Endpoints(_) => {}
            }
        }
        Ok(())
    }

    fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        if self.scale != 1.0 {
            notices.push(Notice::remark(format!(
                "Totals are the published ones times {}; no row has fewer requests than clients.",
                self.scale
            )));
        }
        if let Some(seconds) = self.row_seconds {
            notices.push(Notice::remark(format!(
                "Each row was given {seconds} s of measuring, all sides and rounds together; rows that would have taken longer say what was cut."
            )));
        }
        if self.subjects.iter().any(|subject| matches!(subject.origin, Origin::Program(_))) {
            notices.push(Notice::remark(
                "Client and servers shared one machine: rates are the machine's as much as the server's; CPU per request and ratios say more.",
            ));
        }
        if self.subjects.iter().any(|subject| matches!(subject.origin, Origin::Endpoints(_))) {
            notices.push(Notice::remark(
                "Clusters that were running already tell CPU and memory only if they serve /metrics, and never the bytes they write; their keys were not counted.",
            ));
        }
        notices
    }
}

/// Measures all rows; what was measured stays in `report` whatever happens, also when this future is dropped.
pub async fn run(plan: &Plan, report: &mut Report, watch: &mut dyn Watch) {
    let begin = Instant::now();
    let rows = plan.suites.iter().map(|suite| suite.rows.len()).sum();
    let mut row_number = 0;
    let mut without_gateway = vec![None; plan.subjects.len()];
    for suite in &plan.suites {
        report.suites.push(SuiteResult {
            id: suite.id.clone(),
            title: suite.title.clone(),
            about: suite.about.clone(),
            source_url: suite.source_url.clone(),
            rows: Vec::new(),
        });
        for row in &suite.rows {
            row_number += 1;
            let mut row = row.scaled(plan.scale, plan.rounds);
            row.spec.members = plan.members.unwrap_or(row.spec.members);
            let known = measured_before(report, &row.spec);
            let result = empty_result(&row, report.sides.len());
            report.suites.last_mut().expect("pushed above").rows.push(result);
            match known {
                Some((place, sides)) => {
                    let result = report.last_row();
                    result.sides = sides;
                    result.notices.push(Notice::remark(format!("The same load as {place}, measured once.")));
                }
                None => {
                    let step = Step {
                        suite: &suite.id,
                        row: &row.id,
                        side: "",
                        round: 0,
                        rounds: 0,
                        row_number,
                        rows,
                    };
                    row::measure(plan, &row, report, &mut without_gateway, watch, step).await;
                }
            }
            report.took_seconds = begin.elapsed().as_secs_f64();
        }
    }
}

/// The result of a row that sent the same, if there is one.
fn measured_before(report: &Report, spec: &RowSpec) -> Option<(String, Vec<SideResult>)> {
    let same =
        |other: &RowSpec| RowSpec { sweep: None, ..other.clone() } == RowSpec { sweep: None, ..spec.clone() };
    let rows = report.suites.iter().flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)));
    let mut measured = rows.filter(|(_, row)| row.sides.iter().all(|side| side.median.is_some()));
    let (suite, row) = measured.find(|(_, row)| same(&row.spec))?;
    Some((format!("{}/{}", suite.id, row.id), row.sides.clone()))
}

fn empty_result(row: &Row, sides: usize) -> RowResult {
    RowResult {
        id: row.id.clone(),
        title: row.title.clone(),
        spec: row.spec.clone(),
        command: row.command(),
        published: row.published.clone(),
        sides: vec![SideResult::default(); sides],
        notices: Vec::new(),
    }
}

impl Report {
    /// The row that is being measured.
    fn last_row(&mut self) -> &mut RowResult {
        let suite = self.suites.last_mut().expect("a suite is pushed before its rows");
        suite.rows.last_mut().expect("a row is pushed before it is measured")
    }
}

/// A watcher that shows nothing.
#[derive(Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn step(&mut self, _: &Step<'_>) {}
    fn progress(&mut self, _: &Run) {}
    fn remark(&mut self, _: &str) {}
}

/// Between looks at a run that goes on.
const LOOK: Duration = Duration::from_millis(10);
