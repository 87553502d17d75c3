//! Flags of etcd that are no flags of ours, by name.

/// Long dead in etcd itself, which takes them and does nothing.
pub const IGNORED: [&str; 13] = [
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-election-timeout",
    "peer-heartbeat-interval",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
];
