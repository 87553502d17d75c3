//! A whole cluster in one thread, from one seed: what happens, in which order, and what is lost on the way.
//!
//! ```text
//!   chance ──▶ World ── time, faults ──▶ Site (node, log, machine) ◀── messages ── Network
//!                │                          │
//!                └── Clients ── history ────┴──▶ Laws: checked after every step
//! ```
//!
//! * The members are the real ones: `raft_node::Node`, `persist` and `Applier`, `wal` on its crashable disk,
//!   `state_machine` on `mvcc`. Only clocks, threads, sockets and disks are replaced.
//! * One seed decides everything; the same seed gives the same trace, which is hashed to prove it.
//! * A breach is reported with the command line that plays it again.
//!
//! For development only: nothing that ships depends on this crate.

pub mod chance; // where everything random comes from
pub mod world; // time, and what happens next

mod faults; // what goes wrong

mod clients; // what is asked for, and what came of it
mod laws; // what must never happen
mod machine; // the replicated store, watched
mod network; // messages on their way
mod site; // one member and its disk

pub use laws::Breach;
pub use world::{Flaw, Plan, Report, run};
