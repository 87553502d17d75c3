//! Which clients and which key prefixes use a member most: requests, bytes and keys in a second.
//!
//! ```text
//!   one hot call in 32 ─▶ client, prefixes, bytes, keys ─▶ sketches of this window ─▶ those of the last one
//! ```
//!
//! * Off unless `--metrics-top` is given: names of keys and users are shown without authentication.
//! * Memory is bounded by that flag, for any keys: six sketches in each of two windows, names of 64 bytes.
//! * A figure is at most 1/16 of a top entry's fair share too large (see [`sketch`]), plus the error of
//!   sampling: of n requests in a window, some sqrt(32 n).
//!
//! A call that is not sampled costs a countdown in its thread. One that is decodes its request once more and
//! takes a lock for some microseconds, never across an await. Counts Range, Put, DeleteRange and Txn of gRPC.

mod sketch; // the largest names of a stream

mod request; // what a request names

mod tally; // windows, samples, rows

pub use tally::{Rows, Top, Usage};
