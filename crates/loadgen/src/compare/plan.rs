//! What a comparison measures, and the receiver of its progress.

use crate::client::endpoint::Endpoint;
use crate::run::Run;
use bench_report::suite::Suite;
use std::path::PathBuf;
use std::time::Duration;

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    pub title: String,
    /// One or two.
    pub subjects: Vec<Subject>,
    pub suites: Vec<Suite>,
    /// Members of each new cluster; overrides the number of the row.
    pub members: Option<usize>,
    /// Of every row; overrides the number of the row.
    pub rounds: Option<usize>,
    pub scale: f64,
    /// Measured time of a row, all sides and rounds together.
    pub row_seconds: Option<f64>,
    /// New clusters keep their files below it and remove them.
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
    /// A program that is started.
    Program(PathBuf),
    /// An existing cluster.
    Endpoints(Vec<Endpoint>),
}

/// Receives the progress of a comparison.
pub trait Monitor {
    /// The next run begins.
    fn step(&mut self, step: &Step<'_>);
    /// Called several times a second during a run.
    fn progress(&mut self, run: &Run);
    /// A remark of one line.
    fn remark(&mut self, text: &str);
}

/// The position in a comparison.
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
    /// An existing cluster, measured at several rates: see [`super::steps`].
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

    pub fn check(&self) -> Result<(), String> {
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
}

/// The interval between reads of a run's progress.
pub const LOOK: Duration = Duration::from_millis(10);
