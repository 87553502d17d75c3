//! The plan of a comparison, and the receiver of its progress.

use crate::client::endpoint::Endpoint;
use crate::load;
use crate::run::ActiveRun;
use bench_report::model::Report;
use bench_report::suite::Suite;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ComparisonPlan {
    pub title: String,
    /// One or two systems.
    pub subjects: Vec<Subject>,
    pub suites: Vec<Suite>,
    /// Members of each new cluster; overrides the number of the row.
    pub members: Option<usize>,
    /// Rounds of every row; overrides the number of the row.
    pub rounds: Option<usize>,
    pub scale: f64,
    /// Measured time of a row over all sides and rounds.
    pub row_seconds: Option<f64>,
    /// Minimum duration of a round; shorter rows get more requests.
    pub round_seconds: f64,
    /// Parent directory of new clusters, which remove their files.
    pub data_dir: PathBuf,
    /// Parent directory of the logs, if different.
    pub wal_dir: Option<PathBuf>,
    /// Directories on several media, by name: all suites are measured on each, instead of in `data_dir`.
    pub media: Vec<(String, PathBuf)>,
    /// Prefix of all keys in existing clusters.
    pub prefix: Bytes,
    /// Launcher of the servers, which stops them together with this process: see
    /// [`crate::server::with_parent`].
    pub loadgen: Option<PathBuf>,
    /// Worker threads of the load generator.
    pub threads: usize,
}

/// A measured system.
#[derive(Clone, Debug)]
pub struct Subject {
    pub name: String,
    pub origin: SubjectOrigin,
}

#[derive(Clone, Debug)]
pub enum SubjectOrigin {
    Program(PathBuf),
    Endpoints(Vec<Endpoint>),
}

pub trait Monitor {
    /// Called before each run.
    fn step(&mut self, step: &ComparisonStep<'_>);
    /// Called several times a second during a run.
    fn progress(&mut self, run: &ActiveRun);
    fn remark(&mut self, text: &str);
    /// Called after a row was added to the report.
    fn row_measured(&mut self, report: &Report);
}

#[derive(Clone, Copy, Debug)]
pub struct ComparisonStep<'a> {
    pub suite: &'a str,
    pub row: &'a str,
    pub side: &'a str,
    /// Starts at 1; 0 during the warm-up.
    pub round: usize,
    pub rounds: usize,
    /// Starts at 1, over all suites.
    pub row_number: usize,
    pub rows: usize,
}

impl ComparisonPlan {
    /// Returns the plan of an existing cluster measured at several rates: see [`super::steps`].
    pub fn of_steps(title: String, subject: Subject, threads: usize) -> Self {
        Self {
            title,
            subjects: vec![subject],
            suites: Vec::new(),
            members: None,
            rounds: None,
            scale: 1.0,
            row_seconds: None,
            round_seconds: 0.0,
            data_dir: PathBuf::new(),
            wal_dir: None,
            media: Vec::new(),
            prefix: Bytes::new(),
            loadgen: None,
            threads,
        }
    }

    /// Returns the plan of each medium with its name, or only this one.
    pub fn by_medium(&self) -> Vec<(Option<String>, Self)> {
        let on = |(name, dir): &(String, PathBuf)| {
            let plan = Self { data_dir: dir.clone(), wal_dir: None, media: Vec::new(), ..self.clone() };
            (Some(name.clone()), plan)
        };
        if self.media.is_empty() { vec![(None, self.clone())] } else { self.media.iter().map(on).collect() }
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
                SubjectOrigin::Program(path) if !path.is_file() => {
                    return Err(format!("{}: there is no program {}", subject.name, path.display()));
                }
                SubjectOrigin::Endpoints(endpoints) if endpoints.is_empty() => {
                    return Err(format!("{}: no endpoint given", subject.name));
                }
                SubjectOrigin::Program(_) => {
                    self.media.iter().try_for_each(|(_, dir)| check_dir("--media", dir))?;
                    check_dir("--data-dir", &self.data_dir)?;
                    self.wal_dir.as_deref().map_or(Ok(()), |dir| check_dir("--wal-dir", dir))?;
                }
                SubjectOrigin::Endpoints(_) => self.check_prefix()?,
            }
        }
        Ok(())
    }
}

impl ComparisonPlan {
    fn check_prefix(&self) -> Result<(), String> {
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        let mut rows = rows.map(|row| row.scaled(self.scale, self.rounds));
        rows.try_for_each(|row| load::check_prefix(&row.load, &row.id, &self.prefix))
    }
}

/// Checks that a directory exists. Creating a mistyped one could place it on another medium.
fn check_dir(flag: &str, dir: &Path) -> Result<(), String> {
    if dir.is_dir() { Ok(()) } else { Err(format!("{flag}={}: there is no such directory", dir.display())) }
}

/// Interval of polling a run's progress.
pub const LOOK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("server");
        std::fs::write(&program, "").unwrap();
        let subject = Subject { name: "x".into(), origin: SubjectOrigin::Program(program) };
        let plan = |data: &str, wal: Option<&str>| ComparisonPlan {
            data_dir: dir.path().join(data),
            wal_dir: wal.map(|wal| dir.path().join(wal)),
            ..ComparisonPlan::of_steps(String::new(), subject.clone(), 1)
        };
        assert_eq!(plan("", Some("")).check(), Ok(()));
        for (plan, flag) in [(plan("none", None), "--data-dir="), (plan("", Some("none")), "--wal-dir=")] {
            let refused = plan.check().unwrap_err();
            assert!(refused.starts_with(flag) && refused.ends_with("no such directory"), "{refused}");
        }
        assert!(!dir.path().join("none").exists());
    }
}
