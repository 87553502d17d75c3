//! Tables of a cluster's metrics, one for each view.

use super::super::figures::{
    Absence, Calls, ClusterFigures, Endpoint, NamedMember, Scope, TopNames, UnaskedMember,
};
use super::format::{bytes, factor, latency, number, percent, span};
use super::table::{Cell, Column, Mood, Order, Table, TableRow};
use telemetry::status::Document;
use telemetry::usage::Top;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ScreenView {
    /// Members, calls and the largest names, as far as they fit
    #[default]
    Overview,
    /// Each member: role, lag, requests, latency, processor
    Members,
    /// Each method: calls, failures, percentiles
    Calls,
    /// The clients that use the members most
    Clients,
    /// The key prefixes that are used most
    Prefixes,
    /// Each member: store, quota, memory, keys, revisions
    Space,
    /// Each member: watchers, leases, queues, log
    Work,
}

pub const VIEWS: [ScreenView; 7] = [
    ScreenView::Overview,
    ScreenView::Members,
    ScreenView::Calls,
    ScreenView::Clients,
    ScreenView::Prefixes,
    ScreenView::Space,
    ScreenView::Work,
];

impl ScreenView {
    pub fn name(self) -> &'static str {
        match self {
            ScreenView::Overview => "Overview",
            ScreenView::Members => "Members",
            ScreenView::Calls => "Calls",
            ScreenView::Clients => "Clients",
            ScreenView::Prefixes => "Prefixes",
            ScreenView::Space => "Space",
            ScreenView::Work => "Activity",
        }
    }

    /// The tables that it shows.
    pub fn parts(self) -> &'static [ScreenView] {
        match self {
            ScreenView::Overview => {
                &[ScreenView::Members, ScreenView::Calls, ScreenView::Clients, ScreenView::Prefixes]
            }
            ScreenView::Members => &[ScreenView::Members],
            ScreenView::Calls => &[ScreenView::Calls],
            ScreenView::Clients => &[ScreenView::Clients],
            ScreenView::Prefixes => &[ScreenView::Prefixes],
            ScreenView::Space => &[ScreenView::Space],
            ScreenView::Work => &[ScreenView::Work],
        }
    }

    /// Members by name, everything else by the figure that matters most.
    pub fn order(self) -> Order {
        let column = match self {
            ScreenView::Calls | ScreenView::Clients | ScreenView::Prefixes => 1,
            ScreenView::Overview | ScreenView::Members | ScreenView::Space | ScreenView::Work => 0,
        };
        Order { column, is_reversed: false }
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            ScreenView::Overview | ScreenView::Members => &MEMBERS,
            ScreenView::Calls => &CALLS,
            ScreenView::Clients => &CLIENTS,
            ScreenView::Prefixes => &PREFIXES,
            ScreenView::Space => &SPACE,
            ScreenView::Work => &WORK,
        }
    }

    /// The table, unsorted. An overview has more than one; this is its first.
    pub fn table(self, cluster: &ClusterFigures, scope: Scope) -> Table {
        match self {
            ScreenView::Overview | ScreenView::Members => of_members("Members", &MEMBERS, cluster, member),
            ScreenView::Space => of_members("Space", &SPACE, cluster, space),
            ScreenView::Work => of_members("Activity", &WORK, cluster, work),
            ScreenView::Calls => calls(cluster, scope),
            ScreenView::Clients => {
                names("Clients", &CLIENTS, cluster.top(scope, NamedMember::Clients), "(unnamed)")
            }
            ScreenView::Prefixes => {
                names("Key prefixes", &PREFIXES, cluster.top(scope, NamedMember::Prefixes), "(no slash)")
            }
        }
    }
}

const MEMBERS: [Column; 12] = [
    Column::text("MEMBER", 15, 0),
    Column::text("ROLE", 9, 0),
    Column::figure("LAG", 7, 1),
    Column::figure("REQ/s", 9, 0),
    Column::figure("P50", 8, 3),
    Column::figure("P99", 8, 1),
    Column::figure("APPLIED/s", 9, 4),
    Column::figure("TO DISK/s", 9, 4),
    Column::figure("CPU", 6, 2),
    Column::figure("MEMORY", 8, 3),
    Column::figure("QUOTA", 6, 3),
    Column::figure("UP", 7, 3),
];

const SPACE: [Column; 10] = [
    Column::text("MEMBER", 15, 0),
    Column::figure("STORE", 8, 0),
    Column::figure("IN USE", 8, 2),
    Column::figure("QUOTA", 8, 1),
    Column::figure("USED", 6, 1),
    Column::figure("MEMORY", 8, 2),
    Column::figure("KEYS", 11, 0),
    Column::figure("REVISION", 11, 3),
    Column::figure("COMPACTED", 11, 4),
    Column::figure("WRITE AMP", 9, 4),
];

const WORK: [Column; 12] = [
    Column::text("MEMBER", 15, 0),
    Column::figure("WATCHERS", 9, 0),
    Column::figure("STREAMS", 8, 3),
    Column::figure("LAGGING", 8, 1),
    Column::figure("EVENTS/s", 9, 1),
    Column::figure("LEASES", 9, 0),
    Column::figure("PENDING", 8, 2),
    Column::figure("READS", 6, 3),
    Column::figure("WAITING", 8, 3),
    Column::figure("TERM", 6, 4),
    Column::figure("COMMIT", 11, 4),
    Column::figure("APPLIED", 11, 4),
];

const CALLS: [Column; 6] = [
    Column::text("METHOD", 16, 0),
    Column::figure("CALLS/s", 9, 0),
    Column::figure("FAILED/s", 9, 1),
    Column::figure("P50", 8, 0),
    Column::figure("P90", 8, 2),
    Column::figure("P99", 8, 0),
];

const CLIENTS: [Column; 4] = top_columns("CLIENT");
const PREFIXES: [Column; 4] = top_columns("PREFIX");

const fn top_columns(name: &'static str) -> [Column; 4] {
    [
        Column::text(name, 16, 0),
        Column::figure("REQ/s", 9, 0),
        Column::figure("BYTES/s", 9, 1),
        Column::figure("KEYS/s", 9, 2),
    ]
}

/// Cells of a responding member, after its name.
type Figures = fn(&ClusterFigures, &Endpoint, &Document) -> Vec<Cell>;

/// A row for each endpoint, and one for each member that has none.
fn of_members(
    title: &'static str,
    columns: &'static [Column],
    cluster: &ClusterFigures,
    figures: Figures,
) -> Table {
    let asked = cluster.endpoints.iter().enumerate().map(|(at, endpoint)| {
        let name = Cell::text(cluster.name_at(at));
        match (endpoint.live(), endpoint.absence()) {
            (Some(document), _) => {
                let mut cells = vec![name];
                cells.extend(figures(cluster, endpoint, document));
                let mood = if document.leader.is_empty() { Mood::Bad } else { Mood::Plain };
                TableRow { cells, mood, instead: None }
            }
            (None, Some(absence)) => {
                let instead = match absence {
                    Absence::Down(reason) => format!("DOWN: {reason}"),
                    Absence::NoFigures(reason) => format!("NO STATISTICS: {reason}"),
                };
                TableRow { cells: vec![name], mood: Mood::Bad, instead: Some(instead) }
            }
            (None, None) => {
                TableRow { cells: vec![name], mood: Mood::Faint, instead: Some("polling".to_owned()) }
            }
        }
    });
    let mut rows: Vec<TableRow> = asked.collect();
    rows.extend(cluster.unasked().iter().map(unasked));
    Table { title, columns, rows, empty: "No members" }
}

fn unasked(member: &UnaskedMember) -> TableRow {
    let lag = member.lag.map_or(String::new(), |lag| format!(", lag {}", number(lag as f64)));
    let (linked, asked) = (member.linked, member.asked);
    let text = format!("{}{lag} (no endpoint given); reachable from {linked}/{asked} members", member.role);
    let mood = if linked == 0 { Mood::Bad } else { Mood::Faint };
    TableRow { cells: vec![Cell::text(&member.name)], mood, instead: Some(text) }
}

fn count(value: u64) -> Cell {
    Cell::figure(Some(value as f64), number)
}

fn size(value: u64) -> Cell {
    Cell::figure(Some(value as f64), bytes)
}

/// The part of the quota that is used. None without a quota.
fn used(document: &Document) -> Option<f64> {
    let space = &document.space;
    (space.quota_bytes > 0).then(|| space.store_bytes as f64 / space.quota_bytes as f64)
}

fn written(document: &Document) -> f64 {
    document.counters.log_bytes as f64 + document.counters.store_bytes as f64
}

fn member(cluster: &ClusterFigures, endpoint: &Endpoint, document: &Document) -> Vec<Cell> {
    let mut all = Calls::default();
    let calls = endpoint.calls();
    calls.iter().flat_map(|calls| calls.values()).for_each(|calls| all.add(calls));
    let rate = |pick, format| Cell::figure(endpoint.rate(pick), format);
    let role = match (document.leader.is_empty(), document.role.as_str()) {
        (true, "follower" | "learner") => "no leader",
        (_, role) => role,
    };
    vec![
        Cell::text(role),
        Cell::figure(cluster.lag_of(document).map(|lag| lag as f64), number),
        Cell::figure(calls.is_some().then_some(all.per_second), number),
        Cell::figure(all.percentile(0.5), latency),
        Cell::figure(all.percentile(0.99), latency),
        rate(|document| document.raft.applied as f64, number),
        rate(written, bytes),
        rate(|document| document.counters.cpu_seconds, percent),
        size(document.space.resident_bytes),
        Cell::figure(used(document), percent),
        Cell::figure(Some(document.uptime_ms as f64 / 1000.0), span),
    ]
}

fn space(_cluster: &ClusterFigures, _endpoint: &Endpoint, document: &Document) -> Vec<Cell> {
    let (space, commands) = (&document.space, document.counters.command_bytes as f64);
    vec![
        size(space.store_bytes),
        size(space.in_use_bytes),
        Cell::figure(Some(space.quota_bytes as f64).filter(|quota| *quota > 0.0), bytes),
        Cell::figure(used(document), percent),
        size(space.resident_bytes),
        count(space.keys),
        count(space.revision),
        count(space.compact_revision),
        Cell::figure((commands > 0.0).then(|| written(document) / commands), factor),
    ]
}

fn work(_cluster: &ClusterFigures, endpoint: &Endpoint, document: &Document) -> Vec<Cell> {
    let (queues, raft) = (&document.queues, &document.raft);
    vec![
        count(document.watch.watchers),
        count(document.watch.streams),
        count(document.watch.lagging),
        Cell::figure(endpoint.rate(|document| document.counters.events as f64), number),
        count(document.leases),
        count(raft.proposals_pending),
        count(queues.reads_running),
        count(queues.reads_waiting.saturating_add(queues.commands_waiting)),
        count(raft.term),
        count(raft.commit),
        count(raft.applied),
    ]
}

fn calls(cluster: &ClusterFigures, scope: Scope) -> Table {
    let row = |(method, calls): (&str, &Calls)| {
        let figure = |value| Cell::figure(Some(value), number);
        let time = |part| Cell::figure(calls.percentile(part), latency);
        let cells = vec![
            Cell::text(method.rsplit('.').next().unwrap_or(method)),
            figure(calls.per_second),
            figure(calls.failed_per_second),
            time(0.5),
            time(0.9),
            time(0.99),
        ];
        let mood = if calls.failed_per_second > 0.0 { Mood::Bad } else { Mood::Plain };
        TableRow { cells, mood, instead: None }
    };
    let found = cluster.calls(scope);
    let empty = if found.is_some() { "No requests yet" } else { "Collecting samples…" };
    let rows = found.iter().flatten().map(|(method, calls)| row((method, calls))).collect();
    Table { title: "Calls", columns: &CALLS, rows, empty }
}

fn names(title: &'static str, columns: &'static [Column], names: TopNames, unnamed: &'static str) -> Table {
    let row = |top: Top| {
        let cells = vec![
            Cell::text(if top.name.is_empty() { unnamed } else { &top.name }),
            Cell::figure(Some(top.requests), number),
            Cell::figure(Some(top.bytes), bytes),
            Cell::figure(Some(top.keys), number),
        ];
        TableRow { cells, ..TableRow::default() }
    };
    let (rows, empty) = match names {
        TopNames::NotCounted => (Vec::new(), "Not collected: start members with --metrics-top 20"),
        TopNames::Rows(rows) => (rows.into_iter().map(row).collect(), "None in the last 10 seconds"),
    };
    Table { title, columns, rows, empty }
}

/// Contents of the cluster, ordered so that a narrow screen drops the last ones first.
pub fn holdings(cluster: &ClusterFigures) -> Vec<(&'static str, String)> {
    let largest = |pick, format: fn(f64) -> String| Cell::figure(cluster.largest(pick), format).text;
    vec![
        ("store", largest(|it| it.space.store_bytes as f64, bytes)),
        ("keys", largest(|it| it.space.keys as f64, number)),
        ("watchers", Cell::figure(cluster.sum(|it| it.watch.watchers as f64), number).text),
        ("leases", largest(|it| it.leases as f64, number)),
        ("revision", largest(|it| it.space.revision as f64, number)),
    ]
}

/// Totals of the cluster, in the order in which a narrow screen drops them last.
pub fn totals(cluster: &ClusterFigures, scope: Scope) -> Vec<(&'static str, String)> {
    let of = |pick, format: fn(f64) -> String| Cell::figure(cluster.rate(scope, pick), format).text;
    vec![
        ("put", of(|it| it.counters.puts as f64, number)),
        ("range", of(|it| it.counters.ranges as f64, number)),
        ("txn", of(|it| it.counters.txns as f64, number)),
        ("delete", of(|it| it.counters.deletes as f64, number)),
        ("events", of(|it| it.counters.events as f64, number)),
        ("in", of(|it| it.counters.received_bytes as f64, bytes)),
        ("out", of(|it| it.counters.sent_bytes as f64, bytes)),
    ]
}
