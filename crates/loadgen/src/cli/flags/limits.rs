//! Limits of --slo: `p99=10ms,errors=0`.

use crate::compare::Slo;
use crate::run::results::Measurement;
use serde::Serialize;
use std::str::FromStr;

/// What a run must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Latency(Slo),
    /// Failed and unanswered calls, at most.
    Errors(u64),
}

/// How a run did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitResult {
    /// As on the command line.
    pub limit: String,
    /// Milliseconds, or failed calls.
    pub value: f64,
    pub met: bool,
}

impl Limit {
    /// Holds a run against the limit. Without a request, no limit of latency is met.
    pub fn of(&self, measurement: &Measurement) -> LimitResult {
        match self {
            Limit::Latency(slo) => {
                let latencies = &measurement.tally.latencies_ns;
                let mut ms = measurement.tally.percentile_ns(slo.percent) as f64 / 1e6;
                // Sent at an even rate, too many requests would have met the stall.
                let stall = measurement.hidden_stall();
                if let Some(stall) = stall.filter(|stall| stall.time_share > 1.0 - slo.percent / 100.0) {
                    ms = ms.max(stall.longest.as_secs_f64() * 1e3);
                }
                let met = slo.is_met_by(ms) && !latencies.is_empty();
                LimitResult { limit: slo.to_string(), value: ms, met }
            }
            Limit::Errors(most) => {
                let failed = measurement.errors();
                LimitResult { limit: format!("errors={most}"), value: failed as f64, met: failed <= *most }
            }
        }
    }
}

impl LimitResult {
    /// One line for a terminal.
    pub fn text(&self) -> String {
        let verdict = if self.met { "met" } else { "missed" };
        let value = if self.limit.starts_with('p') {
            format!("{:.3} ms", self.value)
        } else {
            format!("{:.0}", self.value)
        };
        format!("SLO {}: {verdict}, {value}.\n", self.limit)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("errors=") {
            Some(count) => count
                .parse()
                .map(Limit::Errors)
                .map_err(|_| format!("{text:?}: expected something like errors=0")),
            None => text.parse().map(Limit::Latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plans::row;
    use crate::client::failure::CallFailure;
    use crate::output::summary::Summary;
    use crate::run::LoadPlan;
    use crate::run::recorder::{CallSample, Tally};
    use crate::workload::Workload;
    use std::time::Duration;

    #[test]
    fn a_percentile_is_the_same_in_text_limit_page_and_file() {
        use crate::compare::steps::rows_of_run;
        let mut tally = Tally::new();
        (1..=200).for_each(|ms| tally.succeeded(1, Duration::from_millis(ms), 0));
        let wall = Duration::from_secs(2);
        let measurement = Measurement { tally, wall, clients: 1, ..Measurement::default() };
        let plan = LoadPlan::new("h:1".parse().unwrap(), Workload::LeaseKeepAlive([].into()), 200);
        let rows = rows_of_run(&measurement, None, None, &row::spec(&plan), "t");
        // The file has the metrics of the page.
        let (side, summary) = (&rows[0].sides[0], Summary::of(&measurement));
        let metrics = side.median.unwrap();
        for (percent, of_page) in [(50.0, metrics.p50_ms), (90.0, metrics.p90_ms), (99.0, metrics.p99_ms)] {
            let of_text = summary.percentile(percent).unwrap() * 1e3;
            let limit: Limit = format!("p{percent}=1s").parse().unwrap();
            let all = [of_text, limit.of(&measurement).value, of_page.unwrap()];
            assert!(all.iter().all(|value| (value - of_text).abs() < 1e-9), "{percent}: {all:?}");
            let of_plot = side.curve.iter().find(|point| point.percent == percent);
            assert!(of_plot.is_none_or(|point| (point.ms - of_text).abs() < 1e-3), "{of_plot:?} {of_text}");
        }
    }

    #[test]
    fn limits_are_met_or_missed_by_what_counts() {
        let measurement = |failed: u64| {
            let mut tally = Tally::new();
            (0..99).for_each(|_| tally.succeeded(1, Duration::from_millis(5), 0));
            let latency = Duration::from_secs(2);
            let began = Duration::ZERO;
            tally.unanswered(
                99,
                &CallSample { unix_second: 1, began, latency, service: latency, body_bytes: 0 },
            );
            tally.failed_times(&CallFailure::unavailable("gone"), failed);
            Measurement { tally, ..Measurement::default() }
        };
        for (limit, failed, met) in [
            ("p50=6ms", 1, true),
            ("p50=4ms", 0, false),
            ("p99.9=1s", 0, false),
            ("p99.9=3s", 0, true),
            // One call is never answered.
            ("errors=0", 0, false),
            ("errors=1", 0, true),
            ("errors=1", 1, false),
        ] {
            let limit: Limit = limit.parse().unwrap();
            assert_eq!(limit.of(&measurement(failed)).met, met, "{limit:?}");
        }
        // Two of six seconds: ten requests of a closed loop, a third of those that an open loop had sent.
        let frozen = |closed_loop| {
            let mut tally = Tally::new();
            (0..20_000).for_each(|_| tally.succeeded(1, Duration::from_millis(2), 0));
            (0..10).for_each(|_| tally.succeeded(1, Duration::from_secs(2), 0));
            Measurement {
                tally,
                closed_loop,
                clients: 10,
                wall: Duration::from_secs(6),
                ..Measurement::default()
            }
        };
        for (limit, closed_loop, met) in [
            ("p99=50ms", true, false),
            ("p99=50ms", false, true),
            ("p99=3s", true, true),
            ("p50=50ms", true, true),
        ] {
            assert_eq!(
                limit.parse::<Limit>().unwrap().of(&frozen(closed_loop)).met,
                met,
                "{limit} {closed_loop}"
            );
        }
        assert!(!"p99=1h".parse::<Limit>().unwrap_or(Limit::Errors(0)).of(&measurement(1)).met);
        assert!(!"p99=10ms".parse::<Limit>().unwrap().of(&Measurement::default()).met);
        assert!("errors=x".parse::<Limit>().is_err() && "mean=1ms".parse::<Limit>().is_err());
    }
}
