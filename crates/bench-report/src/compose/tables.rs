//! The table of a suite: published, measured here, ratio.

use super::view::{ReportView, metrics, worst};
use crate::metric::Metric;
use crate::model::{
    Connect, LatencyKind, NoteLevel, Operation, Protocol, PublishedFigure, RowResult, SINGLE_RUN, SideResult,
    SuiteResult, Target,
};
use crate::number;
use crate::page::{
    Column, ColumnGroup, NO_RATIO, NOT_MEASURED, NOT_PUBLISHED, Owner, ReportTable, TableCell,
};

/// Number of columns that fit a screen; the details of each row contain all metrics.
const COST_COLUMNS_MAX: usize = 12;
/// Key of the metric in the table that describes the load of its rows.
pub(super) const RATE: &str = "requests_per_second";

/// A group of columns: its heading, its metric, and the published values.
struct Measure {
    title: &'static str,
    metric: &'static Metric,
    published: Option<Get>,
}

/// Placeholder for a published rate that adds up members measured one after the other.
const ONLY_A_SUM: &str = "only a sum";

type Get = fn(&PublishedFigure) -> Option<String>;

impl Measure {
    fn new(title: &'static str, key: &str, published: Option<Get>) -> Self {
        let metric = Metric::by_key(key).expect("a figure that the table of figures has");
        Self { title, metric, published }
    }
}

impl ReportView<'_> {
    /// Returns the speed tables, then the cost tables.
    pub(super) fn tables(&self, suite: &SuiteResult) -> Vec<ReportTable> {
        let has_published = suite.rows.iter().any(|row| !row.published.is_empty());
        let of_suite = |caption: &str| format!("{}: {caption}", suite.id);
        let (speed, cost) = match (suite.id == SINGLE_RUN, has_published) {
            (true, _) => ("Throughput and latency".to_owned(), "Server cost".to_owned()),
            (false, true) => (of_suite("published and measured"), of_suite("server cost")),
            (false, false) => (of_suite("measured"), of_suite("server cost")),
        };
        let sums = format!("{}: sums over members that were measured alone, as published", suite.id);
        let every = |_: &RowResult| true;
        let summed = |row: &RowResult| row.load.target == Target::EachSummed;
        let mut tables = vec![self.table(suite, speed, &speed_measures(suite), every)];
        let cost_measures = cost_measures(suite);
        if !cost_measures.is_empty() {
            tables.push(self.table(suite, cost, &cost_measures, every));
        }
        if suite.rows.iter().any(summed) {
            tables.push(self.table(suite, sums, &[sum_measure()], summed));
        }
        tables.extend(self.changes(suite));
        tables
    }

    fn table(
        &self,
        suite: &SuiteResult,
        caption: String,
        measures: &[Measure],
        has: impl Fn(&RowResult) -> bool,
    ) -> ReportTable {
        let mut columns = vec![Column::new("Row", None)];
        let mut groups = Vec::new();
        for measure in measures {
            let before = columns.len();
            if measure.published.is_some() {
                columns.push(Column::new("published", Some(Owner::Published)));
            }
            for (side, owner) in self.order() {
                let here = if measure.published.is_some() { " here" } else { "" };
                columns.push(Column::new(format!("{}{here}", self.name(side)), Some(owner)));
            }
            if self.baseline.is_some() {
                columns.push(Column::new("ratio", None));
            }
            groups.push(ColumnGroup { title: measure.title.to_owned(), columns: columns.len() - before });
        }
        let rows = suite
            .rows
            .iter()
            .filter(|row| has(row))
            .map(|row| self.table_row(suite, row, measures))
            .collect();
        ReportTable { caption, groups, columns, rows }
    }

    fn table_row(&self, suite: &SuiteResult, row: &RowResult, measures: &[Measure]) -> Vec<TableCell> {
        let mut cells = vec![TableCell::Name {
            text: row.title.clone(),
            detail: if measures.iter().any(|measure| measure.metric.key == RATE) {
                spec(row)
            } else {
                String::new()
            },
            anchor: self.row_anchor(suite, row),
        }];
        for measure in measures {
            if let Some(get) = measure.published {
                cells.push(match words(row, measure.metric.key) {
                    Some(words) if row.published.iter().all(|published| get(published).is_none()) => {
                        TableCell::Words(words)
                    }
                    // The published value is a sum, while this column has measured rates.
                    _ if row.load.target == Target::EachSummed && measure.metric.key == RATE => {
                        TableCell::Missing(ONLY_A_SUM)
                    }
                    _ => published(row, get),
                });
            }
            cells.extend(self.figures(row, measure.metric));
        }
        cells
    }

    /// Returns the metric of both sides and their ratio.
    pub(super) fn figures(&self, row: &RowResult, metric: &Metric) -> Vec<TableCell> {
        let mut cells: Vec<_> =
            self.order().iter().map(|(side, _)| figure(Self::side(row, *side), metric)).collect();
        if self.baseline.is_some() {
            cells.push(match self.ratio(row, metric) {
                Some(found) => TableCell::Ratio { text: number::ratio(found.ratio), verdict: found.verdict },
                None => TableCell::Missing(NO_RATIO),
            });
        }
        cells
    }
}

/// Returns the kind of latency that the write-up published.
pub(super) fn latency_kind(suite: &SuiteResult) -> LatencyKind {
    let mut kinds = suite.rows.iter().flat_map(|row| &row.published).map(|published| published.latency_kind);
    if kinds.any(|kind| kind == LatencyKind::P90) { LatencyKind::P90 } else { LatencyKind::Mean }
}

fn speed_measures(suite: &SuiteResult) -> Vec<Measure> {
    let (latency, key) = match latency_kind(suite) {
        LatencyKind::P90 => ("p90 latency, ms", "p90_ms"),
        LatencyKind::Mean => ("mean latency, ms", "mean_ms"),
    };
    let rate: Get = |published| published.requests_per_second.map(number::given);
    let took: Get = |published| published.latency_ms.map(number::given);
    vec![
        Measure::new(
            "requests per second",
            RATE,
            published_anywhere(suite, rate).or(said_anywhere(suite, RATE)),
        ),
        Measure::new(latency, key, published_anywhere(suite, took)),
        Measure::new("p99 latency, ms", "p99_ms", None),
    ]
}

fn sum_measure() -> Measure {
    let rate: Get = |published| published.requests_per_second.map(number::given);
    Measure::new("sum over members, requests per second", "summed_requests_per_second", Some(rate))
}

fn cost_measures(suite: &SuiteResult) -> Vec<Measure> {
    let memory: Get = |published| published.resident_mb.map(number::given);
    let mut measures = vec![
        Measure::new("server CPU per request, µs", "server_cpu_micros", None),
        Measure::new("RSS, mean of all members, MB", "resident_mb", published_anywhere(suite, memory)),
        Measure::new("peak RSS, largest member, MB", "peak_resident_mb", None),
        Measure::new("RSS per idle watcher, B", "watcher_resident_bytes", None),
        Measure::new("bytes written per request", "written_bytes", None),
        Measure::new("WAL fsync mean, ms", "sync_mean_ms", said_anywhere(suite, "sync_mean_ms")),
        Measure::new(
            "peer round trip mean, ms",
            "peer_round_trip_mean_ms",
            said_anywhere(suite, "peer_round_trip_mean_ms"),
        ),
    ];
    let measured = |measure: &Measure| {
        let mut sides = suite.rows.iter().flat_map(|row| &row.sides);
        sides.any(|side| side.median.as_ref().and_then(measure.metric.get).is_some())
    };
    measures.retain(measured);
    // Published metrics are always shown.
    let published = measures.iter().filter(|measure| measure.published.is_some()).count();
    let mut left = COST_COLUMNS_MAX.saturating_sub(4 * published);
    measures.retain(|measure| {
        let fits = measure.published.is_some() || left >= 3;
        left = left.saturating_sub(if measure.published.is_some() { 0 } else { 3 });
        fits
    });
    measures
}

/// Returns `get`, unless no row has the published metric: its column would be empty.
fn published_anywhere(suite: &SuiteResult, get: Get) -> Option<Get> {
    let mut published = suite.rows.iter().flat_map(|row| &row.published);
    published.any(|published| get(published).is_some()).then_some(get)
}

/// Returns the published remark in place of the metric `key`.
fn words(row: &RowResult, key: &str) -> Option<String> {
    let is_of = |published: &&PublishedFigure| published.of.as_deref().unwrap_or(RATE) == key;
    row.published.iter().filter(is_of).find_map(|published| published.remark.clone())
}

/// Returns an empty getter for a metric that was published only as a remark.
fn said_anywhere(suite: &SuiteResult, key: &str) -> Option<Get> {
    suite.rows.iter().any(|row| words(row, key).is_some()).then_some(|_| None)
}

fn published(row: &RowResult, get: Get) -> TableCell {
    let found =
        row.published.iter().filter_map(|published| Some((get(published)?, published.subject.clone())));
    let found: Vec<_> = found.collect();
    match found.as_slice() {
        [] => TableCell::Missing(NOT_PUBLISHED),
        [(text, _)] => TableCell::Number { text: text.clone(), spread: None },
        _ => TableCell::Stack(found),
    }
}

fn figure(side: Option<&SideResult>, metric: &Metric) -> TableCell {
    let Some(side) = side else { return TableCell::Missing(NOT_MEASURED) };
    if side.left_out.is_some() {
        return TableCell::Missing("left out");
    }
    let Some(value) = side.median.as_ref().and_then(metric.get) else {
        return TableCell::Missing(NOT_MEASURED);
    };
    let spread = metric.spread(metrics(side)).filter(|(least, most)| least < most);
    let spread = spread.map(|(least, most)| format!("{}–{}", show(metric, least), show(metric, most)));
    TableCell::Number { text: show(metric, value), spread }
}

pub(super) fn show(metric: &Metric, value: f64) -> String {
    if metric.decimals == 0 { number::count(value) } else { number::quantity(value) }
}

/// Describes the load of a row in a line.
pub(super) fn spec(row: &RowResult) -> String {
    let (load, members) = (&row.load, row.method.members);
    let target = match load.target {
        Target::Leader => "leader",
        Target::All if members == 1 => "one member",
        Target::All => "all members",
        Target::EachSummed => "each member alone",
    };
    let writes_keys = !load.operation.is_range()
        && !load.operation.is_mix()
        && !matches!(load.operation, Operation::LeaseKeepAlive | Operation::WatchHistory);
    let keys = match load.keys {
        _ if !writes_keys => String::new(),
        1 => ", one key".into(),
        keys => format!(", {} keys", number::count(keys as f64)),
    };
    let protocol = if load.protocol == Protocol::HttpJson { ", HTTP/1.1 JSON" } else { "" };
    let rate = load.open_rate().map(|rate| format!(", open loop at {}/s", number::count(rate)));
    let rate = rate.unwrap_or_default();
    let watchers = match load.streams * load.watchers_per_stream {
        0 => String::new(),
        watchers => format!(
            " · {} on {}",
            number::counted(watchers, "watcher"),
            number::counted(load.streams, "stream")
        ),
    };
    let unit = match load.operation {
        Operation::Watch { .. } | Operation::WatchLatency { .. } => "puts",
        Operation::WatchHistory => "events",
        _ => "requests",
    };
    let each = match load.connect {
        Connect::One if members > 1 && load.target == Target::All => ", to one member each",
        Connect::One | Connect::All => "",
    };
    let shortened = shortened(row);
    let mark = match worst(row) {
        Some(NoteLevel::Error) => " — errors",
        Some(NoteLevel::Warning) => " — warnings",
        Some(NoteLevel::Remark) | None => "",
    };
    let value_bytes = load.value_bytes.max(row.method.stored_value_bytes);
    let sizes = match load.key_bytes {
        0 => String::new(),
        key_bytes => format!("{key_bytes} B + {} · ", number::size(value_bytes as u64)),
    };
    format!(
        "{sizes}{} on {}{each} · {target}{protocol}{keys}{watchers} · {} {unit}{rate}{shortened}{mark}",
        number::counted(load.clients, "client"),
        number::counted(load.conns, "connection"),
        number::given(load.total as f64),
    )
}

/// Describes which dimensions of the row are smaller than published.
fn shortened(row: &RowResult) -> String {
    let (load, method) = (&row.load, &row.method);
    let rounds = row.sides.iter().map(|side| side.rounds.len()).max().unwrap_or(0);
    let less = |what: &str, here: u64, published: u64| {
        let [here_text, published_text] = [here, published].map(|count| number::given(count as f64));
        (here < published).then(|| format!("{here_text} of {published_text} {what}"))
    };
    let parts = [
        less("requests", load.total, method.total_published),
        less("rounds", rounds as u64, method.rounds_published.unwrap_or(0) as u64),
        less("warm-up requests", method.warm_up_total, method.warm_up_published),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" — shortened: {}", parts.join(", ")) }
}
