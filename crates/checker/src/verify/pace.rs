//! The start times of operations, shared by all clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Limits the operations per second of all clients until the run is over.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    end: Instant,
    per_second: f64,
    taken: AtomicU64,
    closed: AtomicBool,
}

impl Pace {
    pub fn new(start: Instant, duration: Duration, per_second: f64) -> Self {
        let (taken, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { start, end: start + duration, per_second, taken, closed }
    }

    /// Returns the start time of the next operation; `None` after the end of the run. A slow cluster delays
    /// all later operations, so that no burst follows.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let due = (now.saturating_duration_since(self.start).as_secs_f64() * self.per_second) as u64;
        let taken = self.taken.fetch_update(Relaxed, Relaxed, |taken| Some(taken.max(due) + 1));
        let number = taken.unwrap_or_else(|taken| taken).max(due);
        let at = self.start + Duration::from_secs_f64(number as f64 / self.per_second);
        (at < self.end && !self.closed.load(Relaxed)).then_some(at)
    }

    /// Ends the run early.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_the_rate_and_end_with_the_run() {
        let start = Instant::now();
        let pace = Pace::new(start, Duration::from_secs(1), 10.0);
        let at = |now_ms| pace.next(start + Duration::from_millis(now_ms)).map(|at| (at - start).as_millis());
        assert_eq!([at(0), at(0), at(0)], [Some(0), Some(100), Some(200)]);
        assert_eq!([at(700), at(700), at(700)], [Some(700), Some(800), Some(900)]);
        assert_eq!(at(700), None);
        let pace = Pace::new(start, Duration::from_secs(1), 10.0);
        pace.close();
        assert_eq!(pace.next(start), None);
    }
}
