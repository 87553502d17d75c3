//! A whole cluster in one thread, from one seed: what happens, in which order, and what is lost on the way.
//!
//! ```text
//!   chance ──▶ World ── time, faults ──▶ Site (node, log, machine, store) ◀── messages ── Network
//!                │                          │
//!                └── Clients ── answers ────┴──▶ laws and oracle: asked after every step
//! ```
//!
//! * The members are the real ones: `raft_node::Node`, `persist` and `Applier`, `wal` on its crashable disk,
//!   `state_machine` on `mvcc`. Only clocks, threads, sockets and disks are replaced.
//! * One seed decides everything; the same seed gives the same trace, which is hashed to prove it.
//! * A breach is reported with the command line that plays it again.
//!
//! For development only: nothing that ships depends on this crate.

pub mod chance; // where everything random comes from
mod count; // what is counted
mod panics; // what they say

mod network; // messages on their way
mod plan; // the plan of a run, drawn from its seed

mod member; // one member and its disks
mod oracle; // what must never happen, and what must be answered
mod requests; // what is asked for, and what came of it

mod world; // time, and what happens next

pub mod fleet; // many runs, side by side

pub use count::{RunReport, Statistic};
pub use oracle::Breach;
pub use plan::{KnownBug, RunPlan};
pub use world::{Trace, run, run_traced};
