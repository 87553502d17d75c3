//! Tests of whole database files, linked into one program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod format;
mod round_trip;
