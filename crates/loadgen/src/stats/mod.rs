//! Statistics that threads share or merge. Independent of the rest of this crate.

pub mod histogram; // coarse latency counts
pub mod percentile; // definition of percentiles
pub mod progress; // counters of a run in progress
pub mod slices; // latencies over time
pub mod stillness; // detects that a thread did not run
