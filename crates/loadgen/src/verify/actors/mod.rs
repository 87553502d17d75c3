//! Tasks that use the cluster, and report to the checker what they did and saw.

pub mod messages; // to the checker
pub mod names; // keys and values as bytes

pub mod client; // sends operations
pub mod feed; // watches
pub mod holder; // keeps locks and elections
pub mod lessee; // keeps leases, and stops keeping them
pub mod polls; // asks members for hashes, their leader, their list and old events
