//! The result of `verify` as a page.

use super::document::VerifyDocument;
use crate::verify::timeline::{Columns, Timeline};
use bench_report::compose;
use bench_report::number;
use bench_report::page::{
    Column, Fact, Figure, FigureGroup, Folding, Owner, Page, Point, ReportTable, Section, Series, Stroke,
    TableCell,
};

pub fn page(document: &VerifyDocument) -> Page {
    let VerifyDocument { report, endpoints, loadgen, commit, .. } = document;
    let mut notices: Vec<String> =
        report.failed.iter().map(|reason| format!("Ended early: {reason}.")).collect();
    if report.interrupted {
        notices.push("The run was interrupted; what was checked until then is below.".into());
    }
    notices.extend(document.unchecked().iter().map(|what| format!("Not checked: {what}.")));
    for (lie, times) in &document.lies {
        notices.push(format!("A proxy in front of {} had the fault {lie} {times} times.", endpoints[0]));
    }
    let commit = commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
    Page {
        title: format!("Guarantees of {}", endpoints.join(", ")),
        lede: lede(document),
        notices,
        facts: facts(document),
        overview: None,
        sections: [violation(document), checked(document), over_time(&report.timeline)]
            .into_iter()
            .flatten()
            .collect(),
        footer: format!("Made by loadgen {loadgen}{commit}."),
    }
}

fn lede(document: &VerifyDocument) -> String {
    let report = &document.report;
    match &report.violation {
        Some(violation) => format!("Violation: {}.", violation.rule),
        None if document.is_clean() => {
            format!("No violation in {}.", number::duration(report.seconds))
        }
        None => "No violation among what was checked.".into(),
    }
}

fn facts(document: &VerifyDocument) -> Vec<Fact> {
    let VerifyDocument { machine, report, clients, keys, leases, rate, .. } = document;
    vec![
        Fact::prose("Members", document.endpoints.join(", ")),
        Fact::prose(
            "Load",
            format!(
                "{clients} clients, {} operations per second at most, on {keys} keys; {leases} leases",
                number::given(*rate)
            ),
        ),
        Fact::prose("Client's machine", format!("{}, {} processors", machine.processor, machine.processors)),
        Fact::command("Command", document.command.clone()),
        Fact::prose(
            "When",
            format!(
                "{}, took {}",
                number::moment(document.started_unix_seconds),
                number::duration(report.seconds)
            ),
        ),
    ]
}

fn violation(document: &VerifyDocument) -> Option<Section> {
    let violation = document.report.violation.as_ref()?;
    let rows = violation.evidence.iter().enumerate();
    let rows = rows.map(|(n, line)| vec![name(&format!("{}", n + 1)), TableCell::Words(line.clone())]);
    Some(Section {
        anchor: "violation".into(),
        title: format!("Violation: {}", violation.rule),
        intro: vec!["These statements contradict each other. Times are since the start of the run.".into()],
        tables: vec![table("", &["", "statement"], rows.collect())],
        ..Section::default()
    })
}

fn checked(document: &VerifyDocument) -> Option<Section> {
    let checked = &document.report.checked;
    let rows = [
        (
            "Acknowledged writes",
            "each is what watchers received, at a newer revision than all seen before",
            checked.writes,
        ),
        (
            "Linearizable reads",
            "each returned the state at its revision, and nothing older than seen",
            checked.linearizable_reads,
        ),
        ("Serializable reads", "each returned a state that existed", checked.serializable_reads),
        ("Serializable reads not checked", "their state was forgotten already", checked.too_old),
        (
            "Reads of ranges with a limit or of old revisions",
            "each returned the first keys at its revision, with the number of all",
            checked.pages,
        ),
        ("Reads of compacted revisions", "refused", checked.compacted),
        (
            "Events",
            "in order, once, whole revisions, the same at all members, with the state before",
            checked.events,
        ),
        ("Leases that expired", "none before its time was over", checked.leases_expired),
        ("Leases that were revoked", "their keys were deleted at one revision", checked.leases_revoked),
        ("Answers to TimeToLive", "none said less than was left", checked.lifetimes),
        ("Equal hashes", "of two members at one revision", checked.hashes),
        ("Events from far back", "a watcher receives again what the others received", checked.replayed),
        ("Locks held and elections won", "one holder at a time, with the oldest key", checked.holds),
        ("Lists of members", "the same at all members; no ID returns", checked.member_lists),
        ("Failed calls", "watchers show whether they were executed", checked.unknown),
    ];
    let rows = rows.map(|(what, rule, count)| {
        let number = TableCell::Number { text: number::given(count as f64), spread: None };
        vec![TableCell::Name { text: what.into(), detail: rule.into(), anchor: None }, number]
    });
    Some(Section {
        anchor: "checked".into(),
        title: "What was checked".into(),
        tables: vec![table("", &["", "count"], rows.into())],
        ..Section::default()
    })
}

fn over_time(timeline: &Timeline) -> Option<Section> {
    let places = 0..timeline.failed_per_second.len();
    let at = |place: usize| place as f64 * timeline.slice_seconds;
    let line = |name: &str, owner, stroke, column: &[f64]| {
        let points = places.clone().zip(column).map(|(place, &y)| Point::new(at(place), y)).collect();
        Series { name: name.into(), owner, stroke, points }
    };
    let Timeline { writes, reads, failed_per_second, .. } = timeline;
    let latencies = |title: &str, column: fn(&Columns) -> &[f64]| {
        figure(
            title,
            "ms",
            vec![
                line("writes", Owner::A, Stroke::Plain, column(writes)),
                line("reads", Owner::B, Stroke::Plain, column(reads)),
            ],
        )
    };
    let rates = figure(
        "Operations",
        "operations/s",
        vec![
            line("writes", Owner::A, Stroke::Plain, &writes.per_second),
            line("reads", Owner::B, Stroke::Plain, &reads.per_second),
            line("failed", Owner::Published, Stroke::Dashed, failed_per_second),
        ],
    );
    let figures = vec![
        rates,
        latencies("Median latency", |columns| &columns.p50_ms),
        latencies("p99 latency", |columns| &columns.p99_ms),
        latencies("Slowest", |columns| &columns.max_ms),
    ];
    let seconds = |value: f64| TableCell::Number { text: format!("{value:.2}"), spread: None };
    let leaders = timeline.leaders.iter().map(|leader| {
        let endpoint = leader.endpoint.clone().unwrap_or_else(|| "none that is known".into());
        vec![
            name(&format!("{:.2} s", leader.at_seconds)),
            TableCell::Words(endpoint),
            TableCell::Words(leader.term.to_string()),
        ]
    });
    let windows = timeline.windows.iter().map(|window| {
        let (from, to) = (window.from_seconds, window.to_seconds);
        vec![name(&format!("{from:.2} s")), seconds(to), seconds(to - from)]
    });
    let tables = [
        table("Leaders", &["leader from", "member", "term"], leaders.collect()),
        table(
            "Windows without an acknowledged write",
            &["no acknowledged write from", "to, s", "length, s"],
            windows.collect(),
        ),
    ];
    let group = FigureGroup {
        title: "Over time".into(),
        note: format!(
            "An operation counts in the {} s in which it began.",
            number::tick(timeline.slice_seconds)
        ),
        figures,
        folding: Folding::Open,
    };
    (timeline.failed_per_second.len() > 1).then(|| Section {
        anchor: "time".into(),
        title: "Over time".into(),
        tables: tables.into_iter().filter(|table| !table.rows.is_empty()).collect(),
        groups: vec![group],
        ..Section::default()
    })
}

fn figure(title: &str, unit: &str, series: Vec<Series>) -> Figure {
    compose::over_time(title, title, "seconds since the start", unit, series)
}

fn table(caption: &str, columns: &[&str], rows: Vec<Vec<TableCell>>) -> ReportTable {
    let columns = columns.iter().map(|title| Column::new(*title, None)).collect();
    ReportTable { caption: caption.into(), groups: Vec::new(), columns, rows }
}

fn name(text: &str) -> TableCell {
    TableCell::Name { text: text.into(), detail: String::new(), anchor: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::timeline::{Leader, TimeWindow};
    use bench_report::render::{html, markdown};
    use checker::{CheckCounts, Violation};

    fn document() -> VerifyDocument {
        let mut document =
            VerifyDocument { endpoints: vec!["a:1".into(), "b:2".into()], ..VerifyDocument::default() };
        document.report.checked =
            CheckCounts { writes: 12_345, linearizable_reads: 2, hashes: 7, ..CheckCounts::default() };
        let columns = Columns {
            per_second: vec![1.0, 2.0],
            p50_ms: vec![1.0, 2.0],
            p99_ms: vec![1.0, 9.0],
            max_ms: vec![3.0, 99.0],
        };
        document.report.timeline = Timeline {
            slice_seconds: 0.5,
            writes: columns.clone(),
            reads: columns,
            failed_per_second: vec![0.0, 4.0],
            leaders: vec![Leader { at_seconds: 0.1, endpoint: Some("b:2".into()), term: 3 }],
            windows: vec![TimeWindow { from_seconds: 2.0, to_seconds: 4.5 }],
        };
        document
    }

    #[test]
    fn a_page_shows_counts_leaders_and_windows() {
        let text = markdown(&page(&document()));
        for part in
            ["No violation in", "12,345", "b:2", "2.50", "no acknowledged write from", "Leases that expired"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(html(&page(&document())).contains("<svg"));
    }

    #[test]
    fn a_violation_is_shown_with_its_evidence() {
        let mut document = document();
        document.lies = vec![("drop-event".into(), 3)];
        let evidence = vec!["watcher 0 saw <this>".into(), "watcher 1 did not".into()];
        document.report.violation = Some(Violation { rule: "events differ".into(), evidence });
        let shown = html(&page(&document));
        for part in
            ["Violation: events differ", "watcher 0 saw &lt;this&gt;", "had the fault drop-event 3 times"]
        {
            assert!(shown.contains(part), "{part}");
        }
    }

    #[test]
    fn a_document_is_read_back() {
        let text = serde_json::to_string(&VerifyDocument { format: 1, ..document() }).unwrap();
        let value = serde_json::from_str(&text).unwrap();
        let read = VerifyDocument::read(value).unwrap();
        assert_eq!((read.report.checked, read.report.timeline), {
            let report = document().report;
            (report.checked, report.timeline)
        });
        assert!(VerifyDocument::read(serde_json::json!({ "format": 2 })).is_err());
    }
}
