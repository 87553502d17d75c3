//! The command line and the environment, spelled as etcd spells them.
//!
//! ```text
//!   -name v | --name v | --name=v ──┐
//!   ETCD_NAME=v ────────────────────┴──▶ --name=v ──▶ clap ──▶ Flags
//! ```
//!
//! * Go's flag rules hold: one dash or two, a repeated flag overrides, a switch takes its value after `=`.
//! * A flag of etcd's that means nothing here is checked and warned about once.
//! * A flag and its environment variable together are an error: which one is used would be a guess.
//!
//! Knows texts and their types; what values mean together is the business of `settings`.

mod errors; // what cannot be followed, and what is logged
mod tables; // the names etcd knows and we do not
mod values; // texts of values

mod accepted; // flags without effect here
mod gates; // --feature-gates

mod file; // --config-file

mod discovery; // flags of discovery
mod listen; // flags of listeners
mod log; // flags of the log
mod tls; // flags of TLS
mod traces; // flags of traces

pub use discovery::{DiscoveryFallback, DiscoveryFlags, shown};
pub use errors::{FlagError, Notice};
pub use file::read as read_file;
pub use gates::{FeatureGate, all as feature_gates, is_gate_on};
pub use listen::ListenFlags;
pub use log::LogFlags;
pub use tls::TlsFlags;
pub use traces::TraceFlags;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::config::url::Urls;
use accepted::{Accepted, Kind};
pub(super) use values::duration;
use values::{bytes, origins, signed, switch, unsigned, unsigned_32};

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

/// What parsing came to, where it is not an error.
#[derive(Clone, Debug)]
pub enum Parsed {
    Flags(Box<Flags>, Vec<Notice>),
    /// Usage text to print before a successful exit.
    Help(String),
}

/// Reads arguments (without the program's name) and environment.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Parsed, FlagError> {
    let mut notices = Vec::new();
    let Some(mut given) = read_arguments(arguments, &mut notices)? else {
        return Ok(Parsed::Help(Flags::command().render_long_help().to_string()));
    };
    let from_flags = given.len();
    read_environment(environment, &mut given, &mut notices)?;
    note_accepted(&given, &mut notices)?;
    let flags = flags_of(&given).map_err(|error| value_error(&error, &given[from_flags..]))?;
    Ok(Parsed::Flags(Box::new(flags), notices))
}

/// What a configuration file says. Command line and environment count no more then, as in etcd.
pub fn parse_file(text: &str) -> Result<(Flags, Vec<Notice>), FlagError> {
    let (mut given, mut notices) = (Vec::new(), Vec::new());
    for (name, value) in file::assignments(text).map_err(FlagError::Refused)? {
        let kind = match name.as_str() {
            // What etcd takes from a command line alone.
            "discovery-fallback" => continue,
            "version" | "config-file" => Err(FlagError::Unknown(name.clone())),
            known => flag_kind(known),
        };
        match kind {
            Ok(FlagKind::Ignored) => notices.push(Notice::IgnoredFlag { name }),
            Ok(kind) => {
                let accepted = kind.accepted();
                if let Some(Err(reason)) = accepted.map(|accepted| accepted.check(&value)) {
                    return Err(FlagError::in_file(&name, &value, &reason));
                }
                given.push(Assignment { name, value: Some(value), accepted });
            }
            Err(FlagError::Unknown(_)) => notices.push(Notice::UnknownKey { name }),
            Err(error) => return Err(error),
        }
    }
    note_accepted(&given, &mut notices)?;
    let flags = flags_of(&given).map_err(|error| {
        let (name, value, reason) = refused_value(&error);
        FlagError::in_file(&name, &value, &reason)
    })?;
    Ok((flags, notices))
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    Flag,
    Variable,
    File,
}

/// One flag as it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub name: String,
    pub value: String,
    pub source: Source,
}

/// Every flag with its value, by name: of `file` if there is one, else of arguments and environment. Flags
/// that have no effect are left out where nothing was said about them.
pub fn effective(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    file: Option<&str>,
) -> Result<Vec<Effective>, FlagError> {
    let mut all: BTreeMap<String, (String, Source)> = Flags::command()
        .get_arguments()
        .filter_map(|argument| {
            let help = argument.get_help()?.to_string();
            let default =
                help.rsplit_once("[default: ").map_or("", |(_, rest)| rest.trim_end_matches(['.', ']']));
            Some((argument.get_long()?.to_owned(), (default.to_owned(), Source::Default)))
        })
        .collect();
    let mut notices = Vec::new();
    let mut put = |name: String, value: Option<String>, source| {
        all.insert(name, (value.unwrap_or_else(|| "true".to_owned()), source));
    };
    match file {
        Some(text) => {
            for (name, value) in file::assignments(text).map_err(FlagError::Refused)? {
                put(name, Some(value), Source::File);
            }
        }
        None => {
            let mut given = read_arguments(arguments, &mut notices)?.unwrap_or_default();
            let said = given.len();
            read_environment(environment, &mut given, &mut notices)?;
            for (at, Assignment { name, value, .. }) in given.into_iter().enumerate() {
                put(name, value, if at < said { Source::Flag } else { Source::Variable });
            }
        }
    }
    let row = |(name, (value, source))| Effective { name, value, source };
    Ok(all.into_iter().map(row).collect())
}

fn flags_of(given: &[Assignment]) -> Result<Flags, clap::Error> {
    let line = given.iter().filter(|assignment| assignment.accepted.is_none_or(Accepted::has_effect));
    let line = line.map(|assignment| match &assignment.value {
        Some(value) => format!("--{}={value}", assignment.name),
        None => format!("--{}", assignment.name),
    });
    let matches = Flags::command().no_binary_name(true).try_get_matches_from(line)?;
    Ok(Flags::from_arg_matches(&matches).expect("clap has checked every value it hands over"))
}

/// One flag with its value, as it will be handed to clap.
struct Assignment {
    name: String,
    value: Option<String>,
    /// Without effect, or with a part that has none.
    accepted: Option<&'static Accepted>,
}

/// Warns of each flag without effect, once, by the value that counts: the last.
fn note_accepted(given: &[Assignment], notices: &mut Vec<Notice>) -> Result<(), FlagError> {
    for (at, assignment) in given.iter().enumerate() {
        let Some(accepted) = assignment.accepted else { continue };
        if given[at + 1..].iter().any(|later| later.name == assignment.name) {
            continue;
        }
        let value = assignment.value.as_deref().unwrap_or("true");
        accepted.verify(value).map_err(FlagError::Refused)?;
        let warnings = accepted.warnings(value).into_iter();
        notices.extend(warnings.map(|(name, reason)| Notice::NoEffect { name, reason }));
    }
    Ok(())
}

/// The pre-pass from Go's spelling to clap's; `None` when help was asked for.
fn read_arguments(
    arguments: impl IntoIterator<Item = OsString>,
    notices: &mut Vec<Notice>,
) -> Result<Option<Vec<Assignment>>, FlagError> {
    let mut given = Vec::new();
    let mut arguments = arguments.into_iter().map(|text| text.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            break;
        }
        let Some(body) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            return Err(FlagError::Positional(argument));
        };
        if body.is_empty() || body.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(argument));
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        if name == "h" || name == "help" {
            return Ok(None);
        }
        let kind = flag_kind(name)?;
        let accepted = kind.accepted();
        let value = match kind {
            FlagKind::Switch => value,
            FlagKind::Accepted(accepted) if accepted.kind == Kind::Switch => value,
            FlagKind::Ignored => {
                notices.push(Notice::IgnoredFlag { name: name.to_owned() });
                continue;
            }
            FlagKind::Value | FlagKind::Accepted(_) => {
                let next = || arguments.next().ok_or_else(|| FlagError::NeedsArgument(name.to_owned()));
                Some(value.map_or_else(next, Ok)?)
            }
        };
        if let (Some(accepted), Some(value)) = (accepted, &value) {
            let refused = |reason| refused(name, value, reason, accepted.kind == Kind::Switch);
            accepted.check(value).map_err(refused)?;
        }
        given.push(Assignment { name: name.to_owned(), value, accepted });
    }
    if let Some(extra) = arguments.next() {
        return Err(FlagError::Positional(extra));
    }
    Ok(Some(given))
}

enum FlagKind {
    Value,
    Switch,
    Accepted(&'static Accepted),
    Ignored,
}

impl FlagKind {
    fn accepted(&self) -> Option<&'static Accepted> {
        match self {
            FlagKind::Accepted(accepted) => Some(accepted),
            FlagKind::Value | FlagKind::Switch | FlagKind::Ignored => None,
        }
    }
}

fn flag_kind(name: &str) -> Result<FlagKind, FlagError> {
    // First: a part of it may have an effect, and then it is one of `Flags` as well.
    if let Some(accepted) = Accepted::find(name) {
        return Ok(FlagKind::Accepted(accepted));
    }
    if let Some(argument) = Flags::command().get_arguments().find(|known| known.get_long() == Some(name)) {
        // Only switches say how many values they take: none, or one.
        let is_switch = argument.get_num_args().is_some();
        return Ok(if is_switch { FlagKind::Switch } else { FlagKind::Value });
    }
    if tables::IGNORED.contains(&name) {
        return Ok(FlagKind::Ignored);
    }
    Err(FlagError::Unknown(name.to_owned()))
}

const VARIABLE_PREFIX: &str = "ETCD_";

/// `ETCD_DATA_DIR` stands for `--data-dir`. An empty variable is an unset one.
fn read_environment(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    given: &mut Vec<Assignment>,
    notices: &mut Vec<Notice>,
) -> Result<(), FlagError> {
    let said = given.len();
    for (variable, value) in environment {
        let (variable, value) = (variable.to_string_lossy(), value.to_string_lossy());
        let Some(suffix) = variable.strip_prefix(VARIABLE_PREFIX).filter(|_| !value.is_empty()) else {
            continue;
        };
        let name = suffix.to_lowercase().replace('_', "-");
        // Not for us: which version to run, and which checks etcd makes of itself.
        if matches!(name.as_str(), "version" | "verify" | "unsupported-arch") {
            continue;
        }
        let variable = variable.into_owned();
        let kind = flag_kind(&name);
        let accepted = kind.as_ref().ok().and_then(FlagKind::accepted);
        match kind {
            Ok(FlagKind::Value | FlagKind::Switch | FlagKind::Accepted(_))
                if given[..said].iter().any(|flag| flag.name == name) =>
            {
                return Err(FlagError::Shadowed(variable));
            }
            Ok(FlagKind::Value | FlagKind::Switch | FlagKind::Accepted(_)) => {
                let value = value.into_owned();
                if let Some(Err(reason)) = accepted.map(|accepted| accepted.check(&value)) {
                    return Err(FlagError::Variable { variable, value, reason });
                }
                notices.push(Notice::UsedVariable { name: variable, value: shown(&name, &value) });
                given.push(Assignment { name, value: Some(value), accepted });
            }
            Ok(FlagKind::Ignored) => notices.push(Notice::IgnoredFlag { name }),
            Err(_) => notices.push(Notice::UnknownVariable { name: variable }),
        }
    }
    Ok(())
}

/// Flag, value and reason of clap's complaint.
fn refused_value(error: &clap::Error) -> (String, String, String) {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let name = argument.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    let value = text(ContextKind::InvalidValue);
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    (name, value, reason)
}

/// clap's complaint in Go's words.
fn value_error(error: &clap::Error, from_environment: &[Assignment]) -> FlagError {
    let (name, value, reason) = refused_value(error);
    if from_environment.iter().any(|assignment| assignment.name == name) {
        let variable = format!("{VARIABLE_PREFIX}{}", name.to_uppercase().replace('-', "_"));
        return FlagError::Variable { variable, value, reason };
    }
    let is_switch = matches!(flag_kind(&name), Ok(FlagKind::Switch));
    refused(&name, &value, reason, is_switch)
}

/// A value of a command line, in Go's words.
fn refused(name: &str, value: &str, reason: String, is_switch: bool) -> FlagError {
    let (name, value) = (name.to_owned(), value.to_owned());
    if is_switch {
        FlagError::Switch { name, value, reason }
    } else {
        FlagError::Value { name, value, reason }
    }
}

fn cluster_state(text: &str) -> Result<ClusterState, &'static str> {
    match text {
        "new" => Ok(ClusterState::New),
        "existing" => Ok(ClusterState::Existing),
        _ => Err("invalid value"),
    }
}

#[cfg(test)]
mod tests;
