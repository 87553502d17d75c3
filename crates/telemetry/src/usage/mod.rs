//! The clients and key prefixes with the highest load on a member: requests, bytes and keys per second.
//!
//! ```text
//!   one hot call in 32 ─▶ client, prefixes, bytes, keys ─▶ sketches of this window ─▶ those of the last one
//! ```
//!
//! * Off unless `--metrics-top` is given: names of keys and users are shown without authentication.
//! * Memory is bounded by that flag, for any keys: six sketches in each of two windows, names of 64 bytes.
//! * A value is at most 1/16 of a top entry's fair share too large (see [`sketch`]), plus the sampling
//!   error: of n requests in a window, about sqrt(32 n).
//!
//! A call that is not sampled decrements a thread-local counter. A sampled one decodes its request once
//! more and takes a lock for some microseconds, never across an await. Covers Range, Put, DeleteRange and
//! Txn of gRPC.

mod sketch; // the most frequent names of a stream

mod request; // keys and sizes of a request

mod tally; // windows, samples, rows

pub use tally::{Rows, Top, Usage};
