//! The table of published differences between versions, machines or sizes, and of the differences measured
//! here.
//!
//! * If the write-up compares two of its rows, both are measured here, and the table has the difference of
//!   each system.
//! * If it compares versions or machines that are not measured here, the table has the difference between
//!   the two systems on the same row, if these are clusters that may be on two machines.

use super::tables::{RATE, latency_kind};
use super::view::ReportView;
use crate::metric::Metric;
use crate::model::{LatencyKind, Placement, PublishedChange, PublishedFigure, RowResult, SuiteResult};
use crate::number;
use crate::page::{Column, ColumnGroup, NOT_MEASURED, NOT_PUBLISHED, Owner, ReportTable, TableCell};

impl ReportView<'_> {
    /// Returns `None` if the write-up has no such differences.
    pub(super) fn changes(&self, suite: &SuiteResult) -> Option<ReportTable> {
        let latency = match latency_kind(suite) {
            LatencyKind::P90 => ("p90 latency", Metric::by_key("p90_ms")?),
            LatencyKind::Mean => ("mean latency", Metric::by_key("mean_ms")?),
        };
        let measures = [("requests per second", Metric::by_key(RATE)?), latency];
        let mut columns = vec![Column::new("Row", None)];
        let mut groups = Vec::new();
        for (title, _) in measures {
            columns.push(Column::new("published", Some(Owner::Published)));
            columns.push(Column::new("here", None));
            groups.push(ColumnGroup { title: title.into(), columns: 2 });
        }
        let published =
            suite.rows.iter().flat_map(|row| row.published.iter().map(move |published| (row, published)));
        let rows = published.filter_map(|(row, published)| {
            let change = published.change.as_ref()?;
            let mut cells = vec![self.change_name(suite, row, published, change)];
            for ((_, metric), percent) in measures.iter().zip([change.rate_percent, change.latency_percent]) {
                cells.push(percent.map_or(TableCell::Missing(NOT_PUBLISHED), |percent| TableCell::Number {
                    text: number::change(percent / 100.0),
                    spread: None,
                }));
                cells.push(self.change(suite, row, change, metric));
            }
            Some(cells)
        });
        let rows: Vec<_> = rows.collect();
        let caption = format!("{}: published and measured differences", suite.id);
        (!rows.is_empty()).then_some(ReportTable { caption, groups, columns, rows })
    }

    fn change(
        &self,
        suite: &SuiteResult,
        row: &RowResult,
        change: &PublishedChange,
        metric: &Metric,
    ) -> TableCell {
        let Some(from) = &change.row else {
            // Two programs on one machine do not measure the difference between two machines or versions.
            let two_machines = self.report.setup.placement == Placement::Existing;
            let ratio = self.ratio(row, metric).filter(|_| two_machines);
            let (Some(ratio), Some(baseline)) = (ratio, self.baseline) else {
                return TableCell::Missing(NOT_MEASURED);
            };
            let systems = format!("{} relative to {}", self.name(self.subject), self.name(baseline));
            return TableCell::Stack(vec![(number::change(ratio.ratio - 1.0), systems)]);
        };
        let Some(from) = suite.rows.iter().find(|other| other.id == *from) else {
            return TableCell::Missing(NOT_MEASURED);
        };
        let of = |side: usize| {
            let [of_row, of_from] = [row, from].map(|row| Self::side(row, side).and_then(|it| it.median));
            let ratio = metric.ratio(of_row.as_ref()?, of_from.as_ref()?)?;
            Some((number::change(ratio - 1.0), self.name(side).to_owned()))
        };
        let found: Vec<_> = self.order().into_iter().filter_map(|(side, _)| of(side)).collect();
        if found.is_empty() { TableCell::Missing(NOT_MEASURED) } else { TableCell::Stack(found) }
    }

    fn change_name(
        &self,
        suite: &SuiteResult,
        row: &RowResult,
        published: &PublishedFigure,
        change: &PublishedChange,
    ) -> TableCell {
        TableCell::Name {
            text: row.title.clone(),
            detail: format!("{}, relative to {}", published.subject, change.from),
            anchor: self.row_anchor(suite, row),
        }
    }
}
