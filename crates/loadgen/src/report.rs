//! What is shown of a measurement: on the terminal for one run, as a page for a whole report.
//!
//! ```text
//!   Summary ──text──▶ terminal
//!   Report ─┬─JSON──▶ a file that reads back
//!           ├─csv───▶ a line per figure
//!           └─compose──▶ Page ─┬─html──────▶ one file with plots, nothing fetched
//!                              └─markdown──▶ tables for a README
//! ```
//!
//! Knows nothing of how anything was measured.

// Values.
pub mod metric; // the figures, by name
pub mod model; // what a report holds

// From values to a page.
pub mod compose; // which tables, which plots, which sentences
pub mod number; // as people read them
pub mod page; // what there is to show

// From a page to files.
mod axis; // ticks and places
mod csv; // a line per figure
mod escape; // words of others inside markup
mod html; // for a browser
mod markdown; // for a README
mod ratios; // the overview
mod svg; // the plots
mod text; // for a terminal

pub use csv::csv;
pub use html::html;
pub use markdown::{brief, markdown};
pub use text::{Options, Precision, Timeline, text};
