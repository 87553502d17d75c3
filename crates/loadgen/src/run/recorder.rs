//! Results of a run: one tally per worker, written without locks, merged after the run.
//!
//! * Latencies are recorded in a histogram with three significant digits over nanoseconds; sums, minimum and
//!   maximum are exact.
//! * A failed call counts by its code. Its wait is recorded separately, and counts as a latency only if the
//!   run requests it, or a time limit aborted the call: its reply would have taken longer.
//! * A due request without a reply at the end of the run counts with its waiting time, a lower bound of its
//!   latency. Omitting it would hide a server that has stopped responding.
//! * *Latency* counts from the time at which a request should have been sent, *service time* from the time
//!   at which a connection accepted it. In a closed loop with free connections both are equal.

use crate::client::failure::{CallFailure, Code};
use crate::stats::percentile;
use crate::stats::slices::Slices;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// Failed positions beyond this are only counted.
const FAILED_POSITIONS_MAX: usize = 1 << 20;

/// Minimum delay of a request that counts as delayed. Smaller values are the time from the decision to the
/// socket.
const DELAY_MIN_NS: u64 = 1_000_000;
const RESIZES: &str = "a histogram of this kind resizes itself";

/// Treatment of the waits of failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedCalls {
    /// Reported separately, except for calls aborted by a time limit.
    #[default]
    Apart,
    Included,
}

/// Results of a run, or of a worker's part of it.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies of all counted requests: successful ones, those without a reply at the end of the run or
    /// their time limit, and failed ones if the run requests it.
    pub latencies_ns: Histogram<u64>,
    succeeded: u64,
    /// Due requests without a reply at the end of the run.
    pub unanswered: UnansweredCalls,
    /// Waits of failed calls, from the time at which their latency would start.
    pub failed_ns: Histogram<u64>,
    /// Durations since a connection accepted the request.
    pub services_ns: Histogram<u64>,
    /// Requests sent later than intended.
    pub delayed: u64,
    pub slices: Slices,
    pub lateness: Lateness,
    /// Mean and sum of squared deviations, updated incrementally (Welford) to avoid a loss of digits.
    pub mean_ns: f64,
    squares_ns: f64,
    fastest_ns: u64,
    pub slowest_ns: u64,
    /// Time at which the last request was sent, since the start of the run.
    pub last_sent: Duration,
    pub body_bytes: u64,
    /// Additional attempts of transactions.
    pub retries: u64,
    /// Statistics by the second of Unix time in which the request started.
    pub seconds: BTreeMap<u64, Second>,
    pub failures: BTreeMap<Code, Failures>,
    /// Positions whose call failed or had no reply at the end, up to a limit.
    failed_positions: Vec<u64>,
}

/// A call: successful, failed, or without a reply.
#[derive(Clone, Copy, Debug)]
pub struct CallSample {
    /// Second of Unix time in which its latency started.
    pub unix_second: u64,
    /// Start of its latency, relative to the start of the run.
    pub began: Duration,
    pub latency: Duration,
    pub service: Duration,
    pub body_bytes: u64,
}

/// Start of a run, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    at: Instant,
    /// Time since the Unix epoch.
    unix: Duration,
}

/// Precision of an intended pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Slots for which a caller waited.
    pub kept: u64,
    /// Slots sent more than [`Lateness::SLACK`] late although a caller was free.
    pub late: u64,
    pub late_most_ns: u64,
    /// Slots sent late because every caller was busy.
    pub overdue: u64,
    pub overdue_most_ns: u64,
    /// Longest time for which a thread of the load generator was runnable without running.
    pub stood_still_most_ns: u64,
}

/// Requests that started in the same second of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    pub count: u64,
    pub least_ns: u64,
    pub sum_ns: u64,
    pub greatest_ns: u64,
}

/// Due requests without a reply at the end of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnansweredCalls {
    pub count: u64,
    /// Number of these that were never sent.
    pub unsent: u64,
    /// Longest wait among them.
    pub waited_most_ns: u64,
}

/// Failed calls with the same code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    pub count: u64,
    /// First message.
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
            latencies_ns: histogram(),
            succeeded: 0,
            unanswered: UnansweredCalls::default(),
            failed_ns: histogram(),
            services_ns: histogram(),
            delayed: 0,
            slices: Slices::default(),
            lateness: Lateness::default(),
            mean_ns: 0.0,
            squares_ns: 0.0,
            fastest_ns: u64::MAX,
            slowest_ns: 0,
            last_sent: Duration::ZERO,
            body_bytes: 0,
            retries: 0,
            seconds: BTreeMap::new(),
            failures: BTreeMap::new(),
            failed_positions: Vec::new(),
        }
    }

    /// Counts a successful call that was sent on time, at the start of the run.
    pub fn succeeded(&mut self, unix_second: u64, latency: Duration, body_bytes: u64) {
        let began = Duration::ZERO;
        self.record(&CallSample { unix_second, began, latency, service: latency, body_bytes });
    }

    /// Counts a successful call.
    pub fn record(&mut self, sample: &CallSample) {
        let (latency_ns, service_ns) = (nanos(sample.latency), nanos(sample.service));
        self.count(sample);
        self.succeeded += 1;
        self.services_ns.record(service_ns).expect(RESIZES);
        self.delayed += u64::from(latency_ns.saturating_sub(service_ns) > DELAY_MIN_NS);
        self.body_bytes += sample.body_bytes;
    }

    /// Counts a request with its latency, for any outcome.
    fn count(&mut self, sample: &CallSample) {
        let latency_ns = nanos(sample.latency);
        self.seconds.entry(sample.unix_second).or_insert(Second::EMPTY).merge(&Second::of(latency_ns));
        self.slices.add(sample.began, latency_ns);
        let sent = (sample.began + sample.latency).saturating_sub(sample.service);
        self.last_sent = self.last_sent.max(sent);
        self.latencies_ns.record(latency_ns).expect(RESIZES);
        let distance = latency_ns as f64 - self.mean_ns;
        self.mean_ns += distance / self.latencies_ns.len() as f64;
        self.squares_ns += distance * (latency_ns as f64 - self.mean_ns);
        self.fastest_ns = self.fastest_ns.min(latency_ns);
        self.slowest_ns = self.slowest_ns.max(latency_ns);
    }

    /// Counts a request that a caller sent and that had no reply until now.
    pub fn unanswered(&mut self, position: u64, wait: &CallSample) {
        self.count(wait);
        self.unanswered.merge(UnansweredCalls { count: 1, unsent: 0, waited_most_ns: nanos(wait.latency) });
        self.keep_position(position);
    }

    /// Counts a due request that was never sent.
    pub fn unsent(&mut self, wait: &CallSample) {
        self.count(wait);
        self.unanswered.merge(UnansweredCalls { count: 1, unsent: 1, waited_most_ns: nanos(wait.latency) });
    }

    fn keep_position(&mut self, position: u64) {
        if self.failed_positions.len() < FAILED_POSITIONS_MAX {
            self.failed_positions.push(position);
        }
    }

    /// Counts a slot for which a caller waited, with its lateness.
    pub fn kept_pace(&mut self, late: Duration) {
        self.lateness.kept += 1;
        self.lateness.late += u64::from(late > Lateness::SLACK);
        self.lateness.late_most_ns = self.lateness.late_most_ns.max(nanos(late));
    }

    /// Records a pause of a load generator thread.
    pub fn stood_still(&mut self, gap: Duration) {
        self.lateness.stood_still_most_ns = self.lateness.stood_still_most_ns.max(nanos(gap));
    }

    /// Counts a slot that a busy caller started late.
    pub fn started_late(&mut self, overdue: Duration) {
        self.lateness.overdue += 1;
        self.lateness.overdue_most_ns = self.lateness.overdue_most_ns.max(nanos(overdue));
    }

    pub fn failed(&mut self, failure: &CallFailure) {
        self.failed_times(failure, 1);
    }

    /// Counts `times` failed calls with the same failure.
    pub fn failed_times(&mut self, failure: &CallFailure, times: u64) {
        let entry = self.failures.entry(failure.code);
        entry.or_insert_with(|| Failures { count: 0, sample: failure.message.clone() }).count += times;
    }

    pub fn failed_at(
        &mut self,
        position: u64,
        failure: &CallFailure,
        wait: &CallSample,
        counted: FailedCalls,
    ) {
        self.failed(failure);
        self.failed_ns.record(nanos(wait.latency)).expect(RESIZES);
        if counted == FailedCalls::Included || failure.code == Code::DEADLINE_EXCEEDED {
            self.count(wait);
        }
        self.keep_position(position);
    }

    /// Adds another worker's results to these.
    pub fn merge(&mut self, other: &Tally) {
        let (ours, theirs) = (self.latencies_ns.len() as f64, other.latencies_ns.len() as f64);
        if theirs > 0.0 {
            let distance = other.mean_ns - self.mean_ns;
            self.squares_ns += other.squares_ns + distance * distance * ours * theirs / (ours + theirs);
            self.mean_ns += distance * theirs / (ours + theirs);
        }
        self.latencies_ns.add(&other.latencies_ns).expect(RESIZES);
        self.services_ns.add(&other.services_ns).expect(RESIZES);
        self.failed_ns.add(&other.failed_ns).expect(RESIZES);
        self.succeeded += other.succeeded;
        self.unanswered.merge(other.unanswered);
        self.delayed += other.delayed;
        self.slices.merge(&other.slices);
        self.lateness.merge(&other.lateness);
        self.fastest_ns = self.fastest_ns.min(other.fastest_ns);
        self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
        self.last_sent = self.last_sent.max(other.last_sent);
        self.body_bytes += other.body_bytes;
        self.retries += other.retries;
        for (&second, values) in &other.seconds {
            self.seconds.entry(second).or_insert(Second::EMPTY).merge(values);
        }
        self.failed_positions.extend(&other.failed_positions);
        for (&code, failures) in &other.failures {
            let empty = || Failures { count: 0, sample: failures.sample.clone() };
            self.failures.entry(code).or_insert_with(empty).count += failures.count;
        }
    }

    pub fn succeeded_len(&self) -> u64 {
        self.succeeded
    }

    /// Returns the number of requests with a latency.
    pub fn counted_len(&self) -> u64 {
        self.latencies_ns.len()
    }

    pub fn failed_len(&self) -> u64 {
        self.failures.values().map(|failures| failures.count).sum()
    }

    /// Returns the population standard deviation, like etcd's tool.
    pub fn stddev_ns(&self) -> f64 {
        (self.squares_ns / self.counted_len() as f64).sqrt()
    }

    pub fn value_at(&self, index: u64) -> u64 {
        percentile::value_at(&self.latencies_ns, index).clamp(self.fastest_ns(), self.slowest_ns)
    }

    /// Returns the latency of a percentile; 0 without requests.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        percentile::index(self.counted_len(), percent).map_or(self.slowest_ns, |index| self.value_at(index))
    }

    /// Returns the least latency; 0 without requests.
    pub fn fastest_ns(&self) -> u64 {
        if self.counted_len() == 0 { 0 } else { self.fastest_ns }
    }

    /// Returns the number of requests taken by callers, which is the end of the taken positions.
    pub fn taken_len(&self) -> u64 {
        self.succeeded + self.failed_len() + self.unanswered.count - self.unanswered.unsent
    }

    /// Returns the positions of calls that failed or had no reply; `None` if there were too many to record.
    pub fn failed_positions(&self) -> Option<&[u64]> {
        let all = self.taken_len() - self.succeeded;
        (self.failed_positions.len() as u64 == all).then_some(&self.failed_positions)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are within the histogram's range")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Start {
    /// Returns the start of a run that started at `at`, shortly before now.
    pub fn new(at: Instant) -> Self {
        let since_start = at.elapsed();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { at, unix: unix.saturating_sub(since_start) }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns a call without a reply at `now`, with a latency that counts from `clock_from`.
    pub fn wait(&self, clock_from: Instant, now: Instant) -> CallSample {
        self.sample(clock_from, clock_from, now, 0)
    }

    /// Returns a call with a latency that counts from `clock_from`, sent at `sent_at` and completed at
    /// `now`.
    pub fn sample(&self, clock_from: Instant, sent_at: Instant, now: Instant, body_bytes: u64) -> CallSample {
        let began = clock_from.saturating_duration_since(self.at);
        CallSample {
            unix_second: (self.unix + began).as_secs(),
            began,
            latency: now.saturating_duration_since(clock_from),
            service: now.saturating_duration_since(sent_at),
            body_bytes,
        }
    }
}

impl Lateness {
    /// Smaller delays do not count: reading a reply takes tens of microseconds.
    pub const SLACK: Duration = Duration::from_millis(1);

    fn merge(&mut self, other: &Lateness) {
        self.kept += other.kept;
        self.late += other.late;
        self.late_most_ns = self.late_most_ns.max(other.late_most_ns);
        self.overdue += other.overdue;
        self.overdue_most_ns = self.overdue_most_ns.max(other.overdue_most_ns);
        self.stood_still_most_ns = self.stood_still_most_ns.max(other.stood_still_most_ns);
    }
}

impl UnansweredCalls {
    /// Returns the number that were sent: calls with an unknown outcome.
    pub fn sent(&self) -> u64 {
        self.count - self.unsent
    }

    pub fn merge(&mut self, other: UnansweredCalls) {
        self.count += other.count;
        self.unsent += other.unsent;
        self.waited_most_ns = self.waited_most_ns.max(other.waited_most_ns);
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

    /// Returns a call that has waited for `seconds`.
    fn wait(seconds: u64) -> CallSample {
        let waited = Duration::from_secs(seconds);
        let began = Duration::from_secs(1);
        CallSample { unix_second: 1001, began, latency: waited, service: waited, body_bytes: 0 }
    }

    #[test]
    fn merging_parts_equals_recording_the_whole() {
        let whole = tally(&[1, 2, 3, 40, 50, 600]);
        let mut merged = tally(&[1, 40, 600]);
        merged.merge(&tally(&[2, 3, 50]));
        merged.merge(&Tally::new());
        assert_eq!(merged.latencies_ns, whole.latencies_ns);
        assert!((merged.mean_ns - whole.mean_ns).abs() < 1.0);
        assert!((merged.stddev_ns() - whole.stddev_ns()).abs() < 1.0);
        assert_eq!((merged.fastest_ns(), merged.slowest_ns), (1_000_000, 600_000_000));
        assert_eq!((merged.seconds, merged.body_bytes), (whole.seconds, 60));
    }

    #[test]
    fn mean_and_deviation_are_those_of_the_population() {
        let tally = tally(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert!((tally.mean_ns - 5e6).abs() < 1e-3);
        assert!((tally.stddev_ns() - 2e6).abs() < 1e-3);
    }

    #[test]
    fn service_time_is_recorded_separately_from_latency() {
        let mut tally = Tally::new();
        let sample = CallSample {
            unix_second: 1,
            began: Duration::ZERO,
            latency: Duration::from_millis(500),
            service: Duration::from_millis(2),
            body_bytes: 0,
        };
        tally.record(&sample);
        tally.record(&CallSample { latency: sample.service, ..sample });
        assert_eq!(tally.delayed, 1);
        assert!(tally.latencies_ns.max() >= 499_000_000 && tally.services_ns.max() < 3_000_000);
    }

    #[test]
    fn a_request_without_a_reply_counts_as_a_latency_and_not_as_a_success() {
        let mut tally = tally(&[1, 1]);
        let mut other = Tally::new();
        other.unanswered(2, &wait(3));
        other.unsent(&wait(1));
        tally.merge(&other);
        assert_eq!((tally.succeeded_len(), tally.counted_len(), tally.taken_len()), (2, 4, 3));
        assert_eq!(tally.unanswered, UnansweredCalls { count: 2, unsent: 1, waited_most_ns: 3_000_000_000 });
        assert_eq!((tally.slowest_ns, tally.mean_ns.round()), (3_000_000_000, 1_000_500_000.0));
        assert_eq!(tally.failed_positions(), Some(&[2][..]));
        assert!(tally.latencies_ns.max() >= 2_990_000_000);
        // A stall at the end of the run counts in the second in which it started.
        assert_eq!(tally.seconds.get(&1001).map(|second| second.greatest_ns), Some(3_000_000_000));
        let slowest = tally.slices.iter().map(|slice| slice.greatest_ns).max();
        assert_eq!(slowest, Some(3_000_000_000));
    }

    #[test]
    fn waits_of_failed_calls_are_latencies_if_the_run_asks_for_it_or_a_time_limit_ended_them() {
        let late = CallFailure::new(Code::DEADLINE_EXCEEDED, "no answer within 2s");
        for (failure, counted, latencies) in [
            (CallFailure::unavailable("gone"), FailedCalls::Apart, 2),
            (CallFailure::unavailable("gone"), FailedCalls::Included, 3),
            // A stalled server would be invisible otherwise.
            (late, FailedCalls::Apart, 3),
        ] {
            let mut tally = tally(&[1, 1]);
            tally.failed_at(7, &failure, &wait(2), counted);
            assert_eq!((tally.succeeded_len(), tally.counted_len(), tally.failed_len()), (2, latencies, 1));
            assert!(tally.failed_ns.max() >= 1_990_000_000 && tally.failed_ns.len() == 1);
        }
    }

    #[test]
    fn a_late_generator_is_distinguished_from_busy_callers() {
        let mut tally = Tally::new();
        tally.kept_pace(Duration::from_micros(80));
        tally.kept_pace(Duration::from_millis(3));
        tally.started_late(Duration::from_millis(40));
        tally.stood_still(Duration::from_millis(700));
        let mut merged = Tally::new();
        merged.merge(&tally);
        let lateness = Lateness {
            kept: 2,
            late: 1,
            late_most_ns: 3_000_000,
            overdue: 1,
            overdue_most_ns: 40_000_000,
            stood_still_most_ns: 700_000_000,
        };
        assert_eq!(merged.lateness, lateness);
    }

    #[test]
    fn failures_are_grouped_by_code_with_the_first_message() {
        let mut tally = Tally::new();
        tally.failed(&CallFailure::unavailable("etcdserver: no leader"));
        tally.failed(&CallFailure::unavailable("etcdserver: leader changed"));
        let mut other = Tally::new();
        other.failed(&CallFailure::new(Code(8), "etcdserver: mvcc: database space exceeded"));
        tally.merge(&other);
        let grouped: Vec<_> = tally
            .failures
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
        assert_eq!(tally.seconds.get(&1000), Some(&first));
        assert_eq!(tally.seconds.get(&1001).map(|second| second.count), Some(1));
    }
}
