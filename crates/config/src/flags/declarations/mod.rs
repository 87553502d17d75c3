//! Every flag as clap reads it: its name, its type, its help.

mod discovery; // flags of discovery
mod tls; // flags of TLS

pub use discovery::{DiscoveryFallback, shown};
pub use tls::TlsFlags;

use std::time::Duration;

use clap::ArgAction::Set;
use clap::{Args, CommandFactory, Parser};

use discovery::DiscoveryFlags;

use crate::flags::values::{
    bytes, duration, origins, signed, signed_bytes, switch, unsigned, unsigned_32, unsigned_bytes,
};
use crate::url::Urls;

// Headings of the help, in the order of their first flags.
const AUTH: &str = "Auth and audit";
const METRICS: &str = "Metrics and traces";

/// Defaults that also replace 0 and values out of bounds.
pub const SNAPSHOT_COUNT: u64 = 10_000;
pub const SNAPSHOT_CATCH_UP_ENTRIES: u64 = 5000;
pub const TOKEN_TTL_SECONDS: u64 = 300;
pub const BCRYPT_COST: u64 = 10;

const REQUEST_BYTES_MAX: u64 = 3 * 512 * 1024;
const TXN_OPS_MAX: u64 = 128;
/// Enough for 1000 clients on one connection. etcd sets no limit, so one connection can hold any amount of
/// memory.
const STREAMS_MAX: u32 = 1000;

/// Flags from the command line and the environment; the others have their defaults.
#[derive(Clone, Debug, Parser)]
#[command(name = "kv-server", about = "A replicated key-value store that speaks etcd's v3 API.")]
#[command(args_override_self = true, disable_version_flag = true, disable_help_flag = true)]
pub struct Flags {
    /// Human-readable name of this member.
    #[arg(long, default_value = "default", help_heading = "Member")]
    pub name: String,
    /// Configuration file, in YAML or JSON; then all other flags and variables are ignored.
    #[arg(long, help_heading = "Member")]
    pub config_file: Option<String>,
    /// Run one of this many members on this machine, in the first free slot.
    #[arg(long, help_heading = "Member", value_parser = unsigned)]
    pub local_cluster: Option<u64>,
    /// Peer listen URLs.
    #[arg(long, help_heading = "Member", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2380")]
    pub listen_peer_urls: Urls,
    /// Peer URLs advertised to other members.
    #[arg(long, help_heading = "Member", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2380")]
    pub initial_advertise_peer_urls: Urls,
    /// Leader heartbeat interval in milliseconds.
    #[arg(long, default_value = "100", help_heading = "Member", value_parser = unsigned)]
    pub heartbeat_interval: u64,
    /// Milliseconds without a heartbeat before a member campaigns.
    #[arg(long, default_value = "1000", help_heading = "Member", value_parser = unsigned)]
    pub election_timeout: u64,
    /// Print the version and exit.
    #[arg(long, help_heading = "Member", value_parser = switch, default_value = "false", action = Set)]
    pub version: bool,
    /// Initial members, as NAME=URL,... [default: this member alone].
    #[arg(long, help_heading = "Cluster")]
    pub initial_cluster: Option<String>,
    /// Initial cluster state: new or existing.
    #[arg(long, default_value = "new", help_heading = "Cluster", value_parser = cluster_state)]
    pub initial_cluster_state: ClusterState,
    /// Token hashed into member IDs, so that clusters with equal URLs have different IDs.
    #[arg(long, default_value = "etcd-cluster", help_heading = "Cluster")]
    pub initial_cluster_token: String,
    /// Start from the data directory as a single-member cluster; removes all other members.
    #[arg(long, help_heading = "Cluster", value_parser = switch, default_value = "false", action = Set)]
    pub force_new_cluster: bool,
    /// Reject membership changes that would cost the cluster its quorum.
    #[arg(long, help_heading = "Cluster", value_parser = switch, default_value = "true", action = Set)]
    pub strict_reconfig_check: bool,
    /// Maximum number of learners.
    #[arg(long, default_value = "1", help_heading = "Cluster", value_parser = unsigned)]
    pub max_learners: u64,
    #[command(flatten)]
    pub discovery: DiscoveryFlags,
    /// Client listen URLs.
    #[arg(long, help_heading = "Clients", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2379")]
    pub listen_client_urls: Urls,
    /// Client URLs advertised to clients and other members.
    #[arg(long, help_heading = "Clients", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2379")]
    pub advertise_client_urls: Urls,
    /// Minimum interval between client keepalive pings; connections with faster pings are closed.
    #[arg(long, default_value = "5s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_min_time: Duration,
    /// Idle time before a keepalive ping to a client; 0 disables.
    #[arg(long, default_value = "2h0m0s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_interval: Duration,
    /// Keepalive ping timeout.
    #[arg(long, default_value = "20s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_timeout: Duration,
    /// Interval between watch progress notifications; 0 means 10 minutes.
    #[arg(long, default_value = "0s", help_heading = "Clients", value_parser = duration)]
    pub watch_progress_notify_interval: Duration,
    /// Allowed CORS origins for HTTP, or *.
    #[arg(long, default_value = "*", help_heading = "Clients", value_parser = origins)]
    pub cors: String,
    /// Allowed hosts of HTTP requests, or *.
    #[arg(long, default_value = "*", help_heading = "Clients")]
    pub host_whitelist: String,
    /// Serve the JSON gateway under /v3/.
    #[arg(long, help_heading = "Clients", value_parser = switch, default_value = "true", action = Set)]
    pub enable_grpc_gateway: bool,
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Token type: simple, or jwt,sign-method=M,priv-key=FILE,pub-key=FILE,ttl=5m.
    #[arg(long, default_value = "simple", help_heading = AUTH)]
    pub auth_token: String,
    /// Seconds before an unused token expires.
    #[arg(long, default_value_t = TOKEN_TTL_SECONDS, help_heading = AUTH, value_parser = unsigned)]
    pub auth_token_ttl: u64,
    /// Bcrypt cost of password hashes, 4 to 31; each step doubles the time.
    #[arg(long, default_value_t = BCRYPT_COST, help_heading = AUTH, value_parser = unsigned)]
    pub bcrypt_cost: u64,
    /// Cancel watchers whose user loses read permission on the watched keys.
    #[arg(long, help_heading = AUTH, value_parser = switch, default_value = "false", action = Set)]
    pub auth_recheck_watchers: bool,
    /// Audit log file, or stderr [default: no audit log].
    #[arg(long, help_heading = AUTH)]
    pub audit_log: Option<String>,
    /// Audited requests: refused, changes (includes refused) or requests (all).
    #[arg(long, default_value = "refused", help_heading = AUTH)]
    pub audit_log_level: String,
    /// Store size at which writes are rejected, as 8GiB or in bytes; 0 means 2 GiB, negative disables.
    #[arg(long, default_value = "0", help_heading = "Limits")]
    #[arg(value_parser = signed_bytes, allow_hyphen_values = true)]
    pub quota_backend_bytes: i64,
    /// Memory limit, as 512MiB, 2GB or in bytes; above it, large requests wait or fail; 0 disables.
    #[arg(long, default_value = "0", help_heading = "Limits", value_parser = bytes)]
    pub memory_limit: u64,
    /// Maximum request size in bytes.
    #[arg(long, default_value_t = REQUEST_BYTES_MAX, help_heading = "Limits", value_parser = unsigned_bytes)]
    pub max_request_bytes: u64,
    /// Maximum number of operations in a transaction.
    #[arg(long, default_value_t = TXN_OPS_MAX, help_heading = "Limits", value_parser = unsigned)]
    pub max_txn_ops: u64,
    /// Maximum concurrent streams per client connection; 0 means unlimited.
    #[arg(long, default_value_t = STREAMS_MAX, help_heading = "Limits", value_parser = unsigned_32)]
    pub max_concurrent_streams: u32,
    /// Data directory [default: NAME.kv-server].
    #[arg(long, help_heading = "Storage")]
    pub data_dir: Option<String>,
    /// Write-ahead log directory, if not inside the data directory.
    #[arg(long, help_heading = "Storage")]
    pub wal_dir: Option<String>,
    /// Maximum number of applied entries between checkpoints.
    #[arg(long, default_value_t = SNAPSHOT_COUNT, help_heading = "Storage", value_parser = unsigned)]
    pub snapshot_count: u64,
    /// Log entries retained after a checkpoint for slow followers.
    #[arg(long, help_heading = "Storage", value_parser = unsigned)]
    #[arg(default_value_t = SNAPSHOT_CATCH_UP_ENTRIES)]
    pub snapshot_catchup_entries: u64,
    /// Auto compaction mode: periodic or revision.
    #[arg(long, default_value = "periodic", help_heading = "Storage")]
    pub auto_compaction_mode: String,
    /// Retained history: hours, a duration such as 10m, or revisions; 0 disables auto compaction.
    #[arg(long, default_value = "0", help_heading = "Storage")]
    pub auto_compaction_retention: String,
    /// Log level: debug, info, warn, error, panic or fatal.
    #[arg(long, default_value = "info", help_heading = "Log")]
    pub log_level: String,
    /// Log format: json or console [default: console on a terminal, else json].
    #[arg(long, help_heading = "Log")]
    pub log_format: Option<String>,
    /// Duration above which a unary request is logged as slow.
    #[arg(long, default_value = "300ms", help_heading = "Log", value_parser = duration)]
    pub warning_unary_request_duration: Duration,
    #[command(flatten)]
    pub log: LogFlags,
    #[command(flatten)]
    pub listen: ListenFlags,
    /// Number of top clients and key prefixes shown by name to readers of metrics, at most 100.
    #[arg(long, default_value = "0", help_heading = METRICS, value_parser = unsigned)]
    pub metrics_top: u64,
    #[command(flatten)]
    pub traces: TraceFlags,
    /// Interval between hash comparisons of the members; 0 disables.
    #[arg(long, default_value = "0s", help_heading = "Checks", value_parser = duration)]
    pub corrupt_check_time: Duration,
    /// Interval between compaction hash comparisons, with the gate CompactHashCheck.
    #[arg(long, default_value = "1m0s", help_heading = "Checks", value_parser = duration)]
    pub compact_hash_check_time: Duration,
    /// Feature gates, as NAME=true,...; CompactHashCheck and InitialCorruptCheck have an effect.
    #[arg(long, help_heading = "Checks")]
    pub feature_gates: Option<String>,
    /// Names of the flags that were set explicitly.
    #[arg(skip)]
    pub given: Vec<String>,
}

/// Listener flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clients")]
pub struct ListenFlags {
    /// HTTP client listen URLs; --listen-client-urls then serves gRPC only [default: none].
    #[arg(long, value_parser = Urls::parse_any)]
    pub listen_client_http_urls: Option<Urls>,
    /// Listen URLs for /metrics, /health, /livez and /readyz only [default: none].
    #[arg(long, help_heading = "Metrics and traces", value_parser = Urls::parse_any)]
    pub listen_metrics_urls: Option<Urls>,
    /// Set SO_REUSEPORT: other processes may listen on the same ports.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_port: bool,
    /// Set SO_REUSEADDR; always set.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_address: bool,
}

/// Log and profile flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// Logger: zap.
    #[arg(long, default_value = "zap")]
    pub logger: String,
    /// Log outputs: default, stderr, stdout, systemd/journal or files.
    #[arg(long, default_value = "default")]
    pub log_outputs: String,
    /// Rotate log files.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_log_rotation: bool,
    /// Rotation: {"maxsize": MB, "maxage": days, "maxbackups": N, "localtime": bool, "compress": bool}
    /// [default: 100 MB].
    #[arg(long)]
    pub log_rotation_config_json: Option<String>,
    /// Duration above which applying an entry is logged as slow.
    #[arg(long, default_value = "100ms", value_parser = duration)]
    pub warning_apply_duration: Duration,
    /// Serve CPU profiles under /debug/pprof/ on client URLs.
    #[arg(long, help_heading = "Metrics and traces")]
    #[arg(value_parser = switch, default_value = "false", action = Set)]
    pub enable_pprof: bool,
    /// Metrics detail: basic, or extensive with latency histograms per method.
    #[arg(long, default_value = "basic", help_heading = "Metrics and traces")]
    pub metrics: String,
}

/// Trace flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics and traces")]
pub struct TraceFlags {
    /// Send OpenTelemetry traces of gRPC requests to a collector.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_distributed_tracing: bool,
    /// HOST:PORT of the collector (OTLP over gRPC).
    #[arg(long, default_value = "localhost:4317")]
    pub distributed_tracing_address: String,
    /// Service name in traces, equal for all members.
    #[arg(long, default_value = "etcd")]
    pub distributed_tracing_service_name: String,
    /// Instance ID of this member in traces, unique per member [default: none].
    #[arg(long)]
    pub distributed_tracing_instance_id: Option<String>,
    /// Requests per million that are traced without a client's trace context.
    #[arg(long, default_value = "0", value_parser = signed, allow_hyphen_values = true)]
    pub distributed_tracing_sampling_rate: i64,
}

impl Flags {
    pub fn is_given(&self, name: &str) -> bool {
        self.given.iter().any(|given| given == name)
    }
}

/// Returns the flags as a clap command. The value name of a flag is its last word; the value of a switch is
/// optional.
pub fn command() -> clap::Command {
    Flags::command().mut_args(|flag| match flag.get_default_values() {
        [value] if value == "true" || value == "false" => {
            flag.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        _ => {
            let last = flag.get_long().and_then(|name| name.rsplit('-').next()).unwrap_or_default();
            let last = last.to_uppercase();
            flag.value_name(last)
        }
    })
}

/// Whether the member starts a new cluster or joins an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    New,
    Existing,
}

fn cluster_state(text: &str) -> Result<ClusterState, &'static str> {
    match text {
        "new" => Ok(ClusterState::New),
        "existing" => Ok(ClusterState::Existing),
        _ => Err("invalid value; use new or existing"),
    }
}
