//! A report as sentences, facts, tables and plots, independent of HTML and Markdown.
//!
//! ```text
//!   result ──compose──▶ Page ──html──▶ one file for a browser
//!                         └──markdown──▶ tables for a README
//! ```
//!
//! * Numbers are text here, so that all formats of a page show the same.
//! * A figure that was not measured is a cell with the reason, never empty and never zero.
//!
//! Must not depend on how results are measured, nor on any markup.

/// A whole report.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// The result in one or two sentences.
    pub lede: String,
    /// What limits the figures, the most important first.
    pub notices: Vec<String>,
    /// How it was measured: name and value.
    pub facts: Vec<Fact>,
    pub overview: Option<Ratios>,
    pub sections: Vec<Section>,
    /// The origin of the page and how to render it again.
    pub footer: String,
}

#[derive(Clone, Debug)]
pub struct Fact {
    pub name: String,
    pub value: String,
    pub kind: FactKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactKind {
    Prose,
    /// A command line.
    Command,
}

/// One suite.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Unique within the page; letters, digits, dots and dashes.
    pub anchor: String,
    pub title: String,
    pub intro: Vec<String>,
    /// The address of the published figures.
    pub source: Option<String>,
    pub tables: Vec<ReportTable>,
    pub groups: Vec<FigureGroup>,
    pub details: Vec<Detail>,
}

/// All figures of one row.
#[derive(Clone, Debug)]
pub struct Detail {
    pub anchor: String,
    pub title: String,
    pub notices: Vec<String>,
    pub facts: Vec<Fact>,
    pub table: Option<ReportTable>,
    pub figures: Vec<Figure>,
}

/// Figures shown next to each other.
#[derive(Clone, Debug)]
pub struct FigureGroup {
    pub title: String,
    pub note: String,
    pub figures: Vec<Figure>,
    pub folding: Folding,
}

/// Whether all figures of a group are visible at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    Open,
    /// The first few; the others are one click away.
    AfterSome,
}

#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    pub caption: String,
    /// Headings over several columns; the first column has none.
    pub groups: Vec<ColumnGroup>,
    /// The first names the rows.
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<TableCell>>,
}

/// `columns` columns under one heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnGroup {
    pub title: String,
    pub columns: usize,
}

#[derive(Clone, Debug)]
pub struct Column {
    pub title: String,
    pub owner: Option<Owner>,
}

/// Which side a figure belongs to; decides colour, dash and marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Published,
    A,
    B,
}

impl Owner {
    /// In the style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Owner::Published => "published",
            Owner::A => "a",
            Owner::B => "b",
        }
    }
}

/// Reasons why a cell has no value.
pub const NOT_PUBLISHED: &str = "not published";
pub const NOT_MEASURED: &str = "not measured";
pub const NO_RATIO: &str = "no ratio";

#[derive(Clone, Debug, PartialEq)]
pub enum TableCell {
    Name {
        text: String,
        detail: String,
        /// The place on the page with its details.
        anchor: Option<String>,
    },
    /// Words that were published instead of a number.
    Words(String),
    /// Several published figures, each with its subject.
    Stack(Vec<(String, String)>),
    Number {
        text: String,
        /// Least to greatest of the rounds, if there were several.
        spread: Option<String>,
    },
    Ratio {
        text: String,
        verdict: RatioVerdict,
    },
    Missing(&'static str),
}

/// What a ratio means for the first system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioVerdict {
    Better,
    Worse,
    /// The spreads of the rounds overlap.
    Even,
    /// Neither direction is better in itself.
    Neutral,
}

/// A plot with its texts.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub caption: String,
    /// The plot in words, for screen readers.
    pub description: String,
    pub plot: LinePlot,
}

#[derive(Clone, Debug)]
pub struct LinePlot {
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

#[derive(Clone, Debug)]
pub struct Axis {
    pub label: String,
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    Log,
    /// Values are 1 / (1 − q), ticks are the percentiles, as HdrHistogram plots them.
    Percentile,
}

#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub owner: Owner,
    pub stroke: Stroke,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// As the system is always drawn.
    Plain,
    /// A second aspect of the same system.
    Dashed,
    /// Few points, each of which was measured by itself.
    Marked,
    /// Both: a second line of few points.
    MarkedDashed,
}

impl Stroke {
    pub fn is_dashed(self) -> bool {
        matches!(self, Stroke::Dashed | Stroke::MarkedDashed)
    }

    pub fn is_marked(self) -> bool {
        matches!(self, Stroke::Marked | Stroke::MarkedDashed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Least and greatest of the rounds.
    pub spread: Option<(f64, f64)>,
}

/// One ratio per line on a shared logarithmic axis, 1 in the middle.
#[derive(Clone, Debug)]
pub struct Ratios {
    pub title: String,
    pub caption: String,
    /// The labels left and right of 1.
    pub sides: [String; 2],
    pub groups: Vec<RatioGroup>,
}

#[derive(Clone, Debug)]
pub struct RatioGroup {
    pub title: String,
    pub rows: Vec<RatioRow>,
}

#[derive(Clone, Debug)]
pub struct RatioRow {
    pub name: String,
    pub ratio: f64,
    /// The least favourable and the most favourable pairing of rounds.
    pub spread: (f64, f64),
    pub verdict: RatioVerdict,
}

impl RatioVerdict {
    /// For readers who do not see the colour.
    pub fn word(self) -> &'static str {
        match self {
            RatioVerdict::Better => "better",
            RatioVerdict::Worse => "worse",
            RatioVerdict::Even => "even",
            RatioVerdict::Neutral => "",
        }
    }

    /// In the style sheet.
    pub fn class(self) -> &'static str {
        if self == RatioVerdict::Neutral { "neutral" } else { self.word() }
    }
}

impl Point {
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, spread: None }
    }
}

impl Fact {
    pub fn prose(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), kind: FactKind::Prose }
    }

    pub fn command(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), kind: FactKind::Command }
    }
}

impl Column {
    pub fn new(title: impl Into<String>, owner: Option<Owner>) -> Self {
        Self { title: title.into(), owner }
    }
}
