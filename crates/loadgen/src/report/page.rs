//! A report as things to show: facts, tables and plots, before anyone decides between HTML and Markdown.
//!
//! ```text
//!   result ──compose──▶ Page ──html──▶ one file for a browser
//!                         └──markdown──▶ tables for a README
//! ```
//!
//! * Every number stands here once, with its text: two formats of one page cannot disagree.
//! * What was not measured is a cell that says why, never an empty one and never a zero.
//!
//! Knows nothing of how results come about or of any markup.

/// A whole report.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// What the reader should know if they read one sentence.
    pub lede: String,
    /// What limits the figures, the most important first.
    pub notices: Vec<String>,
    /// How it was measured: name and value.
    pub facts: Vec<Fact>,
    pub overview: Option<Ratios>,
    pub sections: Vec<Section>,
    /// Where it comes from and how to make it again.
    pub colophon: String,
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
    /// To be typed, so shown as typed.
    Command,
}

/// One suite.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Unique within the page; letters, digits, dots and dashes.
    pub anchor: String,
    pub title: String,
    pub intro: Vec<String>,
    /// Where the published figures stand.
    pub source: Option<String>,
    pub tables: Vec<Table>,
    pub groups: Vec<FigureGroup>,
    pub details: Vec<Detail>,
}

/// Everything about one row, for whoever wants to know.
#[derive(Clone, Debug)]
pub struct Detail {
    pub anchor: String,
    pub title: String,
    pub notices: Vec<String>,
    pub facts: Vec<Fact>,
    pub table: Table,
    pub figures: Vec<Figure>,
}

/// Figures that belong side by side.
#[derive(Clone, Debug)]
pub struct FigureGroup {
    pub title: String,
    pub note: String,
    pub figures: Vec<Figure>,
    pub folding: Folding,
}

/// Whether all figures of a group are seen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    Open,
    /// The first few; the others are one click away.
    AfterSome,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub caption: String,
    /// Headings over several columns; the first column has none.
    pub groups: Vec<Group>,
    /// The first names the rows.
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

/// `columns` columns under one heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub title: String,
    pub columns: usize,
}

#[derive(Clone, Debug)]
pub struct Column {
    pub title: String,
    pub who: Option<Who>,
}

/// Whose figure it is; decides colour, dash and marker everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Published,
    A,
    B,
}

/// Why a cell may be missing.
pub const NOT_PUBLISHED: &str = "not published";
pub const NOT_MEASURED: &str = "not measured";
pub const NO_RATIO: &str = "no ratio";

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Name {
        text: String,
        detail: String,
        /// Where on the page there is more about it.
        anchor: Option<String>,
    },
    /// What was said instead of a number.
    Words(String),
    /// Several figures of others, each with whose it is.
    Stack(Vec<(String, String)>),
    Number {
        text: String,
        /// Least to greatest of the rounds, if there were several.
        spread: Option<String>,
    },
    Ratio {
        text: String,
        verdict: Verdict,
    },
    Missing(&'static str),
}

/// What a ratio means for the first system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// The spreads of the rounds overlap.
    Even,
    /// Neither direction is better in itself.
    Neutral,
}

/// A plot with its words.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub caption: String,
    /// The same in words, for whoever does not see it.
    pub description: String,
    pub plot: Lines,
}

#[derive(Clone, Debug)]
pub struct Lines {
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
    pub who: Who,
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
    /// What lies left and right of 1.
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
    pub verdict: Verdict,
}

impl Verdict {
    /// As readers who see no colour read it.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Even => "even",
            Verdict::Neutral => "",
        }
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
    pub fn new(title: impl Into<String>, who: Option<Who>) -> Self {
        Self { title: title.into(), who }
    }
}
