//! What the process says of itself: metrics, traces, and usage by client and key prefix.
//!
//! Must not depend on members, calls or sockets; those count here.

pub mod traces; // OpenTelemetry traces

pub mod metrics; // Prometheus metrics
pub mod usage; // the largest clients and key prefixes

pub mod status; // one document of all figures

pub mod health; // what is wrong, in a sentence
pub mod history; // figures of the last hours
