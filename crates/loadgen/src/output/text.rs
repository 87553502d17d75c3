//! The text output of a run: etcd's exact layout, followed by additional lines.

use crate::output::summary::{BAR_MAX, SecondSample, Summary, UnansweredSummary};
use crate::server::ServerFigures;
use bench_report::model::{NoteLevel, Notice};
use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

/// Optional parts of the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// Prints the fewest digits that read back as the same number, without an exponent, instead of four
    /// decimals.
    pub precise: bool,
    /// Prints per-second statistics after the distribution.
    pub timeline: bool,
}

/// Formats a report.
pub fn text(summary: &Summary, server: Option<&ServerFigures>, options: TextOptions) -> String {
    let mut out = String::new();
    if let Some(reason) = &summary.partial {
        let done = summary.succeeded + summary.failed;
        line(&mut out, format_args!("\nPartial: {done} of {} requests ({reason})", summary.planned));
    }
    if summary.parts.is_empty() {
        append_report(&mut out, summary, options);
    }
    for part in &summary.parts {
        line(&mut out, format_args!("\n{}", part.title));
        append_report(&mut out, &part.summary, options);
    }
    if summary.succeeded > 0 {
        let cpu = summary.client_cpu_micros_per_request;
        line(&mut out, format_args!("\nClient:\n  CPU:\t{cpu:.1} µs per {}.", summary.unit));
    }
    if let Some(server) = server.filter(|_| summary.succeeded > 0) {
        append_server(&mut out, server, summary);
    }
    out
}

fn append_report(out: &mut String, summary: &Summary, options: TextOptions) {
    let counted = !summary.histogram.is_empty();
    if counted {
        append_summary(out, summary, options);
        append_histogram(out, summary, options);
        append_distribution(out, summary, options);
        if options.timeline {
            append_timeline(out, &summary.timeline);
        }
    }
    if summary.retries > 0 {
        let each = summary.retries as f64 / summary.succeeded.max(1) as f64;
        line(out, format_args!("\nRetries after conflicts: {}, {each:.2} per transaction.", summary.retries));
    }
    append_errors(out, summary);
    if !counted {
        append_failed_calls(out, summary, options);
    }
}

/// Formats warnings about the metrics. Failed calls are already in the text.
pub fn notices(notices: &[Notice]) -> String {
    let mut out = String::new();
    for notice in notices {
        match notice.level {
            NoteLevel::Error => {}
            NoteLevel::Warning => line(&mut out, format_args!("\nWarning: {}.", notice.text)),
            NoteLevel::Remark => line(&mut out, format_args!("\nRemark: {}.", notice.text)),
        }
    }
    out
}

/// Formats an error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| (*cause).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn append_summary(out: &mut String, summary: &Summary, options: TextOptions) {
    line(out, format_args!("\nSummary:"));
    for (name, seconds) in [
        ("Total", summary.total_seconds),
        ("Slowest", summary.slowest_seconds),
        ("Fastest", summary.fastest_seconds),
        ("Average", summary.average_seconds),
        ("Stddev", summary.stddev_seconds),
    ] {
        line(out, format_args!("  {name}:\t{}.", options.time(seconds)));
    }
    line(out, format_args!("  Requests/sec:\t{}", options.show(summary.requests_per_second)));
}

fn append_histogram(out: &mut String, summary: &Summary, options: TextOptions) {
    line(out, format_args!("\nResponse time histogram:"));
    let most = summary.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    for bucket in &summary.histogram {
        let bar = (bucket.count * BAR_MAX).checked_div(most).unwrap_or(0);
        let bar = "∎".repeat(bar as usize);
        let limit = options.time(bucket.limit_seconds);
        let limit = limit.trim_end_matches(" secs");
        line(out, format_args!("  {limit} [{}]\t|{bar}", bucket.count));
    }
}

fn append_distribution(out: &mut String, summary: &Summary, options: TextOptions) {
    line(out, format_args!("\nLatency distribution:"));
    for percentile in summary.percentiles.iter().filter(|percentile| percentile.seconds > 0.0) {
        line(out, format_args!("  {}% in {}.", percentile.percent, options.time(percentile.seconds)));
    }
    line(out, format_args!("  max in {}.", options.time(summary.slowest_seconds)));
    if let Some(UnansweredSummary { count, unsent, waited_most_seconds }) = summary.unanswered {
        let waited = options.time(waited_most_seconds);
        line(
            out,
            format_args!(
                "  Among these are {count} {}s without a reply when the run ended, {unsent} of them not even \
                 sent,\n  with the time that they had waited: up to {waited}.",
                summary.unit
            ),
        );
    }
    append_failed_calls(out, summary, options);
}

/// Appends the durations of failed calls, which percentiles exclude unless they are counted.
fn append_failed_calls(out: &mut String, summary: &Summary, options: TextOptions) {
    let Some(calls) = summary.failed_calls else { return };
    let place = match calls.counted {
        0 => "are not among these".to_owned(),
        counted if counted == summary.failed => "are among these".to_owned(),
        counted => format!("are not among these, except {counted} that timed out"),
    };
    let [average, p50, p99, most] =
        [calls.average_seconds, calls.p50_seconds, calls.p99_seconds, calls.slowest_seconds]
            .map(|seconds| options.time(seconds));
    line(
        out,
        format_args!(
            "  {} failed calls {place}. They failed after {average} on average;\n  \
             of them 50% in {p50}, 99% in {p99}, max in {most}.",
            summary.failed
        ),
    );
}

/// Appends the timeline. The header specifies milliseconds but the cells have units, like in etcd's tool.
fn append_timeline(out: &mut String, timeline: &[SecondSample]) {
    line(out, format_args!("\nSample in one second (unix latency throughput):"));
    line(out, format_args!("UNIX-SECOND,MIN-LATENCY-MS,AVG-LATENCY-MS,MAX-LATENCY-MS,AVG-THROUGHPUT"));
    for sample in timeline {
        let [least, mean, greatest] =
            [sample.least_ns, sample.mean_ns, sample.greatest_ns].map(Duration::from_nanos);
        line(out, format_args!("{},{least:?},{mean:?},{greatest:?},{}", sample.unix_second, sample.count));
    }
}

fn append_errors(out: &mut String, summary: &Summary) {
    if summary.errors.is_empty() {
        return;
    }
    line(out, format_args!("\nError distribution:"));
    for group in &summary.errors {
        line(out, format_args!("  [{}]\t{}: {}", group.count, group.code, group.sample));
    }
}

fn append_server(out: &mut String, server: &ServerFigures, summary: &Summary) {
    let (requests, unit) = (summary.succeeded, summary.unit);
    line(out, format_args!("\nServer:"));
    let cpu = server.cpu_seconds() * 1e6 / requests as f64;
    let coverage = server.coverage();
    line(out, format_args!("  CPU:\t{cpu:.1} µs per {unit}, {coverage}."));
    if let Some(written) = server.bytes_written() {
        let written = written as f64 / requests as f64;
        line(out, format_args!("  Written:\t{written:.0} bytes per {unit}, {coverage}."));
    }
    for process in &server.processes {
        let cpu = process.cpu_seconds * 1e6 / requests as f64;
        let rss = process.resident_bytes as f64 / 1e6;
        line(out, format_args!("  {}:\t{cpu:.1} µs per {unit}, RSS {rss:.0} MB.", process.name));
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String grows");
}

impl TextOptions {
    /// A time with its unit: seconds as in etcd's tool, or microseconds where those would be 0.0000.
    fn time(self, seconds: f64) -> String {
        let shown = self.show(seconds);
        match shown == "0.0000" && seconds > 0.0 {
            true => format!("{:.1} µs", seconds * 1e6),
            false => format!("{shown} secs"),
        }
    }

    fn show(self, number: f64) -> String {
        if self.precise { number.to_string() } else { format!("{number:.4}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::failure::{CallFailure, Code};
    use crate::run::recorder::{CallSample, FailedCalls, Tally};
    use crate::run::results::Measurement;
    use crate::server::ProcessFigures;

    const SHORT: TextOptions = TextOptions { precise: false, timeline: false };

    fn measurement() -> Measurement {
        let mut tally = Tally::new();
        for latency in 1..=1000 {
            let latency = Duration::from_micros(latency);
            tally.succeeded(1_700_000_000, latency, 28);
        }
        Measurement {
            tally,
            wall: Duration::from_millis(500),
            client_cpu: Duration::from_millis(12),
            planned: 1000,
            ..Measurement::default()
        }
    }

    const GOLDEN: &str = "
Summary:
  Total:\t0.5000 secs.
  Slowest:\t0.0010 secs.
  Fastest:\t1.0 µs.
  Average:\t0.0005 secs.
  Stddev:\t0.0003 secs.
  Requests/sec:\t2000.0000

Response time histogram:
  1.0 µs [1]\t|
  0.0001 [99]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0002 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0003 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0004 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0005 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0006 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0007 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0008 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0009 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎
  0.0010 [100]\t|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎

Latency distribution:
  10% in 0.0001 secs.
  25% in 0.0003 secs.
  50% in 0.0005 secs.
  75% in 0.0008 secs.
  90% in 0.0009 secs.
  95% in 0.0010 secs.
  99% in 0.0010 secs.
  99.9% in 0.0010 secs.
  max in 0.0010 secs.

Client:
  CPU:\t12.0 µs per request.
";

    #[test]
    fn the_layout_is_etcds_followed_by_additional_lines() {
        assert_eq!(text(&Summary::of(&measurement()), None, SHORT), GOLDEN);
    }

    #[test]
    fn errors_follow_the_distribution_grouped_by_code() {
        let mut measurement = measurement();
        for _ in 0..3 {
            measurement.tally.failed(&CallFailure::unavailable("etcdserver: no leader"));
        }
        measurement.tally.failed(&CallFailure::new(Code(8), "etcdserver: too many requests"));
        let text = text(&Summary::of(&measurement), None, SHORT);
        let expected = "\nError distribution:\n  [1]\tResourceExhausted: etcdserver: too many requests\n  \
                        [3]\tUnavailable: etcdserver: no leader\n\nClient:\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn failed_calls_stand_next_to_the_percentiles_and_unanswered_ones_are_among_them() {
        let mut measurement = measurement();
        let late = CallFailure::new(Code::DEADLINE_EXCEEDED, "no answer within 2s");
        let unix_second = *measurement.tally.seconds.first_key_value().unwrap().0;
        let wait = |seconds| {
            let latency = Duration::from_secs(seconds);
            CallSample { unix_second, began: Duration::ZERO, latency, service: latency, body_bytes: 0 }
        };
        measurement.tally.failed_at(6, &CallFailure::unavailable("gone"), &wait(2), FailedCalls::Apart);
        measurement.tally.failed_at(7, &late, &wait(2), FailedCalls::Apart);
        measurement.tally.unanswered(8, &wait(3));
        measurement.tally.unsent(&wait(1));
        let text = text(&Summary::of(&measurement), None, SHORT);
        let expected = "  99.9% in 3.0000 secs.
  max in 3.0000 secs.
  Among these are 2 requests without a reply when the run ended, 1 of them not even sent,
  with the time that they had waited: up to 3.0000 secs.
  2 failed calls are not among these, except 1 that timed out. They failed after 2.0002 secs on average;
  of them 50% in 2.0007 secs, 99% in 2.0007 secs, max in 2.0007 secs.
";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn without_any_success_only_the_errors_are_shown() {
        let mut measurement = Measurement { tally: Tally::new(), ..measurement() };
        measurement.tally.failed(&CallFailure::unavailable("etcdserver: no leader"));
        let text = text(&Summary::of(&measurement), None, SHORT);
        assert_eq!(text, "\nError distribution:\n  [1]\tUnavailable: etcdserver: no leader\n");
    }

    #[test]
    fn a_partial_run_says_so_first() {
        let measurement = Measurement { planned: 5000, partial: Some("interrupted".into()), ..measurement() };
        let text = text(&Summary::of(&measurement), None, SHORT);
        assert!(text.starts_with("\nPartial: 1000 of 5000 requests (interrupted)\n\nSummary:\n"), "{text}");
    }

    #[test]
    fn each_second_is_a_line_of_the_sample() {
        let options = TextOptions { timeline: true, ..SHORT };
        let text = text(&Summary::of(&measurement()), None, options);
        let expected = "\nSample in one second (unix latency throughput):\n\
                        UNIX-SECOND,MIN-LATENCY-MS,AVG-LATENCY-MS,MAX-LATENCY-MS,AVG-THROUGHPUT\n\
                        1700000000,1µs,500.5µs,1ms,1000\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_servers_part_is_per_request() {
        let process = |name: &str| ProcessFigures {
            name: name.into(),
            cpu_seconds: 0.02,
            user_seconds: None,
            resident_bytes: 30_000_000,
            resident_peak_bytes: Some(40_000_000),
            bytes_written: Some(150_000),
        };
        for (members, coverage) in [
            (Some(2), "all 2 members"),
            (Some(3), "2 of 3 members; that of the others is unknown"),
            (None, "of 2 processes"),
        ] {
            let server = ServerFigures { processes: vec![process("a"), process("b")], members };
            let text = text(&Summary::of(&measurement()), Some(&server), SHORT);
            let expected = format!(
                "\nServer:\n  CPU:\t40.0 µs per request, {coverage}.\n  \
                 Written:\t300 bytes per request, {coverage}.\n  \
                 a:\t20.0 µs per request, RSS 30 MB.\n  b:\t20.0 µs per request, RSS 30 MB.\n"
            );
            assert!(text.ends_with(&expected), "{text}");
        }
    }

    #[test]
    fn full_precision_prints_the_shortest_digits_that_read_back() {
        for (number, expected) in
            [(0.0, "0"), (0.0166, "0.0166"), (3625.2074, "3625.2074"), (0.00001234, "0.00001234")]
        {
            assert_eq!(TextOptions { precise: true, ..SHORT }.show(number), expected);
        }
    }
}
