//! Leaders during a run, and windows without an acknowledged write.
//!
//! Independent of connections and clocks.

use serde::Serialize;
use std::time::Duration;

/// Maximum number of recorded windows and leader changes: one a minute for a day.
const KEPT_MAX: usize = 1440;
/// Minimum length of a recorded window without a write.
const WINDOW_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    pub leaders: Vec<Leader>,
    /// Windows without an acknowledged write.
    pub windows: Vec<TimeWindow>,
}

/// A leader, starting at a point in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leader {
    pub at_seconds: f64,
    /// Its endpoint; `None` without a leader, or if it is not among the endpoints.
    pub endpoint: Option<String>,
    pub term: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeWindow {
    pub from_seconds: f64,
    pub to_seconds: f64,
}

/// Recorder of a timeline. Its size is independent of the length of the run.
#[derive(Debug)]
pub struct TimelineRecorder {
    timeline: Timeline,
    acknowledged: Duration,
    window_min: Duration,
}

impl TimelineRecorder {
    /// Creates a recorder. `rate`, the operations per second, determines which windows without a write are
    /// normal.
    pub fn new(rate: f64) -> Self {
        Self {
            timeline: Timeline::default(),
            acknowledged: Duration::ZERO,
            window_min: WINDOW_MIN.max(Duration::try_from_secs_f64(20.0 / rate).unwrap_or(Duration::MAX)),
        }
    }

    /// Records the acknowledgement of a write.
    pub fn written(&mut self, at: Duration) {
        self.window(at);
        self.acknowledged = self.acknowledged.max(at);
    }

    /// Records the window from the last acknowledged write to `to`.
    fn window(&mut self, to: Duration) {
        let (from, windows) = (self.acknowledged, &mut self.timeline.windows);
        if to.saturating_sub(from) >= self.window_min && windows.len() < KEPT_MAX {
            windows.push(TimeWindow { from_seconds: from.as_secs_f64(), to_seconds: to.as_secs_f64() });
        }
    }

    pub fn leader(&mut self, leader: Leader) {
        if self.timeline.leaders.len() < KEPT_MAX {
            self.timeline.leaders.push(leader);
        }
    }

    /// Returns the timeline of a run with clients that stopped at `ended`.
    pub fn finish(mut self, ended: Duration) -> Timeline {
        self.window(ended);
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_without_a_write_are_those_between_acknowledgements() {
        let mut recorder = TimelineRecorder::new(1000.0);
        for ended in [10, 500, 2700, 2650, 2710] {
            recorder.written(Duration::from_millis(ended));
        }
        let timeline = recorder.finish(Duration::from_secs(5));
        let windows: Vec<_> =
            timeline.windows.iter().map(|window| (window.from_seconds, window.to_seconds)).collect();
        assert_eq!(windows, [(0.5, 2.7), (2.71, 5.0)]);
    }
}
