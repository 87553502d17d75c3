//! The hub with a store and clients.
//!
//! One program, which is linked once. Tests that need a process for themselves are separate targets: see
//! `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/program.rs"]
mod program;
#[path = "common/world.rs"]
mod world;

mod any_requests;
mod model;
mod rounds;
mod scripts;
