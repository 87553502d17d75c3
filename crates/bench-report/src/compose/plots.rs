//! The plots of a suite and of a row.

use super::view::{ReportView, metrics};
use crate::metric::Metric;
use crate::model::{CurvePoint, Round, RowResult, SideResult, SuiteResult};
use crate::number;
use crate::page::{Axis, Figure, FigureGroup, Folding, LinePlot, Point, Scale, Series, Stroke};

/// Metrics plotted over the load. Pages without details plot the first three.
const OVER_LOAD: [(&str, &str); 15] = [
    ("requests_per_second", "Throughput"),
    ("mean_ms", "Mean latency"),
    ("p99_ms", "p99 latency"),
    ("server_user_micros", "Server CPU, user code"),
    ("server_system_micros", "Server CPU, kernel"),
    ("server_user_processors", "Processors used, user code"),
    ("server_system_processors", "Processors used, kernel"),
    ("written_mb_per_second", "Disk writes"),
    ("written_bytes", "Bytes written per request"),
    ("client_mb_per_second", "Network, client and servers"),
    ("client_sent_bytes", "Bytes received per request"),
    ("peer_mb_per_second", "Network, between members"),
    ("syncs_per_second", "WAL fsyncs"),
    ("sync_mean_ms", "WAL fsync mean"),
    ("peer_round_trip_mean_ms", "Peer round trip mean"),
];

impl ReportView<'_> {
    pub(super) fn figure_groups(&self, suite: &SuiteResult) -> Vec<FigureGroup> {
        let mut groups = Vec::new();
        let sweeps = self.sweeps(suite);
        if !sweeps.is_empty() {
            let note = "Points are medians; bars span the rounds.";
            groups.push(FigureGroup {
                title: "By load".into(),
                note: note.into(),
                figures: sweeps,
                folding: Folding::AfterSome,
            });
        }
        if !self.is_detailed {
            return groups;
        }
        let single = suite.rows.iter().filter(|row| row.method.sweep.is_none() || suite.rows.len() < 8);
        let curves: Vec<_> = single.filter_map(|row| self.percentiles(row)).collect();
        if !curves.is_empty() {
            let note = "All rounds of a row combined. Lower is better.";
            groups.push(FigureGroup {
                title: "Latency percentiles".into(),
                note: note.into(),
                figures: curves,
                folding: Folding::AfterSome,
            });
        }
        let loaded = suite.rows.iter().max_by_key(|row| (row.load.clients.min(1000), shortest_series(row)));
        if let Some(row) = loaded {
            let figures = self.over_time(row);
            if !figures.is_empty() {
                let title = format!("Over time: {}", row.title);
                let note = "The median round of a row with many clients; the other rows have plots below.";
                groups.push(FigureGroup { title, note: note.into(), figures, folding: Folding::Open });
            }
        }
        groups
    }

    fn percentiles(&self, row: &RowResult) -> Option<Figure> {
        let mut series = Vec::new();
        let mut words = Vec::new();
        for (index, owner) in self.order() {
            let Some(side) = Self::side(row, index) else { continue };
            let name = self.name(index);
            for (curve, name, stroke) in [
                (Some(&side.curve), name.to_owned(), Stroke::Plain),
                (side.service_curve.as_ref(), format!("{name}, from sending"), Stroke::Dashed),
            ] {
                let Some(curve) = curve.filter(|curve| !curve.is_empty()) else { continue };
                series.push(Series { name, owner, stroke, points: curve_points(curve) });
            }
            if let Some(median) = &side.median {
                let of = |key: &str| {
                    Metric::by_key(key).and_then(|metric| (metric.get)(median)).map(number::quantity)
                };
                if let (Some(p50), Some(p99)) = (of("p50_ms"), of("p99_ms")) {
                    words.push(format!("{name}: p50 {p50} ms, p99 {p99} ms"));
                }
            }
        }
        if series.is_empty() {
            return None;
        }
        let plot = LinePlot {
            x: Axis { label: "% of requests".into(), scale: Scale::Percentile },
            y: Axis { label: "latency, ms".into(), scale: Scale::Log },
            series,
        };
        let words = words.join("; ");
        Some(Figure { title: row.title.clone(), caption: words.clone(), description: words, plot })
    }

    /// Plots each metric over each axis that a sweep of the suite has.
    fn sweeps(&self, suite: &SuiteResult) -> Vec<Figure> {
        let mut axes: Vec<&str> = Vec::new();
        for sweep in suite.rows.iter().filter_map(|row| row.method.sweep.as_ref()) {
            if !axes.contains(&sweep.axis.as_str()) {
                axes.push(&sweep.axis);
            }
        }
        let figures = axes.iter().flat_map(|axis| {
            OVER_LOAD
                .iter()
                .take(if self.is_detailed { OVER_LOAD.len() } else { 3 })
                .filter_map(move |(key, title)| self.sweep(suite, axis, Metric::by_key(key)?, title))
        });
        figures.collect()
    }

    fn sweep(&self, suite: &SuiteResult, axis: &str, metric: &Metric, title: &str) -> Option<Figure> {
        let mut series: Vec<Series> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for row in &suite.rows {
            let Some(sweep) = row.method.sweep.as_ref().filter(|sweep| sweep.axis == axis) else { continue };
            if !names.contains(&sweep.line.as_str()) {
                names.push(&sweep.line);
            }
        }
        for (index, owner) in self.order() {
            for (number, line) in names.iter().enumerate() {
                let points = suite.rows.iter().filter_map(|row| {
                    let sweep = row
                        .method
                        .sweep
                        .as_ref()
                        .filter(|sweep| sweep.axis == axis && sweep.line == *line)?;
                    let side = Self::side(row, index)?;
                    let y = side.median.as_ref().and_then(metric.get)?;
                    Some(Point { x: sweep.x, y, spread: metric.spread(metrics(side)) })
                });
                let mut points: Vec<_> = points.collect();
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                let name = if names.len() > 1 {
                    format!("{}, {line}", self.name(index))
                } else {
                    self.name(index).into()
                };
                let stroke = if number == 0 { Stroke::Marked } else { Stroke::MarkedDashed };
                if !points.is_empty() {
                    series.push(Series { name, owner, stroke, points });
                }
            }
        }
        if series.is_empty() {
            return None;
        }
        let is_rate = metric.key == "requests_per_second";
        let y = Axis { label: metric.label(), scale: if is_rate { Scale::Linear } else { Scale::Log } };
        let plot = LinePlot { x: Axis { label: axis.into(), scale: Scale::Log }, y, series };
        let description = format!("{title} over {axis}; the values are in the table of the suite.");
        Some(Figure { title: format!("{title} over {axis}"), caption: String::new(), description, plot })
    }

    /// Plots rate, latency, CPU and memory during the row.
    pub(super) fn over_time(&self, row: &RowResult) -> Vec<Figure> {
        let drawn = [
            self.time_figure(row, "Requests per second", "requests/s", rate_points),
            self.time_figure(row, "p99 latency per slice", "ms", p99_points),
            self.time_figure(row, "Server CPU, all members", "% of one processor", cpu_points),
            self.time_figure(row, "Resident memory, all members", "MB", memory_points),
        ];
        drawn.into_iter().flatten().collect()
    }

    fn time_figure(
        &self,
        row: &RowResult,
        title: &str,
        unit: &str,
        get: fn(&Round) -> Vec<Point>,
    ) -> Option<Figure> {
        let series = self.order().into_iter().filter_map(|(index, owner)| {
            let points = get(middle_round(Self::side(row, index)?)?);
            let name = self.name(index).to_owned();
            (points.len() > 1).then_some(Series { name, owner, stroke: Stroke::Plain, points })
        });
        let series: Vec<_> = series.collect();
        if series.is_empty() {
            return None;
        }
        Some(over_time(title, &row.title, "seconds since the start of the round", unit, series))
    }
}

/// Returns the number of time slices that all sides of a row have.
fn shortest_series(row: &RowResult) -> usize {
    let slices = |side| middle_round(side).map_or(0, |round| round.series.requests_per_second.len());
    row.sides.iter().map(slices).min().unwrap_or(0)
}

/// Returns the round with the median rate, or the one next to it.
fn middle_round(side: &SideResult) -> Option<&Round> {
    let mut rounds: Vec<_> = side.rounds.iter().collect();
    let rate = |round: &&Round| round.metrics.requests_per_second.unwrap_or(0.0);
    rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    rounds.get(rounds.len() / 2).copied()
}

/// Places percentiles at 1 / (1 − q). The slowest request would be at infinity, and is drawn at half the
/// distance of the last point.
fn curve_points(curve: &[CurvePoint]) -> Vec<Point> {
    let last = curve.iter().map(|point| point.percent).filter(|percent| *percent < 100.0).fold(0.0, f64::max);
    let end = 2.0 / (1.0 - last / 100.0);
    let place = |percent: f64| if percent < 100.0 { 1.0 / (1.0 - percent / 100.0) } else { end };
    curve.iter().map(|point| Point::new(place(point.percent), point.ms)).collect()
}

fn slices(round: &Round, column: &[f64]) -> Vec<Point> {
    let begin = |n: usize| n as f64 * round.series.slice_seconds;
    column.iter().enumerate().map(|(n, value)| Point::new(begin(n), *value)).collect()
}

fn rate_points(round: &Round) -> Vec<Point> {
    slices(round, &round.series.requests_per_second)
}

fn p99_points(round: &Round) -> Vec<Point> {
    // A slice without requests has no latency.
    slices(round, &round.series.p99_ms).into_iter().filter(|point| point.y > 0.0).collect()
}

fn cpu_points(round: &Round) -> Vec<Point> {
    summed(&round.series.at_seconds, &round.series.server_cpu_percent)
}

fn memory_points(round: &Round) -> Vec<Point> {
    summed(&round.series.at_seconds, &round.series.server_resident_mb)
}

/// Sums all members, at each time for which all of them have a value.
fn summed(at: &[f64], columns: &[Vec<f64>]) -> Vec<Point> {
    if columns.is_empty() {
        return Vec::new();
    }
    let sum = |n: usize| columns.iter().map(|column| column.get(n).copied()).sum::<Option<f64>>();
    at.iter().enumerate().filter_map(|(n, at)| Some(Point::new(*at, sum(n)?))).collect()
}

/// Plots values over time, and describes the maximum of each series. `subject` starts the description.
pub fn over_time(title: &str, subject: &str, time: &str, unit: &str, series: Vec<Series>) -> Figure {
    let highest = |series: &Series| series.points.iter().map(|point| point.y).fold(0.0, f64::max);
    let words = series
        .iter()
        .map(|series| format!("{} up to {} {unit}", series.name, number::quantity(highest(series))));
    let words = words.collect::<Vec<_>>().join("; ");
    let plot = LinePlot {
        x: Axis { label: time.into(), scale: Scale::Linear },
        y: Axis { label: unit.into(), scale: Scale::Linear },
        series,
    };
    Figure { title: title.into(), caption: words.clone(), description: format!("{subject}: {words}"), plot }
}
