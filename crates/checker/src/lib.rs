//! Checks a history of a cluster, as its clients observed it, against etcd's guarantees.
//!
//! All observations arrive as an ordered stream of [`Input`]s; [`Checker::take`] reports the first
//! contradiction. Has no connections, clocks or threads, so each rule is tested with a table of
//! short histories.

pub mod operation; // requests, outcomes, changes

pub mod hashes; // of the key space
mod history; // what watchers have shown
pub mod holders; // of locks and elections
pub mod leases; // when their keys are deleted
pub mod members; // their lists

mod verdict; // what a check takes, and what it says

mod rules; // operations and events against each other

pub use rules::Checker;
pub use verdict::{CheckCounts, Input, Replay, Violation};
