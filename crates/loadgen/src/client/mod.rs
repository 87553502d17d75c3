//! Connections, calls and replies.

pub mod access; // TLS and tokens
pub mod endpoint; // addresses

pub mod dial; // plain TCP or TLS
pub mod link; // one HTTP/2 connection, re-dialled

pub mod call; // one call in flight
pub mod failure; // why a call failed
pub mod reply; // the parts of a reply that are read

pub mod watch; // one watch stream

pub mod admin; // status, hash, compaction and single keys, through tonic
