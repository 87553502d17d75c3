//! Torture: whole processes, the real program, against everything that may happen to them and their disks.
//!
//! ```text
//!   power-loss   a recorded member; each disk that a power cut could have left is started on
//!   kill         kill -9, start-up included, of one member or three
//!   members      the members of a cluster change, while others are killed, paused and cut off
//!   flip         one byte of a data directory at a time
//!   fail         each operation on a file fails once: EIO, ENOSPC; and a disk that is full
//!   attack       floods, hoards, malformed and maximal requests, while healthy clients measure
//! ```
//!
//! * All that was acknowledged must be there afterwards, at its revision; what was never sent must not.
//! * One seed, one plan. What threads and kernels make of the plan is theirs, so a failure also keeps its
//!   evidence.
//!
//! For development only; nothing that ships depends on it.

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
