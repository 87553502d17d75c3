//! The content of a report: the results of one execution of the program, as values that are serialized to
//! JSON, read back, and rendered.
//!
//! ```text
//!   Report ─┬─ machine, command, sides (measured systems), notices
//!           └─ suites ── rows ── sides ── rounds ── metrics, series over time
//!                         │        └─ median, curve of percentiles over all rounds, read-back
//!                         └─ published figures
//! ```
//!
//! * A metric that could not be measured is `None`, and a notice or a reason explains it.
//! * `RowResult::sides` has one entry per entry of `Report::sides`, in the same order.
//! * All numbers are finite, as JSON requires.
//!
//! Independent of how metrics are measured or rendered.

mod load; // operation, clients, target, pace

pub use load::{
    Connect, Isolation, KeyOrder, KubernetesLoad, Load, Locker, Method, Operation, Pace, Protocol, READ_KEY,
    RangeLoad, ReadAs, Sweep, Target, Values, YcsbLoad, quoted,
};

use super::metric::{Metrics, Middle};
use serde::{Deserialize, Serialize};

/// Incremented when readers of older reports would misread new ones.
pub const FORMAT: u32 = 2;

/// Id of the suite of a single run.
pub const SINGLE_RUN: &str = "run";

/// One execution of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`] of the writing program.
    pub format: u32,
    pub title: String,
    /// Command line as entered, quoted for a shell.
    pub command: String,
    /// Version of the load generator.
    pub loadgen: String,
    /// Commit of the load generator, if known.
    pub commit: Option<String>,
    pub started_unix_seconds: u64,
    /// Time from the start of the first cluster to the stop of the last one.
    pub took_seconds: f64,
    pub machine: Machine,
    pub setup: MeasurementSetup,
    /// The measured systems: one, or two to be compared.
    pub sides: Vec<Side>,
    pub suites: Vec<SuiteResult>,
    /// Notices about the whole report; rows and rounds have separate ones.
    pub notices: Vec<Notice>,
    /// Reason if the execution stopped early.
    pub partial: Option<String>,
    /// Result of a search for the highest rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchVerdict>,
}

/// The highest rate that met a latency limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchVerdict {
    /// Limit in the form `p99=10ms`.
    pub limit: String,
    /// `None`: no rate met it.
    pub requests_per_second: Option<f64>,
    /// All trials up to this rate met the limit.
    pub at_least: Option<f64>,
    /// All trials from this rate on missed the limit; `None`: no valid trial missed it.
    pub at_most: Option<f64>,
    pub trials: u64,
    /// True if both bounds were confirmed and the servers missed the limit at the upper one, or at every
    /// rate.
    pub settled: bool,
    /// Rate at which the load generator or another program was the bottleneck: the servers may reach more.
    pub generator_limit: Option<f64>,
}

impl std::fmt::Display for SearchVerdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, trials, .. } = self;
        match (self.requests_per_second, self.settled) {
            (None, true) => return write!(formatter, "No rate met {limit} in {trials} trials."),
            (None, false) => {
                write!(formatter, "Undecided: no rate met {limit} in {trials} trials.")?;
                return self.write_end(formatter);
            }
            (Some(rate), true) => {
                write!(formatter, "Highest rate that met {limit}: {rate:.0} requests per second")?;
            }
            (Some(rate), false) => {
                write!(formatter, "Undecided: {rate:.0} requests per second met {limit}")?;
            }
        }
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => write!(formatter, " (between {least:.0} and {most:.0}")?,
            (Some(least), None) => write!(formatter, " ({least:.0} or more")?,
            (None, Some(most)) => write!(formatter, " (below {most:.0}")?,
            (None, None) => write!(formatter, " (the trials contradict each other")?,
        }
        write!(formatter, ", by {trials} trials).")?;
        self.write_end(formatter)
    }
}

impl SearchVerdict {
    /// Writes the reason why the search is undecided, if it is.
    fn write_end(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.generator_limit {
            Some(rate) => write!(
                formatter,
                " At {rate:.0} the load generator or the machine was the bottleneck: the servers may reach \
                 more."
            ),
            None if !self.settled => formatter.write_str(" The search ended before it was settled."),
            None => Ok(()),
        }
    }
}

/// The load generator's machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub processor: String,
    /// Logical processors available to this process.
    pub processors: usize,
    pub architecture: String,
    pub memory_bytes: u64,
    /// Kernel and release.
    pub system: String,
    /// Disk of the data directories; `None` for existing clusters.
    pub disk: Option<DiskInfo>,
    /// Disk of the logs, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_disk: Option<DiskInfo>,
    /// Media on which the suites were measured, by name, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<(String, DiskInfo)>,
}

/// A file system that servers wrote to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskInfo {
    pub directory: String,
    pub filesystem: String,
    pub device: String,
    /// Median of 4 KiB appends with fdatasync, measured before the first row.
    pub sync_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurementSetup {
    /// Members of each cluster, unless a row overrides it.
    pub members: usize,
    /// Rounds of each row, unless the row overrides it.
    pub rounds: usize,
    /// Factor of the published totals.
    pub scale: f64,
    /// Time limit of a run, even before its total.
    pub run_seconds_max: Option<f64>,
    /// Worker threads of the load generator.
    pub threads: usize,
    pub placement: Placement,
    /// Duration of each step, if a load was sent at several rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepSeconds>,
}

/// Durations of a step at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    pub warm_up: f64,
    pub measured: f64,
}

impl DiskInfo {
    /// Reports whether the directory is in memory: syncs are free, and a power failure loses all data.
    pub fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.filesystem.as_str())
    }
}

/// Location of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Started by the load generator on the same machine, a new cluster for each row.
    FreshLocal,
    /// Already running; properties that are not visible from outside are omitted.
    Existing,
}

/// A measured program or cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub name: String,
    /// Version reported by the server; empty before the first call.
    pub version: String,
    /// Output of `--version`, if the program was started here.
    pub version_text: Option<String>,
    /// The program, or the endpoints of an existing cluster.
    pub source: String,
    /// Command line of its first member.
    pub command: Option<String>,
    /// Size and time of the executable. For an existing cluster: the build information of its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// ID of an existing cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

/// A condition that a reader needs to interpret a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub level: NoteLevel,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteLevel {
    /// About the method of measurement.
    Remark,
    /// The metric may mislead.
    Warning,
    /// The metric or a reply is wrong.
    Error,
}

/// A replayed write-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteResult {
    /// Name on the command line: `docs-3.2`.
    pub id: String,
    pub title: String,
    /// A short description: author, subject and machines.
    pub about: String,
    pub source_url: Option<String>,
    /// The [`Machine::media`] entry of its data directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    pub rows: Vec<RowResult>,
}

/// A row of a suite on all sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Id, unique in its suite: `put-1000-leader`.
    pub id: String,
    pub title: String,
    pub load: Load,
    pub method: Method,
    /// Command of this program for a single run, with placeholders for endpoints.
    pub command: String,
    /// Published values; several if the write-up measured several machines.
    pub published: Vec<PublishedFigure>,
    pub sides: Vec<SideResult>,
    pub notices: Vec<Notice>,
    /// Reason if the row stopped before it was measured and read back completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The row `suite/row` with the same load, from which this row copies its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// Measured system and machine: `etcd 3.5, M6g.xlarge`.
    pub subject: String,
    pub requests_per_second: Option<f64>,
    pub latency_ms: Option<f64>,
    pub latency_kind: LatencyKind,
    pub resident_mb: Option<f64>,
    pub source_url: String,
    /// Published remark in place of a number.
    pub remark: Option<String>,
    /// Key of the metric that the remark is about; none: the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<PublishedChange>,
}

/// A published difference to another version, machine or size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedChange {
    pub from: String,
    /// The row of the same suite that it is compared with, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_percent: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyKind {
    Mean,
    P90,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideResult {
    /// Names of the servers, in the column order of [`Series`].
    pub members: Vec<String>,
    pub rounds: Vec<Round>,
    /// Median of the rounds, or their mean if that was published, metric by metric; errors are summed.
    /// `None` before the first round.
    pub median: Option<Metrics>,
    /// Latency percentiles over all rounds, measured from the intended time in an open loop.
    pub curve: Vec<CurvePoint>,
    /// Latency percentiles measured from the time of sending, if different.
    pub service_curve: Option<Vec<CurvePoint>>,
    pub read_back: Option<ReadBack>,
    /// Reason if the row was not measured.
    pub left_out: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub planned: u64,
    pub succeeded: u64,
    pub failed: u64,
    /// Calls without a response when the round stopped.
    #[serde(default)]
    pub unanswered: u64,
    pub seconds: f64,
    pub metrics: Metrics,
    pub errors: Vec<ErrorGroup>,
    pub series: Series,
    pub notices: Vec<Notice>,
    /// Reason if it stopped before its total.
    pub partial: Option<String>,
}

/// Failures with the same gRPC code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorGroup {
    pub code: String,
    pub count: u64,
    /// First message.
    pub sample: String,
}

/// Metrics over time, in columns; all columns of a kind have equal lengths.
///
/// Requests count at the time from which their latency is measured: a server stall appears as slow requests,
/// not as missing ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Width of each slice of the next four columns; slice n starts at n times this.
    pub slice_seconds: f64,
    pub requests_per_second: Vec<f64>,
    pub mean_ms: Vec<f64>,
    /// Precise to a tenth of its value.
    pub p99_ms: Vec<f64>,
    pub max_ms: Vec<f64>,
    /// Times at which the next columns were read.
    pub at_seconds: Vec<f64>,
    /// CPU of the load generator since the previous reading; 100 is a full processor.
    pub client_cpu_percent: Vec<f64>,
    /// One column per member.
    pub server_cpu_percent: Vec<Vec<f64>>,
    pub server_resident_mb: Vec<Vec<f64>>,
}

/// A latency percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// 0 to 100; the last point is 100, the slowest request.
    pub percent: f64,
    pub ms: f64,
}

/// Result of comparing the store with the acknowledged writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadBack {
    /// Keys read back individually, round-robin over all members.
    pub sampled: u64,
    /// Sampled keys with a wrong value or without a value.
    pub wrong: u64,
    /// Distinct keys with an acknowledged write.
    pub keys_expected: u64,
    /// Keys with a failed write only: each may exist or not.
    #[serde(default)]
    pub keys_uncertain: u64,
    pub keys_found: u64,
    /// Acknowledged writes, each of which adds a revision, and writes with an unknown outcome; 0 if other
    /// clients may write as well.
    #[serde(default)]
    pub revisions_expected: u64,
    #[serde(default)]
    pub revisions_uncertain: u64,
    /// Growth of the store's revision.
    #[serde(default)]
    pub revisions_found: u64,
    /// First mismatch.
    pub sample: Option<String>,
}

impl ReadBack {
    pub fn is_good(&self) -> bool {
        let most = self.keys_expected + self.keys_uncertain;
        let revisions_most = self.revisions_expected + self.revisions_uncertain;
        self.wrong == 0
            && (self.keys_expected..=most).contains(&self.keys_found)
            && (self.revisions_expected..=revisions_most).contains(&self.revisions_found)
    }
}

impl Notice {
    pub fn remark(text: impl Into<String>) -> Self {
        Self { level: NoteLevel::Remark, text: text.into() }
    }

    pub fn warning(text: impl Into<String>) -> Self {
        Self { level: NoteLevel::Warning, text: text.into() }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { level: NoteLevel::Error, text: text.into() }
    }
}

impl SideResult {
    /// Adds a round and recomputes the combined metrics.
    pub fn add(&mut self, round: Round, rounds_as: Middle) {
        self.rounds.push(round);
        self.update(rounds_as);
    }

    /// Recomputes the combined metrics of all rounds.
    pub fn update(&mut self, rounds_as: Middle) {
        let rounds: Vec<_> = self.rounds.iter().map(|round| round.metrics).collect();
        self.median = Metrics::middle(&rounds, rounds_as);
    }
}

impl RowResult {
    /// Marks the row as a copy of the row at `place`, with the same metrics.
    pub fn copied(&mut self, place: String) {
        self.notices.push(Notice::remark(format!("The same load as {place}, measured once.")));
        self.copy_of = Some(place);
    }
}

impl Report {
    pub fn is_single_run(&self) -> bool {
        self.suites.first().is_some_and(|suite| suite.id == SINGLE_RUN)
    }

    /// Reports whether its rows come from write-ups.
    pub fn replays_published(&self) -> bool {
        self.suites.iter().flat_map(|suite| &suite.rows).any(|row| !row.published.is_empty())
    }

    /// Returns the report without plots, with the metrics of its tables at four significant digits: small
    /// enough to be committed, and sufficient for [`crate::render::markdown()`].
    pub fn extract(&self) -> Report {
        let mut report = self.clone();
        for side in report.suites.iter_mut().flat_map(|suite| &mut suite.rows).flat_map(|row| &mut row.sides)
        {
            (side.curve, side.service_curve) = (Vec::new(), None);
            for round in &mut side.rounds {
                round.series = Series::default();
                // The notices of the row summarize them.
                round.notices.clear();
                round.metrics = round.metrics.extract();
            }
            side.median = side.median.map(|median| median.extract());
        }
        report
    }

    /// Returns the row that is being measured.
    pub fn last_row(&mut self) -> &mut RowResult {
        let suite = self.suites.last_mut().expect("a suite is pushed before its rows");
        suite.rows.last_mut().expect("a row is pushed before it is measured")
    }

    /// Reports whether a requested result is missing.
    pub fn is_incomplete(&self) -> bool {
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        let stopped = |row: &RowResult| {
            let short = row.sides.iter().any(|side| side.rounds.len() < row.method.rounds);
            short && row.notices.iter().any(|notice| notice.level == NoteLevel::Error)
        };
        self.partial.is_some() || { rows }.any(|row| row.failed.is_some() || stopped(row))
    }

    /// Counts failed and unfinished calls of all rounds, plus one for each store with wrong content.
    pub fn errors(&self) -> u64 {
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        rows.flat_map(|row| &row.sides)
            .map(|side| {
                let failed: u64 = side.rounds.iter().map(|round| round.failed + round.unanswered).sum();
                failed + u64::from(side.read_back.as_ref().is_some_and(|check| !check.is_good()))
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_keys_and_failed_calls_are_errors() {
        let check = |wrong, keys_found| ReadBack {
            sampled: 9,
            wrong,
            keys_expected: 5,
            keys_uncertain: 2,
            keys_found,
            ..ReadBack::default()
        };
        let revisions = |revisions_found| ReadBack {
            revisions_expected: 10,
            revisions_uncertain: 1,
            revisions_found,
            ..check(0, 5)
        };
        assert!(revisions(10).is_good() && revisions(11).is_good());
        assert!(
            !revisions(9).is_good() && !revisions(12).is_good(),
            "an acknowledged write was not executed"
        );
        assert!(check(0, 5).is_good() && check(0, 7).is_good());
        assert!(!check(1, 5).is_good() && !check(0, 4).is_good() && !check(0, 8).is_good());
        let mut report: Report = serde_json::from_str(include_str!("../../tests/data/report.json")).unwrap();
        let before = report.errors();
        report.suites[0].rows[0].sides[0].rounds[0].unanswered = 3;
        assert_eq!(report.errors(), before + 3, "a server that stops answering is no success");
        assert!(!report.is_incomplete());
        report.suites[0].rows[0].failed = Some("a member is gone, nothing was read back".into());
        assert!(report.is_incomplete());
    }

    #[test]
    fn adding_a_round_updates_the_figures_of_all() {
        for (rounds_as, expected) in [(Middle::Median, 2.0), (Middle::Mean, 4.0)] {
            let mut side = SideResult::default();
            for rate in [1.0, 9.0, 2.0] {
                let metrics = Metrics { requests_per_second: Some(rate), ..Metrics::default() };
                side.add(Round { metrics, ..Round::default() }, rounds_as);
            }
            assert_eq!(side.median.and_then(|median| median.requests_per_second), Some(expected));
        }
    }
}
