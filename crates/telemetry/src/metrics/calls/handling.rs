//! How long calls took, in the buckets that etcd has with `--metrics=extensive`.
//!
//! A call counts when it has ended, a stream too. The buckets are the default ones of Prometheus.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use api::Method;

/// Where buckets end, in milliseconds. One more has the rest.
const ENDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

/// The calls of each method.
#[derive(Debug)]
pub(super) struct Handling {
    rows: Vec<HandlingTimes>,
}

#[derive(Debug, Default)]
struct HandlingTimes {
    buckets: [AtomicU64; ENDS_MS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Default for Handling {
    fn default() -> Self {
        Handling { rows: Method::ALL.iter().map(|_| HandlingTimes::default()).collect() }
    }
}

impl Handling {
    pub fn add(&self, method: Method, took: Duration) {
        let row = &self.rows[method.number()];
        let bucket = ENDS_MS.partition_point(|end| Duration::from_millis(*end) < took);
        row.buckets[bucket].fetch_add(1, Relaxed);
        row.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Seconds of all calls of a method, and the ends of buckets in seconds with the counts in them.
    pub fn of(&self, method: Method) -> (f64, Vec<(f64, u64)>) {
        let row = &self.rows[method.number()];
        let ends = ENDS_MS.iter().map(|end| *end as f64 / 1e3).chain([f64::MAX]);
        let counts = row.buckets.iter().map(|count| count.load(Relaxed));
        (row.nanoseconds.load(Relaxed) as f64 / 1e9, ends.zip(counts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_end() {
        let handling = Handling::default();
        for micros in [0, 5_000, 5_001, 2_500_000, 10_000_001, 60_000_000] {
            handling.add(Method::KvPut, Duration::from_micros(micros));
        }
        let (seconds, buckets) = handling.of(Method::KvPut);
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2]);
        assert!((seconds - 72.510_002).abs() < 1e-6, "{seconds}");
    }
}
