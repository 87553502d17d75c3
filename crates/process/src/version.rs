//! Which version this is, in the three senses in which it is asked for.

/// The version of etcd whose API is spoken here; clients read it as a semantic version and switch features by
/// it.
pub const ETCD: &str = "3.7.3";
/// What a cluster of such members agrees on.
pub const CLUSTER: &str = "3.7.0";
pub const CLUSTER_SHORT: &str = "3.7";
/// The same as numbers.
pub const CLUSTER_MAJOR: i64 = 3;
pub const CLUSTER_MINOR: i64 = 7;
/// Version of this program.
pub const OWN: &str = env!("CARGO_PKG_VERSION");
