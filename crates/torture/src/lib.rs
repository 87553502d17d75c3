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
pub mod failure; // why an experiment could not be made
pub mod member; // the program as a process
pub mod report; // what an experiment came to

mod clients; // requests of clients, their answers, and the laws that follow
mod disk; // what is recorded of a disk, and what it may hold after a power cut

#[cfg(test)]
mod store_cuts; // a store, killed and then cut

pub mod attack; // experiment: clients and strangers attack
pub mod fail; // experiment: disks refuse
pub mod flip; // experiment: bytes change
pub mod kill; // experiment: processes die
pub mod members; // experiment: members come and go
pub mod power_loss; // experiment: the power fails
