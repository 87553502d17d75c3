//! Published write-ups as data: the load of each of their rows, and the published results.
//!
//! ```text
//!   suites/*.json ──parse──▶ Suite ── rows ──scale──▶ Row as it is measured here
//! ```
//!
//! * There is a file per write-up. A row that was published with a single key is followed by a variant with
//!   as many keys as requests.
//! * Scaling shrinks totals only: sizes, connections, clients and targets stay as published, and the total
//!   of a row stays at least the number of its clients and the minimum for a percentile.
//!
//! Independent of how rows are measured.

use crate::metric::Middle;
use crate::model::{LatencyKind, Load, Method, PublishedChange, PublishedFigure, Sweep};
use serde::Deserialize;

/// Minimum total; below it a p99 would be the second slowest request.
const TOTAL_MIN: u64 = 200;
/// Minimum requests of each client in a run. With fewer, the first burst of all clients is most of the run.
pub const REQUESTS_PER_CLIENT_MIN: u64 = 5;
/// Default number of rounds.
pub const ROUNDS: usize = 3;

/// Write-ups by name; the last two are this project's.
const FILES: [(&str, &str); 7] = [
    ("docs-3.2", include_str!("../suites/docs-3.2.json")),
    ("docs-3.0", include_str!("../suites/docs-3.0.json")),
    ("v2.2-rc", include_str!("../suites/v2.2-rc.json")),
    ("arm-graviton2", include_str!("../suites/arm-graviton2.json")),
    ("ibm-pmem", include_str!("../suites/ibm-pmem.json")),
    (CORE, include_str!("../suites/core.json")),
    (COORDINATION, include_str!("../suites/coordination.json")),
];
/// Default suite.
pub const CORE: &str = "core";
/// Suite of watchers, leases, and transactions that depend on their reads.
pub const COORDINATION: &str = "coordination";

#[derive(Clone, Debug)]
pub struct Suite {
    pub id: String,
    pub title: String,
    pub about: String,
    pub source_url: Option<String>,
    pub rows: Vec<SuiteRow>,
}

#[derive(Clone, Debug)]
pub struct SuiteRow {
    pub id: String,
    pub title: String,
    /// Load; `total` is the published one until the row is scaled.
    pub load: Load,
    pub method: Method,
    /// True if the row writes as many keys as requests.
    pub distinct_keys: bool,
    /// Runs of the full total before the first round; 0: a tenth of a run.
    pub warm_up_runs: usize,
    /// The load continues until the members have measured the round trips between them.
    pub round_trips: bool,
    /// The members store their files in memory, so that no disk is measured.
    pub ram_disk: bool,
    pub published: Vec<PublishedFigure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    id: String,
    title: String,
    about: String,
    source_url: Option<String>,
    latency: LatencyKind,
    members: usize,
    #[serde(default)]
    rounds_as: Middle,
    rows: Vec<FileRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    id: String,
    title: String,
    load: Load,
    #[serde(default)]
    stored_value_bytes: usize,
    members: Option<usize>,
    #[serde(default)]
    warm_up_runs: usize,
    rounds: Option<usize>,
    #[serde(default)]
    round_trips: bool,
    #[serde(default)]
    ram_disk: bool,
    sweep: Option<Sweep>,
    published: Vec<FilePublished>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePublished {
    subject: String,
    requests_per_second: Option<f64>,
    latency_ms: Option<f64>,
    resident_mb: Option<f64>,
    remark: Option<String>,
    of: Option<String>,
    change: Option<PublishedChange>,
}

/// Returns the names of all suites in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Finds the suites with these names; `all` selects all write-ups, an empty list [`CORE`].
pub fn find(wanted: &[String]) -> Result<Vec<Suite>, String> {
    let mut found: Vec<Suite> = Vec::new();
    let default = [CORE.to_owned()];
    for name in if wanted.is_empty() { &default } else { wanted } {
        let matching: Vec<_> = FILES
            .iter()
            .filter(|(id, _)| id == name || (name == "all" && ![CORE, COORDINATION].contains(id)))
            .collect();
        if matching.is_empty() {
            let known: Vec<_> = names().collect();
            return Err(format!("there is no suite {name:?}, there are {} and all", known.join(", ")));
        }
        for (id, text) in matching {
            if !found.iter().any(|suite| suite.id == *id) {
                found.push(parse(text));
            }
        }
    }
    Ok(found)
}

fn parse(text: &str) -> Suite {
    let file: SuiteFile = serde_json::from_str(text).expect("the files are part of the program and tested");
    let rows = file.rows.iter().map(|row| row.read(&file)).collect();
    Suite { id: file.id, title: file.title, about: file.about, source_url: file.source_url, rows }
}

impl FileRow {
    fn read(&self, file: &SuiteFile) -> SuiteRow {
        let published = self.published.iter().map(|figure| PublishedFigure {
            subject: figure.subject.clone(),
            requests_per_second: figure.requests_per_second,
            latency_ms: figure.latency_ms,
            latency_kind: file.latency,
            resident_mb: figure.resident_mb,
            source_url: file.source_url.clone().unwrap_or_default(),
            remark: figure.remark.clone(),
            of: figure.of.clone(),
            change: figure.change.clone(),
        });
        SuiteRow {
            id: self.id.clone(),
            title: self.title.clone(),
            load: self.load.clone(),
            method: Method {
                members: self.members.unwrap_or(file.members),
                total_published: self.load.total,
                rounds: self.rounds.unwrap_or(ROUNDS),
                rounds_published: self.rounds,
                rounds_as: file.rounds_as,
                warm_up_total: 0,
                warm_up_published: self.load.total * self.warm_up_runs as u64,
                stored_value_bytes: self.stored_value_bytes,
                sweep: self.sweep.clone(),
            },
            distinct_keys: self.load.keys == self.load.total,
            warm_up_runs: self.warm_up_runs,
            round_trips: self.round_trips,
            ram_disk: self.ram_disk,
            published: published.collect(),
        }
    }
}

impl Suite {
    /// Retains the rows with these names; all of them if `rows` is empty.
    pub fn keep(&mut self, rows: &[String]) {
        if !rows.is_empty() {
            self.rows.retain(|row| rows.contains(&row.id));
        }
    }
}

impl SuiteRow {
    /// Returns the row with its total multiplied by `scale`, and with `rounds` rounds if given.
    pub fn scaled(&self, scale: f64, rounds: Option<usize>) -> SuiteRow {
        let mut row = self.clone();
        let published = row.method.total_published;
        // With a single request per client, the connections would be measured.
        let floor = TOTAL_MIN.min(published).max(REQUESTS_PER_CLIENT_MIN * row.load.clients as u64);
        row.load.total = ((published as f64 * scale).round() as u64).max(floor);
        row.load.keys = if row.distinct_keys { row.load.total } else { row.load.keys };
        row.method.rounds = rounds.unwrap_or(row.method.rounds);
        row.method.warm_up_total = match row.warm_up_runs {
            // A tenth of a run, bounded so that large rows start soon.
            0 => (row.load.total / 10).clamp(1, 10_000),
            runs => row.load.total * runs as u64,
        };
        row
    }

    pub fn warm_up_run_total(&self) -> u64 {
        self.method.warm_up_total / self.warm_up_runs.max(1) as u64
    }

    /// Reports whether the store is compared with the writes of the row.
    pub fn is_read_back(&self) -> bool {
        self.load.operation.writes() || self.load.operation.is_range()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn all() -> Vec<Suite> {
        find(&["all".into(), CORE.into(), COORDINATION.into()]).unwrap()
    }

    #[test]
    fn every_file_reads_and_names_each_row_once() {
        for suite in all() {
            let ids: HashSet<_> = suite.rows.iter().map(|row| &row.id).collect();
            assert_eq!(ids.len(), suite.rows.len(), "{}", suite.id);
            let ours = [CORE, COORDINATION].contains(&suite.id.as_str());
            assert!(ours || suite.source_url.is_some(), "{}", suite.id);
        }
    }

    #[test]
    fn every_published_figure_is_that_of_a_second_copy() {
        let mut seen = HashSet::new();
        for line in include_str!("../tests/data/published.txt").lines().filter(|line| !line.starts_with('#'))
        {
            let fields: Vec<&str> = line.split(' ').collect();
            let [suite, operation, value, conns, clients, target, total, figures @ ..] = &fields[..] else {
                panic!("{line}")
            };
            let number = |text: &str| text.parse::<f64>().ok();
            let suite = find(&[(*suite).to_owned()]).unwrap().remove(0);
            let is_meant = |row: &&SuiteRow| {
                let load = serde_json::to_value(&row.load).unwrap();
                let named = match load["serializable"].as_bool() {
                    Some(true) => "range-serializable",
                    None if load["operation"] == "range" => "range-linearizable",
                    Some(false) if load["operation"] == "range" => "range-linearizable",
                    _ => load["operation"].as_str().unwrap(),
                };
                let value_bytes = row.load.value_bytes.max(row.method.stored_value_bytes) as f64;
                let numbers = [("conns", conns), ("clients", clients), ("total", total)];
                let same = numbers.iter().all(|(key, text)| load[key].as_f64() == number(text));
                let same = same && Some(value_bytes) == number(value) && load["target"] == **target;
                same && named == *operation && !row.published.is_empty()
            };
            let rows: Vec<_> = suite.rows.iter().filter(is_meant).collect();
            assert_eq!(rows.len(), if suite.id == "v2.2-rc" { 2 } else { 1 }, "{line}");
            let typed: Vec<_> = figures.iter().map(|text| number(text)).collect();
            for row in rows {
                let place = row.published.iter().position(|figure| numbers(figure) == typed);
                let place = place.unwrap_or_else(|| panic!("{line}: {:?}", row.published));
                assert!(seen.insert((suite.id.clone(), row.id.clone(), place)), "{line}");
            }
        }
        for suite in all() {
            for row in &suite.rows {
                for (place, figure) in row.published.iter().enumerate() {
                    let is_known = seen.contains(&(suite.id.clone(), row.id.clone(), place));
                    let is_in_words = numbers(figure).iter().all(Option::is_none);
                    assert!(is_known || is_in_words, "{} {} {figure:?}", suite.id, row.id);
                }
            }
        }
    }

    fn numbers(figure: &PublishedFigure) -> Vec<Option<f64>> {
        let change = |of: fn(&PublishedChange) -> Option<f64>| figure.change.as_ref().and_then(of);
        vec![
            figure.requests_per_second,
            figure.latency_ms,
            figure.resident_mb,
            change(|change| change.rate_percent),
            change(|change| change.latency_percent),
        ]
    }

    #[test]
    fn published_changes_are_those_of_the_published_figures() {
        let suite = &find(&["arm-graviton2".into()]).unwrap()[0];
        let mut gains = Vec::new();
        for row in &suite.rows {
            assert_eq!(row.method.rounds_as, Middle::Mean, "the write-up has means of twenty runs");
            for figure in &row.published {
                let Some(change) = &figure.change else { continue };
                let is_base = |other: &&PublishedFigure| other.subject.contains(&format!("{} ", change.from));
                let base = row.published.iter().find(is_base).unwrap();
                let gain = figure.requests_per_second.unwrap() / base.requests_per_second.unwrap() - 1.0;
                assert_eq!(change.rate_percent, Some((gain * 100.0).round()), "{}", figure.subject);
                let faster = base.latency_ms.unwrap() / figure.latency_ms.unwrap() - 1.0;
                assert_eq!(change.latency_percent, Some(-(faster * 100.0).round()), "{}", figure.subject);
                gains.push(change.rate_percent.unwrap());
            }
        }
        assert_eq!(gains, [12.0, 18.0, 10.0, 8.0]);
        let rc = &find(&["v2.2-rc".into()]).unwrap()[0];
        let changes = rc.rows.iter().flat_map(|row| &row.published).filter_map(|it| it.change.as_ref());
        assert_eq!(changes.filter(|change| change.from == "etcd 2.1.0").count(), 40);
        let ibm = &find(&["ibm-pmem".into()]).unwrap()[0];
        let rows =
            ibm.rows.iter().flat_map(|row| &row.published).filter_map(|it| it.change.as_ref()?.row.as_ref());
        for named in rows {
            assert!(ibm.rows.iter().any(|row| row.id == *named), "{named}");
        }
    }

    #[test]
    fn a_row_of_one_key_is_followed_by_one_of_distinct_keys() {
        for suite in all().iter().filter(|suite| suite.id != "v2.2-rc") {
            for (row, next) in suite.rows.iter().zip(suite.rows.iter().skip(1)) {
                if row.load.operation.writes() && !row.distinct_keys {
                    assert!(next.distinct_keys && row.id == format!("{}-one-key", next.id), "{}", row.id);
                }
            }
        }
    }

    #[test]
    fn rows_are_valid_at_every_scale() {
        for scale in [0.001, 0.1, 1.0, 10.0] {
            for row in all().iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(scale, None)) {
                let load = &row.load;
                let requests_min = REQUESTS_PER_CLIENT_MIN * load.clients as u64;
                assert!(load.total >= requests_min && load.conns <= load.clients, "{}", row.id);
                assert!(load.keys <= load.total && row.method.warm_up_total > 0, "{}", row.id);
            }
        }
    }

    #[test]
    fn scaling_shrinks_the_total_and_nothing_else() {
        let suite = &find(&["docs-3.2".into()]).unwrap()[0];
        let row = suite.rows.iter().find(|row| row.id == "put-1000-all").unwrap();
        let scaled = row.scaled(0.1, Some(5));
        assert_eq!((scaled.load.total, scaled.load.keys, scaled.method.rounds), (10_000, 10_000, 5));
        assert_eq!(
            (scaled.method.total_published, scaled.load.clients, scaled.load.conns),
            (100_000, 1000, 100)
        );
        let expected = "loadgen put --key-size=8 --val-size=256 --key-space-size=10000 --sequential-keys \
                        --conns=100 --clients=1000 --total=10000 --connect=one";
        assert_eq!(scaled.load.command(), expected);
    }

    #[test]
    fn warming_up_is_as_long_as_published() {
        let suite = &find(&["arm-graviton2".into()]).unwrap()[0];
        let row = suite.rows[0].scaled(0.1, None);
        assert_eq!((row.method.warm_up_total, row.warm_up_run_total()), (200_000, 10_000));
        assert_eq!(row.method.rounds, 20);
    }

    #[test]
    fn unknown_suites_are_refused_and_none_means_the_core() {
        let refused = find(&["docs-9".into()]).unwrap_err();
        assert!(
            refused.starts_with("there is no suite \"docs-9\", there are docs-3.2, docs-3.0,"),
            "{refused}"
        );
        assert_eq!(find(&[]).unwrap()[0].id, CORE);
        assert_eq!(find(&["all".into(), "docs-3.0".into()]).unwrap().len(), 5);
    }
}
