//! The command line of `import` and `restore`: one command with two names. A snapshot of this server is a file
//! of etcd, so both take the files of both.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::import::{HashCheck, ImportError, import};
use super::read::{Imported, Revisions};
use crate::config::flags::{self, Parsed};
use crate::config::{Settings, SettingsError};
use crate::process::log::causes;

/// The first arguments that lead here.
pub const COMMANDS: [&str; 2] = ["import", "restore"];

/// What was asked for.
#[derive(Debug, Parser)]
#[command(
    name = "kv-server import",
    about = "Makes the data directory of a new member from a file of `etcdctl snapshot save`."
)]
struct Arguments {
    /// The file, saved from etcd 3.5 to 3.7 or from kv-server.
    #[arg(long)]
    from: PathBuf,
    /// Directory to make.
    #[arg(long)]
    data_dir: String,
    /// Directory of the log, if it shall not lie in the data directory.
    #[arg(long)]
    wal_dir: Option<String>,
    /// Name of the member.
    #[arg(long, default_value = "default")]
    name: String,
    /// All members of the new cluster, as NAME=URL,... [default: this member alone].
    #[arg(long)]
    initial_cluster: Option<String>,
    /// Mixed into the ids of the new cluster.
    #[arg(long, default_value = "etcd-cluster")]
    initial_cluster_token: String,
    /// Where other members dial this one.
    #[arg(long, default_value = "http://localhost:2380")]
    initial_advertise_peer_urls: String,
    /// Accept a file without the SHA-256 at its end, or with another one.
    #[arg(long)]
    skip_hash_check: bool,
    /// Add this to the newest revision, so that clients see none twice.
    #[arg(long, default_value_t = 0, requires = "mark_compacted")]
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    bump_revision: i64,
    /// Mark the newest revision as compacted, so that watches of before the import end.
    #[arg(long, requires = "bump_revision")]
    mark_compacted: bool,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Flags(#[from] flags::FlagError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// The whole of the command; `arguments` are those after its name. Exit status: 0 if the directory was made, 1
/// if not, 2 for a command line that makes no sense.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let named = std::iter::once(OsString::from("kv-server import")).chain(arguments);
    let arguments = match Arguments::try_parse_from(named) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _unwritten = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match try_run(&arguments) {
        Ok(Imported { revision, compact_revision, changes, leases }) => {
            let _unwritten = writeln!(
                io::stdout(),
                "imported {changes} changes and {leases} leases into {}: revision {revision}, compact revision \
                 {compact_revision}",
                arguments.data_dir
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "kv-server import: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn try_run(arguments: &Arguments) -> Result<Imported, CommandError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let settings = settings(arguments)?;
    let hash_check = match arguments.skip_hash_check {
        true => HashCheck::Skipped,
        false => HashCheck::Required,
    };
    let revisions = Revisions { bump: arguments.bump_revision, is_compacted: arguments.mark_compacted };
    Ok(import(&arguments.from, hash_check, revisions, &settings)?)
}

/// The settings of the member's first start, as far as they decide its identity.
fn settings(arguments: &Arguments) -> Result<Settings, CommandError> {
    let mut given = vec![
        format!("--name={}", arguments.name),
        format!("--data-dir={}", arguments.data_dir),
        format!("--initial-cluster-token={}", arguments.initial_cluster_token),
        format!("--initial-advertise-peer-urls={}", arguments.initial_advertise_peer_urls),
    ];
    given.extend(arguments.wal_dir.iter().map(|dir| format!("--wal-dir={dir}")));
    given.extend(arguments.initial_cluster.iter().map(|cluster| format!("--initial-cluster={cluster}")));
    // The environment is that of the server, and not meant for this command.
    match flags::parse(given.into_iter().map(OsString::from), std::iter::empty())? {
        Parsed::Flags(flags, _notices) => Ok(Settings::from_flags(&flags)?),
        Parsed::Help(_) => unreachable!("no flag asks for help"),
    }
}
