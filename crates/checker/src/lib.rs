//! Checks a cluster against etcd's guarantees while clients use it through every member.
//!
//! ```text
//!   verify: clients, watchers, polls ──observations──▶ rules: Checker ──▶ first contradiction
//!                     │
//!                   proxy (optional): violates a guarantee on purpose
//! ```
//!
//! [`Checker`] has no connections, clocks or threads, so each rule is tested with a table of short
//! histories. All observations arrive as an ordered stream of [`Input`]s.

pub mod operation; // requests, outcomes, changes

pub mod hashes; // of the key space
mod history; // reported by watchers
pub mod holders; // of locks and elections
pub mod leases; // deletion of their keys
pub mod members; // membership, terms and cluster ids

mod verdict; // inputs and results of a check

mod rules; // operations and events against each other

pub mod proxy; // violates guarantees on purpose

pub mod verify; // uses a cluster and checks it

pub use proxy::lie::Lie;
pub use proxy::{LieCounts, Proxy};
pub use rules::Checker;
pub use verdict::{CheckCounts, Input, Replay, Violation};
pub use verify::report::VerifyReport;
pub use verify::{Settings, run};
