//! Tests of whole connections: RFC conformance, other implementations as oracles, and arbitrary input.
//!
//! A single program, to link once. Tests that need a separate process are separate targets: see
//! `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/echo.rs"]
mod echo;
#[path = "common/harness.rs"]
mod harness;
#[path = "common/laws.rs"]
mod laws;

mod any_bytes;
mod beside_h2;
mod conformance;
mod driver;
mod fairness;
mod oracle;
mod varying;
mod work;
