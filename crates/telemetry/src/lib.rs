//! Observability: metrics, traces, and usage by client and key prefix.
//!
//! Must not depend on members, calls or sockets; they report to this crate.

pub mod traces; // OpenTelemetry traces

pub mod metrics; // Prometheus metrics
pub mod usage; // the largest clients and key prefixes

pub mod status; // one document of all statistics

pub mod health; // health problems, in a sentence
pub mod history; // statistics of the last hours
