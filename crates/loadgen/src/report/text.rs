//! The report on the terminal: etcd's layout to the letter, with lines of our own only behind it.

use crate::server::ServerFigures;
use crate::summary::{BAR_MAX, Sample, Summary};
use std::fmt::Write;

/// How numbers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Four decimals.
    Four,
    /// As many digits as it takes.
    Full,
}

/// What a report shows beyond its fixed part.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub precision: Precision,
    pub timeline: Timeline,
}

/// Whether the figures of each second follow the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeline {
    Shown,
    Hidden,
}

/// The text of a report.
pub fn text(summary: &Summary, server: Option<&ServerFigures>, options: Options) -> String {
    let mut out = String::new();
    if let Some(reason) = &summary.partial {
        let done = summary.succeeded + summary.failed;
        line(&mut out, format_args!("\nPartial: {done} of {} requests ({reason})", summary.planned));
    }
    if summary.succeeded > 0 {
        append_summary(&mut out, summary, options.precision);
        append_histogram(&mut out, summary, options.precision);
        append_distribution(&mut out, summary, options.precision);
        if options.timeline == Timeline::Shown {
            append_timeline(&mut out, &summary.timeline);
        }
    }
    append_errors(&mut out, summary);
    if summary.succeeded > 0 {
        let cpu = summary.client_cpu_micros_per_request;
        line(&mut out, format_args!("\nClient:\n  CPU:\t{cpu:.1} µs per request."));
    }
    if let Some(server) = server.filter(|_| summary.succeeded > 0) {
        append_server(&mut out, server, summary.succeeded);
    }
    out
}

fn append_summary(out: &mut String, summary: &Summary, precision: Precision) {
    line(out, format_args!("\nSummary:"));
    for (name, seconds) in [
        ("Total", summary.total_seconds),
        ("Slowest", summary.slowest_seconds),
        ("Fastest", summary.fastest_seconds),
        ("Average", summary.average_seconds),
        ("Stddev", summary.stddev_seconds),
    ] {
        line(out, format_args!("  {name}:\t{} secs.", precision.show(seconds)));
    }
    line(out, format_args!("  Requests/sec:\t{}", precision.show(summary.requests_per_second)));
}

fn append_histogram(out: &mut String, summary: &Summary, precision: Precision) {
    line(out, format_args!("\nResponse time histogram:"));
    let most = summary.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    for bucket in &summary.histogram {
        let bar = (bucket.count * BAR_MAX).checked_div(most).unwrap_or(0);
        let bar = "∎".repeat(bar as usize);
        line(out, format_args!("  {} [{}]\t|{bar}", precision.show(bucket.limit_seconds), bucket.count));
    }
}

fn append_distribution(out: &mut String, summary: &Summary, precision: Precision) {
    line(out, format_args!("\nLatency distribution:"));
    for percentile in summary.percentiles.iter().filter(|percentile| percentile.seconds > 0.0) {
        line(out, format_args!("  {}% in {} secs.", percentile.percent, precision.show(percentile.seconds)));
    }
    line(out, format_args!("  max in {} secs.", precision.show(summary.slowest_seconds)));
}

/// The header speaks of milliseconds, the cells carry their own unit: as etcd's tool has it.
fn append_timeline(out: &mut String, timeline: &[Sample]) {
    line(out, format_args!("\nSample in one second (unix latency throughput):"));
    line(out, format_args!("UNIX-SECOND,MIN-LATENCY-MS,AVG-LATENCY-MS,MAX-LATENCY-MS,AVG-THROUGHPUT"));
    for sample in timeline {
        let [least, mean, greatest] = [sample.least_ns, sample.mean_ns, sample.greatest_ns].map(go_duration);
        line(out, format_args!("{},{least},{mean},{greatest},{}", sample.unix_second, sample.count));
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

fn append_server(out: &mut String, server: &ServerFigures, requests: u64) {
    line(out, format_args!("\nServer:"));
    let cpu = server.cpu_seconds() * 1e6 / requests as f64;
    line(out, format_args!("  CPU:\t{cpu:.1} µs per request, all processes."));
    if let Some(written) = server.bytes_written() {
        let written = written as f64 / requests as f64;
        line(out, format_args!("  Written:\t{written:.0} bytes per request, all processes."));
    }
    for process in &server.processes {
        let cpu = process.cpu_seconds * 1e6 / requests as f64;
        let rss = process.resident_bytes as f64 / 1e6;
        line(out, format_args!("  {}:\t{cpu:.1} µs per request, RSS {rss:.0} MB.", process.name));
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String grows");
}

impl Precision {
    fn show(self, number: f64) -> String {
        match self {
            Precision::Four => format!("{number:.4}"),
            Precision::Full => go_general(number),
        }
    }
}

/// Go's `%g`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e21 on.
fn go_general(number: f64) -> String {
    if number != 0.0 && !(1e-4..1e21).contains(&number.abs()) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').expect("scientific notation holds an e");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number}")
}

/// Go's way to print a duration of at most some seconds: one unit and as many decimals as it takes.
fn go_duration(nanos: u64) -> String {
    match nanos {
        0 => "0s".into(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{}µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{}ms", nanos as f64 / 1e6),
        _ => {
            let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
            let seconds = rest as f64 / 1e9;
            match minutes {
                0 => format!("{seconds}s"),
                1..60 => format!("{minutes}m{seconds}s"),
                _ => format!("{}h{}m{seconds}s", minutes / 60, minutes % 60),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Code, Failure};
    use crate::recorder::Tally;
    use crate::run::Measurement;
    use crate::server::ProcessFigures;
    use std::time::Duration;

    const SHORT: Options = Options { precision: Precision::Four, timeline: Timeline::Hidden };

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
  Fastest:\t0.0000 secs.
  Average:\t0.0005 secs.
  Stddev:\t0.0003 secs.
  Requests/sec:\t2000.0000

Response time histogram:
  0.0000 [1]\t|
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
    fn the_layout_is_etcds_with_our_lines_behind_it() {
        assert_eq!(text(&Summary::of(&measurement()), None, SHORT), GOLDEN);
    }

    #[test]
    fn errors_follow_the_distribution_grouped_by_code() {
        let mut measurement = measurement();
        for _ in 0..3 {
            measurement.tally.failed(&Failure::unavailable("etcdserver: no leader"));
        }
        measurement.tally.failed(&Failure::new(Code(8), "etcdserver: too many requests"));
        let text = text(&Summary::of(&measurement), None, SHORT);
        let expected = "\nError distribution:\n  [1]\tResourceExhausted: etcdserver: too many requests\n  \
                        [3]\tUnavailable: etcdserver: no leader\n\nClient:\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn without_any_success_only_the_errors_are_shown() {
        let mut measurement = Measurement { tally: Tally::new(), ..measurement() };
        measurement.tally.failed(&Failure::unavailable("etcdserver: no leader"));
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
        let options = Options { timeline: Timeline::Shown, ..SHORT };
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
            resident_bytes: 30_000_000,
            resident_peak_bytes: Some(40_000_000),
            bytes_written: Some(150_000),
        };
        let server = ServerFigures { processes: vec![process("a"), process("b")] };
        let text = text(&Summary::of(&measurement()), Some(&server), SHORT);
        let expected = "\nServer:\n  CPU:\t40.0 µs per request, all processes.\n  \
                        Written:\t300 bytes per request, all processes.\n  \
                        a:\t20.0 µs per request, RSS 30 MB.\n  b:\t20.0 µs per request, RSS 30 MB.\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn numbers_are_printed_as_go_prints_them() {
        for (number, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.0166, "0.0166"),
            (3625.2074, "3625.2074"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (1e21, "1e+21"),
        ] {
            assert_eq!(go_general(number), expected);
        }
        for (nanos, expected) in [
            (0, "0s"),
            (15, "15ns"),
            (1_500, "1.5µs"),
            (1_111_972, "1.111972ms"),
            (2_000_000_000, "2s"),
            (61_500_000_000, "1m1.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(nanos), expected);
        }
    }
}
