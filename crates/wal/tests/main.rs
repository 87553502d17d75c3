//! Tests of whole logs, on a simulated disk that crashes and fails, and on a real one. Linked into one
//! program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

mod crash;
mod damage;
mod flips;
mod format;
mod inspect;
mod log;
mod readers;
mod reuse;
