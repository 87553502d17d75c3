//! Limits of --slo: `p99=10ms,errors=0`.

use crate::client::failure::Code;
use crate::compare::Slo;
use crate::run::results::Measurement;
use crate::stats::percentile;
use serde::Serialize;
use std::str::FromStr;

/// A condition on the result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Latency(Slo),
    /// Maximum of failed and unfinished calls.
    Errors(u64),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitResult {
    /// Limit as given on the command line.
    pub limit: String,
    /// Milliseconds, or failed calls.
    pub value: f64,
    pub met: bool,
    /// Describes a value that is not a percentile.
    #[serde(skip)]
    pub how: String,
}

impl Limit {
    /// Evaluates the limit. Latency limits are missed if there were no requests.
    pub fn of(&self, measurement: &Measurement) -> LimitResult {
        match self {
            Limit::Latency(slo) => {
                let (tally, percent) = (&measurement.tally, slo.percent);
                let ms = tally.percentile_ns(percent) as f64 / 1e6;
                let corrected = measurement.corrected();
                let corrected =
                    corrected.map(|corrected| percentile::value(&corrected, percent) as f64 / 1e6);
                // A correction within the precision of a histogram is none.
                let value = corrected.filter(|corrected| *corrected > ms * 1.01).unwrap_or(ms);
                let (slow, _) = measurement.slow(&tally.latencies_ns, (slo.ms * 1e6) as u64 + 1);
                let waiting = slow.min(measurement.clients as u64);
                // Calls aborted by a time limit have an unknown, longer latency.
                let ended = tally.failures.get(&Code::DEADLINE_EXCEEDED).map_or(0, |ended| ended.count);
                let known = tally.counted_len().saturating_sub(ended);
                let index = percentile::index(tally.counted_len(), percent);
                let is_known = index.map_or(ended == 0 && known > 0, |index| index < known);
                let how = match (value > ms, is_known) {
                    (true, _) => format!(
                        ", corrected for requests that {waiting} of {} clients did not send while waiting",
                        measurement.clients
                    ),
                    (false, true) => String::new(),
                    (false, false) => " or more: a time limit aborted calls".into(),
                };
                LimitResult { limit: slo.to_string(), value, met: slo.is_met_by(value) && is_known, how }
            }
            Limit::Errors(most) => {
                let failed = measurement.errors();
                let (limit, met) = (format!("errors={most}"), failed <= *most);
                LimitResult { limit, value: failed as f64, met, how: String::new() }
            }
        }
    }
}

/// Returns the number of failed calls that the exit status permits: `--max-errors`, else the limit of
/// `--slo`.
pub fn errors_max(flag: Option<u64>, slo: &[Limit]) -> u64 {
    let limits = slo.iter().filter_map(|limit| match limit {
        Limit::Errors(most) => Some(*most),
        Limit::Latency(_) => None,
    });
    flag.or(limits.min()).unwrap_or(0)
}

/// Evaluates the limits. More errors than the exit status permits count as a missed limit too, so a failed
/// run never reports "met".
pub fn results(slo: &[Limit], errors_max: u64, measurement: &Measurement) -> Vec<LimitResult> {
    let errors = Limit::Errors(errors_max);
    let implied = (!slo.is_empty() && !slo.contains(&errors)).then(|| errors.of(measurement));
    let implied = implied.filter(|errors| !errors.met);
    slo.iter().map(|limit| limit.of(measurement)).chain(implied).collect()
}

impl LimitResult {
    /// Formats a line for a terminal.
    pub fn text(&self) -> String {
        let verdict = if self.met { "met" } else { "missed" };
        let value = if self.limit.starts_with('p') {
            format!("{:.3} ms", self.value)
        } else {
            format!("{:.0}", self.value)
        };
        format!("SLO {}: {verdict}, {value}{}.\n", self.limit, self.how)
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
    use crate::client::failure::CallFailure;
    use crate::output::summary::Summary;
    use crate::run::recorder::{CallSample, FailedCalls, Tally};
    use crate::run::results::{KindResults, PUTS};
    use std::time::Duration;

    #[test]
    fn a_percentile_is_the_same_in_text_limit_page_and_file() {
        use crate::compare::steps::rows_of_run;
        let mut tally = Tally::new();
        (1..=200).for_each(|ms| tally.succeeded(1, Duration::from_millis(ms), 0));
        let wall = Duration::from_secs(2);
        let measurement = Measurement { tally, wall, clients: 1, ..Measurement::default() };
        let suites = bench_report::suite::find(&["core".into()]).unwrap();
        let rows = rows_of_run(&measurement, None, None, &suites[0].rows[0].load, "t");
        // The file contains the metrics of the page.
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

    /// Returns a call that has waited for `seconds`.
    fn wait(seconds: u64) -> CallSample {
        let (began, latency) = (Duration::ZERO, Duration::from_secs(seconds));
        CallSample { unix_second: 1, began, latency, service: latency, body_bytes: 0 }
    }

    #[test]
    fn limits_are_met_or_missed_by_what_counts() {
        let measurement = |failed: u64| {
            let mut tally = Tally::new();
            (0..99).for_each(|_| tally.succeeded(1, Duration::from_millis(5), 0));
            tally.unanswered(99, &wait(2));
            tally.failed_times(&CallFailure::unavailable("gone"), failed);
            Measurement { tally, ..Measurement::default() }
        };
        for (limit, failed, met) in [
            ("p50=6ms", 1, true),
            ("p50=4ms", 0, false),
            ("p99.9=1s", 0, false),
            ("p99.9=3s", 0, true),
            // One call never gets a response.
            ("errors=0", 0, false),
            ("errors=1", 0, true),
            ("errors=1", 1, false),
        ] {
            let limit: Limit = limit.parse().unwrap();
            assert_eq!(limit.of(&measurement(failed)).met, met, "{limit:?}");
        }
        let mut unsent = measurement(0);
        unsent.tally.unsent(&wait(1));
        assert_eq!(
            Limit::Errors(1).of(&unsent).value,
            2.0,
            "a request that was due and not sent is an error"
        );
        assert!(!"p99=1h".parse::<Limit>().unwrap_or(Limit::Errors(0)).of(&measurement(1)).met);
        assert!(!"p99=10ms".parse::<Limit>().unwrap().of(&Measurement::default()).met);
        assert!("errors=x".parse::<Limit>().is_err() && "mean=1ms".parse::<Limit>().is_err());
    }

    #[test]
    fn a_stall_counts_as_an_open_loop_would_count_it() {
        // Counts of fast requests of 2 ms and of slow ones with the given latency.
        let tally = |fast: u64, slow: u64, slow_ms: u64| {
            let mut tally = Tally::new();
            (0..fast).for_each(|_| tally.succeeded(1, Duration::from_millis(2), 0));
            (0..slow).for_each(|_| tally.succeeded(1, Duration::from_millis(slow_ms), 0));
            tally
        };
        let run = |clients, seconds, tally| {
            let wall = Duration::from_secs(seconds);
            Measurement { tally, closed_loop: true, clients, wall, ..Measurement::default() }
        };
        // Two of six seconds: ten requests of a closed loop, but a third of those that an open loop would
        // have sent.
        let frozen = || run(10, 6, tally(20_000, 10, 2_000));
        // Five stops of 0.4 s for 20 of 60 clients, and a stop of 2.1 s with a lower corrected p99.
        let stops = || run(60, 10, tally(200_000, 100, 400));
        let long = || run(60, 60, tally(1_000_000, 60, 2_100));
        // One request of 80, but a tenth of those due in 20 seconds.
        let few = || run(1, 20, tally(79, 1, 1_900));
        // Of a hundred calls, at most two got no response within two seconds.
        let late = |calls| {
            let mut late = tally(100 - calls, 0, 0);
            let failure = CallFailure::new(Code::DEADLINE_EXCEEDED, "no answer within 2s");
            (0..calls).for_each(|at| late.failed_at(at, &failure, &wait(2), FailedCalls::Apart));
            Measurement { closed_loop: false, ..run(10, 6, late) }
        };
        // Puts are stalled, so no event is due.
        let puts = KindResults { title: PUTS.into(), tally: tally(220, 1, 4_000), wall: Duration::ZERO };
        let watched = Measurement { events: true, parts: vec![puts], ..run(1, 15, tally(440, 0, 0)) };
        for (name, limit, measurement, met) in [
            ("frozen", "p99=50ms", frozen(), false),
            ("open loop", "p99=50ms", Measurement { closed_loop: false, ..frozen() }, true),
            ("frozen", "p99=3s", frozen(), true),
            ("frozen", "p50=50ms", frozen(), true),
            ("stops", "p99=100ms", stops(), false),
            ("long", "p99=1600ms", long(), true),
            ("few", "p95=50ms", few(), false),
            ("few", "p85=50ms", few(), true),
            ("calls end by a time limit", "p98=3s", late(2), false),
            ("calls end by a time limit", "p98=3s", late(1), true),
            ("calls end by a time limit", "p99=3s", late(100), false),
            ("watch", "p99=500ms", watched.clone(), false),
            ("watch", "p50=500ms", watched, true),
        ] {
            let result = limit.parse::<Limit>().unwrap().of(&measurement);
            assert_eq!(result.met, met, "{name} {limit}");
            let says_why = ["corrected for requests", "a time limit aborted"]
                .iter()
                .any(|why| result.text().contains(why));
            assert!(met || says_why, "{name} {limit}: {}", result.text());
        }
    }

    #[test]
    fn a_corrected_percentile_names_the_clients_that_waited() {
        let mut tally = Tally::new();
        (0..200_000).for_each(|_| tally.succeeded(1, Duration::from_millis(2), 0));
        (0..20).for_each(|_| tally.succeeded(1, Duration::from_millis(2_100), 0));
        let wall = Duration::from_secs(10);
        let measurement =
            Measurement { tally, closed_loop: true, clients: 60, wall, ..Measurement::default() };
        let text = "p99=10ms".parse::<Limit>().unwrap().of(&measurement).text();
        assert!(text.contains("20 of 60 clients did not send while waiting"), "{text}");
    }

    #[test]
    fn a_limit_of_errors_is_that_of_the_exit_status_unless_the_flag_is_given() {
        let mut tally = Tally::new();
        tally.succeeded(1, Duration::from_millis(2), 0);
        tally.failed_times(&CallFailure::unavailable("gone"), 3);
        let measurement = Measurement { tally, ..Measurement::default() };
        for (slo, flag, said) in [
            ("", None, ""),
            ("errors=5", None, "errors=5 met"),
            ("errors=5,errors=2", None, "errors=5 met, errors=2 missed"),
            ("errors=5", Some(2), "errors=5 met, errors=2 missed"),
            ("p50=1s", None, "p50=1000ms met, errors=0 missed"),
            ("p50=1s", Some(3), "p50=1000ms met"),
        ] {
            let slo: Vec<Limit> =
                slo.split(',').filter(|it| !it.is_empty()).map(|limit| limit.parse().unwrap()).collect();
            let results = results(&slo, errors_max(flag, &slo), &measurement);
            let word = |it: &LimitResult| format!("{} {}", it.limit, if it.met { "met" } else { "missed" });
            let words: Vec<_> = results.iter().map(word).collect();
            assert_eq!(words.join(", "), said, "{slo:?} {flag:?}");
        }
        assert_eq!((errors_max(None, &[]), errors_max(None, &[Limit::Errors(5)])), (0, 5));
    }
}
