//! Runs against in-process servers, and against real etcd if it is built.
//!
//! Linked as a single program. Tests that need a separate process are separate targets: see `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

mod end_to_end;
mod exit;
mod real_etcd;
mod watchers;
