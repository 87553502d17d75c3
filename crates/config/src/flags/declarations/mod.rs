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
/// Enough for 1000 callers on one connection. etcd sets no limit, so one connection can hold any amount of
/// memory.
const STREAMS_MAX: u32 = 1000;

/// What was said on the command line and in the environment, with the defaults of the rest.
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
    /// Run one of this many members on this machine: the first whose slot is free.
    #[arg(long, help_heading = "Member", value_parser = unsigned)]
    pub local_cluster: Option<u64>,
    /// Where to listen for other members.
    #[arg(long, help_heading = "Member", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2380")]
    pub listen_peer_urls: Urls,
    /// Where other members should dial.
    #[arg(long, help_heading = "Member", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2380")]
    pub initial_advertise_peer_urls: Urls,
    /// Milliseconds between heartbeats of a leader.
    #[arg(long, default_value = "100", help_heading = "Member", value_parser = unsigned)]
    pub heartbeat_interval: u64,
    /// Milliseconds without a heartbeat before a member stands for election.
    #[arg(long, default_value = "1000", help_heading = "Member", value_parser = unsigned)]
    pub election_timeout: u64,
    /// Print the version and exit.
    #[arg(long, help_heading = "Member", value_parser = switch, default_value = "false", action = Set)]
    pub version: bool,
    /// First members of the cluster, as NAME=URL,... [default: this member alone].
    #[arg(long, help_heading = "Cluster")]
    pub initial_cluster: Option<String>,
    /// Whether the cluster is 'new' or 'existing'.
    #[arg(long, default_value = "new", help_heading = "Cluster", value_parser = cluster_state)]
    pub initial_cluster_state: ClusterState,
    /// Mixed into member ids, so that clusters with equal URLs differ.
    #[arg(long, default_value = "etcd-cluster", help_heading = "Cluster")]
    pub initial_cluster_token: String,
    /// Go on from the data directory as the only member: all others are removed.
    #[arg(long, help_heading = "Cluster", value_parser = switch, default_value = "false", action = Set)]
    pub force_new_cluster: bool,
    /// Refuse changes of the members that would leave the cluster unable to commit.
    #[arg(long, help_heading = "Cluster", value_parser = switch, default_value = "true", action = Set)]
    pub strict_reconfig_check: bool,
    /// Learners that the cluster may have at a time.
    #[arg(long, default_value = "1", help_heading = "Cluster", value_parser = unsigned)]
    pub max_learners: u64,
    #[command(flatten)]
    pub discovery: DiscoveryFlags,
    /// Where to listen for clients.
    #[arg(long, help_heading = "Clients", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2379")]
    pub listen_client_urls: Urls,
    /// Where clients should dial.
    #[arg(long, help_heading = "Clients", value_parser = Urls::parse)]
    #[arg(default_value = "http://localhost:2379")]
    pub advertise_client_urls: Urls,
    /// Shortest time between two pings of a client; faster ones end its connection.
    #[arg(long, default_value = "5s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_min_time: Duration,
    /// Silence of a client after which it is pinged; 0 pings never.
    #[arg(long, default_value = "2h0m0s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_interval: Duration,
    /// Time in which a client has to answer a ping.
    #[arg(long, default_value = "20s", help_heading = "Clients", value_parser = duration)]
    pub grpc_keepalive_timeout: Duration,
    /// Time between two progress notifications of a watch stream; 0 means 10 minutes.
    #[arg(long, default_value = "0s", help_heading = "Clients", value_parser = duration)]
    pub watch_progress_notify_interval: Duration,
    /// Origins of scripts that may use plain HTTP, or *.
    #[arg(long, default_value = "*", help_heading = "Clients", value_parser = origins)]
    pub cors: String,
    /// Hosts that requests of plain HTTP may name, or *.
    #[arg(long, default_value = "*", help_heading = "Clients")]
    pub host_whitelist: String,
    /// Serve the JSON gateway under /v3/.
    #[arg(long, help_heading = "Clients", value_parser = switch, default_value = "true", action = Set)]
    pub enable_grpc_gateway: bool,
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Kind of tokens: simple, or jwt,sign-method=M,priv-key=FILE,pub-key=FILE,ttl=5m.
    #[arg(long, default_value = "simple", help_heading = AUTH)]
    pub auth_token: String,
    /// Seconds after which an unused token ends.
    #[arg(long, default_value_t = TOKEN_TTL_SECONDS, help_heading = AUTH, value_parser = unsigned)]
    pub auth_token_ttl: u64,
    /// Cost of hashing a password: each step doubles it, 4 to 31.
    #[arg(long, default_value_t = BCRYPT_COST, help_heading = AUTH, value_parser = unsigned)]
    pub bcrypt_cost: u64,
    /// Cancel watchers whose user loses the permission to read their keys.
    #[arg(long, help_heading = AUTH, value_parser = switch, default_value = "false", action = Set)]
    pub auth_recheck_watchers: bool,
    /// File of the audit log, or stderr; without it there is none.
    #[arg(long, help_heading = AUTH)]
    pub audit_log: Option<String>,
    /// What the audit log holds: refused, changes (and refused) or all requests.
    #[arg(long, default_value = "refused", help_heading = AUTH)]
    pub audit_log_level: String,
    /// Size at which writes are refused, as 8GiB or a number of bytes; 0 means 2 GiB, negative means never.
    #[arg(long, default_value = "0", help_heading = "Limits")]
    #[arg(value_parser = signed_bytes, allow_hyphen_values = true)]
    pub quota_backend_bytes: i64,
    /// Memory, as 512MiB, 2GB or a number of bytes, above which large requests wait or are refused; 0: none.
    #[arg(long, default_value = "0", help_heading = "Limits", value_parser = bytes)]
    pub memory_limit: u64,
    /// Bytes in one request.
    #[arg(long, default_value_t = REQUEST_BYTES_MAX, help_heading = "Limits", value_parser = unsigned_bytes)]
    pub max_request_bytes: u64,
    /// Operations in one transaction.
    #[arg(long, default_value_t = TXN_OPS_MAX, help_heading = "Limits", value_parser = unsigned)]
    pub max_txn_ops: u64,
    /// Streams that one client connection may have open; 0 for any number.
    #[arg(long, default_value_t = STREAMS_MAX, help_heading = "Limits", value_parser = unsigned_32)]
    pub max_concurrent_streams: u32,
    /// Data directory [default: NAME.kv-server].
    #[arg(long, help_heading = "Storage")]
    pub data_dir: Option<String>,
    /// Directory of the log, if it shall not lie in the data directory.
    #[arg(long, help_heading = "Storage")]
    pub wal_dir: Option<String>,
    /// Applied log entries after which the store writes a checkpoint, at the latest.
    #[arg(long, default_value_t = SNAPSHOT_COUNT, help_heading = "Storage", value_parser = unsigned)]
    pub snapshot_count: u64,
    /// Log entries kept before a checkpoint for slow followers.
    #[arg(long, help_heading = "Storage", value_parser = unsigned)]
    #[arg(default_value_t = SNAPSHOT_CATCH_UP_ENTRIES)]
    pub snapshot_catchup_entries: u64,
    /// What --auto-compaction-retention counts: periodic or revision.
    #[arg(long, default_value = "periodic", help_heading = "Storage")]
    pub auto_compaction_mode: String,
    /// History that is kept: hours, a time such as 10m, or revisions; 0 keeps all.
    #[arg(long, default_value = "0", help_heading = "Storage")]
    pub auto_compaction_retention: String,
    /// debug, info, warn, error, panic or fatal.
    #[arg(long, default_value = "info", help_heading = "Log")]
    pub log_level: String,
    /// json or console [default: console if the log goes to a terminal, else json].
    #[arg(long, help_heading = "Log")]
    pub log_format: Option<String>,
    /// Time after which a unary call is logged as slow.
    #[arg(long, default_value = "300ms", help_heading = "Log", value_parser = duration)]
    pub warning_unary_request_duration: Duration,
    #[command(flatten)]
    pub log: LogFlags,
    #[command(flatten)]
    pub listen: ListenFlags,
    /// How many of the largest clients and key prefixes are shown by name to all who read metrics, at most
    /// 100.
    #[arg(long, default_value = "0", help_heading = METRICS, value_parser = unsigned)]
    pub metrics_top: u64,
    #[command(flatten)]
    pub traces: TraceFlags,
    /// Time between two comparisons of the members' hashes; 0 compares never.
    #[arg(long, default_value = "0s", help_heading = "Checks", value_parser = duration)]
    pub corrupt_check_time: Duration,
    /// Time between two comparisons of the hashes of compactions, with the gate CompactHashCheck.
    #[arg(long, default_value = "1m0s", help_heading = "Checks", value_parser = duration)]
    pub compact_hash_check_time: Duration,
    /// Gates of etcd as NAME=true,...; CompactHashCheck and InitialCorruptCheck have an effect.
    #[arg(long, help_heading = "Checks")]
    pub feature_gates: Option<String>,
    /// Names of flags that were given.
    #[arg(skip)]
    pub given: Vec<String>,
}

/// What was said about listeners, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clients")]
pub struct ListenFlags {
    /// Where to listen for HTTP of clients; --listen-client-urls serves gRPC alone then [default: none].
    #[arg(long, value_parser = Urls::parse_any)]
    pub listen_client_http_urls: Option<Urls>,
    /// Where to listen for /metrics, /health, /livez and /readyz alone [default: none].
    #[arg(long, help_heading = "Metrics and traces", value_parser = Urls::parse_any)]
    pub listen_metrics_urls: Option<Urls>,
    /// Other processes may listen on the same ports: SO_REUSEPORT.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_port: bool,
    /// Listen on a port that was in use a moment ago: SO_REUSEADDR, which is always set.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_address: bool,
}

/// What was said about the log and profiles, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// zap.
    #[arg(long, default_value = "zap")]
    pub logger: String,
    /// Where log lines go: default, stderr, stdout, systemd/journal or files.
    #[arg(long, default_value = "default")]
    pub log_outputs: String,
    /// Move the log file away when it is full, and begin a new one.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_log_rotation: bool,
    /// When: {"maxsize": MB, "maxage": days, "maxbackups": N, "localtime": bool, "compress": bool} [default:
    /// 100 MB].
    #[arg(long)]
    pub log_rotation_config_json: Option<String>,
    /// Time after which the apply of a log entry is logged as slow.
    #[arg(long, default_value = "100ms", value_parser = duration)]
    pub warning_apply_duration: Duration,
    /// Serve CPU profiles under /debug/pprof/ on client URLs.
    #[arg(long, help_heading = "Metrics and traces")]
    #[arg(value_parser = switch, default_value = "false", action = Set)]
    pub enable_pprof: bool,
    /// basic, or extensive: with histograms of how long the calls of each method took.
    #[arg(long, default_value = "basic", help_heading = "Metrics and traces")]
    pub metrics: String,
}

/// What was said about traces, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics and traces")]
pub struct TraceFlags {
    /// Send OpenTelemetry traces of gRPC calls to a collector.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_distributed_tracing: bool,
    /// HOST:PORT of the collector, which takes OTLP over gRPC.
    #[arg(long, default_value = "localhost:4317")]
    pub distributed_tracing_address: String,
    /// Name of the service in traces; the same for all members.
    #[arg(long, default_value = "etcd")]
    pub distributed_tracing_service_name: String,
    /// The name of this member in traces, different from the others' [default: none].
    #[arg(long)]
    pub distributed_tracing_instance_id: Option<String>,
    /// Calls in a million that are traced though their clients do not ask for it.
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
        _ => Err("invalid value; write new or existing"),
    }
}
