//! Composes a page from a report: selects tables, plots and sentences.

mod view; // verdicts, sentences, facts

mod changes; // published and measured differences
mod detail; // details of a row
mod plots; // curves, sweeps, time
mod tables; // published, measured here, ratio

use crate::model::{Report, SuiteResult};
use crate::page::{Page, Section};
pub use plots::over_time;
use view::{ReportView, anchor};

pub fn page(report: &Report) -> Page {
    let view = ReportView::of(report);
    Page {
        title: report.title.clone(),
        lede: view.lede(),
        notices: view.notices(),
        facts: view.facts(),
        overview: view.overview(),
        sections: report.suites.iter().map(|suite| section(&view, suite)).collect(),
        footer: format!(
            "Made by loadgen {}{}. The figures of every table and plot are in the JSON file of the \
             same run, from which “loadgen report” makes this page again{}.",
            report.loadgen,
            report.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default(),
            if view.is_detailed { "" } else { ", and with --rows one with the plots of some rows" },
        ),
    }
}

fn section(view: &ReportView<'_>, suite: &SuiteResult) -> Section {
    Section {
        anchor: anchor(&[&suite.id, suite.medium.as_deref().unwrap_or_default()]),
        title: match &suite.medium {
            Some(medium) => format!("{} on {medium}: {}", suite.id, suite.title),
            None => format!("{}: {}", suite.id, suite.title),
        },
        intro: [suite.about.clone()].into_iter().filter(|text| !text.is_empty()).collect(),
        source: suite.source_url.clone(),
        tables: view.tables(suite),
        groups: view.figure_groups(suite),
        details: suite
            .rows
            .iter()
            .filter(|row| view.has_detail(row))
            .map(|row| view.detail(suite, row))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
