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
pub mod fleet; // many stories, side by side
mod panics; // what they say

mod count; // what is counted
mod plan; // what a story is told from
mod world; // time, and what happens next

mod faults; // what goes wrong
mod steps; // what happens to a member
mod streams; // snapshots on their way
mod verdict; // how a story must end

mod clients; // what came of what was asked for
mod requests; // what is asked for

mod laws; // what must never happen
mod model; // the oracle

mod machine; // the replicated store, watched
mod network; // messages on their way
mod site; // one member and its disks
mod start; // how it comes up
mod store_disk; // the disk under a store

pub use count::{Count, Report};
pub use laws::Breach;
pub use plan::{Flaw, Plan};
pub use world::{Trace, run, run_traced};
