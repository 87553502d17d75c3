//! Statistics of the last 10 minutes and of the last 6 hours, for plots.
//!
//! ```text
//!   document every 5 s ─▶ row ─▶ fine: 120 rows of 5 s ─ 36 rows ─▶ coarse: 120 rows of 3 min
//! ```
//!
//! * A rate or a size of a coarse row is the mean of its fine rows, a time their largest, a count their sum.
//! * Memory is bounded: 2 × 120 rows of [`FIGURES`] numbers of 4 bytes, 22 KiB, and one document.
//!
//! Independent of the clock: the caller of `push` determines the interval.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::status::Document;

/// Time between two documents.
pub const EVERY_S: u64 = 5;
const ROWS: usize = 120;
const FINE_IN_COARSE: usize = 36;
/// Coarse rows of an hour.
const HOUR: usize = 20;
/// A forecast reaches this many times as far as the growth was watched.
const FORECAST: f64 = 12.0;
/// The growth is watched at least this long before there is a forecast: a start fills caches and blocks.
const FORECAST_HISTORY_S: u64 = 1800;
/// Fine rows of a minute.
const MINUTE: usize = 12;

/// Aggregation of fine rows into a coarse one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    Mean,
    Largest,
    Total,
}

/// Names of the values of a row; times are in microseconds.
const FIGURES: [(&str, Sum); 23] = [
    ("puts", Sum::Mean),
    ("txns", Sum::Mean),
    ("deletes", Sum::Mean),
    ("ranges", Sum::Mean),
    ("events", Sum::Mean),
    ("write_p50", Sum::Largest),
    ("write_p99", Sum::Largest),
    ("write_p999", Sum::Largest),
    ("read_p50", Sum::Largest),
    ("read_p99", Sum::Largest),
    ("read_p999", Sum::Largest),
    ("sync", Sum::Largest),
    ("lag", Sum::Largest),
    ("waiting", Sum::Largest),
    ("store", Sum::Mean),
    ("memory", Sum::Mean),
    ("cpu", Sum::Mean),
    ("elections", Sum::Total),
    ("round_trip", Sum::Largest),
    ("lagging", Sum::Largest),
    ("expired", Sum::Mean),
    ("kept", Sum::Largest),
    ("snapshots", Sum::Total),
];
const SYNC: usize = 11;
const STORE: usize = 14;
const ELECTIONS: usize = 17;

/// NaN if unknown: a percentile of no calls.
type Row = [f32; FIGURES.len()];

#[derive(Serialize, Deserialize)]
struct Span {
    every_s: u64,
    rows_max: usize,
    figures: BTreeMap<String, Vec<Option<f32>>>,
}

#[derive(Debug, Default)]
pub struct StatsHistory {
    fine: VecDeque<Row>,
    coarse: VecDeque<Row>,
    /// Fine rows since the last coarse one.
    pending: usize,
    last: Option<Document>,
}

/// Returns the upper bound of the bucket with this quantile.
fn percentile(buckets: &BTreeMap<u64, u64>, part: f64) -> f32 {
    let all: u64 = buckets.values().sum();
    let mut left = all as f64 * part;
    let holds = |(end, count): (&u64, &u64)| {
        left -= *count as f64;
        (left <= 0.0).then_some(*end as f32)
    };
    buckets.iter().find_map(holds).filter(|_| all > 0).unwrap_or(f32::NAN)
}

/// Returns the calls of some methods between two documents, by the upper bounds of their buckets.
fn calls(before: &Document, now: &Document, methods: &[&str]) -> BTreeMap<u64, u64> {
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    let of = |document: &Document, add: &mut dyn FnMut(u64, u64)| {
        let named = document.calls.iter().filter(|calls| methods.iter().any(|it| calls.method.ends_with(it)));
        named.flat_map(|calls| &calls.latency).for_each(|(end, count)| add(*end, *count));
    };
    of(now, &mut |end, count| *found.entry(end).or_default() += count);
    of(before, &mut |end, count| {
        if let Some(found) = found.get_mut(&end) {
            *found = found.saturating_sub(count);
        }
    });
    found
}

impl StatsHistory {
    /// Adds the current values. `sync_us` is the slowest sync since the last call.
    pub fn push(&mut self, now: Document, sync_us: u64) {
        if let Some(before) = self.last.as_ref().filter(|before| before.uptime_ms < now.uptime_ms) {
            let row = row(before, &now, sync_us);
            self.fine.push_back(row);
            self.pending += 1;
        }
        self.last = Some(now);
        if self.pending == FINE_IN_COARSE {
            self.pending = 0;
            let from = self.fine.len() - FINE_IN_COARSE;
            let rows: Vec<&Row> = self.fine.range(from..).collect();
            self.coarse.push_back(std::array::from_fn(|at| summed(&rows, at)));
        }
        for rows in [&mut self.fine, &mut self.coarse] {
            rows.drain(..rows.len().saturating_sub(ROWS));
        }
    }

    /// Returns the latest coarse rows, and the fine ones after them.
    fn since(&self, coarse: usize) -> impl Iterator<Item = &Row> {
        let skipped = self.coarse.len().saturating_sub(coarse);
        self.coarse.iter().skip(skipped).chain(self.fine.iter().rev().take(self.pending).rev())
    }

    /// Returns the leader changes of the last hour.
    pub fn elections_hour(&self) -> u64 {
        self.since(HOUR).map(|row| row[ELECTIONS]).sum::<f32>() as u64
    }

    /// Returns the slowest sync of each row of the last minute, in microseconds.
    pub fn slowest_syncs_us(&self) -> impl Iterator<Item = u64> {
        self.fine.iter().rev().take(MINUTE).map(|row| row[SYNC] as u64)
    }

    /// Returns the seconds until the store has `quota` bytes, if it grows as in the last hours. None before
    /// [`FORECAST_HISTORY_S`], and beyond [`FORECAST`] times the watched time: 3 days after 6 hours.
    pub fn full_in_s(&self, quota: u64) -> Option<u64> {
        let size = |row: &Row| f64::from(row[STORE]);
        let (first, last) = (size(self.coarse.front()?), size(self.coarse.back()?));
        let seconds = (self.coarse.len() - 1) as u64 * EVERY_S * FINE_IN_COARSE as u64;
        let left = quota as f64 - last;
        let is_known = quota > 0 && seconds >= FORECAST_HISTORY_S && last > first && left > 0.0;
        let full = left / (last - first) * seconds as f64;
        (is_known && full <= seconds as f64 * FORECAST).then_some(full as u64)
    }

    /// Returns both spans, by name. Unknown values are null.
    pub fn json(&self) -> impl Serialize + use<> {
        let span = |rows: &VecDeque<Row>, every_s: u64| {
            let figure =
                |at: usize| rows.iter().map(|row| Some(row[at]).filter(|it| it.is_finite())).collect();
            let figures =
                FIGURES.iter().enumerate().map(|(at, (name, _))| ((*name).to_owned(), figure(at))).collect();
            Span { every_s, rows_max: ROWS, figures }
        };
        let coarse = span(&self.coarse, EVERY_S * FINE_IN_COARSE as u64);
        BTreeMap::from([("fine", span(&self.fine, EVERY_S)), ("coarse", coarse)])
    }
}

/// Reports whether these bytes have the form of [`StatsHistory::json`]. Older versions have a different form.
pub fn is_one(json: &[u8]) -> bool {
    let spans: BTreeMap<String, Span> = serde_json::from_slice(json).unwrap_or_default();
    let is_fit = |name: &str| {
        spans.get(name).is_some_and(|span| {
            span.rows_max == ROWS && span.figures.values().all(|figure| figure.len() <= ROWS)
        })
    };
    spans.len() == 2 && is_fit("fine") && is_fit("coarse")
}

fn snapshots(document: &Document) -> u64 {
    document.counters.snapshots_sent + document.counters.snapshots_received
}

fn row(before: &Document, now: &Document, sync_us: u64) -> Row {
    let seconds = (now.uptime_ms - before.uptime_ms) as f64 / 1000.0;
    let rate = |pick: fn(&Document) -> u64| (pick(now).saturating_sub(pick(before)) as f64 / seconds) as f32;
    let writes = calls(before, now, &["KV/Put", "KV/DeleteRange", "KV/Txn"]);
    let reads = calls(before, now, &["KV/Range"]);
    let lag = now.members.iter().filter_map(|member| member.lag).max();
    let trip = now.members.iter().filter_map(|member| member.round_trip_us).max();
    let queues = &now.queues;
    [
        rate(|it| it.counters.puts),
        rate(|it| it.counters.txns),
        rate(|it| it.counters.deletes),
        rate(|it| it.counters.ranges),
        rate(|it| it.counters.events),
        percentile(&writes, 0.5),
        percentile(&writes, 0.99),
        percentile(&writes, 0.999),
        percentile(&reads, 0.5),
        percentile(&reads, 0.99),
        percentile(&reads, 0.999),
        sync_us as f32,
        lag.map_or(f32::NAN, |lag| lag as f32),
        (now.raft.proposals_pending + queues.reads_waiting + queues.commands_waiting) as f32,
        now.space.store_bytes as f32,
        now.space.resident_bytes as f32,
        ((now.counters.cpu_seconds - before.counters.cpu_seconds) / seconds) as f32,
        now.counters.leader_changes.saturating_sub(before.counters.leader_changes) as f32,
        trip.map_or(f32::NAN, |trip| trip as f32),
        now.watch.lagging as f32,
        rate(|it| it.counters.leases_expired),
        now.space.revision.saturating_sub(now.space.compact_revision) as f32,
        snapshots(now).saturating_sub(snapshots(before)) as f32,
    ]
}

fn summed(rows: &[&Row], at: usize) -> f32 {
    let known: Vec<f32> = rows.iter().map(|row| row[at]).filter(|value| value.is_finite()).collect();
    if known.is_empty() {
        return f32::NAN;
    }
    let total: f32 = known.iter().sum();
    match FIGURES[at].1 {
        Sum::Mean => total / known.len() as f32,
        Sum::Largest => known.into_iter().fold(0.0, f32::max),
        Sum::Total => total,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::metrics::CallCounts;

    /// After so many steps of 5 s, with 10 puts and 1 MiB more in each.
    fn document(step: u64) -> Document {
        let mut document = Document { uptime_ms: 1000 + step * 5000, ..Document::default() };
        document.counters.puts = step * 10;
        document.counters.txns = step * 15;
        document.counters.deletes = step * 5;
        document.counters.leader_changes = u64::from(step > 100);
        document.space.store_bytes = step << 20;
        let latency = vec![(100, step * 9), (1000, step)];
        document.calls =
            vec![CallCounts { method: "etcdserverpb.KV/Put".to_owned(), ended: 0, failed: 0, latency }];
        document
    }

    #[test]
    fn rows_are_bounded_and_coarse_ones_sum_fine_ones_up() {
        let mut history = StatsHistory::default();
        for step in 0..=5000 {
            history.push(document(step), if step == 4900 { 7000 } else { 100 });
        }
        let json = serde_json::to_vec(&history.json()).unwrap();
        assert!(is_one(&json) && !is_one(b"{}") && !is_one(br#"{"uptime_ms":1}"#));
        let json: Value = serde_json::from_slice(&json).unwrap();
        for span in ["fine", "coarse"] {
            let of = |figure: &str| json[span]["figures"][figure].as_array().unwrap().clone();
            assert_eq!(of("puts").len(), ROWS, "{span}");
            for (figure, wanted) in [("puts", 2.0), ("txns", 3.0), ("deletes", 1.0)] {
                assert!(of(figure).iter().all(|rate| *rate == wanted), "{span}: {figure}");
            }
            assert_eq!((&of("write_p50")[9], &of("write_p99")[9]), (&json!(100.0), &json!(1000.0)), "{span}");
            assert_eq!(of("read_p50")[9], Value::Null, "{span}");
            assert!(of("sync").contains(&json!(7000.0)), "{span}");
        }
        assert_eq!(json["coarse"]["every_s"], 180);
        assert_eq!(history.slowest_syncs_us().max(), Some(100));
    }

    #[test]
    fn the_hour_and_the_forecast_know_what_was_seen() {
        let mut history = StatsHistory::default();
        assert_eq!(history.full_in_s(1 << 30), None);
        for step in 0..=200 {
            history.push(document(step), 0);
        }
        assert_eq!(history.elections_hour(), 1);
        assert_eq!(history.full_in_s(1200 << 20), None, "the growth was watched for 15 minutes only");
        for step in 201..=400 {
            history.push(document(step), 0);
        }
        // 1 MiB in 5 s; the mean of the last 3 minutes is somewhat less than the size of now.
        let seconds = history.full_in_s(1400 << 20).unwrap();
        assert!((5000..5200).contains(&seconds), "{seconds}");
        assert_eq!(history.full_in_s(1 << 20), None, "it is full");
        assert_eq!(history.full_in_s(1 << 40), None, "too far away to be known");
        assert_eq!(history.full_in_s(0), None, "there is no quota");
    }
}
