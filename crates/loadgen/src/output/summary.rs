//! Summary of a run, computed like in etcd's tool.

use crate::run::recorder::{Tally, UnansweredCalls};
use crate::run::results::{KindResults, Measurement};
use crate::stats::percentile;
use bench_report::model::ErrorGroup;
use serde::Serialize;

/// Percentiles in reports.
pub const PERCENTS: [f64; 9] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];
/// Longest bar of the histogram, in characters.
pub const BAR_MAX: u64 = 40;
const BUCKETS: usize = 10;

/// Summary of a run. Times are in seconds unless the name specifies a unit.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub planned: u64,
    pub succeeded: u64,
    pub failed: u64,
    /// Reason if the run stopped early.
    pub partial: Option<String>,
    pub total_seconds: f64,
    pub slowest_seconds: f64,
    pub fastest_seconds: f64,
    pub average_seconds: f64,
    pub stddev_seconds: f64,
    pub requests_per_second: f64,
    pub percentiles: Vec<Percentile>,
    pub histogram: Vec<LatencyBucket>,
    pub reply_bytes: u64,
    /// Additional attempts of transactions.
    #[serde(skip_serializing_if = "is_zero")]
    pub retries: u64,
    pub client_cpu_micros_per_request: f64,
    pub errors: Vec<ErrorGroup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_calls: Option<FailedCallsSummary>,
    /// Due requests without a reply when the run stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<UnansweredSummary>,
    pub timeline: Vec<SecondSample>,
    /// Counted unit: requests, or events of watchers.
    pub unit: &'static str,
    /// Separately reported results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartSummary>,
}

/// Durations of failed calls, from the time at which their latency would start to the failure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FailedCallsSummary {
    /// Number of these that are included in the latencies.
    pub counted: u64,
    pub average_seconds: f64,
    pub p50_seconds: f64,
    pub p99_seconds: f64,
    pub slowest_seconds: f64,
}

/// Requests without a reply. All latencies include the time that each of them waited.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnansweredSummary {
    pub count: u64,
    /// Number of these that were never sent.
    pub unsent: u64,
    pub waited_most_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PartSummary {
    /// Heading of its report.
    pub title: String,
    #[serde(flatten)]
    pub summary: Summary,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentile {
    pub percent: f64,
    pub seconds: f64,
}

/// Number of requests in a bucket, up to and including its limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyBucket {
    pub limit_seconds: f64,
    pub count: u64,
}

/// Requests that started in the same second of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SecondSample {
    pub unix_second: u64,
    pub count: u64,
    pub least_ns: u64,
    pub mean_ns: u64,
    pub greatest_ns: u64,
}

impl Summary {
    pub fn of(measurement: &Measurement) -> Self {
        let part = |part: &KindResults| {
            let KindResults { title, tally, wall } = part.clone();
            let planned = tally.succeeded_len() + tally.failed_len();
            let part = Measurement { tally, wall, planned, ..Measurement::default() };
            PartSummary { title, summary: Self::of_whole(&part) }
        };
        Self { parts: measurement.parts.iter().map(part).collect(), ..Self::of_whole(measurement) }
    }

    fn of_whole(measurement: &Measurement) -> Self {
        let tally = &measurement.tally;
        let succeeded = tally.succeeded_len();
        let of_counted = |figure: f64| if tally.counted_len() == 0 { 0.0 } else { figure };
        let of_any = |figure: f64| if succeeded == 0 { 0.0 } else { figure };
        Self {
            planned: measurement.planned,
            succeeded,
            failed: tally.failed_len(),
            partial: measurement.partial.clone(),
            total_seconds: measurement.wall.as_secs_f64(),
            slowest_seconds: tally.slowest_ns as f64 / 1e9,
            fastest_seconds: tally.fastest_ns() as f64 / 1e9,
            average_seconds: tally.mean_ns / 1e9,
            stddev_seconds: of_counted(tally.stddev_ns() / 1e9),
            requests_per_second: of_any(measurement.per_second()),
            percentiles: percentiles(tally),
            histogram: histogram(tally),
            reply_bytes: tally.body_bytes,
            retries: tally.retries,
            client_cpu_micros_per_request: of_any(measurement.client_cpu_micros()),
            errors: errors(tally),
            failed_calls: failed_calls(tally),
            unanswered: unanswered(tally),
            timeline: timeline(tally),
            unit: if measurement.events { "event" } else { "request" },
            parts: Vec::new(),
        }
    }

    /// Returns the value at `percent`, if there were enough requests.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        self.percentiles
            .iter()
            .find(|percentile| percentile.percent == percent)
            .map(|percentile| percentile.seconds)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Each index of the sorted values serves at most one percentile. Percentiles that need more requests are
/// omitted.
fn percentiles(tally: &Tally) -> Vec<Percentile> {
    let count = tally.counted_len();
    let (mut found, mut least) = (Vec::new(), 0);
    for percent in PERCENTS {
        let index = percentile::index(count, percent).map(|index| index.max(least));
        let Some(index) = index.filter(|index| *index < count) else { break };
        found.push(Percentile { percent, seconds: tally.value_at(index) as f64 / 1e9 });
        least = index + 1;
    }
    found
}

/// Returns eleven buckets from the fastest to the slowest; a value counts in the first bucket with a limit
/// that is not below it.
fn histogram(tally: &Tally) -> Vec<LatencyBucket> {
    if tally.counted_len() == 0 {
        return Vec::new();
    }
    let (fastest, slowest) = (tally.fastest_ns() as f64, tally.slowest_ns as f64);
    let step = (slowest - fastest) / BUCKETS as f64;
    let limit = |index: usize| if index == BUCKETS { slowest } else { fastest + step * index as f64 };
    let mut buckets: Vec<_> =
        (0..=BUCKETS).map(|index| LatencyBucket { limit_seconds: limit(index) / 1e9, count: 0 }).collect();
    let mut index = 0;
    for recorded in tally.latencies_ns.iter_recorded() {
        // Uses the bottom of the recorded step: the fastest value then counts at its own limit.
        let value = tally.latencies_ns.lowest_equivalent(recorded.value_iterated_to());
        let value = (value as f64).clamp(fastest, slowest);
        while index < BUCKETS && value > limit(index) {
            index += 1;
        }
        buckets[index].count += recorded.count_since_last_iteration();
    }
    buckets
}

fn failed_calls(tally: &Tally) -> Option<FailedCallsSummary> {
    let waits = &tally.failed_ns;
    let at = |percent: f64| percentile::value(waits, percent) as f64 / 1e9;
    (!waits.is_empty()).then(|| FailedCallsSummary {
        counted: tally.counted_len() - tally.succeeded_len() - tally.unanswered.count,
        average_seconds: waits.mean() / 1e9,
        p50_seconds: at(50.0),
        p99_seconds: at(99.0),
        slowest_seconds: waits.max() as f64 / 1e9,
    })
}

fn unanswered(tally: &Tally) -> Option<UnansweredSummary> {
    let UnansweredCalls { count, unsent, waited_most_ns } = tally.unanswered;
    (count > 0).then(|| UnansweredSummary { count, unsent, waited_most_seconds: waited_most_ns as f64 / 1e9 })
}

fn errors(tally: &Tally) -> Vec<ErrorGroup> {
    let groups = tally.failures.iter().map(|(code, failures)| ErrorGroup {
        code: code.to_string(),
        count: failures.count,
        sample: failures.sample.clone(),
    });
    groups.collect()
}

/// Returns every second from the first to the last, including those without requests.
fn timeline(tally: &Tally) -> Vec<SecondSample> {
    let seconds = &tally.seconds;
    let (Some((&first, _)), Some((&last, _))) = (seconds.first_key_value(), seconds.last_key_value()) else {
        return Vec::new();
    };
    let sample = |unix_second| match seconds.get(&unix_second) {
        None => SecondSample { unix_second, count: 0, least_ns: 0, mean_ns: 0, greatest_ns: 0 },
        Some(second) => SecondSample {
            unix_second,
            count: second.count,
            least_ns: second.least_ns,
            mean_ns: second.sum_ns / second.count,
            greatest_ns: second.greatest_ns,
        },
    };
    (first..=last).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tally(latencies_us: impl IntoIterator<Item = u64>) -> Tally {
        let mut tally = Tally::new();
        for latency in latencies_us {
            tally.succeeded(5, Duration::from_micros(latency), 0);
        }
        tally
    }

    fn close(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() <= expected * 1e-3
    }

    #[test]
    fn percentiles_are_the_first_index_at_or_above_the_percent() {
        // (n, [expected value in µs per percent]) for the values 1, 2, … n: index i holds i + 1.
        for (count, expected) in [
            (1000, &[101.0, 251.0, 501.0, 751.0, 901.0, 951.0, 991.0, 1000.0][..]),
            (100, &[11.0, 26.0, 51.0, 76.0, 91.0, 96.0, 100.0]),
            (10, &[2.0, 4.0, 6.0, 9.0, 10.0]),
            (2, &[2.0]),
            (1, &[]),
            (0, &[]),
        ] {
            let actual = percentiles(&tally(1..=count));
            let percents: Vec<_> = actual.iter().map(|percentile| percentile.percent).collect();
            assert_eq!(percents, PERCENTS[..expected.len()], "{count} values");
            for (percentile, expected) in actual.iter().zip(expected) {
                assert!(
                    close(percentile.seconds, expected / 1e6),
                    "{count} values: {percentile:?} {expected}"
                );
            }
        }
    }

    #[test]
    fn the_histogram_counts_every_value_once_at_the_first_limit_not_below_it() {
        let buckets = histogram(&tally([100, 200, 200, 290, 300, 1100]));
        let counts: Vec<_> = buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(close(buckets[0].limit_seconds, 100e-6) && close(buckets[10].limit_seconds, 1100e-6));
        assert!(histogram(&Tally::new()).is_empty());
    }

    #[test]
    fn one_value_makes_a_histogram_of_one() {
        let buckets = histogram(&tally([500]));
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1);
        assert_eq!(buckets[0].count, 1);
    }

    #[test]
    fn seconds_without_requests_are_zero_rows() {
        let mut tally = Tally::new();
        tally.succeeded(10, Duration::from_micros(4), 0);
        tally.succeeded(10, Duration::from_micros(8), 0);
        tally.succeeded(12, Duration::from_micros(1), 0);
        let rows: Vec<_> = timeline(&tally)
            .iter()
            .map(|sample| (sample.unix_second, sample.count, sample.mean_ns, sample.greatest_ns))
            .collect();
        assert_eq!(rows, [(10, 2, 6_000, 8_000), (11, 0, 0, 0), (12, 1, 1_000, 1_000)]);
    }
}
