//! Torture tests: real server processes under process failures and disk failures.
//!
//! ```text
//!   power-loss   a recorded member; a start on each disk that a power loss could have left
//!   kill         kill -9, start-up included, of a single member or three
//!   members      membership changes, while members are killed, paused and isolated
//!   flip         one byte of a data directory at a time
//!   fail         each operation on a file fails once: EIO, ENOSPC; and a disk that is full
//!   attack       floods, hoards, malformed and maximal requests, while healthy clients measure
//! ```
//!
//! * All acknowledged writes must be present afterwards, at their revisions; values that were never
//!   sent must not.
//! * A seed determines the plan. Threads and the kernel decide its execution, so a failure also
//!   retains its evidence.
//!
//! For development only; released code does not depend on it.

pub mod bench; // directories, ports, the program
pub mod failure; // errors of experiments
pub mod member; // the server as a process
pub mod report; // results of an experiment

mod clients; // client requests, responses, and the laws that follow
mod disk; // recorded disk operations, and possible contents after a power loss

#[cfg(test)]
mod store_cuts; // a store under a kill followed by a power loss

pub mod attack; // experiment: clients and strangers attack
pub mod fail; // experiment: disk failures
pub mod flip; // experiment: corrupt bytes
pub mod kill; // experiment: killed processes
pub mod members; // experiment: membership changes
pub mod power_loss; // experiment: power loss
