//! CSV with a line per metric, for spreadsheets and data frames.
//!
//! ```text
//!   suite,row,side,round,metric,unit,value
//!   docs-3.2,put-1000-leader,etcd,2,requests_per_second,,9123.4
//!   docs-3.2,put-1000-leader,etcd,median,requests_per_second,,9100.2
//!   docs-3.2,put-1000-leader,published: etcd 3.2.0,,requests_per_second,,44341
//! ```

use crate::metric::{METRICS, Metric, Metrics, Middle};
use crate::model::{LatencyKind, PublishedFigure, Report, RowResult, SearchVerdict, SuiteResult};

const HEADING: &str = "suite,row,side,round,metric,unit,value\n";

pub fn csv(report: &Report) -> String {
    let mut out = String::from(HEADING);
    for suite in &report.suites {
        for row in &suite.rows {
            let mut lines = CsvRow { out: &mut out, suite, row };
            for published in &row.published {
                lines.published(published);
            }
            for (side, result) in report.sides.iter().zip(&row.sides) {
                for (number, round) in result.rounds.iter().enumerate() {
                    lines.metrics(&side.name, &(number + 1).to_string(), &round.metrics);
                }
                if let Some(median) = &result.median {
                    let middle = if row.method.rounds_as == Middle::Mean { "mean" } else { "median" };
                    lines.metrics(&side.name, middle, median);
                }
            }
        }
    }
    if let Some(verdict) = &report.search {
        search(&mut out, verdict);
    }
    out
}

/// Writes the result of a search: `rates,highest,p99=10ms,,requests_per_second,,6500`.
fn search(out: &mut String, verdict: &SearchVerdict) {
    for (key, value) in [
        ("requests_per_second", verdict.requests_per_second),
        ("at_least", verdict.at_least),
        ("at_most", verdict.at_most),
        ("generator_limit", verdict.generator_limit),
        ("settled", Some(f64::from(u8::from(verdict.settled)))),
    ] {
        if let Some(value) = value {
            let fields = ["rates", "highest", &verdict.limit, "", key, "", &value.to_string()];
            out.push_str(&fields.map(field).join(","));
            out.push('\n');
        }
    }
}

/// Writer of a row's lines.
struct CsvRow<'a> {
    out: &'a mut String,
    suite: &'a SuiteResult,
    row: &'a RowResult,
}

impl CsvRow<'_> {
    fn metrics(&mut self, side: &str, round: &str, metrics: &Metrics) {
        for Metric { key, unit, get, .. } in METRICS {
            if let Some(value) = get(metrics) {
                self.line(side, round, key, unit, value);
            }
        }
    }

    fn published(&mut self, published: &PublishedFigure) {
        let side = format!("published: {}", published.subject);
        let latency = match published.latency_kind {
            LatencyKind::Mean => "mean_ms",
            LatencyKind::P90 => "p90_ms",
        };
        for (key, unit, value) in [
            ("requests_per_second", "", published.requests_per_second),
            (latency, "ms", published.latency_ms),
            ("resident_mb", "MB", published.resident_mb),
        ] {
            if let Some(value) = value {
                self.line(&side, "", key, unit, value);
            }
        }
    }

    fn line(&mut self, side: &str, round: &str, key: &str, unit: &str, value: f64) {
        let value = value.to_string();
        let fields = [self.suite.id.as_str(), &self.row.id, side, round, key, unit, &value];
        self.out.push_str(&fields.map(field).join(","));
        self.out.push('\n');
    }
}

/// Quotes a field if necessary (RFC 4180), and prevents spreadsheets from reading it as a formula.
fn field(text: &str) -> String {
    let formula =
        text.starts_with(['=', '+', '@', '\t']) || (text.starts_with('-') && text.parse::<f64>().is_err());
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_memory_is_a_mean_and_no_peak() {
        let text = include_str!("../../tests/data/report.json");
        let mut report: Report = serde_json::from_str(text).unwrap();
        let row = &mut report.suites[0].rows[1];
        row.published[0].resident_mb = Some(124.0);
        let line = format!(",{},\"published: {}\",,resident_mb,MB,124\n", row.id, row.published[0].subject);
        let out = csv(&report);
        assert!(out.contains(&line), "{line}");
    }

    #[test]
    fn the_answer_of_a_search_is_in_the_file() {
        let verdict = SearchVerdict {
            limit: "p99=10ms".into(),
            requests_per_second: Some(6500.0),
            at_least: Some(6000.0),
            trials: 9,
            ..SearchVerdict::default()
        };
        let mut out = String::new();
        search(&mut out, &verdict);
        let expected = "rates,highest,p99=10ms,,requests_per_second,,6500\n\
                        rates,highest,p99=10ms,,at_least,,6000\nrates,highest,p99=10ms,,settled,,0\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("=1+1", "'=1+1"),
            ("-3.5", "-3.5"),
            ("-x", "'-x"),
        ] {
            assert_eq!(field(text), expected);
        }
    }
}
