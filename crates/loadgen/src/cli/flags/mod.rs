//! The command line. Names, defaults and positions match etcd's `benchmark`; additional flags follow them.

pub mod coordination; // watchers, leases, transactions
pub mod go; // values in the syntax of Go's flag library
mod help; // examples of each command
pub mod kubernetes; // API servers
pub mod limits; // conditions on a run's result
pub mod measure; // `suite` and `compare`
pub mod outputs; // files of a report
pub mod sending; // common flags of single runs
pub mod steps; // several rates
pub mod ycsb; // YCSB

use crate::client::endpoint::Endpoint;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use coordination::{
    LeaseKeepaliveFlags, StmFlags, TxnMixedFlags, WatchFlags, WatchGetFlags, WatchHistoryFlags,
    WatchLatencyFlags,
};
use kubernetes::KubernetesFlags;
use measure::{CompareFlags, SuiteFlags};
use outputs::{ReportFlags, is_standard_output};
use sending::{Reporting, Sending, Writing};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use ycsb::YcsbFlags;

/// Shells that `completion` writes scripts for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Measures any etcd-compatible server with puts, ranges, transactions, watchers and leases, as etcd's own
/// `benchmark` does.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version, long_version = VERSION, args_override_self = true)]
#[command(after_help = help::ROOT, after_long_help = help::root_long())]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments of this process; exits with a message if they are invalid.
    pub fn from_process() -> Self {
        Self::read(std::env::args_os().collect()).unwrap_or_else(|error| error.exit())
    }

    /// Parses arguments, starting with the program name.
    pub fn read(arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::described();
        let matches = command.try_get_matches_from_mut(go::plain_switches(arguments, &Self::switches()))?;
        if let Some((flags, path)) = matches.subcommand().and_then(|(_, flags)| outputs::named_twice(flags)) {
            let text = format!("{} name the same file: {}", flags.join(" and "), path.display());
            return Err(command.error(ErrorKind::ArgumentConflict, text));
        }
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// Returns the command line for `--help`: commands that do not send requests hide the endpoint flags.
    pub fn described() -> clap::Command {
        let brief = |command: clap::Command| {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let command = command.after_help(help::brief(&text)).mut_args(|arg| {
                let is_rare = help::is_rare(&arg);
                // A long value name would move all descriptions below their flags.
                let is_long = arg.get_value_names().is_some_and(|names| names[0].len() > 10);
                let arg = arg.hide_short_help(is_rare);
                if is_long && !is_rare { arg.value_name("VALUE") } else { arg }
            });
            if command.get_after_long_help().is_some() { command } else { command.after_long_help(text) }
        };
        let root = brief(Self::command()).mut_subcommands(brief);
        let global: Vec<_> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
        let root = ["report", "completion"].into_iter().fold(root, |root, name| {
            // An argument of the command overrides the global one that it would inherit.
            let hidden = global.iter().map(|arg| arg.clone().hide(true));
            root.mut_subcommand(name, |command| command.args(hidden))
        });
        let help = |name: &'static str, action, text| {
            Arg::new(name).long(name).global(true).action(action).help(text).help_heading(None::<&str>)
        };
        root.disable_help_flag(true)
            .arg(help("help", ArgAction::HelpShort, "Print the common flags").short('h'))
            .arg(help("help-all", ArgAction::HelpLong, "Print all flags"))
    }

    /// Returns the names of all boolean flags.
    fn switches() -> Vec<String> {
        let root = Self::command();
        let commands = std::iter::once(&root).chain(root.get_subcommands());
        let all = commands.flat_map(|command| command.get_arguments());
        let switches = all.filter(|arg| matches!(arg.get_action(), ArgAction::SetTrue));
        switches.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }
}

/// Target, commit and date come from the build script in `deploy/version`.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nGit SHA: ",
    env!("BUILD_COMMIT"),
    "\nBuild Date: ",
    env!("BUILD_DATE"),
    "\nTarget: ",
    env!("BUILD_TARGET")
);

/// Heading of the output flags.
const OUTPUT: &str = "Results";

/// Flags of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Servers and clients")]
pub struct Global {
    /// Endpoints, comma separated
    ///
    /// Each connection object distributes its calls round-robin
    #[arg(long, global = true, value_delimiter = ',', default_value = "127.0.0.1:2379")]
    pub endpoints: Vec<Endpoint>,
    /// Connection objects
    ///
    /// Each has one HTTP/2 connection per endpoint
    #[arg(long, global = true, default_value_t = 1)]
    pub conns: usize,
    /// all: each connection object connects to every endpoint; one: to one endpoint, round-robin, like older
    /// tools
    #[arg(long, global = true, default_value = "all", value_parser = ["all", "one"])]
    pub connect: String,
    /// Concurrent clients (one outstanding request each)
    ///
    /// Client i uses connection object i mod conns
    #[arg(long, global = true, default_value_t = 1)]
    pub clients: usize,
    /// Send to the leader only
    ///
    /// The leader may be missing in --endpoints, and is followed across elections
    #[arg(long, global = true)]
    pub target_leader: bool,
    /// Send the load to each endpoint alone and add the rates, like older write-ups
    #[arg(long, global = true, conflicts_with_all = ["target_leader", "json"])]
    pub each_member: bool,
    /// grpc; http-json: puts and ranges through the JSON gateway, one connection per client
    #[arg(long, global = true, default_value = "grpc", value_parser = ["grpc", "http-json"])]
    pub protocol: String,
    /// Print numbers with full precision
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub precise: bool,
    /// Also print statistics per second
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub sample: bool,
    /// Connection timeout (0: 10s)
    #[arg(long, global = true, default_value = "0s", value_parser = go::duration)]
    pub dial_timeout: Duration,
    /// Timeout of a request (0: none)
    #[arg(long, global = true, default_value = "0s", value_parser = go::duration)]
    pub request_timeout: Duration,
    /// Worker threads (0: half the processors, at least one)
    #[arg(long, global = true, default_value_t = 0)]
    pub threads: usize,
    /// Serve Prometheus metrics of the running load at /metrics
    #[arg(long, global = true, value_name = "HOST:PORT", help_heading = OUTPUT)]
    pub metrics_listen: Option<String>,
    /// Write the result as JSON
    ///
    /// To a file, or with - to standard output instead of the report
    #[arg(long, global = true, value_name = "FILE|-", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
    /// Maximum failed calls for exit status 0 (default: 0, or the errors of --slo)
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub max_errors: Option<u64>,
    /// Include failed calls in the latencies
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub count_failures: bool,
    /// Server processes to measure: CPU time, memory and writes (default: /metrics of each endpoint)
    #[arg(long, global = true, value_delimiter = ',', value_name = "PID,…", help_heading = OUTPUT)]
    pub server_pids: Vec<u32>,
    #[command(flatten)]
    pub security: Security,
    #[command(flatten)]
    pub refused: RefusedFlags,
}

impl Global {
    /// Reports whether standard output is reserved for JSON.
    pub fn is_json_on_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }
}

/// TLS and authentication. Names are those of etcd's `benchmark` and `etcdctl`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS and users")]
pub struct Security {
    /// Trusted CA certificates
    #[arg(long, global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Client certificate; requires --key
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of --cert
    #[arg(long = "key", global = true, value_name = "FILE")]
    pub private_key: Option<PathBuf>,
    /// Do not verify the server certificate
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// Use plaintext for endpoints without a scheme, unless a TLS file is given; false: use TLS
    #[arg(long, global = true, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_default_value = true)]
    pub insecure_transport: bool,
    /// Credentials, as NAME:PASSWORD
    ///
    /// Prompts for the password if neither this flag nor --password contains it
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    pub user: Option<String>,
    /// Password of --user
    #[arg(long, global = true, requires = "user", value_name = "PASSWORD")]
    pub password: Option<String>,
}

/// Flags of etcd's tool that are rejected with the reason.
#[derive(Args, Debug)]
pub struct RefusedFlags {
    #[arg(long, global = true, hide = true, default_value = "0s", value_parser = go::duration)]
    pub auto_sync_interval: Duration,
    #[arg(long, global = true, hide = true)]
    pub report_perfdash: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write keys
    #[command(after_help = help::PUT)]
    Put(PutFlags),
    /// Read a key or a range
    #[command(after_help = help::RANGE)]
    Range(RangeFlags),
    /// Write several keys per transaction
    #[command(after_help = help::TXN_PUT)]
    TxnPut(TxnPutFlags),
    /// Read or write in each transaction, at random
    #[command(after_help = help::TXN_MIXED)]
    TxnMixed(TxnMixedFlags),
    /// Run transactions that are retried on conflicts
    #[command(after_help = help::STM)]
    Stm(StmFlags),
    /// Run a YCSB core workload, or a mix of its operations
    #[command(after_help = help::YCSB)]
    Ycsb(YcsbFlags),
    /// Simulate the API servers of a Kubernetes cluster
    #[command(after_help = help::KUBERNETES)]
    Kubernetes(KubernetesFlags),
    /// Renew leases, each request on a new stream
    #[command(after_help = help::LEASE_KEEPALIVE)]
    LeaseKeepalive(LeaseKeepaliveFlags),
    /// Measure events of watchers while their keys are written
    #[command(after_help = help::WATCH)]
    Watch(WatchFlags),
    /// Measure the time from a put to its events
    #[command(after_help = help::WATCH_LATENCY)]
    WatchLatency(WatchLatencyFlags),
    /// Write events, then measure how fast new watchers read them
    #[command(after_help = help::WATCH_HISTORY)]
    WatchHistory(WatchHistoryFlags),
    /// Measure serializable reads while many watchers read history
    #[command(after_help = help::WATCH_GET)]
    WatchGet(WatchGetFlags),
    /// Replay published benchmarks on one system
    #[command(after_help = help::SUITE)]
    Suite(SuiteFlags),
    /// Replay published benchmarks on two systems, alternating
    #[command(after_help = help::COMPARE)]
    Compare(CompareFlags),
    /// Render a JSON result as HTML, CSV or Markdown
    #[command(after_help = help::REPORT)]
    Report(ReportFlags),
    /// Print a completion script for a shell
    #[command(after_help = help::COMPLETION)]
    Completion {
        #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
        shell: Shell,
    },
}

impl Command {
    pub fn sends_to_endpoints(&self) -> bool {
        match self {
            Command::Suite(flags) => flags.program.is_none(),
            _ => self.sending().is_some() || self.reporting().is_some(),
        }
    }

    /// Returns the flags of a load of requests.
    pub fn sending(&self) -> Option<&Sending> {
        Some(match self {
            Command::Put(flags) => &flags.sending,
            Command::Range(flags) => &flags.sending,
            Command::TxnPut(flags) => &flags.sending,
            Command::TxnMixed(flags) => &flags.sending,
            Command::Stm(flags) => &flags.sending,
            Command::Ycsb(flags) => &flags.sending,
            Command::Kubernetes(flags) => &flags.sending,
            Command::LeaseKeepalive(flags) => &flags.sending,
            _ => return None,
        })
    }

    /// Returns the flags of a load of watchers.
    pub fn reporting(&self) -> Option<&Reporting> {
        Some(match self {
            Command::Watch(flags) => &flags.reporting,
            Command::WatchLatency(flags) => &flags.reporting,
            Command::WatchGet(flags) => &flags.reporting,
            Command::WatchHistory(flags) => &flags.reporting,
            _ => return None,
        })
    }
}

/// Flags of `put`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct PutFlags {
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub sending: Sending,
    /// Write keys in order instead of at random
    #[arg(long)]
    pub sequential_keys: bool,
    /// Interval of compactions (0: never)
    #[arg(long, default_value = "0s", value_parser = go::duration)]
    pub compact_interval: Duration,
    /// Revisions retained by a compaction
    #[arg(long, default_value_t = 1000)]
    pub compact_index_delta: i64,
    /// Print the hash of the key space after the run
    #[arg(long)]
    pub check_hashkv: bool,
    /// Watch streams to keep open during the load
    #[arg(long, default_value_t = 0)]
    pub streams: usize,
    /// Idle watchers on each of these streams
    #[arg(long, default_value_t = 0)]
    pub watchers_per_stream: usize,
}

/// Flags of `range`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct RangeFlags {
    /// First key
    #[arg(required_unless_present = "prefix", default_value = "", hide_default_value = true)]
    pub key: String,
    /// Key after the last one
    #[arg(default_value = "", hide_default_value = true)]
    pub end: String,
    #[command(flatten)]
    pub sending: Sending,
    /// l: linearizable, s: serializable
    #[arg(long, default_value = "l", value_parser = ["l", "s"])]
    pub consistency: String,
    /// Maximum keys per response (0: no limit)
    #[arg(long, default_value_t = 0)]
    pub limit: i64,
    /// Request the number of keys only
    #[arg(long)]
    pub count_only: bool,
    /// Request keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// Read all keys with the prefix KEY
    #[arg(long)]
    pub prefix: bool,
    /// Use RangeStream
    #[arg(long)]
    pub stream: bool,
    /// Read pages of 10,000 keys at one revision
    #[arg(long)]
    pub paginate: bool,
}

/// Flags of `txn-put`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct TxnPutFlags {
    #[command(flatten)]
    pub writing: Writing,
    /// Puts per transaction
    #[arg(long, default_value_t = 1)]
    pub txn_ops: usize,
    #[command(flatten)]
    pub sending: Sending,
}
