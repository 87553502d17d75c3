//! The server process: etcd's v3 API over `raft-node` and `mvcc`.
//!
//! ```text
//!   client ─▶ listen ─▶ service ─▶ member ─▶ raft-node ─▶ apply ─▶ state-machine ─▶ mvcc
//!                 └───▶ http                   │  ▲                                  │
//!                                              ▼  │                             store_thread
//!                                             peer ◀──▶ other members
//! ```
//!
//! The border inside this crate: `node` starts everything and builds one `member::Member` from
//! `{raft handle, mvcc store, ids, limits, metrics, the store's thread}`; `service` turns it into gRPC; `http` asks the same `Member` for health. Sockets, files, threads and signals stay on this side of it.
//!
//! This crate is glue: it holds no state that matters after a crash, and decides nothing that replicas must agree on.

pub mod flags; // what was said on the command line
pub mod local_cluster; // the same command in N terminals
pub mod settings; // what one member was told to be
pub mod url; // addresses as flags give them
pub mod version; // which version, in three senses

pub mod bootstrap; // from settings and a directory to an identity and its log
pub mod directory; // one member's home on disk
pub mod identity; // who this member is, ever after its first start
pub mod ids; // member and cluster numbers

pub mod disk; // the log's file system, timed
pub mod home; // the store at start
pub mod incoming; // a store that the leader sends

pub mod apply; // where the log meets the store
pub mod node; // one member's life, start to end
pub mod peer; // member to member
pub mod runtime; // the threads that serve sockets
pub mod shutdown; // the end, asked for or forced
pub mod store_thread; // checkpoints and compaction, away from every request

pub mod clients; // the client port
pub mod front; // one client connection
pub mod http; // health, version, metrics
pub mod listen; // sockets that others dial

pub mod member; // this member, as the services see it
pub mod service; // etcd's gRPC methods

pub mod inspect; // a look at a data directory

pub mod log; // the process's own words
pub mod metrics; // figures for whoever watches

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use directory::{Directory, DirectoryError};
use flags::{FlagError, Flags, Notice, Parsed};
use local_cluster::LocalClusterError;
use log::causes;
use node::NodeError;
use settings::{Settings, SettingsError};

/// Why the process ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    LocalCluster(#[from] LocalClusterError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl RunError {
    fn exit_code(&self) -> u8 {
        match self {
            RunError::Flags(error) => error.exit_code(),
            RunError::Settings(_)
            | RunError::LocalCluster(_)
            | RunError::Directory(_)
            | RunError::Node(_) => 1,
        }
    }
}

/// The whole life of the process, from its arguments to its exit code.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|first| first == inspect::COMMAND).is_some() {
        return inspect::run(arguments);
    }
    match try_run(arguments, environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Plain text and not a log line: it is for whoever typed the command.
            let _nobody_reads = writeln!(std::io::stderr(), "kv-server: {}", causes(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

fn try_run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), RunError> {
    let (flags, notices) = match flags::parse(arguments, environment)? {
        Parsed::Flags(flags, notices) => (flags, notices),
        Parsed::Help(text) => {
            say(&text);
            return Ok(());
        }
    };
    if flags.version == Some(true) {
        say(&version::text());
        return Ok(());
    }
    log::start(settings::log_settings(&flags)?);
    notices.iter().for_each(note);
    // Whatever this process writes, a library's files included, is nobody else's to read.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    // The allocator asks for huge pages, and each that is touched in one place is in memory whole: half of what a small member takes.
    // They are no faster here. A kernel that does not know the call leaves it at that.
    let _is_unknown = rustix::thread::disable_transparent_huge_pages(true);
    let (settings, directory) = choose(&flags)?;
    Ok(node::run(settings, directory)?)
}

fn choose(flags: &Flags) -> Result<(Settings, Directory), RunError> {
    if let Some(members) = flags.local_cluster {
        return Ok(local_cluster::take_slot(flags, members)?);
    }
    let settings = Settings::from_flags(flags)?;
    let directory = Directory::open(&settings.data_dir, settings.wal_dir.as_deref())?;
    Ok((settings, directory))
}

fn say(text: &str) {
    let _nobody_reads = std::io::stdout().write_all(text.as_bytes());
}

fn note(notice: &Notice) {
    match notice {
        Notice::UsedVariable { name, value } => tracing::info!(
            variable_name = name,
            variable_value = value,
            "recognized and used environment variable"
        ),
        Notice::UnknownVariable { name } => {
            tracing::warn!(environment_variable = name, "unrecognized environment variable");
        }
        Notice::IgnoredFlag { name } => tracing::warn!(flag = name, "this flag has no effect"),
    }
}
