//! Runs against servers in this process, and against real etcd where it is built.
//!
//! One program, which is linked once. Tests that need a process for themselves are separate targets: see
//! `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

mod end_to_end;
mod exit;
mod real_etcd;
mod watchers;
