//! Requests of clients, and what came of them.

mod draw; // what is asked for

mod clients; // what came of what was asked for
mod watches; // clients that watch

pub(crate) use clients::{Clients, Handed, RequestId, check_range};
pub(crate) use watches::WatchClient;
