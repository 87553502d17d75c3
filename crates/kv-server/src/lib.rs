//! The server process: etcd's v3 API over `raft-node` and `mvcc`.
//!
//! ```text
//!   client ─▶ net ─▶ rpc ─▶ member/handle ─▶ raft-node ─▶ member/apply ─▶ state-machine ─▶ mvcc
//!              └───▶ http                     │  ▲                                         │
//!                                             ▼  │                               member/checkpointer
//!                                            peer ◀──▶ other members
//! ```
//!
//! `node` starts everything and builds one `member::Member` from the Raft handle, the store, ids, limits,
//! metrics and the store's thread. `rpc` serves it as gRPC, `http` as health checks and metrics. Neither
//! opens a socket or file. A module uses only modules above it in the list below.
//!
//! This crate is glue: it holds no state that matters after a crash, and decides nothing that replicas must
//! agree on.

mod check_config; // the effect of a set of flags
mod local_cluster; // the same command in N terminals

mod command_line; // help, and commands without a member

mod methods; // the table of methods

mod audit; // who asked for what

mod member; // the replicated state and its store
mod peer; // member to member
mod rpc; // etcd's gRPC methods

mod discovery; // the members of a new cluster

mod shared_evaluation; // one outcome for all that wait for it
mod status; // one document of all figures

mod http; // health, version, metrics
mod known_members; // the members at start
mod listeners; // what is served where
mod node_parts; // what a member consists of, configured

mod node; // one member from start to end

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use api::version;
use config::flags::{self, FlagError, Notice, ParsedFlags};
use config::{Flags, Settings, SettingsError, log_settings, read_file};
use data_dir::{Directory, DirectoryError};
use local_cluster::LocalClusterError;
use node::NodeError;
use process::log::{self, LogError, causes};
use process::visible::visible;

/// Reason the process could not start or continue.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Log(#[from] LogError),
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
            | RunError::Log(_)
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
    let environment: Vec<(OsString, OsString)> = environment.into_iter().collect();
    let arguments = match command_line::run_command(arguments.into_iter(), &environment) {
        Ok(status) => return status,
        Err(arguments) => arguments,
    };
    let ended = try_run(arguments, environment);
    if let Err(error) = &ended {
        // Before the log is set up, this line has no output.
        tracing::error!(target: log::FATAL, error = causes(error), "the member did not start");
    }
    log::flush();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Plain text as well, for the user of the command line.
            let (text, advice) = (causes(&error), advice(&error));
            let _unwritten = writeln!(std::io::stderr(), "kv-server: {}{advice}", visible(&text));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Returns a hint to resolve an error of the operating system.
fn advice(error: &(dyn Error + 'static)) -> &'static str {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    match chain.find_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind) {
        Some(io::ErrorKind::AddrNotAvailable) => {
            ": use an address of this host, or 0.0.0.0 for all addresses"
        }
        Some(io::ErrorKind::PermissionDenied) => {
            ": let the user of kv-server do it (owner and mode of the file and its directories), or choose \
             another place"
        }
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            ": free space on this disk, or move the directory to a larger one"
        }
        Some(io::ErrorKind::ReadOnlyFilesystem) => ": mount it for writing, or choose another place",
        Some(io::ErrorKind::NotFound) => ": correct the path, or create its directory",
        Some(io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists) => {
            ": the path is a file, not a directory; move the file, or choose another path"
        }
        _ => "",
    }
}

fn try_run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), RunError> {
    let (flags, notices) = match flags::parse(arguments, environment)? {
        ParsedFlags::Flags(flags, notices) => (flags, notices),
        ParsedFlags::Help { is_all } => {
            say(&command_line::help(is_all));
            return Ok(());
        }
    };
    if flags.version {
        say(&version_text());
        return Ok(());
    }
    let (flags, notices) = match flags.config_file.as_ref().filter(|path| !path.is_empty()) {
        Some(path) => read_config_file(path)?,
        None => (*flags, notices),
    };
    let log = log_settings(&flags).map_err(SettingsError::from)?;
    log::start(&log)?;
    notices.iter().for_each(note);
    // Files created by this process and its libraries are readable by its user only.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    // The allocator requests huge pages, which become resident as a whole when one byte is touched: half of
    // a small member's memory. They are no faster here. An error of an older kernel is ignored.
    let _is_unknown = rustix::thread::disable_transparent_huge_pages(true);
    let (settings, directory) = choose(&flags)?;
    Ok(node::run(settings, directory)?)
}

/// Reads the flags of a file, which replace the command line's.
fn read_config_file(path: &str) -> Result<(Flags, Vec<Notice>), FlagError> {
    let text = read_file(path)?;
    let (flags, mut notices) = flags::parse_file(&text)?;
    notices.insert(0, Notice::UsedFile { path: path.to_owned() });
    Ok((flags, notices))
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
    let _unwritten = std::io::stdout().write_all(text.as_bytes());
}

fn note(notice: &Notice) {
    match notice {
        Notice::UsedVariable { name, value } => tracing::info!(
            variable_name = name,
            variable_value = value,
            "recognized and used environment variable"
        ),
        Notice::UsedFile { path } => tracing::info!(
            path,
            "loaded server configuration, other configuration command line flags and environment variables will be \
             ignored if provided"
        ),
        Notice::UnknownKey { name, advice } => {
            tracing::warn!(key = name, advice, "unrecognized key in the configuration file")
        }
        Notice::UnknownVariable { name, advice } => {
            tracing::warn!(environment_variable = name, advice, "unrecognized environment variable");
        }
        Notice::NoEffect { name, reason } => {
            tracing::warn!(flag = name, reason, "this flag has no effect in kv-server");
        }
        Notice::IgnoredFlag { name } => tracing::warn!(flag = name, "this flag has no effect"),
    }
}

/// Returns the text of `--version`. Target, commit and date come from the build script in `deploy/version`.
fn version_text() -> String {
    let build = [env!("BUILD_TARGET"), env!("BUILD_COMMIT"), env!("BUILD_DATE")];
    process::command_line::version_text("kv-server", version::OWN, version::ETCD, build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_ends_with_what_to_change() {
        for (kind, wanted) in [
            (io::ErrorKind::StorageFull, "free space on this disk"),
            (io::ErrorKind::PermissionDenied, "let the user of kv-server do it"),
            (io::ErrorKind::ReadOnlyFilesystem, "mount it for writing"),
        ] {
            let error = RunError::Node(NodeError::Runtime(kind.into()));
            assert!(advice(&error).contains(wanted), "{kind}: {}", advice(&error));
        }
    }
}
