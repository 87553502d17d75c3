//! A page as one HTML file: style, plots and words inside it, nothing fetched, no script.
//!
//! * Tables are tables with scoped headings; below the width of a tablet their rows become cards, and stay tables for a
//!   reader of screens.
//! * Colour never stands alone: ratios carry a word, lines a dash or a marker.
//! * Everything that came from outside goes through [`escape`].

use super::escape::escape;
use super::page::{
    Cell, Column, Detail, Fact, FactKind, Figure, FigureGroup, Folding, Lines, NO_RATIO, NOT_MEASURED,
    NOT_PUBLISHED, Page, Section, Table, Who,
};
use super::{ratios, svg};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
/// Of a group of figures, so many are shown; the others are one click away.
const FIGURES_SHOWN: usize = 6;

/// The file's text.
pub fn html(page: &Page) -> String {
    let mut out = Html { text: String::new(), figures: 0 };
    out.head(page);
    out.opening(page);
    for section in &page.sections {
        out.section(section);
    }
    out.colophon(page);
    out.text
}

/// The growing file.
struct Html {
    text: String,
    /// Figures so far: each gets its own id.
    figures: usize,
}

impl Html {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String grows");
    }

    fn head(&mut self, page: &Page) {
        let title = escape(&page.title);
        // The policy makes "nothing fetched, no script" hold whatever stands below.
        self.put(format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        ));
    }

    fn opening(&mut self, page: &Page) {
        let (title, lede) = (escape(&page.title), escape(&page.lede));
        self.put(format_args!("<header>\n<h1>{title}</h1>\n<p class=\"lede\">{lede}</p>\n"));
        self.notices(&page.notices);
        self.put(format_args!("</header>\n<main>\n"));
        if page.sections.len() > 1 {
            self.put(format_args!("<nav aria-label=\"Suites\"><ul>\n"));
            for section in &page.sections {
                let (anchor, title) = (&section.anchor, escape(&section.title));
                self.put(format_args!("<li><a href=\"#{anchor}\">{title}</a></li>\n"));
            }
            self.put(format_args!("</ul></nav>\n"));
        }
        if let Some(overview) = &page.overview {
            self.put(format_args!("{}", ratios::html(overview)));
        }
        self.put(format_args!("<section id=\"method\">\n<h2>How it was measured</h2>\n"));
        self.facts(&page.facts);
        self.put(format_args!("</section>\n"));
    }

    fn notices(&mut self, notices: &[String]) {
        if notices.is_empty() {
            return;
        }
        self.put(format_args!("<aside class=\"notices\" aria-label=\"Notices\"><ul>\n"));
        for notice in notices {
            self.put(format_args!("<li>{}</li>\n", escape(notice)));
        }
        self.put(format_args!("</ul></aside>\n"));
    }

    fn facts(&mut self, facts: &[Fact]) {
        self.put(format_args!("<dl class=\"facts\">\n"));
        for Fact { name, value, kind } in facts {
            let (name, value) = (escape(name), escape(value));
            let value = match kind {
                FactKind::Prose => value,
                FactKind::Command => format!("<code>{value}</code>"),
            };
            self.put(format_args!("<div><dt>{name}</dt><dd>{value}</dd></div>\n"));
        }
        self.put(format_args!("</dl>\n"));
    }

    fn section(&mut self, section: &Section) {
        let Section { anchor, title, intro, source, tables, groups, details } = section;
        self.put(format_args!("<section id=\"{anchor}\">\n<h2>{}</h2>\n", escape(title)));
        for paragraph in intro {
            self.put(format_args!("<p class=\"intro\">{}</p>\n", escape(paragraph)));
        }
        if let Some(source) = source {
            self.put(format_args!("<p class=\"intro\">Source: {}</p>\n", link(source)));
        }
        for table in tables {
            self.table(table, "cards");
        }
        for group in groups {
            self.group(group);
        }
        if !details.is_empty() {
            self.put(format_args!("<h3>Every row in full</h3>\n"));
        }
        for detail in details {
            self.detail(detail);
        }
        self.put(format_args!("</section>\n"));
    }

    fn group(&mut self, group: &FigureGroup) {
        let FigureGroup { title, note, figures, folding } = group;
        self.put(format_args!("<h3>{}</h3>\n", escape(title)));
        if !note.is_empty() {
            self.put(format_args!("<p class=\"note\">{}</p>\n", escape(note)));
        }
        let shown = match folding {
            Folding::Open => figures.len(),
            Folding::AfterSome => figures.len().min(FIGURES_SHOWN),
        };
        self.grid(&figures[..shown]);
        if shown < figures.len() {
            let more = figures.len() - shown;
            self.put(format_args!("<details><summary>{more} more of these</summary>\n"));
            self.grid(&figures[shown..]);
            self.put(format_args!("</details>\n"));
        }
    }

    fn grid(&mut self, figures: &[Figure]) {
        // Four side by side would be too small to read, three and one would look like a mistake.
        let class = if figures.len() == 4 { "grid-of-figures four" } else { "grid-of-figures" };
        self.put(format_args!("<div class=\"{class}\">\n"));
        for figure in figures {
            self.figure(figure);
        }
        self.put(format_args!("</div>\n"));
    }

    fn figure(&mut self, figure: &Figure) {
        self.figures += 1;
        let plot = svg::draw(figure, &format!("f{}", self.figures));
        let (title, caption) = (escape(&figure.title), escape(&figure.caption));
        let legend = legend(&figure.plot);
        self.put(format_args!(
            "<figure><p class=\"figure-title\">{title}</p>{plot}\
             <figcaption>{legend}<span class=\"caption\">{caption}</span></figcaption></figure>\n"
        ));
    }

    fn detail(&mut self, detail: &Detail) {
        let Detail { anchor, title, notices, facts, table, figures } = detail;
        self.put(format_args!(
            "<details class=\"row\" id=\"{anchor}\"><summary>{}</summary>\n",
            escape(title)
        ));
        self.notices(notices);
        self.facts(facts);
        self.table(table, "plain");
        if !figures.is_empty() {
            self.grid(figures);
        }
        self.put(format_args!("</details>\n"));
    }

    /// Roles are spelled out because a table whose rows are shown as blocks loses them in some browsers.
    fn table(&mut self, table: &Table, class: &str) {
        let caption = escape(&table.caption);
        self.put(format_args!(
            "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\
             <table role=\"table\" class=\"{class}\"><caption>{caption}</caption>\n<thead role=\"rowgroup\">\n"
        ));
        if !table.groups.is_empty() {
            self.put(format_args!("<tr role=\"row\" class=\"groups\"><td></td>"));
            for group in &table.groups {
                let (title, columns) = (escape(&group.title), group.columns);
                self.put(format_args!(
                    "<th role=\"columnheader\" scope=\"colgroup\" colspan=\"{columns}\">{title}</th>"
                ));
            }
            self.put(format_args!("</tr>\n"));
        }
        self.put(format_args!("<tr role=\"row\">"));
        let starts = group_starts(table);
        for (index, Column { title, who }) in table.columns.iter().enumerate() {
            let class = column_class(*who, starts.contains(&index));
            self.put(format_args!("<th role=\"columnheader\" scope=\"col\"{class}>{}</th>", escape(title)));
        }
        self.put(format_args!("</tr>\n</thead>\n<tbody role=\"rowgroup\">\n"));
        for row in &table.rows {
            self.put(format_args!("<tr role=\"row\">"));
            for (index, (cell, column)) in row.iter().zip(&table.columns).enumerate() {
                let begins = group_of(table, index).filter(|_| starts.contains(&index));
                self.cell(cell, column, begins);
            }
            self.put(format_args!("</tr>\n"));
        }
        self.put(format_args!("</tbody></table></div>\n"));
    }

    /// `begins`: the title of the group whose first column this is; shown where rows are cards.
    fn cell(&mut self, cell: &Cell, column: &Column, begins: Option<&str>) {
        let label = escape(&column.title);
        let class = column_class(column.who, begins.is_some());
        let group = begins.map(|title| format!(" data-group=\"{}\"", escape(title))).unwrap_or_default();
        let open = format!("<td role=\"cell\"{class} data-label=\"{label}\"{group}>");
        match cell {
            Cell::Name { text, detail, anchor } => {
                let text = escape(text);
                let text = anchor
                    .as_ref()
                    .map_or(text.clone(), |anchor| format!("<a href=\"#{anchor}\">{text}</a>"));
                let detail = escape(detail);
                let detail = if detail.is_empty() { detail } else { format!("<small>{detail}</small>") };
                self.put(format_args!("<th role=\"rowheader\" scope=\"row\">{text}{detail}</th>"));
            }
            Cell::Number { text, spread } => {
                let spread = spread.as_ref().map(|spread| format!("<small>{}</small>", escape(spread)));
                let spread = spread.unwrap_or_default();
                self.put(format_args!("{open}<span class=\"n\">{}</span>{spread}</td>", escape(text)));
            }
            Cell::Ratio { text, verdict } => {
                let (class, word) = (ratios::verdict_class(*verdict), verdict.word());
                let word = if word.is_empty() { String::new() } else { format!("<small>{word}</small>") };
                self.put(format_args!(
                    "{open}<span class=\"ratio {class}\">{}{word}</span></td>",
                    escape(text)
                ));
            }
            Cell::Words(words) => {
                self.put(format_args!("{open}<span class=\"words\">{}</span></td>", escape(words)))
            }
            Cell::Stack(parts) => {
                self.put(format_args!("{open}<span class=\"stack\">"));
                for (text, whose) in parts {
                    self.put(format_args!("<span>{}<small>{}</small></span>", escape(text), escape(whose)));
                }
                self.put(format_args!("</span></td>"));
            }
            Cell::Missing(reason) => {
                // In a column where few rows have the figure this is no news: seen on request only.
                let class = if matches!(*reason, NOT_PUBLISHED | NOT_MEASURED | NO_RATIO) {
                    "missing quiet"
                } else {
                    "missing"
                };
                let reason = escape(reason);
                self.put(format_args!(
                    "{open}<span class=\"{class}\" title=\"{reason}\">–<i>{reason}</i></span></td>"
                ));
            }
        }
    }

    fn colophon(&mut self, page: &Page) {
        self.put(format_args!(
            "</main>\n<footer><p>{}</p></footer>\n</body>\n</html>\n",
            escape(&page.colophon)
        ));
    }
}

/// An address that can be followed, if it is one of the web.
fn link(address: &str) -> String {
    let shown = escape(address);
    let web = address.starts_with("https://") || address.starts_with("http://");
    if web { format!("<a href=\"{shown}\" rel=\"noopener\">{shown}</a>") } else { shown }
}

/// Who is who in a plot: a sample of the line and its name.
fn legend(lines: &Lines) -> String {
    let mut out = String::from("<span class=\"legend\">");
    for series in &lines.series {
        let class = svg::class(series.who);
        let dashed = if series.stroke.is_dashed() { " second" } else { "" };
        let name = escape(&series.name);
        let mark =
            if series.stroke.is_marked() { svg::mark(series.who, 11.0, 5.0, "") } else { String::new() };
        let text = format!(
            "<span class=\"key\"><svg class=\"swatch\" viewBox=\"0 0 22 10\" aria-hidden=\"true\"><g class=\"{class}{dashed}\">\
             <path class=\"line\" d=\"M0 5H22\"/>{mark}</g></svg>{name}</span>"
        );
        out.push_str(&text);
    }
    out.push_str("</span>");
    out
}

/// Indexes of the columns that begin a group.
fn group_starts(table: &Table) -> Vec<usize> {
    let mut next = 1;
    let starts = table.groups.iter().map(|group| {
        let start = next;
        next += group.columns;
        start
    });
    starts.collect()
}

fn group_of(table: &Table, column: usize) -> Option<&str> {
    let starts = group_starts(table);
    let index = starts.iter().rposition(|start| *start <= column)?;
    Some(&table.groups[index].title)
}

fn column_class(who: Option<Who>, begins: bool) -> String {
    let who = who.map(svg::class).unwrap_or_default();
    let begins = if begins { "begins" } else { "" };
    match format!("{who} {begins}").trim() {
        "" => String::new(),
        classes => format!(" class=\"{classes}\""),
    }
}
