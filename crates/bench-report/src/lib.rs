//! Published measurements as data, the result of a measurement as values, and what is shown of it.
//!
//! ```text
//!   suites/*.json ──▶ Suite ── measured by the load generator ──▶ Report ─┬─ JSON ───▶ a file that reads back
//!                                                                        ├─ csv ────▶ a line per figure
//!                                                                        └─ compose ▶ Page ─┬─ html
//!                                                                                           └─ markdown
//! ```
//!
//! Must not depend on how anything is measured.

// Values.
pub mod metric; // the figures by name
pub mod model; // the result of a measurement
pub mod suite; // published rows

// From values to a page.
pub mod number; // digits and units
pub mod page; // sentences, tables, plots

pub mod compose; // which of them a report has

// From a page to files.
pub mod render; // HTML, Markdown, CSV
