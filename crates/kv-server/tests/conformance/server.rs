//! A new member as a separate process.

use crate::common::Cluster;

/// Variable with the binary to run instead of this project's.
const OVERRIDE: &str = "KV_CONFORMANCE_SERVER";
/// Log message of etcd after which it accepts downgrades: it is ready before its cluster has a version.
const HAS_VERSION: &str = "set initial cluster version";

pub struct Server(Cluster);

pub fn overridden() -> bool {
    std::env::var_os(OVERRIDE).is_some()
}

impl Server {
    /// Returns once the member is ready.
    pub fn start(flags: &[String]) -> Self {
        let cluster = Cluster::started_from(OVERRIDE, "m1", flags);
        if overridden() {
            cluster.members[0].running().wait_for(HAS_VERSION);
        }
        Self(cluster)
    }

    pub fn client_port(&self) -> u16 {
        self.0.members[0].client_port
    }
}
