//! Published measurements, measured results, and the reports about them.
//!
//! ```text
//!   suites/*.json ──▶ Suite ── measured by the load generator ──▶ Report ─┬─ JSON ───▶ a file that reads back
//!                                                                        ├─ csv ────▶ a line per figure
//!                                                                        └─ compose ▶ Page ─┬─ html
//!                                                                                           └─ markdown
//! ```
//!
//! Independent of how measurements are made.

// Values
pub mod metric; // metrics by name
pub mod model; // result of a measurement
pub mod suite; // published rows

// Values to page
pub mod number; // digits and units
pub mod page; // sentences, tables, plots

pub mod compose; // selects the contents of a report

// Page to files
pub mod render; // HTML, Markdown, CSV
