//! Deterministic simulation of a cluster in one thread, from a single seed.
//!
//! ```text
//!   chance ──▶ World ── time, faults ──▶ Site (node, log, machine, store) ◀── messages ── Network
//!                │                          │
//!                └── Clients ── responses ──┴──▶ laws and oracle: checked after every step
//! ```
//!
//! * The members run the production code: `raft_node::Node`, `persist` and `Applier`, `wal` on its
//!   crashable disk, `state_machine` on `mvcc`. Only clocks, threads, sockets and disks are
//!   replaced.
//! * A seed determines the run completely. The trace is hashed to verify that it repeats.
//! * A breach is reported with the command line that replays it.
//!
//! For development only: production code does not depend on this crate.

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
