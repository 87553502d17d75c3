//! The metrics of a run with name, unit and direction: renderers use [`METRICS`] and need no other list.
//!
//! *per request* means per successful request.

use serde::{Deserialize, Serialize};

/// Statistic that combines several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Middle {
    #[default]
    Median,
    /// Used by a write-up that published the means of its rounds.
    Mean,
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// JSON field name.
    pub key: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub decimals: usize,
    pub better: Better,
    pub get: fn(&Metrics) -> Option<f64>,
    set: fn(&mut Metrics, Option<f64>),
}

/// Direction of improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
    /// Neither.
    Neutral,
}

/// Declares the struct and the table from a single list, which keeps them consistent.
macro_rules! metrics {
    ($($key:ident: $title:literal, $unit:literal, $decimals:literal, $better:ident, $doc:literal;)*) => {
        /// Metrics of a run, or medians of several. `None`: unknown.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Metrics {
            $(
                #[doc = $doc]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $key: Option<f64>,
            )*
        }

        /// All metrics, in report order.
        pub const METRICS: &[Metric] = &[
            $(Metric {
                key: stringify!($key),
                title: $title,
                unit: $unit,
                decimals: $decimals,
                better: Better::$better,
                get: |metrics| metrics.$key,
                set: |metrics, value| metrics.$key = value,
            },)*
        ];
    };
}

metrics! {
    requests_per_second: "requests/s", "", 0, Higher,
        "Successful requests over the time from the common start to the last answer.";
    summed_requests_per_second: "sum over members, each alone", "requests/s", 0, Higher,
        "The arithmetic of a write-up: the rates of the members, each measured while the others had no load, added. \
        No cluster answered at this rate.";
    mean_ms: "mean", "ms", 2, Lower, "Latency; in an open loop from the intended moment of sending.";
    p50_ms: "p50", "ms", 2, Lower, "As `mean_ms`.";
    p90_ms: "p90", "ms", 2, Lower, "As `mean_ms`.";
    p99_ms: "p99", "ms", 2, Lower, "As `mean_ms`.";
    p999_ms: "p99.9", "ms", 2, Lower, "As `mean_ms`.";
    p9999_ms: "p99.99", "ms", 2, Lower, "As `mean_ms`; only of ten thousand requests or more.";
    max_ms: "max", "ms", 2, Lower, "As `mean_ms`.";
    service_mean_ms: "service time mean", "ms", 2, Lower,
        "Latency from the moment of sending; only where it differs from the above.";
    service_p50_ms: "service time p50", "ms", 2, Lower, "As `service_mean_ms`.";
    service_p99_ms: "service time p99", "ms", 2, Lower, "As `service_mean_ms`.";
    service_p999_ms: "service time p99.9", "ms", 2, Lower, "As `service_mean_ms`.";
    service_max_ms: "service time max", "ms", 2, Lower, "As `service_mean_ms`.";
    server_cpu_micros: "server CPU/request, all members", "µs", 1, Lower,
        "User and kernel time of all members per request.";
    server_user_micros: "server user CPU/request, all members", "µs", 1, Lower,
        "The part of all members outside the kernel.";
    server_system_micros: "server system CPU/request, all members", "µs", 1, Lower,
        "The part of all members in the kernel.";
    server_user_processors: "user CPU, processors, all members", "", 2, Neutral,
        "User time of all members per second of the round.";
    server_system_processors: "system CPU, processors, all members", "", 2, Neutral,
        "Kernel time of all members per second of the round.";
    leader_cpu_micros: "server CPU/request, leader", "µs", 1, Lower, "The same of the leader alone.";
    client_cpu_micros: "client CPU/request", "µs", 1, Neutral,
        "User and kernel time of the load generator per request.";
    rest_resident_mb: "idle RSS, largest member", "MB", 0, Lower, "Before the first round of the row.";
    resident_mb: "RSS, mean of all members", "MB", 0, Lower, "At the end of the round, as write-ups have it.";
    peak_resident_mb: "peak RSS, largest member", "MB", 0, Lower,
        "The most that was seen from the start of the cluster to the end of the round.";
    watcher_resident_bytes: "RSS/watcher, all members", "B", 0, Lower,
        "Growth of the members' resident memory while the first watchers of the row were created, per watcher.";
    written_bytes: "bytes written/request, all members", "B", 0, Lower,
        "To storage, as the kernel accounts it to the process.";
    written_mb_per_second: "disk writes, all members", "MB/s", 1, Neutral,
        "To storage, as the kernel accounts it to the process.";
    client_sent_bytes: "client to servers/request", "B", 0, Lower,
        "Bytes of the load generator's TCP streams, without headers of IP and TCP.";
    client_received_bytes: "servers to client/request", "B", 0, Lower, "The other way.";
    client_mb_per_second: "network, client and servers", "MB/s", 1, Neutral,
        "Both directions of the load generator's TCP streams, without headers of IP and TCP.";
    peer_sent_bytes: "between members/request", "B", 0, Lower,
        "As the members count what they send each other.";
    peer_mb_per_second: "network, between members", "MB/s", 1, Neutral,
        "As the members count what they send each other.";
    sync_mean_ms: "WAL fsync mean", "ms", 3, Lower, "Over all members, from their histograms.";
    sync_p99_ms: "WAL fsync p99, at most", "ms", 2, Lower,
        "Over all members: the upper edge of the bucket that holds it in their histograms.";
    syncs_per_request: "WAL fsyncs/request, all members", "", 3, Lower, "How well writes share a sync.";
    syncs_per_second: "WAL fsyncs per second, all members", "", 0, Neutral,
        "Over all members, from their histograms.";
    peer_round_trip_mean_ms: "peer round trip mean", "ms", 3, Lower,
        "Over all pairs of members since the cluster was ready, from their histograms: probes are too \
        rare for one run.";
    peer_round_trip_p99_ms: "peer round trip p99, at most", "ms", 2, Lower,
        "As the mean: the upper edge of its bucket.";
    errors: "errors", "", 0, Lower, "Failed calls; summed, not a median, over rounds.";
}

/// Metrics of the tables of a page.
const EXTRACTED: [&str; 14] = [
    "requests_per_second",
    "summed_requests_per_second",
    "mean_ms",
    "p90_ms",
    "p99_ms",
    "server_cpu_micros",
    "client_cpu_micros",
    "resident_mb",
    "peak_resident_mb",
    "watcher_resident_bytes",
    "written_bytes",
    "sync_mean_ms",
    "peer_round_trip_mean_ms",
    "errors",
];

/// Rounds to four significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

impl Metrics {
    /// Returns the metrics of the tables of a page, at four significant digits.
    pub fn extract(&self) -> Self {
        let mut extracted = Self::default();
        for metric in METRICS.iter().filter(|metric| EXTRACTED.contains(&metric.key)) {
            (metric.set)(&mut extracted, (metric.get)(self).map(rounded));
        }
        extracted
    }

    /// Combines several runs metric by metric; errors are summed. Returns `None` without runs. A metric
    /// missing in some runs is computed from the remaining ones.
    pub fn middle(runs: &[Metrics], of: Middle) -> Option<Metrics> {
        if runs.is_empty() {
            return None;
        }
        let mut middle = Metrics::default();
        for metric in METRICS {
            let values: Vec<f64> = runs.iter().filter_map(metric.get).collect();
            let value = match of {
                _ if metric.key == "errors" => Some(values.iter().sum()),
                Middle::Median => median(values),
                Middle::Mean => mean(&values),
            };
            (metric.set)(&mut middle, value);
        }
        Some(middle)
    }

    /// Drops the metrics that are sums or extremes over all members.
    pub fn forget_sums_of_members(&mut self) {
        for metric in METRICS.iter().filter(|metric| metric.is_of_all_members()) {
            (metric.set)(self, None);
        }
    }

    /// Drops infinite values and NaN, which JSON cannot represent.
    pub fn finite(mut self) -> Self {
        for metric in METRICS {
            let value = (metric.get)(&self).filter(|value| value.is_finite());
            (metric.set)(&mut self, value);
        }
        self
    }
}

impl Metric {
    /// Returns the title with the unit.
    pub fn label(&self) -> String {
        if self.unit.is_empty() { self.title.into() } else { format!("{}, {}", self.title, self.unit) }
    }

    pub fn by_key(key: &str) -> Option<&'static Metric> {
        METRICS.iter().find(|metric| metric.key == key)
    }

    /// Reports whether the metric is only valid if every member of the cluster was measured.
    pub fn is_of_all_members(&self) -> bool {
        [
            "server_cpu_micros",
            "server_user_micros",
            "server_system_micros",
            "server_user_processors",
            "server_system_processors",
            "written_mb_per_second",
            "peer_mb_per_second",
            "syncs_per_second",
            "resident_mb",
            "rest_resident_mb",
            "peak_resident_mb",
            "watcher_resident_bytes",
            "written_bytes",
            "peer_sent_bytes",
            "sync_mean_ms",
            "sync_p99_ms",
            "syncs_per_request",
            "peer_round_trip_mean_ms",
            "peer_round_trip_p99_ms",
        ]
        .contains(&self.key)
    }

    /// Returns the minimum and maximum over several runs.
    pub fn spread<'a>(&self, runs: impl IntoIterator<Item = &'a Metrics>) -> Option<(f64, f64)> {
        let values = runs.into_iter().filter_map(self.get);
        values.fold(None, |spread, value| match spread {
            None => Some((value, value)),
            Some((least, most)) => Some((value.min(least), value.max(most))),
        })
    }

    /// Returns `first` ÷ `second`; `None` if either is missing or the second is 0.
    pub fn ratio(&self, first: &Metrics, second: &Metrics) -> Option<f64> {
        let ratio = (self.get)(first)? / (self.get)(second)?;
        ratio.is_finite().then_some(ratio)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the median; the mean of the two middle values if their number is even.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rates: &[f64]) -> Vec<Metrics> {
        let run =
            |&rate| Metrics { requests_per_second: Some(rate), errors: Some(1.0), ..Metrics::default() };
        rates.iter().map(run).collect()
    }

    #[test]
    fn the_middle_is_a_median_or_a_mean_and_errors_are_summed() {
        for (runs, middle, mean) in [
            (&[3.0, 1.0, 5.0][..], 3.0, 3.0),
            (&[4.0, 1.0, 2.0, 9.0], 3.0, 4.0),
            (&[1.0, 1.0, 7.0], 1.0, 3.0),
            (&[7.0], 7.0, 7.0),
        ] {
            for (of, expected) in [(Middle::Median, middle), (Middle::Mean, mean)] {
                let found = Metrics::middle(&rates(runs), of).unwrap();
                assert_eq!(found.requests_per_second, Some(expected), "{runs:?} {of:?}");
                assert_eq!(found.errors, Some(runs.len() as f64));
                assert_eq!(found.p99_ms, None);
            }
        }
        assert_eq!(Metrics::middle(&[], Middle::Mean), None);
    }

    #[test]
    fn a_figure_of_some_runs_is_the_median_of_those() {
        let mut runs = rates(&[1.0, 2.0]);
        runs[1].sync_mean_ms = Some(0.5);
        assert_eq!(Metrics::middle(&runs, Middle::Median).unwrap().sync_mean_ms, Some(0.5));
    }

    #[test]
    fn json_has_the_known_figures_and_reads_back() {
        let metrics =
            Metrics { p99_ms: Some(1.5), max_ms: Some(f64::INFINITY), ..Metrics::default() }.finite();
        let json = serde_json::to_string(&metrics).unwrap();
        assert_eq!(json, r#"{"p99_ms":1.5}"#);
        assert_eq!(serde_json::from_str::<Metrics>(&json).unwrap(), metrics);
    }

    #[test]
    fn every_figure_is_found_by_the_key_that_json_has() {
        for metric in METRICS {
            let mut metrics = Metrics::default();
            (metric.set)(&mut metrics, Some(2.0));
            assert_eq!(serde_json::to_value(metrics).unwrap()[metric.key], 2.0);
            assert!(Metric::by_key(metric.key).is_some());
        }
    }

    #[test]
    fn figures_of_all_members_are_known_by_their_titles() {
        for metric in METRICS {
            let said = ["all members", "largest member", "WAL fsync", "peer ", "between members"]
                .iter()
                .any(|words| metric.title.contains(words));
            assert_eq!(metric.is_of_all_members(), said, "{}", metric.key);
        }
    }

    #[test]
    fn spread_and_ratio_are_of_what_is_known() {
        let rate = Metric::by_key("requests_per_second").unwrap();
        let runs = rates(&[3.0, 1.0, 2.0]);
        assert_eq!(rate.spread(&runs), Some((1.0, 3.0)));
        assert_eq!(rate.ratio(&runs[0], &runs[2]), Some(1.5));
        assert_eq!(rate.ratio(&runs[0], &Metrics::default()), None);
        assert_eq!(rate.ratio(&runs[0], &rates(&[0.0])[0]), None);
        assert_eq!(Metric::by_key("p99_ms").unwrap().spread(&runs), None);
    }
}
