//! Connections, calls and replies.

pub mod access; // TLS and tokens
pub mod endpoint; // addresses

pub mod dial; // plain TCP or TLS
pub mod link; // an HTTP/2 connection, reconnecting

pub mod call; // a call in flight
pub mod failure; // errors of failed calls
pub mod reply; // parsed parts of a reply

pub mod watch; // a watch stream

pub mod admin; // status, hash, compaction and single keys, through tonic
