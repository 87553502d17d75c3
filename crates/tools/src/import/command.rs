//! The command line of `import` and `restore`: one command with two names. A snapshot of this server is a
//! file of etcd, so both take the files of both.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use super::file::{HashCheck, ImportError, import};
use super::member_flags::{MemberFlags, MemberFlagsError};
use process::arguments::run as run_command;
use snapshot_file::{BUMPED_REVISION_MAX, ImportResult, Revisions};

/// The first arguments that lead here.
pub const COMMANDS: [&str; 2] = ["import", "restore"];

/// What was asked for.
#[derive(Debug, Parser)]
#[command(
    name = "kv-server import",
    about = "Makes the data directory of a new member from a file of `etcdctl snapshot save`.",
    after_help = "With --live ENDPOINTS in place of --from, it copies a running cluster and follows it: \
                  `kv-server import --live --help`."
)]
struct ImportArguments {
    /// The file, saved from etcd 3.5 to 3.7 or from kv-server.
    #[arg(long)]
    from: PathBuf,
    #[command(flatten)]
    member: MemberFlags,
    /// Accept a file without the SHA-256 at its end, or with another one.
    #[arg(long)]
    skip_hash_check: bool,
    /// Add this to the newest revision, so that clients see none twice.
    #[arg(long, default_value_t = 0, requires = "mark_compacted")]
    #[arg(value_parser = clap::value_parser!(i64).range(0..=BUMPED_REVISION_MAX))]
    bump_revision: i64,
    /// Mark the newest revision as compacted, so that watches of before the import end.
    #[arg(long, requires = "bump_revision")]
    mark_compacted: bool,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
enum ImportCommandError {
    #[error(transparent)]
    Flags(#[from] MemberFlagsError),
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// The command line, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    ImportArguments::command()
}

/// The whole of the command; `arguments` are those after its name. Exit status: 0 if the directory was made,
/// 1 if not, 2 for a command line that makes no sense.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command("kv-server import", arguments, |arguments: &ImportArguments| {
        let ImportResult { revision, compact_revision, changes, leases } = try_run(arguments)?;
        let _unwritten = writeln!(
            io::stdout(),
            "imported {changes} changes and {leases} leases into {}: revision {revision}, compact revision \
             {compact_revision}",
            arguments.member.data_dir
        );
        Ok::<(), ImportCommandError>(())
    })
}

fn try_run(arguments: &ImportArguments) -> Result<ImportResult, ImportCommandError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let settings = arguments.member.settings()?;
    let hash_check = match arguments.skip_hash_check {
        true => HashCheck::Skipped,
        false => HashCheck::Required,
    };
    let revisions = Revisions { bump: arguments.bump_revision, is_compacted: arguments.mark_compacted };
    Ok(import(&arguments.from, hash_check, revisions, &settings)?)
}
