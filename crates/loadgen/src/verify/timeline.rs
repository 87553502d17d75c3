//! A run over time: rates and latencies, leader changes, and windows without an acknowledged write.
//!
//! Independent of connections and clocks.

use crate::stats::slices::Slices;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum number of recorded windows and leader changes: one a minute for a day.
const KEPT_MAX: usize = 1440;
/// Minimum length of a recorded window without a write.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Statistics over time, in columns. An operation counts in the slice in which it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    pub slice_seconds: f64,
    pub writes: Columns,
    pub reads: Columns,
    pub failed_per_second: Vec<f64>,
    pub leaders: Vec<Leader>,
    /// Windows without an acknowledged write.
    pub windows: Vec<TimeWindow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns {
    pub per_second: Vec<f64>,
    pub p50_ms: Vec<f64>,
    pub p99_ms: Vec<f64>,
    pub max_ms: Vec<f64>,
}

/// A leader, starting at a point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leader {
    pub at_seconds: f64,
    /// Its endpoint; `None` without a leader, or if it is not among the endpoints.
    pub endpoint: Option<String>,
    pub term: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeWindow {
    pub from_seconds: f64,
    pub to_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEnd {
    Written,
    Read,
    Failed,
}

/// Recorder of a timeline. Its size is independent of the length of the run.
#[derive(Debug)]
pub struct TimelineRecorder {
    writes: Slices,
    reads: Slices,
    failed: Slices,
    leaders: Vec<Leader>,
    windows: Vec<TimeWindow>,
    acknowledged: Duration,
    window_min: Duration,
}

impl TimelineRecorder {
    /// Creates a recorder. `rate`, the operations per second, determines which windows without a write are
    /// normal.
    pub fn new(rate: f64) -> Self {
        Self {
            writes: Slices::default(),
            reads: Slices::default(),
            failed: Slices::default(),
            leaders: Vec::new(),
            windows: Vec::new(),
            acknowledged: Duration::ZERO,
            window_min: WINDOW_MIN.max(Duration::try_from_secs_f64(20.0 / rate).unwrap_or(Duration::MAX)),
        }
    }

    pub fn add(&mut self, kind: OperationEnd, began: Duration, ended: Duration) {
        let slices = match kind {
            OperationEnd::Written => &mut self.writes,
            OperationEnd::Read => &mut self.reads,
            OperationEnd::Failed => &mut self.failed,
        };
        let took = ended.saturating_sub(began);
        slices.add(began, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if kind == OperationEnd::Written {
            self.window(ended);
            self.acknowledged = self.acknowledged.max(ended);
        }
    }

    /// Records the window from the last acknowledged write to `to`.
    fn window(&mut self, to: Duration) {
        let from = self.acknowledged;
        if to.saturating_sub(from) >= self.window_min && self.windows.len() < KEPT_MAX {
            let window = TimeWindow { from_seconds: from.as_secs_f64(), to_seconds: to.as_secs_f64() };
            self.windows.push(window);
        }
    }

    pub fn leader(&mut self, leader: Leader) {
        if self.leaders.len() < KEPT_MAX {
            self.leaders.push(leader);
        }
    }

    /// Returns the timeline of a run with clients that stopped at `ended`.
    pub fn finish(mut self, ended: Duration) -> Timeline {
        self.window(ended);
        // All columns get the width of the longest.
        let mut whole = self.writes.clone();
        whole.merge(&self.reads);
        whole.merge(&self.failed);
        let width = whole.width();
        let wide = |slices: &Slices| {
            let mut slices = slices.clone();
            slices.widen_to(width);
            slices
        };
        let (len, seconds) = (whole.iter().count(), width.as_secs_f64());
        let failed = wide(&self.failed);
        let mut failed_per_second: Vec<_> = failed.iter().map(|slice| slice.count as f64 / seconds).collect();
        failed_per_second.resize(len, 0.0);
        Timeline {
            slice_seconds: seconds,
            writes: Columns::of(&wide(&self.writes), len),
            reads: Columns::of(&wide(&self.reads), len),
            failed_per_second,
            leaders: self.leaders,
            windows: self.windows,
        }
    }
}

impl Columns {
    fn of(slices: &Slices, len: usize) -> Self {
        let seconds = slices.width().as_secs_f64();
        let mut columns = Self::default();
        for slice in slices.iter() {
            let max_ms = slice.greatest_ns as f64 / 1e6;
            let at = |percent| {
                let latency = slice.latencies.percentile(percent).unwrap_or_default();
                (latency.as_secs_f64() * 1e3).min(max_ms)
            };
            columns.per_second.push(slice.count as f64 / seconds);
            columns.p50_ms.push(at(50.0));
            columns.p99_ms.push(at(99.0));
            columns.max_ms.push(max_ms);
        }
        for column in [&mut columns.per_second, &mut columns.p50_ms, &mut columns.p99_ms, &mut columns.max_ms]
        {
            column.resize(len, 0.0);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn windows_without_a_write_are_those_between_acknowledgements() {
        let mut recorder = TimelineRecorder::new(1000.0);
        for (began, ended) in [(0, 10), (5, 500), (2600, 2700), (100, 2650), (2700, 2710)] {
            recorder.add(OperationEnd::Written, ms(began), ms(ended));
        }
        recorder.add(OperationEnd::Read, ms(3000), ms(3001));
        recorder.add(OperationEnd::Failed, ms(3000), ms(4000));
        let timeline = recorder.finish(ms(5000));
        let windows: Vec<_> =
            timeline.windows.iter().map(|window| (window.from_seconds, window.to_seconds)).collect();
        assert_eq!(windows, [(0.5, 2.7), (2.71, 5.0)]);
    }

    #[test]
    fn columns_have_one_width_and_one_length() {
        let mut recorder = TimelineRecorder::new(10.0);
        (0..100)
            .for_each(|second| recorder.add(OperationEnd::Written, ms(second * 1000), ms(second * 1000 + 7)));
        recorder.add(OperationEnd::Read, ms(20), ms(21));
        recorder.leader(Leader { at_seconds: 1.0, endpoint: None, term: 3 });
        let timeline = recorder.finish(ms(100_000));
        let Timeline { slice_seconds, writes, reads, failed_per_second, leaders, windows } = timeline;
        let len = writes.per_second.len();
        assert_eq!((reads.per_second.len(), failed_per_second.len(), reads.max_ms.len()), (len, len, len));
        let sum: f64 = writes.per_second.iter().map(|rate| rate * slice_seconds).sum();
        assert!((sum - 100.0).abs() < 1e-6 && (reads.per_second[0] * slice_seconds - 1.0).abs() < 1e-6);
        assert_eq!((leaders.len(), windows.len()), (1, 0));
    }
}
