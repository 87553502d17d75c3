//! Live views of a run, for people and for programs.

pub mod exporter; // metrics for Prometheus
pub mod screen; // rate, percentiles and histogram in a terminal
