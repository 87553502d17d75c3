//! Flags of etcd 3.7.1 that are no flags of ours, by name.

/// Known to etcd, not built here yet: refused, since ignoring them would hide that they have no effect.
pub const NOT_BUILT: [&str; 16] = [
    "discovery-cacert",
    "discovery-cert",
    "discovery-dial-timeout",
    "discovery-endpoints",
    "discovery-fallback",
    "discovery-insecure-skip-tls-verify",
    "discovery-insecure-transport",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
    "discovery-key",
    "discovery-password",
    "discovery-request-timeout",
    "discovery-srv",
    "discovery-srv-name",
    "discovery-token",
    "discovery-user",
];

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

/// Whether a flag that is not built is given the value that it has in etcd without being given. A file names
/// all flags that its author knows, most of them so.
pub fn is_default(name: &str, value: &str) -> bool {
    match name {
        "cors" | "host-whitelist" => matches!(value, "*" | ""),
        "discovery-fallback" => true, // It says what to do without discovery.
        _ => matches!(value, "" | "0" | "false"),
    }
}
