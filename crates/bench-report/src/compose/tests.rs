use super::*;
use crate::metric::{Metric, Metrics, Middle};
use crate::model::{
    DiskInfo, NoteLevel, Notice, Placement, PublishedChange, PublishedFigure, RowResult, SearchVerdict,
    SideResult, StepSeconds, Target,
};
use crate::number;
use crate::page::{Owner, RatioVerdict, TableCell};

fn sample() -> Report {
    serde_json::from_str(include_str!("../../tests/data/report.json")).unwrap()
}

fn cells(row: &[TableCell]) -> String {
    let text = |cell: &TableCell| match cell {
        TableCell::Name { text, .. } => text.clone(),
        TableCell::Number { text, .. } | TableCell::Words(text) => text.clone(),
        TableCell::Ratio { text, verdict } => format!("{text} {}", verdict.word()),
        TableCell::Stack(parts) => parts.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("/"),
        TableCell::Missing(reason) => format!("({reason})"),
    };
    row.iter().map(text).collect::<Vec<_>>().join(" | ")
}

/// Returns the verdict of the first row of the first suite, given these rates of both sides.
fn verdict(subject: &[f64], baseline: &[f64], key: &str) -> RatioVerdict {
    let mut report = sample();
    let row = &mut report.suites[0].rows[0];
    for (side, values) in row.sides.iter_mut().zip([subject, baseline]) {
        let round = side.rounds[0].clone();
        *side = SideResult::default();
        for value in values {
            let metrics = Metrics {
                requests_per_second: Some(*value),
                p99_ms: Some(*value),
                client_cpu_micros: Some(*value),
                ..Metrics::default()
            };
            side.add(crate::model::Round { metrics, ..round.clone() }, Middle::Median);
        }
    }
    let report = report;
    let view = ReportView::of(&report);
    view.ratio(&report.suites[0].rows[0], Metric::by_key(key).unwrap()).unwrap().verdict
}

#[test]
fn a_verdict_needs_rounds_that_do_not_overlap() {
    for (subject, baseline, key, expected) in [
        (&[20.0, 21.0][..], &[10.0, 11.0][..], "requests_per_second", RatioVerdict::Better),
        (&[20.0, 21.0], &[10.0, 11.0], "p99_ms", RatioVerdict::Worse),
        (&[10.0, 11.0], &[20.0, 21.0], "requests_per_second", RatioVerdict::Worse),
        (&[10.0, 11.0], &[20.0, 21.0], "p99_ms", RatioVerdict::Better),
        (&[10.0, 25.0], &[9.0, 11.0], "requests_per_second", RatioVerdict::Even),
        (&[10.2], &[10.0], "requests_per_second", RatioVerdict::Even),
        (&[11.4], &[10.0], "requests_per_second", RatioVerdict::Even),
        (&[11.6], &[10.0], "requests_per_second", RatioVerdict::Better),
        (&[20.0], &[10.0], "client_cpu_micros", RatioVerdict::Neutral),
    ] {
        assert_eq!(verdict(subject, baseline, key), expected, "{subject:?} {baseline:?} {key}");
    }
}

#[test]
fn etcd_is_the_baseline_whichever_side_it_is() {
    let mut report = sample();
    assert_eq!(ReportView::of(&report).order(), [(1, Owner::B), (0, Owner::A)]);
    report.sides.swap(0, 1);
    assert_eq!(ReportView::of(&report).order(), [(0, Owner::B), (1, Owner::A)]);
    report.sides.truncate(1);
    assert_eq!(ReportView::of(&report).order(), [(0, Owner::A)]);
}

#[test]
fn a_suite_is_a_table_of_published_here_and_ratio() {
    let report = sample();
    let page = page(&report);
    let table = &page.sections[0].tables[0];
    let groups: Vec<_> = table.groups.iter().map(|group| (group.title.as_str(), group.columns)).collect();
    let expected = [("requests per second", 4), ("mean latency, ms", 4), ("p99 latency, ms", 3)];
    assert_eq!(groups, expected);
    assert_eq!(table.columns.len(), 1 + 11);
    let cost: Vec<_> = page.sections[0].tables[1].groups.iter().map(|group| group.title.as_str()).collect();
    let expected = [
        "server CPU per request, µs",
        "peak RSS, largest member, MB",
        "bytes written per request",
        "WAL fsync mean, ms",
    ];
    assert_eq!(cost, expected);
    let row = cells(&table.rows[1]);
    assert!(row.starts_with("put, 1000 clients, leader | 44,341 | "), "{row}");
    let rate = |side: usize| {
        number::count(report.suites[0].rows[1].sides[side].median.unwrap().requests_per_second.unwrap())
    };
    assert!(row.contains(&format!("44,341 | {} | {} | ", rate(1), rate(0))), "{row}");
}

#[test]
fn published_differences_stand_next_to_those_here() {
    let mut report = sample();
    assert!(ReportView::of(&report).changes(&report.suites[0]).is_none());
    let suite = &mut report.suites[0];
    let from = suite.rows[0].id.clone();
    let change = |row: Option<String>| PublishedChange {
        from: "etcd 2.1.0".into(),
        row,
        rate_percent: Some(-30.0),
        latency_percent: None,
    };
    for (row, from) in [(1, None), (2, Some(from))] {
        let published = suite.rows[1].published[0].clone();
        suite.rows[row].published = vec![PublishedFigure { change: Some(change(from)), ..published }];
    }
    for (row, rates) in [(0, [10.0, 20.0]), (1, [150.0, 100.0]), (2, [5.0, 30.0])] {
        for (side, rate) in suite.rows[row].sides.iter_mut().zip(rates) {
            side.median.as_mut().unwrap().requests_per_second = Some(rate);
        }
    }
    let table = ReportView::of(&report).changes(&report.suites[0]).unwrap();
    let on_one_machine = cells(&table.rows[0]);
    assert!(on_one_machine.contains(" | −30 % | (not measured) | (not published) | "), "{on_one_machine}");
    report.setup.placement = Placement::Existing;
    let table = ReportView::of(&report).changes(&report.suites[0]).unwrap();
    let [systems, rows] = &table.rows[..] else { panic!("two rows have a change") };
    assert!(cells(systems).contains(" | −30 % | +50 % | (not published) | "), "{}", cells(systems));
    assert!(cells(rows).contains(" | −30 % | +50 %/−50 % | (not published) | "), "{}", cells(rows));
    let tables = &page(&report).sections[0].tables;
    assert_eq!(tables.last().unwrap().caption, table.caption);
}

#[test]
fn disk_and_network_are_drawn_over_the_load() {
    let mut report = sample();
    for row in &mut report.suites[2].rows {
        for median in row.sides.iter_mut().filter_map(|side| side.median.as_mut()) {
            (median.written_mb_per_second, median.client_mb_per_second) = (Some(3.0), Some(4.0));
            (median.syncs_per_second, median.peer_mb_per_second) = (Some(5.0), Some(6.0));
        }
    }
    let page = page(&report);
    let titles: Vec<_> = page.sections[2].groups[0].figures.iter().map(|it| it.title.as_str()).collect();
    for title in ["Disk writes", "WAL fsyncs", "Network, client and servers", "Network, between members"] {
        assert!(titles.iter().any(|it| it.starts_with(&format!("{title} over "))), "{title}: {titles:?}");
    }
}

#[test]
fn several_machines_of_one_publication_share_a_cell() {
    let page = page(&sample());
    let row = cells(&page.sections[1].tables[0].rows[0]);
    assert!(row.contains(" | 37,925/42,486/55,225/64,933 | "), "{row}");
}

#[test]
fn missing_cells_have_a_reason() {
    let page = page(&sample());
    let ibm = &page.sections[2].tables[0];
    assert!(cells(&ibm.rows[3]).contains("(left out)"), "{}", cells(&ibm.rows[3]));
    assert!(cells(&ibm.rows[0]).contains("(not published)"), "{}", cells(&ibm.rows[0]));
    assert!(cells(&ibm.rows[3]).contains("| 2 KiB: −30 % throughput"), "{}", cells(&ibm.rows[3]));
}

#[test]
fn published_words_stand_in_the_column_of_their_figure() {
    let mut report = sample();
    let words = PublishedFigure {
        of: Some("sync_mean_ms".into()),
        remark: Some("below 0.5 ms".into()),
        ..report.suites[1].rows[0].published[0].clone()
    };
    report.suites[2].rows[0].published = vec![words];
    let page = page(&report);
    let [speed, cost] = &page.sections[2].tables[..2] else { panic!("two tables") };
    assert!(!cells(&speed.rows[0]).contains("below 0.5 ms"));
    assert!(cells(&cost.rows[0]).contains("below 0.5 ms"), "{}", cells(&cost.rows[0]));
}

#[test]
fn errors_are_shown_at_the_top_in_the_table_and_with_the_row() {
    let page = page(&sample());
    assert!(
        page.notices.iter().any(|notice| notice.starts_with("Error: 1 row with errors")),
        "{:?}",
        page.notices
    );
    let section = &page.sections[2];
    let Some(TableCell::Name { detail, .. }) = section.tables[0].rows.last().and_then(|row| row.first())
    else {
        panic!("a row begins with its name");
    };
    assert!(detail.ends_with("— errors"), "{detail}");
    let notices = &section.details.last().unwrap().notices;
    assert!(notices.iter().any(|notice| notice.contains("37 × ResourceExhausted")), "{notices:?}");
}

#[test]
fn every_row_has_its_curve_and_sweeps_have_their_plots() {
    let page = page(&sample());
    let titles = |section: usize| -> Vec<String> {
        let groups = page.sections[section].groups.iter();
        groups.map(|group| format!("{}: {}", group.title, group.figures.len())).collect()
    };
    assert_eq!(titles(0)[0], "Latency percentiles: 9");
    assert_eq!(titles(2)[0], "By load: 14", "seven figures over two axes");
    let open = page.sections[0].groups[0].figures.last().unwrap();
    assert_eq!(open.plot.series.len(), 4, "both clocks of both sides");
}

#[test]
fn one_side_alone_has_no_ratios() {
    let mut report = sample();
    report.sides.truncate(1);
    for row in report.suites.iter_mut().flat_map(|suite| &mut suite.rows) {
        row.sides.truncate(1);
    }
    let page = page(&report);
    assert!(page.overview.is_none());
    assert_eq!(page.sections[0].tables[0].columns[2].title, "kv-server here");
}

#[test]
fn facts_of_a_search_are_those_of_the_search() {
    let mut report = sample();
    report.sides.truncate(1);
    report.suites.truncate(1);
    report.suites[0].rows.truncate(2);
    for row in &mut report.suites[0].rows {
        row.published.clear();
        row.sides.truncate(1);
    }
    report.setup.steps = Some(StepSeconds { warm_up: 1.0, measured: 5.0 });
    let facts = |report: &Report| -> Vec<String> {
        let facts = page(report).facts.into_iter();
        facts.map(|fact| format!("{}: {}", fact.name, fact.value)).collect()
    };
    assert!(facts(&report).contains(&"Steps: 2 trials of 5 s each, after 1 s at the same rate".into()));
    assert!(!facts(&report).iter().any(|fact| fact.starts_with("Rounds") || fact.starts_with("Scale")));
    assert_eq!(page(&report).lede, "kv-server at 2 rates.");
    report.search = Some(SearchVerdict {
        limit: "p99=10ms".into(),
        requests_per_second: Some(1500.0),
        at_least: Some(1500.0),
        at_most: Some(1560.0),
        trials: 12,
        settled: true,
        generator_limit: None,
    });
    assert_eq!(
        page(&report).lede,
        "kv-server: Highest rate that met p99=10ms: 1500 requests per second (between 1500 and 1560, by 12 \
         trials)."
    );
    let verdict = report.search.as_mut().unwrap();
    (verdict.settled, verdict.at_most, verdict.generator_limit) = (false, None, Some(1560.0));
    assert_eq!(
        page(&report).lede,
        "kv-server: Undecided: 1500 requests per second met p99=10ms (1500 or more, by 12 trials). At 1560 \
         the load generator or the machine was the bottleneck: the servers may reach more."
    );
}

#[test]
fn means_are_called_means_and_a_single_run_speaks_of_itself() {
    let facts = |report: &Report| {
        let facts = page(report).facts.into_iter();
        facts.map(|fact| format!("{}: {}", fact.name, fact.value)).collect::<Vec<_>>().join("\n")
    };
    let mut report = sample();
    assert!(facts(&report).contains("values are medians"));
    report.suites[0].rows[0].method.rounds_as = Middle::Mean;
    assert!(facts(&report).contains("values are medians, or means as published"));
    report
        .suites
        .iter_mut()
        .flat_map(|suite| &mut suite.rows)
        .for_each(|row| row.method.rounds_as = Middle::Mean);
    assert!(facts(&report).contains("values are means"));
    assert!(crate::render::csv(&report).contains(",mean,requests_per_second,"));
    assert!(page(&report).overview.unwrap().caption.starts_with("Dots are ratios of the means;"));

    report.suites[0].id = crate::model::SINGLE_RUN.into();
    let section = &page(&report).sections[0];
    assert_eq!(section.title, report.suites[0].title, "a run is no suite");
    assert_eq!(section.tables[0].caption, "Throughput and latency");
    report.setup.placement = crate::model::Placement::Existing;
    report.sides.truncate(1);
    report.suites[0].rows[0].notices.push(crate::model::Notice::warning("too short"));
    let page = page(&report);
    assert!(page.notices.iter().any(|notice| notice == "Warning: too short"), "{:?}", page.notices);
    assert!(
        !page.notices.iter().any(|notice| notice.contains("explained with each row")),
        "{:?}",
        page.notices
    );
    assert!(facts(&report).contains("an existing cluster"));
}

#[test]
fn sums_over_members_stand_apart_from_measured_rates() {
    let mut report = sample();
    let row = &mut report.suites[0].rows[1];
    row.load.target = Target::EachSummed;
    for side in &mut row.sides {
        let median = side.median.as_mut().unwrap();
        (median.requests_per_second, median.summed_requests_per_second) = (Some(1234.0), Some(3702.0));
    }
    let tables = &page(&report).sections[0].tables;
    let (speed, sums) = (cells(&tables[0].rows[1]), cells(&tables[2].rows[0]));
    assert!(speed.contains(" | (only a sum) | 1,234 | 1,234 | ") && !speed.contains("3,702"), "{speed}");
    assert!(sums.contains(" | 44,341 | 3,702 | 3,702 | ") && tables[2].rows.len() == 1, "{sums}");
}

#[test]
fn copies_count_once_and_rows_of_one_side_are_named_first() {
    let mut report = sample();
    let before = page(&report).lede;
    let count = |lede: &str| -> usize {
        let of = lede.split(" of ").nth(1).unwrap();
        of.split(' ').next().unwrap().parse().unwrap()
    };
    let original = report.suites[0].rows[0].id.clone();
    for (of, fewer) in [(original, 1), ("left-out".into(), 0)] {
        report.suites[0].rows[1].copy_of = Some(format!("docs-3.2/{of}"));
        assert_eq!(count(&page(&report).lede) + fewer, count(&before), "a copy of {of}");
    }
    report.suites[0].rows[1].copy_of = None;
    report.suites[0].rows[1].notices.push(crate::model::Notice::warning("too short"));
    let marked = page(&report);
    assert_eq!(count(&marked.lede) + 1, count(&before));
    assert!(marked.lede.ends_with(" without a verdict, because of errors or warnings."));
    let verdicts = cells(&marked.sections[0].tables[0].rows[1]);
    assert!(!["better", "worse", "even"].iter().any(|word| verdicts.contains(word)), "{verdicts}");
    report.suites[0].rows[1].notices.clear();
    report.suites[0].rows[0].sides[0].median = None;
    let id = report.suites[0].rows[0].id.clone();
    let lede = page(&report).lede;
    let first = lede.split(". ").next().unwrap();
    assert!(first.starts_with("kv-server could not run ") && first.contains(&id), "{lede}");
}

#[test]
fn each_medium_is_named() {
    let mut report = sample();
    report.machine.wal_disk =
        Some(DiskInfo { directory: "/dev/shm".into(), filesystem: "tmpfs".into(), ..DiskInfo::default() });
    let page = page(&report);
    let fact = |name: &str| page.facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone());
    assert!(fact("Data disk").unwrap().starts_with("ext4 on /dev/nvme0n1p1 (/var/tmp), a 4 KiB append"));
    assert_eq!(fact("WAL disk").unwrap(), "tmpfs on  (/dev/shm)");
}

/// All ids of a page are unique, and every link refers to one of them.
#[test]
fn links_lead_to_one_place_each() {
    let mut media = sample();
    media.suites.truncate(1);
    media.suites.push(media.suites[0].clone());
    for (suite, medium) in media.suites.iter_mut().zip(["ram", "ssd"]) {
        suite.medium = Some(medium.into());
    }
    let mut many = sample();
    let row = &mut many.suites[0].rows[1];
    row.published[0].change = Some(PublishedChange {
        from: "etcd 2.1".into(),
        row: None,
        rate_percent: Some(-30.0),
        latency_percent: None,
    });
    let row = row.clone();
    many.suites[0].rows = (0..40).map(|n| RowResult { id: format!("r{n}"), ..row.clone() }).collect();
    for report in [media, many] {
        let text = crate::render::html(&page(&report));
        let all = |begin: &str| -> Vec<String> {
            text.split(begin).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
        };
        let (mut ids, links) = (all(" id=\""), all("href=\"#"));
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "{ids:?}");
        assert!(!links.is_empty() && links.iter().all(|link| ids.contains(link)), "{links:?} {ids:?}");
    }
}

#[test]
fn an_empty_report_is_still_a_page() {
    let report = Report { suites: Vec::new(), partial: Some("interrupted".into()), ..sample() };
    let page = page(&report);
    assert!(page.overview.is_none() && page.sections.is_empty());
    assert_eq!(page.notices[0], "Partial: interrupted. Earlier results are below.");
}

/// A published comparison of all suites stays below 500 KB, and still contains the warnings of its rows.
#[test]
fn a_page_of_many_rows_has_no_plots_of_each() {
    let mut report = sample();
    let row = report.suites[0].rows[0].clone();
    report.suites[0].rows = (0..98).map(|n| RowResult { id: format!("r{n}"), ..row.clone() }).collect();
    report.suites.truncate(1);
    report.suites[0].rows[97].notices = vec![Notice { level: NoteLevel::Warning, text: "too short".into() }];
    report.suites[0].rows[96].notices = vec![Notice { level: NoteLevel::Remark, text: "longer".into() }];
    let whole = page(&report);
    let details: Vec<_> = whole.sections[0].details.iter().map(|detail| detail.notices.as_slice()).collect();
    assert!(details.contains(&["Warning: too short".to_owned()].as_slice()), "{details:?}");
    assert!(!details.contains(&["longer".to_owned()].as_slice()), "a remark does not mislead");
    assert!(
        whole.sections[0].details.iter().all(|detail| detail.table.is_none() && detail.figures.is_empty())
    );
    let bytes = crate::render::html(&whole).len();
    assert!(bytes < 500_000, "{bytes}");
    report.suites[0].rows.truncate(32);
    assert!(page(&report).sections[0].details.iter().all(|detail| detail.table.is_some()));
}
