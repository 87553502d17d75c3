//! Prometheus metrics, under etcd's names.
//!
//! ```text
//!   hot paths ──one relaxed addition──▶ Metrics ──┐
//!   store, Raft, /proc ───────read when asked─────┴──▶ Exposition ──▶ /metrics
//! ```
//!
//! * Counting on a hot path is one relaxed atomic addition; everything else happens on a scrape of
//!   /metrics.
//! * Other crates register collectors for metrics evaluated per scrape. This module does not depend on
//!   them.
//! * A name that exists here has etcd's meaning, type and buckets. Metrics of etcd that do not apply are
//!   absent rather than zero.

mod declare; // declaration and encoding of metrics, labels, buckets, operations in progress

mod calls; // gRPC calls by method and code
mod disk; // bytes written and durations

mod call_in_progress; // one call, counted once when it completes
mod counters; // every counter of the process
mod slow_calls; // slow calls and their stages

mod exposition; // the text format
mod process; // the process, from the operating system

pub use call_in_progress::{CallInProgress, MessageCounter};
pub use calls::{CallCounts, SlowCall};
pub use counters::{Applied, AuditMetrics, Metrics};
pub use declare::{From, PeerLink, Reason, To, UnderWay, show};
pub use disk::WritePurpose;
pub use exposition::Exposition;
pub use process::{cpu_seconds, resident_bytes};
pub use slow_calls::{SlowCalls, Stage, timed};
