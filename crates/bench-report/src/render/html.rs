//! A page as a self-contained HTML file: inline style, plots and text, without external resources or
//! scripts.
//!
//! * Tables have scoped headings. On screens narrower than a tablet their rows become cards, but remain
//!   tables for screen readers.
//! * Colour is never the only mark: ratios have a word, lines a dash or a marker.

use super::{ratios, svg};
use crate::page::{
    Column, Detail, Fact, FactKind, Figure, FigureGroup, Folding, LinePlot, NO_RATIO, NOT_MEASURED,
    NOT_PUBLISHED, Owner, Page, ReportTable, Section, TableCell,
};
use maud::{Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");
/// Makes the browser block external resources and scripts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/// Number of initially visible figures in a group.
const FIGURES_SHOWN: usize = 6;

pub fn html(page: &Page) -> String {
    let markup = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (page.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { h1 { (page.title) } p.lede { (page.lede) } (notices(&page.notices)) }
                main {
                    @if page.sections.len() > 1 {
                        nav aria-label="Suites" { ul {
                            @for section in &page.sections {
                                li { a href={ "#" (section.anchor) } { (section.title) } }
                            }
                        } }
                    }
                    @if let Some(overview) = &page.overview { (ratios::html(overview)) }
                    section id="method" { h2 { "Method" } (facts(&page.facts)) }
                    @for suite in &page.sections { (section(suite)) }
                }
                footer { p { (page.footer) } }
            }
        }
    };
    markup.into_string()
}

fn notices(notices: &[String]) -> Markup {
    html! {
        @if !notices.is_empty() {
            aside.notices aria-label="Notices" { ul { @for notice in notices { li { (notice) } } } }
        }
    }
}

fn facts(facts: &[Fact]) -> Markup {
    html! {
        dl.facts {
            @for Fact { name, value, kind } in facts {
                div {
                    dt { (name) }
                    dd { @if *kind == FactKind::Command { code { (value) } } @else { (value) } }
                }
            }
        }
    }
}

fn section(section: &Section) -> Markup {
    let Section { anchor, title, intro, source, tables, groups, details } = section;
    html! {
        section id=(anchor) {
            h2 { (title) }
            @for paragraph in intro { p.intro { (paragraph) } }
            @if let Some(source) = source { p.intro { "Source: " (link(source)) } }
            @for suite in tables { (table(suite, "cards")) }
            @for (n, figures) in groups.iter().enumerate() { (group(figures, &format!("{anchor}-g{n}"))) }
            @if !details.is_empty() {
                h3 { @if details[0].table.is_some() { "All rows" } @else { "Rows with warnings" } }
            }
            @for row in details { (detail(row)) }
        }
    }
}

/// Renders a group of figures. `id` is unique within the page, here and below.
fn group(group: &FigureGroup, id: &str) -> Markup {
    let FigureGroup { title, note, figures, folding } = group;
    let shown = match folding {
        Folding::Open => figures.len(),
        Folding::AfterSome => figures.len().min(FIGURES_SHOWN),
    };
    let (shown, folded) = figures.split_at(shown);
    html! {
        h3 { (title) }
        @if !note.is_empty() { p.note { (note) } }
        (grid(shown, id))
        @if !folded.is_empty() {
            details { summary { (folded.len()) " more" } (grid(folded, &format!("{id}-more"))) }
        }
    }
}

fn grid(figures: &[Figure], id: &str) -> Markup {
    // Four in a line would be too small to read; three and one look like a mistake.
    html! {
        div.grid-of-figures.four[figures.len() == 4] {
            @for (n, figure) in figures.iter().enumerate() {
                figure {
                    p.figure-title { (figure.title) }
                    (svg::draw(figure, &format!("{id}-f{n}")))
                    figcaption { (legend(&figure.plot)) span.caption { (figure.caption) } }
                }
            }
        }
    }
}

fn detail(detail: &Detail) -> Markup {
    let Detail { anchor, title, notices: row_notices, facts: row_facts, table: figures, figures: plots } =
        detail;
    html! {
        details.row id=(anchor) {
            summary { (title) }
            (notices(row_notices))
            (facts(row_facts))
            @if let Some(figures) = figures { (table(figures, "plain")) }
            @if !plots.is_empty() { (grid(plots, anchor)) }
        }
    }
}

/// Renders a table. Roles are explicit, because some browsers drop them for rows displayed as blocks.
fn table(table: &ReportTable, class: &str) -> Markup {
    html! {
        div.scroll role="region" aria-label=(table.caption) tabindex="0" {
            table role="table" class=(class) {
                caption { (table.caption) }
                thead role="rowgroup" {
                    @if !table.groups.is_empty() {
                        tr.groups role="row" {
                            td {}
                            @for group in &table.groups {
                                th role="columnheader" scope="colgroup" colspan=(group.columns) { (group.title) }
                            }
                        }
                    }
                    tr role="row" {
                        @for (index, column) in table.columns.iter().enumerate() {
                            @let class = column_class(column.owner, group_that_begins(table, index).is_some());
                            th role="columnheader" scope="col" class=[class] { (column.title) }
                        }
                    }
                }
                tbody role="rowgroup" {
                    @for row in &table.rows {
                        tr role="row" {
                            @for (index, (content, column)) in row.iter().zip(&table.columns).enumerate() {
                                (cell(content, column, group_that_begins(table, index)))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders a cell. `group`: title of the group that starts at this column, displayed in card rows.
fn cell(cell: &TableCell, column: &Column, group: Option<&str>) -> Markup {
    html! {
        @if matches!(cell, TableCell::Name { .. }) {
            th role="rowheader" scope="row" { (content(cell)) }
        } @else {
            @let class = column_class(column.owner, group.is_some());
            td role="cell" class=[class] data-label=(column.title) data-group=[group] { (content(cell)) }
        }
    }
}

fn content(cell: &TableCell) -> Markup {
    html! {
        @match cell {
            TableCell::Name { text, detail, anchor } => {
                @if let Some(anchor) = anchor { a href={ "#" (anchor) } { (text) } } @else { (text) }
                @if !detail.is_empty() { small { (detail) } }
            }
            TableCell::Number { text, spread } => {
                span.n { (text) }
                @if let Some(spread) = spread { small { (spread) } }
            }
            TableCell::Ratio { text, verdict } => {
                span class={ "ratio " (verdict.class()) } {
                    (text)
                    @if !verdict.word().is_empty() { small { (verdict.word()) } }
                }
            }
            TableCell::Words(words) => { span.words { (words) } }
            TableCell::Stack(parts) => {
                span.stack { @for (text, subject) in parts { span { (text) small { (subject) } } } }
            }
            TableCell::Missing(reason) => {
                // The reason is a tooltip only: in sparse columns it would repeat.
                @let quiet = matches!(*reason, NOT_PUBLISHED | NOT_MEASURED | NO_RATIO);
                span.missing.quiet[quiet] title=(reason) { "–" i { (reason) } }
            }
        }
    }
}

/// Renders a link if the address has a web scheme.
fn link(address: &str) -> Markup {
    let web = address.starts_with("https://") || address.starts_with("http://");
    html! { @if web { a href=(address) rel="noopener" { (address) } } @else { (address) } }
}

/// Renders a sample of each line of a plot with its name.
fn legend(lines: &LinePlot) -> Markup {
    html! {
        span.legend {
            @for series in &lines.series {
                span.key {
                    svg.swatch viewBox="0 0 22 10" aria-hidden="true" {
                        g class=(svg::class(series)) {
                            path.line d="M0 5H22" {}
                            @if series.stroke.is_marked() { (svg::mark(series.owner, 11.0, 5.0, "")) }
                        }
                    }
                    (series.name)
                }
            }
        }
    }
}

/// Returns the title of the column group that starts at this column.
fn group_that_begins(table: &ReportTable, column: usize) -> Option<&str> {
    let mut start = 1;
    for group in &table.groups {
        if start == column {
            return Some(&group.title);
        }
        start += group.columns;
    }
    None
}

fn column_class(owner: Option<Owner>, begins: bool) -> Option<String> {
    let classes: Vec<_> = owner.map(Owner::class).into_iter().chain(begins.then_some("begins")).collect();
    (!classes.is_empty()).then(|| classes.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_never_markup() {
        let hostile = "<script>x</script>\" onload=\"x";
        let table = ReportTable {
            caption: hostile.into(),
            columns: vec![Column::new(hostile, None); 2],
            rows: vec![vec![
                TableCell::Name { text: hostile.into(), detail: hostile.into(), anchor: None },
                TableCell::Number { text: hostile.into(), spread: Some(hostile.into()) },
            ]],
            ..ReportTable::default()
        };
        let section = Section { title: hostile.into(), tables: vec![table], ..Section::default() };
        let text = html(&Page { title: hostile.into(), sections: vec![section], ..Page::default() });
        assert!(!text.contains("<script") && !text.contains("\" onload"), "{text}");
        assert_eq!(text.matches("&lt;script&gt;").count(), 12);
    }

    #[test]
    fn only_addresses_of_the_web_are_links() {
        assert!(link("https://a/b").into_string().starts_with("<a href=\"https://a/b\""));
        assert_eq!(link("javascript:x").into_string(), "javascript:x");
    }
}
