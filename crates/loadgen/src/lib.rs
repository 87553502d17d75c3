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

// What is sent, when, and where to.
pub mod access; // TLS and tokens
pub mod endpoint; // addresses
mod frame; // requests as bytes
mod keys; // etcd's key encoding
pub mod schedule; // turns and their pace
pub mod workload; // a position in the run becomes a request

// One call.
mod call; // in flight
mod dial; // plain or inside TLS
mod failure; // why it brought nothing
mod link; // the connection that carries it
mod reply; // what is read of its answer
mod wire; // its bytes, counted

// The same over HTTP/1.1.
mod gateway; // JSON, one connection per caller

// A run.
mod control; // stop, and how far
mod ready; // who has something to do
mod recorder; // what happened
pub mod run; // workers started, driven, merged
mod scale; // coarse counts of latencies
mod slices; // what happened when
mod timer; // an alarm clock of fine resolution
mod worker; // one thread's connections and callers

// What is made of it.
pub mod admin; // questions beside the load
pub mod cli; // the program
pub mod compare; // suites on one system, or on two side by side
mod find_rate; // the highest rate within a limit
mod machine; // where it was measured
pub mod report; // the text
pub mod server; // what it cost the servers
pub mod suite; // published rows
pub mod summary; // the figures

pub use endpoint::Endpoint;
pub use failure::{Code, Failure};
pub use keys::Order;
pub use recorder::Tally;
pub use run::{Measurement, Plan, Run};
pub use schedule::Pace;
pub use worker::Observer;
pub use workload::{Values, Workload, Writes};
