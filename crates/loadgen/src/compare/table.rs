//! The figures of a comparison: rounds, medians, ratios, and their Markdown.

use super::row::Row;
use super::{Plan, Program};
use crate::server::ServerFigures;
use crate::summary::Summary;
use serde::Serialize;
use std::fmt::Write;

/// Everything that was measured; grows round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub names: [String; 2],
    /// As the servers state them; empty before they were asked.
    pub versions: [String; 2],
    pub members: usize,
    pub rounds: usize,
    pub rows: Vec<RowResult>,
    /// Why it ended early, if it did.
    pub partial: Option<String>,
}

/// One row on both programs.
#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    pub name: String,
    pub total: u64,
    pub conns: usize,
    pub clients: usize,
    pub keys_expected: i64,
    pub sides: [SideResult; 2],
}

/// One program on one row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SideResult {
    /// One per round.
    pub rounds: Vec<Figures>,
    /// The middle of the rounds, figure by figure; `None` before the first round.
    pub median: Option<Figures>,
    /// Keys in the store after the row.
    pub keys: Option<i64>,
}

/// Figures of one run, or medians of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub requests_per_second: f64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
    /// All members together.
    pub server_cpu_micros: f64,
    pub client_cpu_micros: f64,
    /// Of the largest member, at the end of the run.
    pub resident_mb: f64,
    /// All members together, per request.
    pub written_bytes: f64,
    pub errors: f64,
}

type Get = fn(&Figures) -> f64;

/// Every figure with its heading and decimals.
const FIGURES: [(&str, usize, Get); 11] = [
    ("requests/s", 0, |f| f.requests_per_second),
    ("mean ms", 2, |f| f.mean_ms),
    ("p50 ms", 2, |f| f.p50_ms),
    ("p99 ms", 2, |f| f.p99_ms),
    ("p99.9 ms", 2, |f| f.p999_ms),
    ("max ms", 2, |f| f.max_ms),
    ("server CPU µs/request", 1, |f| f.server_cpu_micros),
    ("client CPU µs/request", 1, |f| f.client_cpu_micros),
    ("RSS MB, largest member", 0, |f| f.resident_mb),
    ("bytes written/request", 0, |f| f.written_bytes),
    ("errors", 0, |f| f.errors),
];

impl Figures {
    pub fn of(summary: &Summary, server: &ServerFigures) -> Self {
        let requests = summary.succeeded as f64;
        // Too few requests to tell a percentile: the slowest is the honest upper bound.
        let percentile = |percent| summary.percentile(percent).unwrap_or(summary.slowest_seconds) * 1e3;
        Self {
            requests_per_second: summary.requests_per_second,
            mean_ms: summary.average_seconds * 1e3,
            p50_ms: percentile(50.0),
            p99_ms: percentile(99.0),
            p999_ms: percentile(99.9),
            max_ms: summary.slowest_seconds * 1e3,
            server_cpu_micros: server.cpu_seconds() * 1e6 / requests,
            client_cpu_micros: summary.client_cpu_micros_per_request,
            resident_mb: server.resident_bytes_max() as f64 / 1e6,
            written_bytes: server.bytes_written().unwrap_or(0) as f64 / requests,
            errors: summary.failed as f64,
        }
    }

    fn median(rounds: &[Figures]) -> Option<Figures> {
        let middle = |get: Get| median(rounds.iter().map(get).collect());
        (!rounds.is_empty()).then(|| Figures {
            requests_per_second: middle(|f| f.requests_per_second),
            mean_ms: middle(|f| f.mean_ms),
            p50_ms: middle(|f| f.p50_ms),
            p99_ms: middle(|f| f.p99_ms),
            p999_ms: middle(|f| f.p999_ms),
            max_ms: middle(|f| f.max_ms),
            server_cpu_micros: middle(|f| f.server_cpu_micros),
            client_cpu_micros: middle(|f| f.client_cpu_micros),
            resident_mb: middle(|f| f.resident_mb),
            written_bytes: middle(|f| f.written_bytes),
            errors: rounds.iter().map(|f| f.errors).sum(),
        })
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

impl Comparison {
    /// An empty one, or why the plan makes no sense.
    pub fn new(plan: &Plan) -> Result<Self, String> {
        if plan.members == 0 {
            return Err("--members=0 leaves nothing to measure".into());
        }
        if plan.rounds == 0 || plan.rows.is_empty() {
            return Err("without rows and rounds nothing is measured".into());
        }
        let names = plan.programs.each_ref().map(|Program { name, .. }| name.clone());
        let (members, rounds) = (plan.members, plan.rounds);
        Ok(Self { names, versions: Default::default(), members, rounds, rows: Vec::new(), partial: None })
    }

    pub(super) fn add(&mut self, row: &Row, side: usize, figures: Figures) {
        let side = &mut self.row(row).sides[side];
        side.rounds.push(figures);
        side.median = Figures::median(&side.rounds);
    }

    pub(super) fn set_keys(&mut self, row: &Row, side: usize, keys: i64) {
        self.row(row).sides[side].keys = Some(keys);
    }

    fn row(&mut self, row: &Row) -> &mut RowResult {
        let known = self.rows.iter().position(|known| known.name == row.name);
        let index = known.unwrap_or_else(|| {
            self.rows.push(RowResult {
                name: row.name.clone(),
                total: row.total,
                conns: row.conns,
                clients: row.clients,
                keys_expected: row.keys_expected(),
                sides: Default::default(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Failed calls of all rounds, and one for each store that does not hold what it should.
    pub fn errors(&self) -> u64 {
        let sides = self.rows.iter().flat_map(|row| row.sides.iter().map(move |side| (row, side)));
        sides
            .map(|(row, side)| {
                let failed = side.median.map_or(0.0, |figures| figures.errors) as u64;
                failed + u64::from(side.keys.is_some_and(|keys| keys != row.keys_expected))
            })
            .sum()
    }

    /// A table of the ratios that matter most, then all figures of each row.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let [a, b] = &self.names;
        let [a_version, b_version] = &self.versions;
        let Self { members, rounds, .. } = self;
        line(&mut out, format_args!("# {a} and {b}, side by side\n"));
        line(
            &mut out,
            format_args!(
                "{a} {a_version}, {b} {b_version}; {members} members each, client and servers on one machine; medians of {rounds} rounds measured in turn.\n"
            ),
        );
        if let Some(reason) = &self.partial {
            line(&mut out, format_args!("**Partial: {reason}**\n"));
        }
        self.append_overview(&mut out);
        for row in &self.rows {
            self.append_row(&mut out, row);
        }
        out
    }

    fn append_overview(&self, out: &mut String) {
        let [a, b] = &self.names;
        line(
            out,
            format_args!(
                "| row | requests/s {a} | {b} | ratio | p50 ms {a} | {b} | p99 ms {a} | {b} | server CPU µs/request {a} | {b} | ratio |"
            ),
        );
        line(out, format_args!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"));
        for row in &self.rows {
            let [Some(a), Some(b)] = row.sides.each_ref().map(|side| side.median) else { continue };
            line(
                out,
                format_args!(
                    "| {} | {:.0} | {:.0} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {} |",
                    row.name,
                    a.requests_per_second,
                    b.requests_per_second,
                    ratio(a.requests_per_second, b.requests_per_second),
                    a.p50_ms,
                    b.p50_ms,
                    a.p99_ms,
                    b.p99_ms,
                    a.server_cpu_micros,
                    b.server_cpu_micros,
                    ratio(a.server_cpu_micros, b.server_cpu_micros),
                ),
            );
        }
    }

    fn append_row(&self, out: &mut String, row: &RowResult) {
        let [a_name, b_name] = &self.names;
        let RowResult { name, total, conns, clients, keys_expected, .. } = row;
        line(out, format_args!("\n## {name}: {total} requests, {conns} connections, {clients} clients\n"));
        let [Some(a), Some(b)] = row.sides.each_ref().map(|side| side.median) else {
            return line(out, format_args!("Not measured on both."));
        };
        line(
            out,
            format_args!("| | {a_name} | least … most | {b_name} | least … most | {a_name} ÷ {b_name} |"),
        );
        line(out, format_args!("|---|--:|--:|--:|--:|--:|"));
        for (heading, decimals, get) in FIGURES {
            let [a_spread, b_spread] = row.sides.each_ref().map(|side| spread(&side.rounds, decimals, get));
            let (a, b) = (get(&a), get(&b));
            let ratio = ratio(a, b);
            line(
                out,
                format_args!(
                    "| {heading} | {a:.decimals$} | {a_spread} | {b:.decimals$} | {b_spread} | {ratio} |"
                ),
            );
        }
        for (name, side) in self.names.iter().zip(&row.sides) {
            match side.keys {
                Some(keys) if keys != *keys_expected => {
                    line(out, format_args!("\n**{name} holds {keys} keys, expected {keys_expected}.**"));
                }
                _ => {}
            }
        }
    }
}

fn spread(rounds: &[Figures], decimals: usize, get: Get) -> String {
    let values = rounds.iter().map(get);
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(f64::NEG_INFINITY, f64::max);
    format!("{least:.decimals$} … {most:.decimals$}")
}

fn ratio(a: f64, b: f64) -> String {
    if b == 0.0 { "–".into() } else { format!("{:.2}", a / b) }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String grows");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows;

    fn figures(factor: f64) -> Figures {
        Figures {
            requests_per_second: 1000.0 * factor,
            mean_ms: 1.0,
            p50_ms: 0.5,
            p99_ms: 2.0,
            p999_ms: 3.0,
            max_ms: 4.0,
            server_cpu_micros: 100.0 / factor,
            client_cpu_micros: 20.0,
            resident_mb: 40.0,
            written_bytes: 2000.0,
            errors: 0.0,
        }
    }

    fn plan(rounds: usize) -> Plan {
        Plan {
            programs: ["ours=/a".parse().unwrap(), "theirs=/b".parse().unwrap()],
            members: 3,
            rounds,
            rows: rows(&["put-1".into()], 1.0).unwrap(),
            dir: ".".into(),
            threads: 1,
        }
    }

    fn comparison() -> Comparison {
        let plan = plan(3);
        let mut comparison = Comparison::new(&plan).unwrap();
        comparison.versions = ["1".into(), "2".into()];
        for factor in [1.0, 4.0, 3.0] {
            comparison.add(&plan.rows[0], 0, figures(factor));
            comparison.add(&plan.rows[0], 1, figures(1.0));
        }
        comparison
    }

    #[test]
    fn the_middle_value_is_the_median() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn markdown_holds_medians_spread_and_ratios() {
        let markdown = comparison().markdown();
        for expected in [
            "ours 1, theirs 2; 3 members each",
            "| put-1 | 3000 | 1000 | 3.00 | 0.50 | 0.50 | 2.00 | 2.00 | 33.3 | 100.0 | 0.33 |",
            "## put-1: 3000 requests, 1 connections, 1 clients",
            "| requests/s | 3000 | 1000 … 4000 | 1000 | 1000 … 1000 | 3.00 |",
            "| errors | 0 | 0 … 0 | 0 | 0 … 0 | – |",
        ] {
            assert!(markdown.contains(expected), "{expected}\n{markdown}");
        }
        assert!(!markdown.contains("**"), "{markdown}");
    }

    #[test]
    fn a_store_that_lost_keys_is_an_error_in_bold() {
        let mut comparison = comparison();
        let plan = plan(3);
        comparison.set_keys(&plan.rows[0], 0, 3001);
        assert_eq!(comparison.errors(), 0);
        comparison.set_keys(&plan.rows[0], 1, 2999);
        assert_eq!(comparison.errors(), 1);
        assert!(comparison.markdown().contains("**theirs holds 2999 keys, expected 3001.**"));
    }

    #[test]
    fn a_comparison_cut_short_says_so_and_keeps_its_rounds() {
        let mut comparison = comparison();
        comparison.partial = Some("interrupted".into());
        let markdown = comparison.markdown();
        assert!(markdown.contains("**Partial: interrupted**") && markdown.contains("| 3000 |"), "{markdown}");
    }

    #[test]
    fn plans_that_measure_nothing_are_refused() {
        assert!(Comparison::new(&plan(0)).is_err());
        assert!(Comparison::new(&Plan { members: 0, ..plan(1) }).is_err());
        assert!(Comparison::new(&Plan { rows: Vec::new(), ..plan(1) }).is_err());
    }
}
