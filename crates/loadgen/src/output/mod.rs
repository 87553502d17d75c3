//! Output of a run.

pub mod hdr; // histograms for other programs
pub mod summary; // the figures
pub mod text; // their text on a terminal
