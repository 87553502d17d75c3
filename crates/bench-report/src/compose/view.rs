//! A report with the roles of its sides: verdicts, sentences and facts.
//!
//! * The *subject* is compared with the *baseline*: etcd if one side is etcd, else the second side.
//! * A ratio is subject ÷ baseline. It counts as even if the rounds of both overlap or if it is within 3 %
//!   of 1: another measurement could reverse it.
//! * Sentences contain counts and medians of the table values.

use crate::metric::{Better, Metric, Metrics, Middle, median};
use crate::model::{
    DiskInfo, NoteLevel, Notice, Placement, Report, RowResult, Side, SideResult, SuiteResult,
};
use crate::number;
use crate::page::{Fact, Owner, RatioGroup, RatioRow, RatioVerdict, Ratios};
use std::collections::HashSet;

/// A ratio closer to 1 than this is not a relevant difference.
const EVEN: f64 = 0.03;
/// Like `EVEN`, with a single round per side, so that the spread of rounds is unknown.
const EVEN_ALONE: f64 = 0.15;

/// Pages with more rows contain only tables, sweeps and the warnings of rows: the metrics and plots of 98
/// rows would take megabytes.
const DETAILED_ROWS_MAX: usize = 32;

pub struct ReportView<'a> {
    pub report: &'a Report,
    /// True if the page contains the metrics and plots of each row.
    pub is_detailed: bool,
    /// Indexes into the sides.
    pub subject: usize,
    pub baseline: Option<usize>,
}

impl<'a> ReportView<'a> {
    pub fn of(report: &'a Report) -> Self {
        let sides = &report.sides;
        let is_etcd = |side: &Side| side.name.starts_with("etcd");
        let (subject, baseline) = match sides.as_slice() {
            [first, second] if is_etcd(first) && !is_etcd(second) => (1, Some(0)),
            [_, _] => (0, Some(1)),
            _ => (0, None),
        };
        let rows: usize = report.suites.iter().map(|suite| suite.rows.len()).sum();
        Self { report, is_detailed: rows <= DETAILED_ROWS_MAX, subject, baseline }
    }

    /// Returns the sides in column order: baseline, then subject.
    pub fn order(&self) -> Vec<(usize, Owner)> {
        self.baseline.map(|side| (side, Owner::B)).into_iter().chain([(self.subject, Owner::A)]).collect()
    }

    pub fn name(&self, side: usize) -> &'a str {
        self.report.sides.get(side).map_or("", |side| &side.name)
    }

    pub fn side(row: &RowResult, side: usize) -> Option<&SideResult> {
        row.sides.get(side)
    }

    pub fn has_detail(&self, row: &RowResult) -> bool {
        self.is_detailed || worst(row) >= Some(NoteLevel::Warning)
    }

    /// Returns the id of the row's details, if any.
    pub fn row_anchor(&self, suite: &SuiteResult, row: &RowResult) -> Option<String> {
        self.has_detail(row).then(|| row_anchor(suite, row))
    }

    /// Iterates over the measured rows, without duplicates: a copy has the metrics of another row, which may
    /// not be on the page.
    fn rows(&self) -> impl Iterator<Item = &'a RowResult> {
        let suites = self.report.suites.iter();
        let rows = suites.flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)));
        let originals = rows.clone().filter(|(_, row)| row.copy_of.is_none());
        let place = |(suite, row): (&'a SuiteResult, &RowResult)| {
            (suite.medium.as_deref(), format!("{}/{}", suite.id, row.id))
        };
        let mut known: HashSet<_> = originals.map(place).collect();
        let counts = move |(suite, row): &(&'a SuiteResult, &RowResult)| {
            let is_new = |copied: &String| known.insert((suite.medium.as_deref(), copied.clone()));
            row.copy_of.as_ref().is_none_or(is_new)
        };
        rows.filter(counts).map(|(_, row)| row)
    }

    /// Lists the rows that only one side could run, because the counts that follow exclude them.
    fn not_run(&self, side: usize, other: usize) -> Option<String> {
        let ran = |row: &RowResult, side| Self::side(row, side).is_some_and(|side| side.median.is_some());
        let missing = self.rows().filter(|row| ran(row, other) && !ran(row, side));
        let missing: Vec<&str> = missing.map(|row| row.id.as_str()).collect();
        let name = self.name(side);
        let rows = number::counted(missing.len(), "row");
        (!missing.is_empty()).then(|| {
            format!("{name} could not run {rows} that {} ran: {}.", self.name(other), missing.join(", "))
        })
    }

    /// Returns subject ÷ baseline of a metric of a row; `None` for rows with an error.
    pub fn ratio(&self, row: &RowResult, metric: &Metric) -> Option<RatioRow> {
        if worst(row) >= Some(NoteLevel::Error) {
            return None;
        }
        let (subject, baseline) = (Self::side(row, self.subject)?, Self::side(row, self.baseline?)?);
        let ratio = metric.ratio(subject.median.as_ref()?, baseline.median.as_ref()?)?;
        let ours = metric.spread(metrics(subject))?;
        let theirs = metric.spread(metrics(baseline))?;
        let spread = (ours.0 / theirs.1, ours.1 / theirs.0);
        let several = subject.rounds.len().min(baseline.rounds.len()) > 1;
        let overlap = several && ours.0 <= theirs.1 && theirs.0 <= ours.1;
        let even = overlap || (ratio - 1.0).abs() <= if several { EVEN } else { EVEN_ALONE };
        let verdict = match metric.better {
            Better::Neutral => RatioVerdict::Neutral,
            _ if !is_sound(row) => RatioVerdict::Neutral,
            Better::Higher | Better::Lower if even => RatioVerdict::Even,
            Better::Higher if ratio > 1.0 => RatioVerdict::Better,
            Better::Lower if ratio < 1.0 => RatioVerdict::Better,
            Better::Higher | Better::Lower => RatioVerdict::Worse,
        };
        let finite = spread.0.is_finite() && spread.1.is_finite();
        let spread = if finite { spread } else { (ratio, ratio) };
        Some(RatioRow { name: row.title.clone(), ratio, spread, verdict })
    }

    pub fn lede(&self) -> String {
        let Some(baseline) = self.baseline else { return self.lede_of_one() };
        let not_run = [self.not_run(self.subject, baseline), self.not_run(baseline, self.subject)];
        let mut sentences: Vec<String> = not_run.into_iter().flatten().collect();
        let (subject, baseline) = (self.name(self.subject), self.name(baseline));
        for (key, verb) in [
            ("requests_per_second", "served more requests per second than"),
            ("p99_ms", "had a lower p99 latency than"),
            ("server_cpu_micros", "used less CPU per request than"),
        ] {
            let Some(metric) = Metric::by_key(key) else { continue };
            let sound = self.rows().filter(|row| is_sound(row));
            let ratios: Vec<_> = sound.filter_map(|row| self.ratio(row, metric)).collect();
            let of = |verdict| ratios.iter().filter(|ratio| ratio.verdict == verdict).count();
            let Some(middle) = median(ratios.iter().map(|ratio| ratio.ratio).collect()) else { continue };
            let (better, even, all) = (of(RatioVerdict::Better), of(RatioVerdict::Even), ratios.len());
            let middle = number::ratio(middle);
            let even = if even == 0 { String::new() } else { format!(", about the same in {even}") };
            sentences.push(format!(
                "{subject} {verb} {baseline} in {better} of {all} rows{even} (median ratio {middle})."
            ));
        }
        if sentences.is_empty() {
            sentences.push("No valid comparison: every row has errors or warnings.".into());
        }
        let left_out = self.rows().filter(|row| !is_sound(row)).count();
        if left_out > 0 {
            let rows = number::counted(left_out, "row");
            sentences.push(format!("{rows} without a verdict, because of errors or warnings."));
        }
        sentences.join(" ")
    }

    fn lede_of_one(&self) -> String {
        let (name, rows) = (self.name(self.subject), self.rows().count());
        match &self.report.search {
            Some(verdict) => format!("{name}: {verdict}"),
            None if self.report.is_single_run() => self.lede_of_run(),
            None if self.report.setup.steps.is_some() => {
                format!("{name} at {}.", number::counted(rows, "rate"))
            }
            None if self.report.replays_published() => {
                format!("{name} on {} of published measurements.", number::counted(rows, "row"))
            }
            None => format!("{name} on {}.", number::counted(rows, "row")),
        }
    }

    fn lede_of_run(&self) -> String {
        let Some(row) = self.rows().next() else { return "No measurements.".into() };
        let Some(metrics) = Self::side(row, 0).and_then(|side| side.median) else { return row.title.clone() };
        let figure = |key: &str| Metric::by_key(key).and_then(|metric| (metric.get)(&metrics));
        let of = |key: &str| figure(key).map(number::quantity);
        let figures = [
            of("requests_per_second").map(|rate| format!("{rate} requests per second")),
            of("p50_ms").map(|ms| format!("p50 {ms} ms")),
            of("p99_ms").map(|ms| format!("p99 {ms} ms")),
            figure("errors").map(|errors| format!("{} failed calls", number::given(errors))),
        ];
        let figures: Vec<_> = figures.into_iter().flatten().collect();
        format!("{}: {}.", row.title, figures.join(", "))
    }

    pub fn notices(&self) -> Vec<String> {
        let report = self.report;
        let mut notices = Vec::new();
        notices.extend(
            report.partial.as_ref().map(|reason| format!("Partial: {reason}. Earlier results are below.")),
        );
        notices.extend(ordered(&report.notices));
        if report.is_single_run() {
            notices.extend(ordered(self.rows().flat_map(row_notices)));
            return notices;
        }
        let marked = |level: NoteLevel| {
            self.rows().filter(|row| worst(row).is_some_and(|worst| worst >= level)).count()
        };
        let (errors, warnings) =
            (marked(NoteLevel::Error), marked(NoteLevel::Warning) - marked(NoteLevel::Error));
        if errors > 0 {
            let rows = number::counted(errors, "row");
            notices
                .push(format!("Error: {rows} with errors, marked in the tables and explained below them."));
        }
        if warnings > 0 {
            let rows = number::counted(warnings, "row");
            notices.push(format!("{rows} with warnings, marked in the tables and explained below them."));
        }
        notices
    }

    /// Names the statistic that combines several rounds.
    fn middles(&self) -> &'static str {
        let is_mean = |row: &RowResult| row.method.rounds_as == Middle::Mean;
        match (self.rows().any(is_mean), self.rows().all(is_mean)) {
            (false, _) => "medians",
            (true, true) => "means",
            (true, false) => "medians, or means as published",
        }
    }

    pub fn overview(&self) -> Option<Ratios> {
        let metric = Metric::by_key("requests_per_second")?;
        let (subject, baseline) = (self.name(self.subject), self.name(self.baseline?));
        let groups = self.report.suites.iter().map(|suite| RatioGroup {
            title: match &suite.medium {
                Some(medium) => format!("{} on {medium}", suite.id),
                None => suite.id.clone(),
            },
            rows: suite.rows.iter().filter_map(|row| self.ratio(row, metric)).collect(),
        });
        let groups: Vec<_> = groups.filter(|group| !group.rows.is_empty()).collect();
        (!groups.is_empty()).then(|| Ratios {
            title: format!("Requests per second: {subject} ÷ {baseline}"),
            caption: format!(
                "Dots are ratios of the {}; bars span the least and the most favourable pairing of \
                 rounds. The axis is logarithmic.",
                self.middles()
            ),
            sides: [format!("{baseline} ahead"), format!("{subject} ahead")],
            groups,
        })
    }

    pub fn facts(&self) -> Vec<Fact> {
        let Report { machine, setup, sides, .. } = self.report;
        let mut facts = vec![
            Fact::prose(
                "Machine",
                format!(
                    "{}, {} processors ({}), {:.1} GiB memory",
                    machine.processor,
                    machine.processors,
                    machine.architecture,
                    machine.memory_bytes as f64 / f64::from(1 << 30)
                ),
            ),
            Fact::prose("System", machine.system.clone()),
        ];
        let one = if machine.wal_disk.is_some() { "Data disk" } else { "Disk" };
        for (name, disk) in [(one, &machine.disk), ("WAL disk", &machine.wal_disk)] {
            facts.extend(disk.as_ref().map(|disk| Fact::prose(name, disk_text(disk))));
        }
        for (name, disk) in &machine.media {
            facts.push(Fact::prose(format!("Medium {name}"), disk_text(disk)));
        }
        let placement = match setup.placement {
            Placement::FreshLocal => "a new cluster per row, on the machine of the load generator",
            Placement::Existing if sides.len() > 1 => "existing clusters",
            Placement::Existing => "an existing cluster",
        };
        let members = number::counted(setup.members, "member");
        facts.push(Fact::prose("Servers", format!("{members}, {placement}")));
        facts.extend(self.how_often());
        for side in sides {
            let text =
                side.version_text.as_deref().and_then(|text| text.lines().next()).unwrap_or(&side.version);
            facts.push(Fact::prose(side.name.clone(), text));
            facts.extend(
                side.command
                    .as_ref()
                    .map(|command| Fact::command(format!("{}, first member", side.name), command)),
            );
        }
        let commit =
            self.report.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
        facts.push(Fact::prose(
            "Load generator",
            format!("loadgen {}{commit}, {}", self.report.loadgen, number::counted(setup.threads, "thread")),
        ));
        facts.push(Fact::command("Command", self.report.command.clone()));
        let took = number::duration(self.report.took_seconds);
        facts.push(Fact::prose(
            "When",
            format!("{}, took {took}", number::moment(self.report.started_unix_seconds)),
        ));
        facts
    }
}

impl ReportView<'_> {
    /// Returns the rounds and scale of rows, or the steps of a single load.
    fn how_often(&self) -> Vec<Fact> {
        let setup = &self.report.setup;
        if self.report.is_single_run() {
            return Vec::new();
        }
        if let Some(steps) = setup.steps {
            let trials = number::counted(self.rows().count(), "trial");
            let [warm_up, measured] = [steps.warm_up, steps.measured].map(number::tick);
            let text = format!("{trials} of {measured} s each, after {warm_up} s at the same rate");
            return vec![Fact::prose("Steps", text)];
        }
        let limit = setup.run_seconds_max;
        let limit = limit.map(|seconds| format!(", at most {} s", number::tick(seconds)));
        let systems = if self.baseline.is_some() { ", alternating between the systems" } else { "" };
        let rounds = format!(
            "{} per row{systems}; values are {}{}",
            setup.rounds,
            self.middles(),
            limit.unwrap_or_default()
        );
        let mut facts = vec![Fact::prose("Rounds", rounds)];
        if self.report.replays_published() {
            let scale = format!("{} of the published requests", number::percent(setup.scale));
            facts.push(Fact::prose("Scale", scale));
        }
        facts
    }
}

fn disk_text(disk: &DiskInfo) -> String {
    let sync =
        disk.sync_ms.map(|ms| format!(", a 4 KiB append with fdatasync takes {} ms", number::quantity(ms)));
    format!("{} on {} ({}){}", disk.filesystem, disk.device, disk.directory, sync.unwrap_or_default())
}

pub fn metrics(side: &SideResult) -> impl Iterator<Item = &Metrics> {
    side.rounds.iter().map(|round| &round.metrics)
}

pub fn row_notices(row: &RowResult) -> Vec<&Notice> {
    let rounds = row.sides.iter().flat_map(|side| &side.rounds).flat_map(|round| &round.notices);
    let mut notices: Vec<&Notice> = Vec::new();
    for notice in row.notices.iter().chain(rounds) {
        if !notices.contains(&notice) {
            notices.push(notice);
        }
    }
    notices
}

pub fn worst(row: &RowResult) -> Option<NoteLevel> {
    let failed = row.sides.iter().any(|side| {
        side.rounds.iter().any(|round| round.failed > 0)
            || side.read_back.as_ref().is_some_and(|check| !check.is_good())
    });
    let said = row_notices(row).iter().map(|notice| notice.level).max();
    if failed { Some(NoteLevel::Error) } else { said }
}

/// Reports whether the row has no warning about its metrics.
fn is_sound(row: &RowResult) -> bool {
    worst(row).is_none_or(|worst| worst < NoteLevel::Warning)
}

/// Formats notices with their level, highest level first.
pub fn ordered<'a>(notices: impl IntoIterator<Item = &'a Notice>) -> Vec<String> {
    let mut notices: Vec<_> = notices.into_iter().collect();
    notices.sort_by_key(|notice| std::cmp::Reverse(notice.level));
    let text = |notice: &&Notice| match notice.level {
        NoteLevel::Error => format!("Error: {}", notice.text),
        NoteLevel::Warning => format!("Warning: {}", notice.text),
        NoteLevel::Remark => notice.text.clone(),
    };
    notices.iter().map(text).collect()
}

/// Returns the id of a row's details.
pub fn row_anchor(suite: &SuiteResult, row: &RowResult) -> String {
    let parts = [Some(&suite.id), suite.medium.as_ref(), Some(&row.id)];
    anchor(&parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>())
}

/// Returns an id on the page.
pub fn anchor(parts: &[&str]) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    parts.join("-").chars().map(safe).collect()
}
