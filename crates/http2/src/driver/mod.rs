//! A connection as one task of tokio.
//!
//! ```text
//!   read once ──▶ handle all of it ──▶ write once ──▶ yield if more is there
//! ```
//!
//! * All requests of a read are handled before anything is written, so their answers leave together.
//! * A round is bounded by [`crate::Limits::read_bytes`] and [`crate::Limits::round_bytes_max`]; then other
//!   tasks run.
//! * Output that the socket does not take stops reading once the output buffer is full.
//! * Waits that last too long end: see [`Deadlines`].

mod deadlines; // what may take how long
mod serve; // the task

pub use deadlines::Deadlines;
pub use serve::{Handler, serve};
