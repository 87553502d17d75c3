//! The streams of a connection.

mod state; // one stream
mod table; // all of them

pub(crate) use state::{Local, PendingEnd, Stream};
pub(crate) use table::{Closed, Streams};
