//! Requests of clients, and what came of them.

mod ask; // kinds of requests
mod draw; // what is asked for
mod leases; // what is asked for of leases

mod changes; // of the members
mod clients; // what came of what was asked for
mod watches; // clients that watch

pub(crate) use ask::LeaseQuestion;
pub(crate) use changes::{CHANGES, Changes, Proposed, is_change};
pub(crate) use clients::{Asker, Clients, Handed, RequestId, check_range, numbered};

pub(crate) use watches::WatchClient;
