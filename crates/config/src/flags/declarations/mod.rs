//! Every flag as clap reads it: its name, its type, its help.

mod discovery; // flags of discovery
mod listen; // flags of listeners
mod log; // flags of the log
mod tls; // flags of TLS
mod traces; // flags of traces

pub use discovery::{DiscoveryFallback, shown};
pub use tls::TlsFlags;
pub use traces::TraceFlags;

use std::time::Duration;

use clap::Parser;

use discovery::DiscoveryFlags;
use listen::ListenFlags;
use log::LogFlags;

use crate::flags::values::{bytes, duration, origins, signed, switch, unsigned, unsigned_32};
use crate::url::Urls;

/// What was said on the command line and in the environment; `None` where nothing was.
#[derive(Clone, Debug, Parser)]
#[command(name = "kv-server", about = "A replicated key-value store that speaks etcd's v3 API.")]
#[command(args_override_self = true, disable_version_flag = true, disable_help_flag = true)]
pub struct Flags {
    /// Human-readable name of this member [default: default].
    #[arg(long)]
    pub name: Option<String>,
    /// Data directory [default: NAME.kv-server].
    #[arg(long)]
    pub data_dir: Option<String>,
    /// Directory of the log, if it shall not lie in the data directory.
    #[arg(long)]
    pub wal_dir: Option<String>,
    /// Where to listen for clients [default: http://localhost:2379].
    #[arg(long, value_parser = Urls::parse)]
    pub listen_client_urls: Option<Urls>,
    /// Where clients should dial [default: http://localhost:2379].
    #[arg(long, value_parser = Urls::parse)]
    pub advertise_client_urls: Option<Urls>,
    /// Where to listen for other members [default: http://localhost:2380].
    #[arg(long, value_parser = Urls::parse)]
    pub listen_peer_urls: Option<Urls>,
    /// Where other members should dial [default: http://localhost:2380].
    #[arg(long, value_parser = Urls::parse)]
    pub initial_advertise_peer_urls: Option<Urls>,
    /// First members of the cluster, as NAME=URL,... [default: this member alone].
    #[arg(long)]
    pub initial_cluster: Option<String>,
    /// Whether the cluster is 'new' or 'existing' [default: new].
    #[arg(long, value_parser = cluster_state)]
    pub initial_cluster_state: Option<ClusterState>,
    /// Go on from the data directory as the only member: all others are removed [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub force_new_cluster: Option<bool>,
    /// Mixed into member ids, so that clusters with equal URLs differ [default: etcd-cluster].
    #[arg(long)]
    pub initial_cluster_token: Option<String>,
    /// Refuse changes of the members that would leave the cluster unable to commit [default: true].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub strict_reconfig_check: Option<bool>,
    /// Learners that the cluster may have at a time [default: 1].
    #[arg(long, value_parser = unsigned)]
    pub max_learners: Option<u64>,
    /// Milliseconds between heartbeats of a leader [default: 100].
    #[arg(long, value_parser = unsigned)]
    pub heartbeat_interval: Option<u64>,
    /// Milliseconds without a heartbeat before a member stands for election [default: 1000].
    #[arg(long, value_parser = unsigned)]
    pub election_timeout: Option<u64>,
    /// Applied log entries after which the store writes a checkpoint, at the latest [default: 10000].
    #[arg(long, value_parser = unsigned)]
    pub snapshot_count: Option<u64>,
    /// Log entries kept before a checkpoint for slow followers [default: 5000].
    #[arg(long, value_parser = unsigned)]
    pub snapshot_catchup_entries: Option<u64>,
    /// Size at which writes are refused; 0 means 2 GiB, negative means never [default: 0].
    #[arg(long, value_parser = signed, allow_hyphen_values = true)]
    pub quota_backend_bytes: Option<i64>,
    /// What --auto-compaction-retention counts: periodic or revision [default: periodic].
    #[arg(long)]
    pub auto_compaction_mode: Option<String>,
    /// History that is kept: hours, a time such as 10m, or revisions; 0 keeps all [default: 0].
    #[arg(long)]
    pub auto_compaction_retention: Option<String>,
    /// Operations in one transaction [default: 128].
    #[arg(long, value_parser = unsigned)]
    pub max_txn_ops: Option<u64>,
    /// Bytes in one request [default: 1572864].
    #[arg(long, value_parser = unsigned)]
    pub max_request_bytes: Option<u64>,
    /// Streams that one client connection may have open [default: 1000].
    #[arg(long, value_parser = unsigned_32)]
    pub max_concurrent_streams: Option<u32>,
    /// Shortest time between two pings of a client; faster ones end its connection [default: 5s].
    #[arg(long, value_parser = duration)]
    pub grpc_keepalive_min_time: Option<Duration>,
    /// Silence of a client after which it is pinged; 0 pings never [default: 2h0m0s].
    #[arg(long, value_parser = duration)]
    pub grpc_keepalive_interval: Option<Duration>,
    /// Time in which a client has to answer a ping [default: 20s].
    #[arg(long, value_parser = duration)]
    pub grpc_keepalive_timeout: Option<Duration>,
    /// Time between two progress notifications of a watch stream; 0 means 10 minutes [default: 0s].
    #[arg(long, value_parser = duration)]
    pub watch_progress_notify_interval: Option<Duration>,
    /// Time between two comparisons of the members' hashes; 0 compares never [default: 0s].
    #[arg(long, value_parser = duration)]
    pub corrupt_check_time: Option<Duration>,
    /// Time between two comparisons of the hashes of compactions, with the gate CompactHashCheck [default:
    /// 1m0s].
    #[arg(long, value_parser = duration)]
    pub compact_hash_check_time: Option<Duration>,
    /// Gates of etcd as NAME=true,...; CompactHashCheck and InitialCorruptCheck have an effect.
    #[arg(long)]
    pub feature_gates: Option<String>,
    /// Time after which a unary call is logged as slow [default: 300ms].
    #[arg(long, value_parser = duration)]
    pub warning_unary_request_duration: Option<Duration>,
    /// Origins of scripts that may use plain HTTP, or * [default: *].
    #[arg(long, value_parser = origins)]
    pub cors: Option<String>,
    /// Hosts that requests of plain HTTP may name, or * [default: *].
    #[arg(long)]
    pub host_whitelist: Option<String>,
    /// Serve the JSON gateway under /v3/ [default: true].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub enable_grpc_gateway: Option<bool>,
    /// Kind of tokens: simple, or jwt,sign-method=M,priv-key=FILE,pub-key=FILE,ttl=5m [default: simple].
    #[arg(long)]
    pub auth_token: Option<String>,
    /// Cancel watchers whose user loses the permission to read their keys [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub auth_recheck_watchers: Option<bool>,
    /// File of the audit log, or stderr; without it there is none.
    #[arg(long)]
    pub audit_log: Option<String>,
    /// What the audit log holds: refused, changes (and refused) or all requests [default: refused].
    #[arg(long)]
    pub audit_log_level: Option<String>,
    /// How many of the largest clients and key prefixes are shown by name to all who read metrics, at most
    /// 100 [default: 0].
    #[arg(long, value_parser = unsigned)]
    pub metrics_top: Option<u64>,
    /// Memory, as 512MiB, 2GB or a number of bytes, above which large requests wait or are refused; 0: none
    /// [default: 0].
    #[arg(long, value_parser = bytes)]
    pub memory_limit: Option<u64>,
    /// Seconds after which an unused token ends [default: 300].
    #[arg(long, value_parser = unsigned)]
    pub auth_token_ttl: Option<u64>,
    /// Cost of hashing a password: each step doubles it, 4 to 31 [default: 10].
    #[arg(long, value_parser = unsigned)]
    pub bcrypt_cost: Option<u64>,
    /// debug, info, warn, error, panic or fatal [default: info].
    #[arg(long)]
    pub log_level: Option<String>,
    /// json or console [default: json].
    #[arg(long)]
    pub log_format: Option<String>,
    /// Run one of this many members on this machine: the first whose slot is free.
    #[arg(long, value_parser = unsigned, value_name = "MEMBERS")]
    pub local_cluster: Option<u64>,
    /// Configuration file, in YAML or JSON; then all other flags and variables are ignored.
    #[arg(long)]
    pub config_file: Option<String>,
    /// Print the version and exit.
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub version: Option<bool>,
    #[command(flatten)]
    pub listen: ListenFlags,
    #[command(flatten)]
    pub log: LogFlags,
    #[command(flatten)]
    pub tls: TlsFlags,
    #[command(flatten)]
    pub discovery: DiscoveryFlags,
    #[command(flatten)]
    pub traces: TraceFlags,
}

/// Is this the first start of a cluster, or one more member of a running one?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    New,
    Existing,
}

fn cluster_state(text: &str) -> Result<ClusterState, &'static str> {
    match text {
        "new" => Ok(ClusterState::New),
        "existing" => Ok(ClusterState::Existing),
        _ => Err("invalid value"),
    }
}
