//! The streams of a connection.

mod state; // one stream
mod table; // all of them

pub(crate) use state::{LocalState, PendingEnd, StreamState};
pub(crate) use table::{CloseReason, Streams};
