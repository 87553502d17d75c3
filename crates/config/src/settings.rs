//! Settings of a member: flags with defaults applied, validated against each other.
//!
//! * Every URL of a `Settings` value can be bound or dialed, and its intervals are consistent.
//! * Errors carry etcd's texts, so that a web search for them finds etcd's documentation.
//!
//! Does not access the data directory. `bootstrap` decides whether the initial cluster is used.

use std::net::IpAddr;
use std::path::{Component, PathBuf};
use std::time::Duration;

use super::audit::{self, AuditSettings, InvalidAudit};
use super::auth::{self, AuthSettings, InvalidAuthOptions};
use super::corruption::{self, CorruptionChecks, InvalidInterval};
use super::discovery::{Discovery, DiscoverySettingsError};
use super::flags::{
    ClusterState, FeatureGate, Flags, SNAPSHOT_CATCH_UP_ENTRIES, SNAPSHOT_COUNT, feature_gates, is_gate_on,
};
use super::log::LogSettingsError;
use super::retention::{Retention, RetentionError};
use super::tls::{ListenerKind, TlsSettings, TlsSettingsError};
use super::traces::{self, InvalidTraces};
use super::url::{Url, Urls};
use process::files;
use telemetry::traces::TraceSettings;

/// Upper limit of the election timeout: a larger one would make the cluster unavailable for minutes after
/// losing its leader.
const ELECTION_MS_MAX: u64 = 50_000;
const QUOTA_BYTES: i64 = 2 * 1024 * 1024 * 1024;
const WATCH_PROGRESS_INTERVAL: Duration = Duration::from_secs(10 * 60);
const WATCH_PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Upper limit of `--metrics-top`. Each entry has six series, and 16 counters of some 150 bytes in each of 12
/// sketches: 3 MiB in total.
const METRICS_TOP_MAX: u64 = 100;
/// Lower limit of `--memory-limit`. An empty member uses about 40 MiB, and an eighth of the limit is not
/// available to requests.
const MEMORY_LIMIT_MIN: u64 = 128 << 20;
/// Allowance for gRPC framing and fields around a request, as in etcd.
const GRPC_OVERHEAD_BYTES: usize = 512 * 1024;

/// Validated configuration of a member.
#[derive(Clone, Debug)]
pub struct Settings {
    pub name: String,
    /// Name, if set explicitly. A default name is not compared with the one in the data directory.
    pub name_given: Option<String>,
    pub data_dir: PathBuf,
    /// Directory of the WAL, if outside the data directory.
    pub wal_dir: Option<PathBuf>,
    pub listen_client_urls: Urls,
    /// URLs for HTTP without gRPC. If empty, the client URLs serve both.
    pub listen_client_http_urls: Urls,
    /// URLs that serve only metrics and health; may be empty.
    pub listen_metrics_urls: Urls,
    /// True if other processes may listen on the same ports.
    pub shares_ports: bool,
    pub advertise_client_urls: Urls,
    pub listen_peer_urls: Urls,
    pub advertise_peer_urls: Urls,
    /// Source address of connections to peers. If None, the system chooses it.
    pub peer_source: Option<IpAddr>,
    pub initial: Initial,
    /// Discovery of the initial cluster, if it was not given.
    pub discovery: Option<Discovery>,
    /// True if all other members are removed from the cluster at startup.
    pub force_new_cluster: bool,
    pub reconfiguration: Reconfiguration,
    pub clock: RaftTiming,
    /// Maximum number of applied entries that are not in a checkpoint.
    pub snapshot_count: u64,
    /// Number of log entries retained before the last checkpoint, so that a slow follower needs no snapshot.
    pub snapshot_catch_up_entries: u64,
    pub limits: MemberLimits,
    pub connections: Connections,
    pub auth: AuthSettings,
    pub audit: Option<AuditSettings>,
    /// Number of top clients and key prefixes to expose; zero disables counting.
    pub metrics_top: usize,
    /// Memory usage in bytes above which large requests wait or are rejected.
    pub memory_limit: Option<u64>,
    pub corruption: CorruptionChecks,
    /// All of etcd's gates, including those without an effect.
    pub feature_gates: Vec<FeatureGate>,
    /// Configured interval between progress notifications of a watch stream.
    pub watch_progress_interval: Option<Duration>,
    /// Duration above which a unary call is logged.
    pub slow_call: Duration,
    /// Duration above which applying a log entry is logged.
    pub slow_apply: Duration,
    pub enable_pprof: bool,
    /// True if the latency histograms of each method use etcd's buckets.
    pub metrics_extensive: bool,
    pub traces: Option<TraceSettings>,
    pub tls: TlsSettings,
    /// Automatic compaction; None retains all history.
    pub retention: Option<Retention>,
    /// Allowed CORS origins, as given: a list, or `*`.
    pub cors: String,
    /// Allowed `Host` headers of plain HTTP requests, as given: a list, or `*`.
    pub host_whitelist: String,
    pub enable_grpc_gateway: bool,
}

/// Initial cluster of a member that starts for the first time.
#[derive(Clone, Debug)]
pub struct Initial {
    /// `NAME=URL,…` as given; used only at the first start.
    pub cluster: String,
    /// True if the flag was set explicitly.
    pub cluster_given: bool,
    pub state: ClusterState,
    pub token: String,
}

/// Rules for membership changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconfiguration {
    /// True if changes that would cost the cluster its quorum are rejected.
    pub is_strict: bool,
    pub learners_max: u64,
}

/// Raft heartbeat interval and election timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    pub heartbeat: Duration,
    pub election: Duration,
}

/// Limits of client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLimits {
    pub txn_ops_max: usize,
    pub request_bytes_max: usize,
    /// Store size in bytes above which writes are rejected. Negative means unlimited.
    pub quota_bytes: i64,
    /// Minimum lease TTL in seconds: 1.5 election timeouts, as in etcd.
    pub lease_ttl_min: i64,
}

/// Limits of a client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Maximum number of concurrent streams.
    pub streams_max: u32,
    /// Minimum interval between a client's pings; zero allows any rate.
    pub ping_spacing_min: Duration,
    /// Idle time after which the server pings the client; zero disables keep-alive pings.
    pub keepalive_interval: Duration,
    /// Time the client has to acknowledge a ping.
    pub keepalive_timeout: Duration,
}

/// Invalid or contradictory flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error(
        "expected IP in URL for binding ({0}): use an address of this host, or 0.0.0.0 for all addresses"
    )]
    Bind(String),
    #[error(
        "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {0}: use \
         different ports"
    )]
    BindTwice(String),
    #[error(
        "--advertise-client-urls is required when --listen-client-urls is set explicitly: set the URLs \
         that clients dial"
    )]
    AdvertiseMissing,
    #[error(
        "--advertise-client-urls \"{0}\" must be in the format \"host:port\", \"unix:/path/to/socket\" or \
         \"unixs:/path/to/socket\" (unexpected empty host ({0})): write the host that clients dial"
    )]
    AdvertiseClient(String),
    #[error(
        "--initial-advertise-peer-urls \"{0}\" must be \"host:port\" (unexpected empty host ({0})): write \
         the host that other members dial"
    )]
    AdvertisePeer(String),
    #[error("--heartbeat-interval must be >0 (set to 0ms): omit it for the default")]
    HeartbeatZero,
    #[error("--election-timeout must be >0 (set to 0ms): omit it for the default")]
    ElectionZero,
    #[error(
        "--election-timeout[{election_ms}ms] should be at least as 5 times as \
         --heartbeat-interval[{heartbeat_ms}ms]: raise the first or lower the second"
    )]
    ElectionShort { election_ms: u64, heartbeat_ms: u64 },
    #[error("--election-timeout[{0}ms] is too long, and should be set less than 50000ms")]
    ElectionLong(u64),
    #[error(transparent)]
    Log(#[from] LogSettingsError),
    #[error(
        "--max-request-bytes[{given}] is too large, and should be at most {max}: \
         a request must fit into one entry of the log"
    )]
    RequestBytes { given: u64, max: usize },
    #[error(transparent)]
    Audit(#[from] InvalidAudit),
    #[error("--metrics-top[{0}] is too large, and should be at most {METRICS_TOP_MAX}")]
    MetricsTop(u64),
    #[error("--memory-limit[{0}] is too small, and should be at least {MEMORY_LIMIT_MIN}")]
    MemoryLimit(u64),
    #[error(transparent)]
    Corruption(#[from] InvalidInterval),
    #[error(transparent)]
    Traces(#[from] InvalidTraces),
    #[error("--auth-token: {0}")]
    AuthToken(InvalidAuthOptions),
    #[error(transparent)]
    Tls(#[from] TlsSettingsError),
    #[error(transparent)]
    Discovery(#[from] DiscoverySettingsError),
    #[error(transparent)]
    Retention(#[from] RetentionError),
    #[error("--local-cluster chooses names, URLs and directories: omit --{0}")]
    LocalCluster(&'static str),
    #[error("--local-cluster must be 1, 3 or 5, not {0}")]
    LocalClusterSize(u64),
}

fn is_debug(flags: &Flags) -> bool {
    flags.log_level.eq_ignore_ascii_case("debug")
}

impl Settings {
    /// Builds and validates the settings.
    pub fn from_flags(flags: &Flags) -> Result<Settings, SettingsError> {
        let name = flags.name.clone();
        let advertise_peer_urls = flags.initial_advertise_peer_urls.clone();
        let listen_client_urls = flags.listen_client_urls.clone();
        let listen_peer_urls = flags.listen_peer_urls.clone();
        let discovery = Discovery::from_flags(flags)?;
        let cluster = initial_cluster(flags, &name, &advertise_peer_urls, discovery.is_some());
        let dials_https = cluster.contains("=https:") || cluster.contains("=unixs:");
        let listen_client_http_urls = flags.listen.listen_client_http_urls.clone().unwrap_or_default();
        let listen_metrics_urls = flags.listen.listen_metrics_urls.clone().unwrap_or_default();
        let listened = ListenerKind {
            client: &listen_client_urls,
            client_http: &listen_client_http_urls,
            metrics: &listen_metrics_urls,
            peer: &listen_peer_urls,
        };
        let tls = TlsSettings::from_flags(&flags.tls, listened, dials_https)?;
        let settings = Settings {
            data_dir: given(&flags.data_dir).unwrap_or_else(|| format!("{name}.kv-server").into()),
            wal_dir: given(&flags.wal_dir),
            listen_client_urls,
            listen_client_http_urls,
            listen_metrics_urls,
            shares_ports: flags.listen.socket_reuse_port,
            advertise_client_urls: flags.advertise_client_urls.clone(),
            listen_peer_urls,
            initial: Initial {
                cluster,
                cluster_given: flags.initial_cluster.is_some(),
                state: flags.initial_cluster_state,
                token: flags.initial_cluster_token.clone(),
            },
            discovery,
            force_new_cluster: flags.force_new_cluster,
            reconfiguration: Reconfiguration {
                is_strict: flags.strict_reconfig_check,
                learners_max: flags.max_learners,
            },
            clock: clock(flags)?,
            snapshot_count: positive_or(flags.snapshot_count, SNAPSHOT_COUNT),
            snapshot_catch_up_entries: positive_or(flags.snapshot_catchup_entries, SNAPSHOT_CATCH_UP_ENTRIES),
            limits: limits(flags, &clock(flags)?)?,
            connections: connections(flags),
            auth: auth::of(flags).map_err(SettingsError::AuthToken)?,
            audit: audit::of(flags)?,
            metrics_top: metrics_top(flags)?,
            memory_limit: memory_limit(flags)?,
            corruption: corruption::of(flags)?,
            feature_gates: feature_gates(flags.feature_gates.as_deref().unwrap_or_default()),
            watch_progress_interval: Some(flags.watch_progress_notify_interval)
                .filter(|given| !given.is_zero()),
            slow_call: flags.warning_unary_request_duration,
            slow_apply: flags.log.warning_apply_duration,
            // As in etcd, the debug log level enables profiles.
            enable_pprof: flags.log.enable_pprof || is_debug(flags),
            // As in etcd, any other value means basic.
            metrics_extensive: flags.log.metrics == "extensive",
            traces: traces::of(&flags.traces)?,
            tls,
            retention: Retention::parse(&flags.auto_compaction_mode, &flags.auto_compaction_retention)?,
            cors: flags.cors.clone(),
            host_whitelist: flags.host_whitelist.clone(),
            enable_grpc_gateway: flags.enable_grpc_gateway,
            peer_source: peer_source(flags, &advertise_peer_urls),
            advertise_peer_urls,
            name_given: flags.is_given("name").then(|| name.clone()),
            name,
        };
        settings
            .check_urls(flags.is_given("listen-client-urls") && !flags.is_given("advertise-client-urls"))?;
        Ok(settings)
    }

    fn check_urls(&self, advertise_missing: bool) -> Result<(), SettingsError> {
        let for_http = || self.listen_client_http_urls.iter();
        let clients =
            || self.listen_client_urls.iter().chain(for_http()).chain(self.listen_metrics_urls.iter());
        let bound = || self.listen_peer_urls.iter().chain(clients());
        let is_bound = |url: &Url| url.scheme().is_unix() || url.bind_address().is_some();
        if let Some(url) = bound().find(|url| !is_bound(url)) {
            return Err(SettingsError::Bind(url.to_string()));
        }
        if let Some(url) = for_http().find(|url| self.listen_client_urls.iter().any(|other| other.is_at(url)))
        {
            return Err(SettingsError::BindTwice(url.to_string()));
        }
        if let Some(url) = self.advertise_client_urls.iter().find(|url| url.host().is_empty()) {
            return Err(SettingsError::AdvertiseClient(url.to_string()));
        }
        if let Some(url) = self.advertise_peer_urls.iter().find(|url| url.host().is_empty()) {
            return Err(SettingsError::AdvertisePeer(url.to_string()));
        }
        if advertise_missing { Err(SettingsError::AdvertiseMissing) } else { Ok(()) }
    }

    /// Timeout of a request to the cluster, by etcd's formula.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.clock.election
    }
}

/// Returns the source address of connections to peers under the feature gate `SetMemberLocalAddr`: the first
/// advertised peer address that is neither loopback nor unspecified.
fn peer_source(flags: &Flags, advertised: &Urls) -> Option<IpAddr> {
    if !is_gate_on(flags.feature_gates.as_deref().unwrap_or_default(), "SetMemberLocalAddr") {
        return None;
    }
    let addresses = advertised.iter().filter_map(|url| url.host().parse::<IpAddr>().ok());
    let source = addresses.into_iter().find(|address| !address.is_loopback() && !address.is_unspecified());
    if source.is_none() {
        tracing::warn!(
            advertise_peer_urls = %advertised,
            "unable to set a member local address due to lack of suitable local addresses"
        );
    }
    source
}

impl Settings {
    /// Returns the interval between progress notifications of a watch stream, raised to the minimum if
    /// necessary, as in etcd.
    pub fn watch_progress_interval(&self) -> Duration {
        match self.watch_progress_interval {
            Some(given) if given < WATCH_PROGRESS_INTERVAL_MIN => {
                tracing::warn!(
                    min_watch_progress_notify_interval = ?WATCH_PROGRESS_INTERVAL_MIN,
                    "adjusting watch progress notify interval to minimum period"
                );
                WATCH_PROGRESS_INTERVAL_MIN
            }
            Some(given) => given,
            None => WATCH_PROGRESS_INTERVAL,
        }
    }
}

impl MemberLimits {
    /// Maximum size of a gRPC message from a client.
    pub fn message_bytes_max(&self) -> usize {
        self.request_bytes_max.saturating_add(GRPC_OVERHEAD_BYTES)
    }
}

fn positive_or(value: u64, default: u64) -> u64 {
    if value > 0 { value } else { default }
}

/// Returns the path, or None if it is empty. Resolves `..` components: in a directory that does not exist
/// yet, they would change their meaning once it is created.
fn given(path: &Option<String>) -> Option<PathBuf> {
    let path = path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from)?;
    let leads_up = path.components().any(|component| component == Component::ParentDir);
    Some(if leads_up { files::resolved(&path) } else { path })
}

/// Returns the initial cluster. Defaults to a cluster of this member only, also if discovery replaces it
/// later.
fn initial_cluster(flags: &Flags, name: &str, advertise: &Urls, is_discovered: bool) -> String {
    let alone = |url: &Url| format!("{name}={url}");
    let named = flags.initial_cluster.clone().filter(|_| !is_discovered);
    named.unwrap_or_else(|| advertise.iter().map(alone).collect::<Vec<_>>().join(","))
}

fn clock(flags: &Flags) -> Result<RaftTiming, SettingsError> {
    let heartbeat_ms = flags.heartbeat_interval;
    let election_ms = flags.election_timeout;
    if heartbeat_ms == 0 {
        return Err(SettingsError::HeartbeatZero);
    }
    if election_ms == 0 {
        return Err(SettingsError::ElectionZero);
    }
    if election_ms < heartbeat_ms.saturating_mul(5) {
        return Err(SettingsError::ElectionShort { election_ms, heartbeat_ms });
    }
    if election_ms > ELECTION_MS_MAX {
        return Err(SettingsError::ElectionLong(election_ms));
    }
    Ok(RaftTiming {
        heartbeat: Duration::from_millis(heartbeat_ms),
        election: Duration::from_millis(election_ms),
    })
}

fn limits(flags: &Flags, clock: &RaftTiming) -> Result<MemberLimits, SettingsError> {
    let given = flags.max_request_bytes;
    let max = raft_node::RaftLimits::COMMAND_BYTES_MAX;
    let request_bytes_max = usize::try_from(given).ok().filter(|bytes| *bytes <= max);
    Ok(MemberLimits {
        txn_ops_max: usize::try_from(flags.max_txn_ops).unwrap_or(usize::MAX),
        request_bytes_max: request_bytes_max.ok_or(SettingsError::RequestBytes { given, max })?,
        quota_bytes: if flags.quota_backend_bytes == 0 { QUOTA_BYTES } else { flags.quota_backend_bytes },
        lease_ttl_min: lease_ttl_min(clock.election),
    })
}

fn lease_ttl_min(election: Duration) -> i64 {
    i64::try_from((3 * election.as_millis()).div_ceil(2_000)).unwrap_or(i64::MAX)
}

fn metrics_top(flags: &Flags) -> Result<usize, SettingsError> {
    match flags.metrics_top {
        entries @ 0..=METRICS_TOP_MAX => Ok(usize::try_from(entries).expect("at most 100")),
        entries => Err(SettingsError::MetricsTop(entries)),
    }
}

fn memory_limit(flags: &Flags) -> Result<Option<u64>, SettingsError> {
    match flags.memory_limit {
        0 => Ok(None),
        bytes if bytes < MEMORY_LIMIT_MIN => Err(SettingsError::MemoryLimit(bytes)),
        bytes => Ok(Some(bytes)),
    }
}

fn connections(flags: &Flags) -> Connections {
    Connections {
        // As in etcd, zero means unlimited.
        streams_max: if flags.max_concurrent_streams == 0 { u32::MAX } else { flags.max_concurrent_streams },
        ping_spacing_min: flags.grpc_keepalive_min_time,
        keepalive_interval: flags.grpc_keepalive_interval,
        keepalive_timeout: flags.grpc_keepalive_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedFlags, parse};

    fn settings(line: &str) -> Result<Settings, SettingsError> {
        match parse(line.split_whitespace().map(Into::into), []) {
            Ok(ParsedFlags::Flags(flags, _)) => Settings::from_flags(&flags),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn no_directory_leads_up_from_one_that_is_not_there() {
        let dir = std::env::current_dir().unwrap();
        for (given, meant) in [("src/typo/..", "src"), ("typo/a/../../src/../b", "b"), ("src/../x/.", "x")] {
            let settings = settings(&format!("--data-dir {given} --wal-dir {given}")).unwrap();
            assert_eq!((settings.data_dir, settings.wal_dir), (dir.join(meant), Some(dir.join(meant))));
        }
        assert_eq!(settings("--data-dir a/b").unwrap().data_dir, PathBuf::from("a/b"));
    }

    #[test]
    fn nothing_said_makes_a_member_of_its_own_on_etcds_ports() {
        let settings = settings("").unwrap();
        assert_eq!(settings.initial.cluster, "default=http://localhost:2380");
        assert_eq!(settings.data_dir, PathBuf::from("default.kv-server"));
        assert_eq!(settings.limits.quota_bytes, 2_147_483_648);
        assert_eq!(settings.limits.message_bytes_max(), 1_572_864 + 524_288);
        assert_eq!(settings.request_timeout(), Duration::from_secs(7));
        assert_eq!(settings.connections.streams_max, 1000);
    }

    #[test]
    fn no_stream_at_all_means_any_number() {
        let streams = |flag: &str| settings(flag).unwrap().connections.streams_max;
        assert_eq!(streams("--max-concurrent-streams=0"), u32::MAX);
        assert_eq!(streams("--max-concurrent-streams=1"), 1);
    }

    #[test]
    fn a_gate_chooses_the_address_from_which_members_are_dialled() {
        for (urls, wanted) in [
            ("http://192.168.100.110:2380", Some("192.168.100.110")),
            ("http://localhost:1,http://127.0.0.1:2,http://0.0.0.0:3,http://10.0.0.1:4", Some("10.0.0.1")),
            ("http://[::1]:1,http://[::]:2,http://[fd00::1]:2380", Some("fd00::1")),
            ("http://member.test:2380", None),
        ] {
            for (gate, is_on) in [("SetMemberLocalAddr", true), ("AllAlpha", true), ("AllBeta", false)] {
                let line = format!("--initial-advertise-peer-urls={urls} --feature-gates={gate}=true");
                let source = settings(&line).unwrap().peer_source.map(|address| address.to_string());
                assert_eq!(source.as_deref(), wanted.filter(|_| is_on), "{line}");
            }
        }
    }

    #[test]
    fn hashes_are_compared_as_etcds_flags_say() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (line, wanted) in [
            ("", (false, None, None)),
            ("--corrupt-check-time=0s --compact-hash-check-time=5s", (false, None, None)),
            (
                "--corrupt-check-time=2s --feature-gates=CompactHashCheck=true",
                (false, seconds(2), seconds(60)),
            ),
            ("--feature-gates=AllAlpha=true --compact-hash-check-time=5s", (true, None, seconds(5))),
            ("--feature-gates=AllAlpha=true,InitialCorruptCheck=false", (false, None, seconds(60))),
            ("--feature-gates=InitialCorruptCheck=true,AllAlpha=false", (true, None, None)),
        ] {
            let checks = settings(line).unwrap().corruption;
            assert_eq!((checks.at_start, checks.interval, checks.compaction_interval), wanted, "{line}");
        }
        let refused = settings("--compact-hash-check-time=0s").unwrap_err().to_string();
        assert_eq!(refused, "--compact-hash-check-time must be >0 (set to 0s)");
    }

    #[test]
    fn a_name_names_the_directory_and_the_cluster() {
        let settings =
            settings("--name a --initial-advertise-peer-urls http://b:2,http://a:1 --quota-backend-bytes -1")
                .unwrap();
        assert_eq!(settings.initial.cluster, "a=http://a:1,a=http://b:2");
        assert_eq!(settings.data_dir, PathBuf::from("a.kv-server"));
        assert_eq!(settings.limits.quota_bytes, -1);
        let settings = self::settings("--data-dir= --initial-cluster=").unwrap();
        assert_eq!(
            (settings.data_dir, settings.initial.cluster),
            ("default.kv-server".into(), String::new())
        );
        let line = "--discovery-token t --discovery-endpoints http://a:1 --initial-cluster=";
        assert_eq!(self::settings(line).unwrap().initial.cluster, "default=http://localhost:2380");
    }

    #[test]
    fn the_interval_of_progress_notifications_is_etcds() {
        for (line, wanted) in [
            ("", Duration::from_secs(600)),
            ("--watch-progress-notify-interval 0", Duration::from_secs(600)),
            ("--watch-progress-notify-interval 1ms", Duration::from_millis(100)),
            ("--watch-progress-notify-interval=5s", Duration::from_secs(5)),
        ] {
            assert_eq!(settings(line).unwrap().watch_progress_interval(), wanted, "{line}");
        }
    }

    #[test]
    fn listeners_beside_the_client_port_are_none_unless_named() {
        let of = |line| {
            let settings = settings(line).unwrap();
            (
                settings.listen_client_http_urls.texts(),
                settings.listen_metrics_urls.texts(),
                settings.shares_ports,
            )
        };
        assert_eq!(of(""), (vec![], vec![], false));
        assert_eq!(of("--listen-client-http-urls= --listen-metrics-urls="), (vec![], vec![], false));
        let (http, metrics) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
        let line =
            format!("--listen-client-http-urls {http} --listen-metrics-urls {metrics} --socket-reuse-port");
        assert_eq!(of(&line), (vec![http.to_owned()], vec![metrics.to_owned()], true));
    }

    #[test]
    fn contradictions_are_refused_in_etcds_words() {
        let cases = [
            (
                "--listen-client-urls http://example.com:2379 --advertise-client-urls http://example.com:2379",
                "expected IP in URL for binding (http://example.com:2379)",
            ),
            (
                "--listen-client-urls http://127.0.0.1:2379",
                "--advertise-client-urls is required when --listen-client-urls is set explicitly",
            ),
            (
                "--advertise-client-urls http://:2379",
                "--advertise-client-urls \"http://:2379\" must be in the format \"host:port\", \
                 \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" \
                 (unexpected empty host (http://:2379))",
            ),
            (
                "--initial-advertise-peer-urls http://:2380",
                "--initial-advertise-peer-urls \"http://:2380\" must be \"host:port\" \
                 (unexpected empty host (http://:2380))",
            ),
            ("--heartbeat-interval 0", "--heartbeat-interval must be >0 (set to 0ms)"),
            (
                "--election-timeout 400",
                "--election-timeout[400ms] should be at least as 5 times as --heartbeat-interval[100ms]",
            ),
            (
                "--election-timeout 60000",
                "--election-timeout[60000ms] is too long, and should be set less than 50000ms",
            ),
            (
                "--max-request-bytes 16777216",
                "--max-request-bytes[16777216] is too large, and should be at most 16777183: \
                 a request must fit into one entry of the log",
            ),
            (
                "--listen-client-http-urls http://127.0.0.1:2379,http://localhost:2379",
                "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url \
                 http://localhost:2379",
            ),
            ("--listen-client-http-urls http://a:1", "expected IP in URL for binding (http://a:1)"),
            (
                "--listen-metrics-urls http://example.com:1",
                "expected IP in URL for binding (http://example.com:1)",
            ),
            (
                "--listen-client-http-urls https://127.0.0.1:1",
                "TLS key/cert (--cert-file, --key-file) must be provided for client url https://127.0.0.1:1 with \
                 HTTPS scheme",
            ),
            (
                "--listen-metrics-urls https://127.0.0.1:1",
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url",
            ),
            (
                "--listen-client-urls unixs://s --advertise-client-urls unixs://s",
                "TLS key/cert (--cert-file, --key-file) must be provided for client url unixs://s with HTTPS scheme",
            ),
        ];
        for (line, wanted) in cases {
            let error = settings(line).expect_err(line).to_string();
            assert!(error.starts_with(wanted), "{line}: {error}");
        }
    }
}
