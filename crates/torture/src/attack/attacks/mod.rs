//! The attacks, grouped by the resource that they use.

pub(super) mod ground; // shared state of attackers

pub(super) mod callers; // connections from one or many addresses
pub(super) mod flood; // many small frames
pub(super) mod hoard; // streams and responses that stay in memory
pub(super) mod peers; // strangers on the peer port
pub(super) mod socket; // connections without HTTP
pub(super) mod work; // expensive requests
