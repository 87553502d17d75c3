//! The load generator: a closed or open loop of put, txn and range requests against any etcd-compatible server, and
//! an honest account of what came back.
//!
//! ```text
//!   Workload (what) ─┐
//!   Schedule (when) ─┼─▶ Worker × threads ──▶ Tally ──▶ report
//!   Link × conns ────┘
//! ```
//!
//! Programs use it as a library: a [`Plan`] describes a run, [`Plan::measure`] does it, an [`Observer`] is told of each
//! acknowledged write.

pub mod admin; // questions beside the load
mod call; // one request in flight
pub mod cli;
mod control; // stop, and how far
pub mod endpoint; // addresses
mod failure; // why a call brought nothing
mod frame; // requests as bytes
mod keys; // etcd's key encoding
mod link; // one connection
mod ready; // who has something to do
mod recorder; // what happened
mod reply; // what is read of an answer
pub mod report; // its text
pub mod run; // a whole run
pub mod schedule; // when
pub mod server; // what it cost the servers
pub mod summary; // its figures
mod timer; // an alarm clock of fine resolution
mod worker; // one thread's connections and callers
pub mod workload; // what is sent // the program

pub use endpoint::Endpoint;
pub use failure::{Code, Failure};
pub use keys::Order;
pub use recorder::Tally;
pub use run::{Measurement, Plan, Run};
pub use schedule::Pace;
pub use worker::Observer;
pub use workload::{Workload, Writes};
