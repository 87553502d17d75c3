//! The attacks, grouped by the resource that they use.

pub(super) mod ground; // what attackers know and share

pub(super) mod callers; // connections of one address, or of many
pub(super) mod flood; // many small frames
pub(super) mod hoard; // streams and answers that stay in memory
pub(super) mod peers; // strangers on the peer port
pub(super) mod socket; // connections without HTTP
pub(super) mod work; // requests that cost much
