//! Whole clusters: single-threaded with simulated time (`common`), and with all threads (`running`).
//!
//! Linked as a single program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod running;

mod cluster;
mod lost_disks;
mod lost_stores;
mod reads;
mod rebuild;
mod snapshots;
mod stalls;
mod threads;
