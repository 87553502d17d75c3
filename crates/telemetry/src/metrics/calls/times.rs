//! A histogram of times that is added to without a lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

#[derive(Debug)]
pub(super) struct Times {
    /// Upper bounds of the buckets in microseconds. One more bucket is unbounded.
    ends_us: &'static [u64],
    buckets: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

/// Returns bounds of buckets, each twice the previous one.
pub(super) const fn doubling<const N: usize>(first_us: u64) -> [u64; N] {
    let (mut ends, mut at) = ([first_us; N], 1);
    while at < N {
        ends[at] = 2 * ends[at - 1];
        at += 1;
    }
    ends
}

impl Times {
    pub fn new(ends_us: &'static [u64]) -> Times {
        let buckets = (0..=ends_us.len()).map(|_| AtomicU64::new(0)).collect();
        Times { ends_us, buckets, nanoseconds: AtomicU64::new(0) }
    }

    pub fn add(&self, took: Duration) {
        let bucket = self.ends_us.partition_point(|end| Duration::from_micros(*end) < took);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Counts by bucket.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(|count| count.load(Relaxed))
    }

    /// Writes the histogram in seconds.
    pub fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let ends = self.ends_us.iter().map(|end| *end as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = ends.zip(self.counts()).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.nanoseconds.load(Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_end() {
        static ENDS_US: [u64; 3] = doubling(5_000);
        let times = Times::new(&ENDS_US);
        for micros in [0, 5_000, 5_001, 20_000, 20_001, 60_000_000] {
            times.add(Duration::from_micros(micros));
        }
        assert_eq!(times.counts().collect::<Vec<_>>(), [2, 1, 1, 2]);
        assert_eq!(times.nanoseconds.load(Relaxed), 60_050_002_000);
    }
}
