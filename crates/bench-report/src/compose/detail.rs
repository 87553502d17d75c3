//! Details of a row: all metrics, all notices, its plots over time.

use super::view::{ReportView, ordered, row_anchor, row_notices};
use crate::metric::{METRICS, Middle};
use crate::model::{RowResult, SideResult, SuiteResult};
use crate::number;
use crate::page::{Column, Detail, Fact, ReportTable, TableCell};

impl ReportView<'_> {
    pub(super) fn detail(&self, suite: &SuiteResult, row: &RowResult) -> Detail {
        // The notices of the row already summarize the rounds.
        let said = if self.is_detailed { row_notices(row) } else { row.notices.iter().collect() };
        let mut notices = ordered(said);
        // Without details, the table contains it.
        let sends = self.is_detailed.then(|| Fact::prose("Load", super::tables::spec(row)));
        let mut facts: Vec<Fact> = sends.into_iter().collect();
        if !row.command.is_empty() {
            facts.push(Fact::command("One run", row.command.clone()));
        }
        if row.method.warm_up_total > 0 {
            let warm_up = number::count(row.method.warm_up_total as f64);
            facts
                .push(Fact::prose("Warm-up", format!("{warm_up} uncounted requests before the first round")));
        }
        for (index, side) in row.sides.iter().enumerate() {
            let name = self.name(index);
            notices.extend(side_notices(name, side));
            facts.extend(read_back(name, side).filter(|_| self.is_detailed));
        }
        Detail {
            anchor: row_anchor(suite, row),
            title: row.title.clone(),
            notices,
            facts,
            table: self.is_detailed.then(|| self.detail_table(suite, row)),
            figures: if self.is_detailed { self.over_time(row) } else { Vec::new() },
        }
    }

    fn detail_table(&self, suite: &SuiteResult, row: &RowResult) -> ReportTable {
        let mut columns = vec![Column::new("Metric", None)];
        for (side, owner) in self.order() {
            columns.push(Column::new(self.name(side), Some(owner)));
        }
        if self.baseline.is_some() {
            columns.push(Column::new("ratio", None));
        }
        let measured = |metric: &&crate::metric::Metric| {
            row.sides.iter().any(|side| side.median.as_ref().and_then(metric.get).is_some())
        };
        let rows = METRICS.iter().filter(measured).map(|metric| {
            let name = TableCell::Name { text: metric.label(), detail: String::new(), anchor: None };
            std::iter::once(name).chain(self.figures(row, metric)).collect()
        });
        let middle = match row.method.rounds_as {
            Middle::Median => "medians",
            Middle::Mean => "means",
        };
        let caption = format!(
            "{} {}: {middle} of {} rounds, minimum–maximum below",
            suite.id, row.id, row.method.rounds
        );
        ReportTable { caption, groups: Vec::new(), columns, rows: rows.collect() }
    }
}

fn side_notices(name: &str, side: &SideResult) -> Vec<String> {
    let mut notices: Vec<_> =
        side.left_out.iter().map(|reason| format!("{name}: omitted, {reason}")).collect();
    for round in &side.rounds {
        notices.extend(round.partial.iter().map(|reason| format!("{name}: a round stopped early, {reason}")));
        for group in &round.errors {
            notices.push(format!(
                "Error: {name}: {} × {}, for example “{}”",
                group.count, group.code, group.sample
            ));
        }
    }
    if let Some(check) = side.read_back.as_ref().filter(|check| !check.is_good()) {
        let sample =
            check.sample.as_ref().map(|sample| format!(", for example {sample}")).unwrap_or_default();
        notices.push(format!(
            "Error: {name}: {} of {} sampled keys have wrong values, {} of {} keys exist{sample}",
            check.wrong, check.sampled, check.keys_found, check.keys_expected
        ));
    }
    notices.dedup();
    notices
}

fn read_back(name: &str, side: &SideResult) -> Option<Fact> {
    let check = side.read_back.as_ref().filter(|check| check.is_good())?;
    let text = format!(
        "{} sampled keys have the right values; {} of {} keys exist",
        number::count(check.sampled as f64),
        number::count(check.keys_found as f64),
        number::count(check.keys_expected as f64)
    );
    Some(Fact::prose(format!("{name} read-back"), text))
}
