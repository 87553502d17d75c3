//! Which version this is, in the three senses in which it is asked for.

/// The version of etcd whose API is spoken here; clients read it as a semantic version and switch features by it.
pub const ETCD: &str = "3.7.1";
/// What a cluster of such members agrees on.
pub const CLUSTER: &str = "3.7.0";
pub const CLUSTER_SHORT: &str = "3.7";
/// Version of this program.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// What `--version` prints.
pub fn text() -> String {
    let commit = option_env!("KV_SERVER_GIT_COMMIT").unwrap_or("unknown");
    let (os, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
    format!(
        "kv-server Version: {OWN}\netcd API Version: {ETCD}\nGit SHA: {commit}\nTarget: {architecture}-{os}\n"
    )
}
