//! Output of a run.

pub mod hdr; // histograms for other programs
pub mod summary; // statistics of a run
pub mod text; // text for a terminal
