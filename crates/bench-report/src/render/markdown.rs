//! The tables and warnings of a page as Markdown. Only the HTML file has plots and details of rows.

use crate::page::{Fact, FactKind, Page, ReportTable, TableCell};
use std::fmt::Write;

pub fn markdown(page: &Page) -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("a String grows");
    line(format_args!("# {}\n\n{}\n", inline(&page.title), inline(&page.lede)));
    for notice in &page.notices {
        line(format_args!("> {}\n>", inline(notice)));
    }
    line(format_args!(""));
    for Fact { name, value, kind } in &page.facts {
        match kind {
            FactKind::Prose => line(format_args!("- {}: {}", inline(name), inline(value))),
            FactKind::Command => line(format_args!("- {}: {}", inline(name), code(value))),
        }
    }
    for section in &page.sections {
        line(format_args!("\n## {}\n", inline(&section.title)));
        for paragraph in &section.intro {
            line(format_args!("{}\n", inline(paragraph)));
        }
        if let Some(source) = &section.source {
            line(format_args!("Source: <{}>\n", source.replace(['<', '>', ' '], "")));
        }
        for table in &section.tables {
            line(format_args!("{}\n\n{}\n", inline(&table.caption), text(table)));
        }
        for detail in &section.details {
            let marked = |notice: &&String| notice.starts_with("Error: ") || notice.starts_with("Warning: ");
            for notice in detail.notices.iter().filter(marked) {
                line(format_args!("- {}: {}", inline(&detail.title), inline(notice)));
            }
        }
    }
    out
}

/// Formats the summary of a page for a terminal: title, lede, notices.
pub fn brief(page: &Page) -> String {
    let notices: String = page.notices.iter().map(|notice| format!("  * {notice}\n")).collect();
    format!("{}\n\n{}\n{notices}", page.title, page.lede.replace(". ", ".\n"))
}

/// Formats a table. Markdown has a single heading line, so a column heading includes that of its group.
fn text(table: &ReportTable) -> String {
    let mut groups =
        table.groups.iter().flat_map(|group| std::iter::repeat_n(group.title.as_str(), group.columns));
    let headings = table.columns.iter().enumerate().map(|(index, column)| match index {
        0 => inline(&column.title),
        _ => inline(&format!("{} {}", groups.next().unwrap_or_default(), column.title)),
    });
    let mut out = format!("| {} |\n|---|", headings.collect::<Vec<_>>().join(" | "));
    out.push_str(&"--:|".repeat(table.columns.len().saturating_sub(1)));
    for row in &table.rows {
        let cells: Vec<_> = row.iter().map(cell).collect();
        out.push_str(&format!("\n| {} |", cells.join(" | ")));
    }
    out
}

fn cell(cell: &TableCell) -> String {
    match cell {
        TableCell::Name { text, detail, .. } if detail.is_empty() => inline(text),
        TableCell::Name { text, detail, .. } => format!("{}<br><sub>{}</sub>", inline(text), inline(detail)),
        TableCell::Number { text, spread: None } => inline(text),
        TableCell::Number { text, spread: Some(spread) } => {
            format!("{}<br><sub>{}</sub>", inline(text), inline(spread))
        }
        TableCell::Ratio { text, verdict } => {
            format!("{} {}", inline(text), verdict.word()).trim_end().to_owned()
        }
        TableCell::Stack(parts) => {
            let parts: Vec<_> =
                parts.iter().map(|(text, subject)| format!("{} {}", inline(text), inline(subject))).collect();
            parts.join("<br>")
        }
        TableCell::Words(words) => inline(words),
        TableCell::Missing(_) => "–".into(),
    }
}

/// Escapes text: no markup, no new cell, no new line.
fn inline(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' => safe.push(' '),
            '<' => safe.push_str("&lt;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => safe.extend(['\\', character]),
            _ => safe.push(character),
        }
    }
    safe
}

/// Quotes code with more backticks than it contains.
fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    if longest > 0 { format!("{fence} {text} {fence}") } else { format!("{fence}{text}{fence}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Column, ColumnGroup, RatioVerdict};

    #[test]
    fn a_table_has_one_line_of_headings_and_cells_that_stay_inside() {
        let table = ReportTable {
            caption: String::new(),
            groups: vec![ColumnGroup { title: "QPS".into(), columns: 2 }],
            columns: vec![Column::new("Row", None), Column::new("etcd", None), Column::new("ratio", None)],
            rows: vec![vec![
                TableCell::Name { text: "put|x".into(), detail: "8 B".into(), anchor: None },
                TableCell::Number { text: "583".into(), spread: Some("580–590".into()) },
                TableCell::Ratio { text: "1.82×".into(), verdict: RatioVerdict::Better },
            ]],
        };
        let expected = "| Row | QPS etcd | QPS ratio |\n|---|--:|--:|\n\
                        | put\\|x<br><sub>8 B</sub> | 583<br><sub>580–590</sub> | 1.82× better |";
        assert_eq!(text(&table), expected);
    }

    #[test]
    fn a_page_in_brief_is_its_title_its_lede_and_its_notices() {
        let page = Page {
            title: "A and B".into(),
            lede: "A was faster. B was smaller.".into(),
            notices: vec!["One machine.".into()],
            ..Page::default()
        };
        assert_eq!(brief(&page), "A and B\n\nA was faster.\nB was smaller.\n  * One machine.\n");
    }

    #[test]
    fn commands_are_fenced_by_more_backticks_than_they_hold() {
        assert_eq!((code("a b"), code("a `b` c")), ("`a b`".into(), "`` a `b` c ``".into()));
    }
}
