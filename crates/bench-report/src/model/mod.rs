//! The content of a report: the results of one execution of the program, as values that are written as JSON,
//! read back, and rendered.
//!
//! ```text
//!   Report ─┬─ machine, command, sides (what was measured), notices
//!           └─ suites ── rows ── sides ── rounds ── metrics, series over time
//!                         │        └─ median, curve of percentiles over all rounds, read-back
//!                         └─ published figures
//! ```
//!
//! * A figure that could not be measured is `None`, and a notice or a reason explains it.
//! * `RowResult::sides` has one entry per entry of `Report::sides`, in the same order.
//! * All numbers are finite, as JSON requires.
//!
//! Must not depend on how figures are measured or shown.

mod row_spec; // what a row sends

pub use row_spec::{Connect, READ_KEY, RowOperation, RowProtocol, RowSpec, RowTarget, Sweep, Values};

use super::metric::{Metrics, Middle};
use serde::{Deserialize, Serialize};

/// Incremented when readers of older reports would misread new ones.
pub const FORMAT: u32 = 1;

/// The suite of a single run.
pub const SINGLE_RUN: &str = "run";

/// One execution of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`] of the program that wrote it.
    pub format: u32,
    pub title: String,
    /// As typed, quoted for a shell.
    pub command: String,
    /// Version of the load generator.
    pub loadgen: String,
    /// From which the load generator was built, where that is known.
    pub commit: Option<String>,
    pub started_unix_seconds: u64,
    /// From the first cluster's start to the last one's end.
    pub took_seconds: f64,
    pub machine: Machine,
    pub setup: MeasurementSetup,
    /// What was measured: one, or two to be compared.
    pub sides: Vec<Side>,
    pub suites: Vec<SuiteResult>,
    /// Of the whole report; rows and rounds have their own.
    pub notices: Vec<Notice>,
    /// Why it ended early, if it did.
    pub partial: Option<String>,
    /// The answer of a search for the highest rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchVerdict>,
}

/// The highest rate that met a limit of latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchVerdict {
    /// `p99=10ms`
    pub limit: String,
    /// `None`: no rate met it.
    pub requests_per_second: Option<f64>,
    /// No trial at this rate or below missed the limit.
    pub at_least: Option<f64>,
    /// No trial at this rate or above met it; `None`: no trial that counts missed it.
    pub at_most: Option<f64>,
    pub trials: u64,
    /// Both ends were confirmed, and the servers missed the limit at the upper one; or at every rate.
    pub settled: bool,
    /// At this rate the load generator or another program was the bottleneck: the servers may reach more.
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
    /// Why it is undecided, if it is.
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

/// The machine that the load generator ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub processor: String,
    /// Logical ones, as this process may use them.
    pub processors: usize,
    pub architecture: String,
    pub memory_bytes: u64,
    /// Kernel and its release.
    pub system: String,
    /// Where the clusters kept their files; `None` for existing clusters.
    pub disk: Option<DiskInfo>,
    /// Where they kept their logs, if elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_disk: Option<DiskInfo>,
    /// Media that the suites were measured on, one after the other, by name.
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

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurementSetup {
    /// Of each cluster, unless a row says otherwise.
    pub members: usize,
    /// Of each row, unless the row says otherwise.
    pub rounds: usize,
    /// Published totals were multiplied by this.
    pub scale: f64,
    /// A run ends after this time, even before its total.
    pub run_seconds_max: Option<f64>,
    /// Worker threads of the load generator.
    pub threads: usize,
    pub placement: Placement,
    /// Seconds that each rate was sent and measured, where one load was sent at several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepSeconds>,
}

/// How long each rate was sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    pub warm_up: f64,
    pub measured: f64,
}

impl DiskInfo {
    /// Whether a sync costs nothing there, and a power failure everything.
    pub fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.filesystem.as_str())
    }
}

/// Where the servers ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Started by the load generator on the same machine, a new cluster for each row.
    FreshLocal,
    /// Running already; what cannot be seen from outside is left out.
    Existing,
}

/// A program or cluster that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub name: String,
    /// As reported by the server; empty before the first call.
    pub version: String,
    /// As `--version` prints it, where the program was started here.
    pub version_text: Option<String>,
    /// The program, or the endpoints of a cluster that was running already.
    pub source: String,
    /// How its first member was started.
    pub command: Option<String>,
    /// Size and time of the program's file. Of a cluster that was running: what its server was built with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The ID of a cluster that was running already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

/// A condition that a reader needs to interpret a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub level: NoteLevel,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteLevel {
    /// How it was measured.
    Remark,
    /// The figure may mislead.
    Warning,
    /// The figure or a reply is wrong.
    Error,
}

/// One published write-up, replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteResult {
    /// As on the command line: `docs-3.2`.
    pub id: String,
    pub title: String,
    /// A few sentences: who measured what on which machines.
    pub about: String,
    pub source_url: Option<String>,
    /// The one of [`Machine::media`] that its clusters kept their files on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    pub rows: Vec<RowResult>,
}

/// One row of a suite on all sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Unique in its suite: `put-1000-leader`.
    pub id: String,
    pub title: String,
    pub spec: RowSpec,
    /// One run of it as a command of this program; endpoints stand for themselves.
    pub command: String,
    /// Several where the write-up measured several machines.
    pub published: Vec<PublishedFigure>,
    pub sides: Vec<SideResult>,
    pub notices: Vec<Notice>,
    /// Why it ended before all of it was measured and read back, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The row `suite/row` that sent the same and was measured; this one has its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
}

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// What was measured, on what: `etcd 3.5, M6g.xlarge`.
    pub subject: String,
    pub requests_per_second: Option<f64>,
    pub latency_ms: Option<f64>,
    pub latency_kind: LatencyKind,
    pub resident_mb: Option<f64>,
    pub source_url: String,
    /// What was published in words instead of a number.
    pub remark: Option<String>,
    /// The key of the figure that the words are about; none: the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// What the write-up compared it with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<PublishedChange>,
}

/// A published difference to another version, machine or size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedChange {
    pub from: String,
    /// The row of the same suite that it is the difference to, if there is one.
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

/// One side on one row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideResult {
    /// Names of the servers, as the columns of [`Series`] have them.
    pub members: Vec<String>,
    pub rounds: Vec<Round>,
    /// The median of the rounds, or their mean where that was published, figure by figure; errors are summed.
    /// `None` before the first round.
    pub median: Option<Metrics>,
    /// Latency percentiles over all rounds together, from the intended moment in an open loop.
    pub curve: Vec<CurvePoint>,
    /// The same from the moment of sending, where it differs.
    pub service_curve: Option<Vec<CurvePoint>>,
    pub read_back: Option<ReadBack>,
    /// Why nothing was measured, if so.
    pub left_out: Option<String>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub planned: u64,
    pub succeeded: u64,
    pub failed: u64,
    /// Calls that were sent and had no reply when the round ended.
    #[serde(default)]
    pub unanswered: u64,
    pub seconds: f64,
    pub metrics: Metrics,
    pub errors: Vec<ErrorGroup>,
    pub series: Series,
    pub notices: Vec<Notice>,
    /// Why it ended before its total, if it did.
    pub partial: Option<String>,
}

/// Failures of one gRPC code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorGroup {
    pub code: String,
    pub count: u64,
    /// The first message seen.
    pub sample: String,
}

/// Figures over time, column by column; all columns of one kind have equal lengths.
///
/// Requests count at the moment from which their latency counts: a stall of the server shows as slow
/// requests, not as missing ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Width of each slice of the four columns that follow; slice n begins at n times this.
    pub slice_seconds: f64,
    pub requests_per_second: Vec<f64>,
    pub mean_ms: Vec<f64>,
    /// To a tenth of its value.
    pub p99_ms: Vec<f64>,
    pub max_ms: Vec<f64>,
    /// Moments at which the columns that follow were read.
    pub at_seconds: Vec<f64>,
    /// Of the load generator since the reading before; 100 is one processor.
    pub client_cpu_percent: Vec<f64>,
    /// One column per member.
    pub server_cpu_percent: Vec<Vec<f64>>,
    pub server_resident_mb: Vec<Vec<f64>>,
}

/// This percentage of all requests took at most this time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// 0 to 100; the last one is 100 and the slowest request.
    pub percent: f64,
    pub ms: f64,
}

/// Whether the store held the acknowledged writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadBack {
    /// Keys read back one by one, from every member in turn.
    pub sampled: u64,
    /// Of those, with the wrong value or none.
    pub wrong: u64,
    /// Distinct keys whose write was acknowledged.
    pub keys_expected: u64,
    /// Keys whose write was sent and failed: each may exist or not.
    #[serde(default)]
    pub keys_uncertain: u64,
    pub keys_found: u64,
    /// The first thing that was wrong.
    pub sample: Option<String>,
}

impl ReadBack {
    pub fn is_good(&self) -> bool {
        let most = self.keys_expected + self.keys_uncertain;
        self.wrong == 0 && (self.keys_expected..=most).contains(&self.keys_found)
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
    /// Adds a round and updates the figures of all.
    pub fn add(&mut self, round: Round, rounds_as: Middle) {
        self.rounds.push(round);
        self.update(rounds_as);
    }

    /// Computes the figures of all rounds again.
    pub fn update(&mut self, rounds_as: Middle) {
        let rounds: Vec<_> = self.rounds.iter().map(|round| round.metrics).collect();
        self.median = Metrics::middle(&rounds, rounds_as);
    }
}

/// The notice of a row that was not measured again.
const SAME_LOAD: (&str, &str) = ("The same load as ", ", measured once.");

impl RowResult {
    /// Marks it as a copy of the row at `place`, whose figures it has.
    pub fn copied(&mut self, place: String) {
        self.notices.push(Notice::remark(format!("{}{place}{}", SAME_LOAD.0, SAME_LOAD.1)));
        self.copy_of = Some(place);
    }

    /// Reads a row of an older version, which had sums as rates and copies in words only.
    fn upgrade(&mut self) {
        let copied = |notice: &Notice| {
            let place = notice.text.strip_prefix(SAME_LOAD.0)?.strip_suffix(SAME_LOAD.1)?;
            Some(place.to_owned())
        };
        let known = self.copy_of.take();
        self.copy_of = known.or_else(|| self.notices.iter().find_map(copied));
        if self.spec.target != RowTarget::EachSummed {
            return;
        }
        for side in &mut self.sides {
            let rounds = side.rounds.iter_mut().map(|round| &mut round.metrics);
            for metrics in rounds.chain(side.median.as_mut()) {
                if metrics.summed_requests_per_second.is_none() {
                    metrics.summed_requests_per_second = metrics.requests_per_second.take();
                }
            }
        }
    }
}

impl Report {
    /// Reads what an older version wrote as this one would have written it.
    pub fn upgrade(&mut self) {
        self.suites.iter_mut().flat_map(|suite| &mut suite.rows).for_each(RowResult::upgrade);
    }

    /// Whether it shows one run of one load.
    pub fn is_single_run(&self) -> bool {
        self.suites.first().is_some_and(|suite| suite.id == SINGLE_RUN)
    }

    /// Whether its rows are those of write-ups.
    pub fn replays_published(&self) -> bool {
        self.suites.iter().flat_map(|suite| &suite.rows).any(|row| !row.published.is_empty())
    }

    /// The row that is being measured.
    pub fn last_row(&mut self) -> &mut RowResult {
        let suite = self.suites.last_mut().expect("a suite is pushed before its rows");
        suite.rows.last_mut().expect("a row is pushed before it is measured")
    }

    /// Whether a requested result is missing.
    pub fn is_incomplete(&self) -> bool {
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        let stopped = |row: &RowResult| {
            let short = row.sides.iter().any(|side| side.rounds.len() < row.spec.rounds);
            short && row.notices.iter().any(|notice| notice.level == NoteLevel::Error)
        };
        self.partial.is_some() || { rows }.any(|row| row.failed.is_some() || stopped(row))
    }

    /// Failed and unanswered calls of all rounds, and one for each store with wrong content.
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
            sample: None,
        };
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
    fn a_report_of_an_older_version_has_sums_apart_and_knows_its_copies() {
        let text = include_str!("../../tests/data/report.json");
        let mut report: Report = serde_json::from_str(text).unwrap();
        let row = &mut report.suites[0].rows[0];
        row.spec.target = RowTarget::EachSummed;
        row.notices = vec![Notice::remark("The same load as a/b, measured once.")];
        let rate = row.sides[0].median.unwrap().requests_per_second;
        report.upgrade();
        report.upgrade();
        let row = &report.suites[0].rows[0];
        let median = row.sides[0].median.unwrap();
        assert_eq!((median.requests_per_second, median.summed_requests_per_second), (None, rate));
        assert_eq!(row.copy_of.as_deref(), Some("a/b"));
        assert!(report.suites[0].rows[1].sides[0].median.unwrap().requests_per_second.is_some());
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
