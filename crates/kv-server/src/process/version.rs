//! Which version this is, in the three senses in which it is asked for.

/// The version of etcd whose API is spoken here; clients read it as a semantic version and switch features by
/// it.
pub const ETCD: &str = "3.7.1";
/// What a cluster of such members agrees on.
pub const CLUSTER: &str = "3.7.0";
pub const CLUSTER_SHORT: &str = "3.7";
/// The same as numbers.
pub const CLUSTER_MAJOR: i64 = 3;
pub const CLUSTER_MINOR: i64 = 7;
/// Version of this program.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// What `--version` prints. Target, commit and date come from the build script in `deploy/version`.
pub fn text() -> String {
    let (target, commit, date) = (env!("BUILD_TARGET"), env!("BUILD_COMMIT"), env!("BUILD_DATE"));
    format!(
        "kv-server Version: {OWN}\netcd API Version: {ETCD}\nGit SHA: {commit}\nBuild Date: {date}\nTarget: {target}\n"
    )
}
