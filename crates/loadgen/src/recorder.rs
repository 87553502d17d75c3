//! What happened: one tally per worker, written without locks, merged at the end.
//!
//! * Latencies are kept in a histogram of three significant digits over nanoseconds; sums, least and greatest are exact.
//! * A failed call counts by its code and never as a latency.

use crate::failure::{Code, Failure};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::Duration;

/// Results of a run, or of one worker's part of it.
#[derive(Clone, Debug)]
pub struct Tally {
    latencies_ns: Histogram<u64>,
    /// Mean and sum of squared distances from it, updated as values come (Welford): no loss of digits when summed.
    mean_ns: f64,
    squares_ns: f64,
    fastest_ns: u64,
    slowest_ns: u64,
    body_bytes: u64,
    seconds: BTreeMap<u64, Second>,
    failures: BTreeMap<Code, Failures>,
}

/// Requests that began in one second of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    pub count: u64,
    pub least_ns: u64,
    pub sum_ns: u64,
    pub greatest_ns: u64,
}

/// Failed calls of one code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    pub count: u64,
    /// The first message seen.
    pub sample: String,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    pub fn new() -> Self {
        Self {
            latencies_ns: Histogram::new(3).expect("three digits are within the histogram's range"),
            mean_ns: 0.0,
            squares_ns: 0.0,
            fastest_ns: u64::MAX,
            slowest_ns: 0,
            body_bytes: 0,
            seconds: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Counts one answered call that began in the given second of Unix time.
    pub fn succeeded(&mut self, unix_second: u64, latency: Duration, body_bytes: u64) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies_ns.record(latency_ns).expect("a histogram of this kind resizes itself");
        let distance = latency_ns as f64 - self.mean_ns;
        self.mean_ns += distance / self.latencies_ns.len() as f64;
        self.squares_ns += distance * (latency_ns as f64 - self.mean_ns);
        self.fastest_ns = self.fastest_ns.min(latency_ns);
        self.slowest_ns = self.slowest_ns.max(latency_ns);
        self.body_bytes += body_bytes;
        self.seconds.entry(unix_second).or_insert(Second::EMPTY).merge(&Second::of(latency_ns));
    }

    /// Counts one failed call.
    pub fn failed(&mut self, failure: &Failure) {
        let entry = self.failures.entry(failure.code);
        entry.or_insert_with(|| Failures { count: 0, sample: failure.message.clone() }).count += 1;
    }

    /// Adds another worker's results to these.
    pub fn merge(&mut self, other: &Tally) {
        let (ours, theirs) = (self.succeeded_len() as f64, other.succeeded_len() as f64);
        if theirs > 0.0 {
            let distance = other.mean_ns - self.mean_ns;
            self.squares_ns += other.squares_ns + distance * distance * ours * theirs / (ours + theirs);
            self.mean_ns += distance * theirs / (ours + theirs);
        }
        self.latencies_ns.add(&other.latencies_ns).expect("both histograms resize themselves");
        self.fastest_ns = self.fastest_ns.min(other.fastest_ns);
        self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
        self.body_bytes += other.body_bytes;
        for (&second, values) in &other.seconds {
            self.seconds.entry(second).or_insert(Second::EMPTY).merge(values);
        }
        for (&code, failures) in &other.failures {
            let empty = || Failures { count: 0, sample: failures.sample.clone() };
            self.failures.entry(code).or_insert_with(empty).count += failures.count;
        }
    }

    pub fn succeeded_len(&self) -> u64 {
        self.latencies_ns.len()
    }

    pub fn failed_len(&self) -> u64 {
        self.failures.values().map(|failures| failures.count).sum()
    }

    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    pub fn latencies_ns(&self) -> &Histogram<u64> {
        &self.latencies_ns
    }

    pub fn mean_ns(&self) -> f64 {
        self.mean_ns
    }

    /// Of the whole population, as etcd's tool computes it.
    pub fn stddev_ns(&self) -> f64 {
        (self.squares_ns / self.succeeded_len() as f64).sqrt()
    }

    /// Least latency; 0 when nothing succeeded.
    pub fn fastest_ns(&self) -> u64 {
        if self.succeeded_len() == 0 { 0 } else { self.fastest_ns }
    }

    pub fn slowest_ns(&self) -> u64 {
        self.slowest_ns
    }

    /// Results by the second of Unix time in which the request began.
    pub fn seconds(&self) -> &BTreeMap<u64, Second> {
        &self.seconds
    }

    pub fn failures(&self) -> &BTreeMap<Code, Failures> {
        &self.failures
    }
}

impl Second {
    pub const EMPTY: Second = Second { count: 0, least_ns: u64::MAX, sum_ns: 0, greatest_ns: 0 };

    fn of(latency_ns: u64) -> Self {
        Self { count: 1, least_ns: latency_ns, sum_ns: latency_ns, greatest_ns: latency_ns }
    }

    fn merge(&mut self, other: &Second) {
        self.count += other.count;
        self.least_ns = self.least_ns.min(other.least_ns);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.greatest_ns = self.greatest_ns.max(other.greatest_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(latencies_ms: &[u64]) -> Tally {
        let mut tally = Tally::new();
        for &latency in latencies_ms {
            tally.succeeded(1000 + latency / 10, Duration::from_millis(latency), 10);
        }
        tally
    }

    #[test]
    fn merging_parts_equals_recording_the_whole() {
        let whole = tally(&[1, 2, 3, 40, 50, 600]);
        let mut merged = tally(&[1, 40, 600]);
        merged.merge(&tally(&[2, 3, 50]));
        merged.merge(&Tally::new());
        assert_eq!(merged.latencies_ns(), whole.latencies_ns());
        assert!((merged.mean_ns() - whole.mean_ns()).abs() < 1.0);
        assert!((merged.stddev_ns() - whole.stddev_ns()).abs() < 1.0);
        assert_eq!((merged.fastest_ns(), merged.slowest_ns()), (1_000_000, 600_000_000));
        assert_eq!((merged.seconds(), merged.body_bytes()), (whole.seconds(), 60));
    }

    #[test]
    fn mean_and_deviation_are_those_of_the_population() {
        let tally = tally(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert!((tally.mean_ns() - 5e6).abs() < 1e-3);
        assert!((tally.stddev_ns() - 2e6).abs() < 1e-3);
    }

    #[test]
    fn failures_are_grouped_by_code_with_the_first_message() {
        let mut tally = Tally::new();
        tally.failed(&Failure::unavailable("etcdserver: no leader"));
        tally.failed(&Failure::unavailable("etcdserver: leader changed"));
        let mut other = Tally::new();
        other.failed(&Failure::new(Code(8), "etcdserver: mvcc: database space exceeded"));
        tally.merge(&other);
        let grouped: Vec<_> = tally
            .failures()
            .iter()
            .map(|(code, failures)| format!("{code} {} {}", failures.count, failures.sample))
            .collect();
        assert_eq!(
            grouped,
            [
                "ResourceExhausted 1 etcdserver: mvcc: database space exceeded",
                "Unavailable 2 etcdserver: no leader"
            ]
        );
        assert_eq!((tally.failed_len(), tally.succeeded_len(), tally.fastest_ns()), (3, 0, 0));
    }

    #[test]
    fn seconds_hold_the_requests_that_began_in_them() {
        let tally = tally(&[1, 3, 12]);
        let first = Second { count: 2, least_ns: 1_000_000, sum_ns: 4_000_000, greatest_ns: 3_000_000 };
        assert_eq!(tally.seconds().get(&1000), Some(&first));
        assert_eq!(tally.seconds().get(&1001).map(|second| second.count), Some(1));
    }
}
