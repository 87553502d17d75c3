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
pub mod verify; // guarantees
pub mod ycsb; // YCSB

use crate::client::endpoint::Endpoint;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use coordination::{
    LeaseKeepaliveFlags, StmFlags, TxnMixedFlags, WatchFlags, WatchGetFlags, WatchLatencyFlags,
};
use kubernetes::KubernetesFlags;
use measure::{CompareFlags, SuiteFlags};
use outputs::{ReportFlags, is_standard_output};
use sending::{AgentFlags, Sending, Writing};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use verify::{ProxyFlags, VerifyFlags};
use ycsb::YcsbFlags;

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
        let root = ["report", "agent", "completion"].into_iter().fold(root, |root, name| {
            // An argument of the command overrides the global one that it would inherit.
            let hidden = global.iter().map(|arg| arg.clone().hide(true));
            root.mut_subcommand(name, |command| command.args(hidden))
        });
        let help = |name: &'static str, action, text| {
            Arg::new(name).long(name).global(true).action(action).help(text).help_heading(None::<&str>)
        };
        root.disable_help_flag(true)
            .arg(help("help", ArgAction::HelpShort, "Print the flags that most runs need").short('h'))
            .arg(help("help-all", ArgAction::HelpLong, "Print all flags, by group"))
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
#[command(next_help_heading = "Servers and callers")]
pub struct Global {
    /// Servers, comma separated
    ///
    /// Every connection object spreads its calls over all of them in turn
    #[arg(long, global = true, value_delimiter = ',', default_value = "127.0.0.1:2379")]
    pub endpoints: Vec<Endpoint>,
    /// Connection objects
    ///
    /// Each has one HTTP/2 connection per endpoint
    #[arg(long, global = true, default_value_t = 1)]
    pub conns: usize,
    /// all: each connection object connects to every endpoint; one: each to the next one, as older tools did
    #[arg(long, global = true, default_value = "all", value_parser = ["all", "one"])]
    pub connect: String,
    /// Callers, each with one request in flight
    ///
    /// Caller i uses connection object i mod conns
    #[arg(long, global = true, default_value_t = 1)]
    pub clients: usize,
    /// Send only to the member that leads
    ///
    /// Also if --endpoints does not name it; when another one leads, to that
    #[arg(long, global = true)]
    pub target_leader: bool,
    /// Print numbers with all their digits
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub precise: bool,
    /// Print the figures of each second as well
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub sample: bool,
    /// Give up when no connection can be had for so long (0: ten seconds)
    #[arg(long, global = true, default_value = "0s", value_parser = go::duration)]
    pub dial_timeout: Duration,
    /// A call without an answer for so long has failed (0: wait forever)
    #[arg(long, global = true, default_value = "0s", value_parser = go::duration)]
    pub request_timeout: Duration,
    /// Worker threads (0: half the processors, one at least)
    #[arg(long, global = true, default_value_t = 0)]
    pub threads: usize,
    /// Show rate, percentiles and histogram on the whole terminal while a single run goes on
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub live: bool,
    /// Serve metrics of a single run for Prometheus at /metrics while it goes on
    #[arg(long, global = true, value_name = "HOST:PORT", help_heading = OUTPUT)]
    pub metrics_listen: Option<String>,
    /// Write the figures as JSON
    ///
    /// To a file, or to standard output instead of the report with -
    #[arg(long, global = true, value_name = "FILE|-", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
    /// Exit with a failure when more calls than this failed (default: 0, or the errors of --slo)
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub max_errors: Option<u64>,
    /// Count failed calls in the latencies as well, with the time after which they failed
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub count_failures: bool,
    /// Let these agents send the load at the same time, each all of it, and add up what they measure
    #[arg(long, global = true, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub agents: Vec<String>,
    /// Processes whose time, memory and writes belong to the servers; without it, /metrics of each endpoint
    /// is read
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
    /// Certificates of authorities that are believed
    #[arg(long, global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Show this certificate to servers that ask for one; needs --key
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The private key of --cert
    #[arg(long = "key", global = true, value_name = "FILE")]
    pub private_key: Option<PathBuf>,
    /// Encrypt, but believe any certificate
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// Plain text to endpoints without a scheme, unless a TLS file is given; --insecure-transport=false wants
    /// TLS
    #[arg(long, global = true, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_default_value = true)]
    pub insecure_transport: bool,
    /// Authenticate first
    ///
    /// The password is asked for if it is given neither here nor by --password
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    pub user: Option<String>,
    /// The password of --user
    #[arg(long, global = true, requires = "user", value_name = "PASSWORD")]
    pub password: Option<String>,
}

/// Flags of etcd's tool that are parsed in order to be refused with the reason.
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
    /// Write keys several at a time, in transactions
    #[command(after_help = help::TXN_PUT)]
    TxnPut(TxnPutFlags),
    /// Write or read in each transaction, at random
    #[command(after_help = help::TXN_MIXED)]
    TxnMixed(TxnMixedFlags),
    /// Run transactions that are tried again until what they read is unchanged
    #[command(after_help = help::STM)]
    Stm(StmFlags),
    /// Run a core workload of YCSB, or a mix of its operations
    #[command(after_help = help::YCSB)]
    Ycsb(YcsbFlags),
    /// Send what the API servers of a Kubernetes cluster send
    #[command(after_help = help::KUBERNETES)]
    Kubernetes(KubernetesFlags),
    /// Renew leases, each request on a new stream
    #[command(after_help = help::LEASE_KEEPALIVE)]
    LeaseKeepalive(LeaseKeepaliveFlags),
    /// Count the events that watchers receive while their keys are written
    #[command(after_help = help::WATCH)]
    Watch(WatchFlags),
    /// Measure the time from a put to its events
    #[command(after_help = help::WATCH_LATENCY)]
    WatchLatency(WatchLatencyFlags),
    /// Read a key, serializable, while many watchers read history
    #[command(after_help = help::WATCH_GET)]
    WatchGet(WatchGetFlags),
    /// Check that a cluster keeps its guarantees, while every member is used
    #[command(after_help = help::VERIFY)]
    Verify(VerifyFlags),
    /// Stand in front of members and break their guarantees on purpose
    #[command(after_help = help::proxy())]
    Proxy(ProxyFlags),
    /// Replay published measurements on one system
    #[command(after_help = help::SUITE)]
    Suite(SuiteFlags),
    /// Replay published measurements on two systems side by side
    #[command(after_help = help::COMPARE)]
    Compare(CompareFlags),
    /// Make HTML, CSV or Markdown of a result that was kept as JSON
    #[command(after_help = help::REPORT)]
    Report(ReportFlags),
    /// Execute the commands of controllers on other machines: see --agents
    #[command(after_help = help::AGENT)]
    Agent(AgentFlags),
    /// Print a completion script for a shell
    #[command(after_help = help::COMPLETION)]
    Completion { shell: clap_complete::Shell },
}

impl Command {
    pub fn sends_to_endpoints(&self) -> bool {
        match self {
            Command::Verify(_) | Command::Proxy(_) => true,
            Command::Suite(flags) => flags.program.is_none(),
            _ => self.is_one_load(),
        }
    }

    /// Reports whether the command sends a single load to --endpoints.
    pub fn is_one_load(&self) -> bool {
        match self {
            Command::Put(_)
            | Command::Range(_)
            | Command::TxnPut(_)
            | Command::TxnMixed(_)
            | Command::Stm(_)
            | Command::Ycsb(_)
            | Command::Kubernetes(_)
            | Command::LeaseKeepalive(_)
            | Command::Watch(_)
            | Command::WatchLatency(_)
            | Command::WatchGet(_) => true,
            Command::Verify(_)
            | Command::Proxy(_)
            | Command::Suite(_)
            | Command::Compare(_)
            | Command::Report(_)
            | Command::Agent(_)
            | Command::Completion { .. } => false,
        }
    }

    /// Returns the flags for sending requests. None for loads of watchers, and for commands without a load.
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
}

/// Flags of `put`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct PutFlags {
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub sending: Sending,
    /// Keys in order instead of at random
    #[arg(long)]
    pub sequential_keys: bool,
    /// Compact the history so often (0: never)
    #[arg(long, default_value = "0s", value_parser = go::duration)]
    pub compact_interval: Duration,
    /// Revisions that a compaction leaves
    #[arg(long, default_value_t = 1000)]
    pub compact_index_delta: i64,
    /// Print the hash of the key space afterwards
    #[arg(long)]
    pub check_hashkv: bool,
}

/// Flags of `range`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
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
    /// Keys in each answer at most (0: no limit)
    #[arg(long, default_value_t = 0)]
    pub limit: i64,
    /// Ask for the number of keys only
    #[arg(long)]
    pub count_only: bool,
    /// Ask for keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// All keys that begin with KEY
    #[arg(long)]
    pub prefix: bool,
    /// Use RangeStream and read it to its end
    #[arg(long)]
    pub stream: bool,
    /// Read in pages of 10,000 keys, all at the revision of the first
    #[arg(long)]
    pub paginate: bool,
}

/// Flags of `txn-put`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct TxnPutFlags {
    #[command(flatten)]
    pub writing: Writing,
    /// Puts in each transaction
    #[arg(long, default_value_t = 1)]
    pub txn_ops: usize,
    #[command(flatten)]
    pub sending: Sending,
}
