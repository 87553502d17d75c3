//! The load generator and the checks against complete members as processes.
//!
//! Needs the server's program, which `cargo test --workspace` builds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../kv-server/tests/common/mod.rs"]
mod common;

mod leader_kill;
mod loads;
