//! Output formats of a page and of a report's values.

mod axis; // ticks and positions
mod csv; // a line per metric
mod html; // for a browser
mod markdown; // for a README
mod ratios; // the overview
mod svg; // the plots

pub use csv::csv;
pub use html::html;
pub use markdown::{brief, markdown};
