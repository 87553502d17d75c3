//! What members ask each other besides Raft.

pub(super) mod hashes; // hashes of the history
pub(super) mod leases; // leases, to the leader
pub(super) mod recounts; // parts of the state as it is now
