//! Prometheus metrics, under etcd's names.
//!
//! ```text
//!   hot paths ──one relaxed addition──▶ Metrics ──┐
//!   store, Raft, /proc ───────read when asked─────┴──▶ Exposition ──▶ /metrics
//! ```
//!
//! * Counting on a hot path is one relaxed atomic addition; everything else happens when /metrics is read.
//! * Other parts register collectors for what they measure when asked. This folder uses none of them.
//! * A name that exists here has etcd's meaning, type and buckets. Where etcd has a figure and we have no
//!   such thing, the name is absent rather than zero.

mod declare; // how a metric is declared and shown, labels, buckets, a gauge of what is under way

mod calls; // gRPC calls by method and code
mod disk; // what was written, and how long it took

mod call_in_progress; // one call, counted once at its end
mod counters; // every counter of the process
mod slow_calls; // calls that take long, and where

mod exposition; // the text that Prometheus reads
mod process; // the process, as the operating system counts it

pub use call_in_progress::{CallInProgress, MessageCounter};
pub use calls::{CallCounts, SlowCall};
pub use counters::{Applied, AuditMetrics, Metrics};
pub use declare::{From, PeerLink, Reason, To, UnderWay, show};
pub use disk::Purpose;
pub use exposition::Exposition;
pub use process::{cpu_seconds, resident_bytes};
pub use slow_calls::{SlowCalls, Stage, timed};
