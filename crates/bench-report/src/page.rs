//! A report as sentences, facts, tables and plots, independent of HTML and Markdown.
//!
//! ```text
//!   result ──compose──▶ Page ──html──▶ one file for a browser
//!                         └──markdown──▶ tables for a README
//! ```
//!
//! * Numbers are text, so that all formats of a page show the same digits.
//! * A metric that was not measured is a cell with the reason, never empty and never zero.
//!
//! Independent of measurement and markup.

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// The result in one or two sentences.
    pub lede: String,
    /// Limitations of the metrics, most important first.
    pub notices: Vec<String>,
    /// Parameters of the measurement.
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
    Command,
}

#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Unique within the page; letters, digits, dots and dashes.
    pub anchor: String,
    pub title: String,
    pub intro: Vec<String>,
    /// URL of the published measurements.
    pub source: Option<String>,
    pub tables: Vec<ReportTable>,
    pub groups: Vec<FigureGroup>,
    pub details: Vec<Detail>,
}

/// All metrics of a row.
#[derive(Clone, Debug)]
pub struct Detail {
    pub anchor: String,
    pub title: String,
    pub notices: Vec<String>,
    pub facts: Vec<Fact>,
    pub table: Option<ReportTable>,
    pub figures: Vec<Figure>,
}

/// Figures displayed side by side.
#[derive(Clone, Debug)]
pub struct FigureGroup {
    pub title: String,
    pub note: String,
    pub figures: Vec<Figure>,
    pub folding: Folding,
}

/// Initial visibility of a group's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    Open,
    /// The first few; the remaining ones are one click away.
    AfterSome,
}

#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    pub caption: String,
    /// Headings over several columns; the first column has none.
    pub groups: Vec<ColumnGroup>,
    /// Columns; the first one names the rows.
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

/// System that a value belongs to; determines colour, dash and marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Published,
    A,
    B,
}

impl Owner {
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
        /// Anchor of the details on the page.
        anchor: Option<String>,
    },
    /// Published remark in place of a number.
    Words(String),
    /// Several published values, each with its subject.
    Stack(Vec<(String, String)>),
    Number {
        text: String,
        /// Minimum and maximum of the rounds, if there were several.
        spread: Option<String>,
    },
    Ratio {
        text: String,
        verdict: RatioVerdict,
    },
    Missing(&'static str),
}

/// Meaning of a ratio for the first system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioVerdict {
    Better,
    Worse,
    /// The spreads of the rounds overlap.
    Even,
    /// Neither direction is an improvement.
    Neutral,
}

#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub caption: String,
    /// Text description of the plot, for screen readers.
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
    /// Starts at zero.
    Linear,
    Log,
    /// Values are 1 / (1 − q) and ticks are percentiles, like in HdrHistogram plots.
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
    /// Default stroke of the system.
    Plain,
    /// A second aspect of the same system.
    Dashed,
    /// A few points, each measured separately.
    Marked,
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
    /// Minimum and maximum of the rounds.
    pub spread: Option<(f64, f64)>,
}

/// A line per ratio on a shared logarithmic axis with 1 in the middle.
#[derive(Clone, Debug)]
pub struct Ratios {
    pub title: String,
    pub caption: String,
    /// Labels left and right of 1.
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
    /// Returns the verdict as a word, for readers without colour vision.
    pub fn word(self) -> &'static str {
        match self {
            RatioVerdict::Better => "better",
            RatioVerdict::Worse => "worse",
            RatioVerdict::Even => "even",
            RatioVerdict::Neutral => "",
        }
    }

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
