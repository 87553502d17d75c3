//! Whole database files.
//!
//! One program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod format;
mod round_trip;
