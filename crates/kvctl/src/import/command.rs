//! Command line of `import` and `restore` of a snapshot file. A snapshot of kv-server is a file of etcd, so
//! both commands take the files of both servers.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory, Parser};

use super::file::{HashCheck, ImportError, import};
use config::flags::{self, FlagError, ParsedFlags};
use config::{Settings, SettingsError};
use process::command_line::run as run_command;
use snapshot_file::{BUMPED_REVISION_MAX, ImportResult, Revisions};

/// Arguments of an import of a file.
#[derive(Debug, Parser)]
#[command(
    name = "kvctl import",
    about = "Creates the data directory of a new member from a file of `etcdctl snapshot save`."
)]
struct ImportArguments {
    /// The file, saved from etcd 3.5 to 3.7 or from kv-server.
    #[arg(long)]
    from: PathBuf,
    #[command(flatten)]
    member: MemberFlags,
    /// Accept a file with a wrong SHA-256 at its end, or without one.
    #[arg(long)]
    skip_hash_check: bool,
    /// Add this to the latest revision, so that clients see no revision twice.
    #[arg(long, default_value_t = 0, requires = "mark_compacted")]
    #[arg(value_parser = clap::value_parser!(i64).range(0..=BUMPED_REVISION_MAX))]
    bump_revision: i64,
    /// Mark the latest revision as compacted, so that watches from before the import are canceled.
    #[arg(long, requires = "bump_revision")]
    mark_compacted: bool,
}

/// Reason an import failed.
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

/// Runs `command`; `arguments` follow its name. Exit status: 0 if the directory was created, 1 if not, 2 for
/// an invalid command line.
pub fn run(command: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command(command, arguments, |arguments: &ImportArguments| {
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

/// Flags of a new data directory: which member of which cluster it belongs to.
#[derive(Clone, Debug, Args)]
pub struct MemberFlags {
    /// Directory to create.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub data_dir: String,
    /// Directory of the log [default: in the data directory].
    #[arg(long)]
    pub wal_dir: Option<String>,
    /// Name of the member.
    #[arg(long, default_value = "default")]
    pub name: String,
    /// Members of the new cluster, as NAME=URL,... [default: this member alone].
    #[arg(long)]
    pub initial_cluster: Option<String>,
    /// Token hashed into the IDs of the new cluster.
    #[arg(long, default_value = "etcd-cluster")]
    pub initial_cluster_token: String,
    /// Peer URLs advertised to other members.
    #[arg(long, default_value = "http://localhost:2380")]
    pub initial_advertise_peer_urls: String,
}

/// Why they describe no member.
#[derive(Debug, thiserror::Error)]
pub enum MemberFlagsError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl MemberFlags {
    /// Names and peer URLs of `--initial-cluster`; a member with several URLs comes several times.
    pub fn initial_members(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.initial_cluster.iter().flat_map(|cluster| cluster.split(','));
        entries.filter_map(|entry| entry.trim().split_once('='))
    }

    /// The settings of the member's first start, as far as they decide its identity.
    pub fn settings(&self) -> Result<Settings, MemberFlagsError> {
        let mut given = vec![
            format!("--name={}", self.name),
            format!("--data-dir={}", self.data_dir),
            format!("--initial-cluster-token={}", self.initial_cluster_token),
            format!("--initial-advertise-peer-urls={}", self.initial_advertise_peer_urls),
        ];
        given.extend(self.wal_dir.iter().map(|dir| format!("--wal-dir={dir}")));
        given.extend(self.initial_cluster.iter().map(|cluster| format!("--initial-cluster={cluster}")));
        // The environment is that of the server, and not meant for this command.
        match flags::parse(given.into_iter().map(OsString::from), std::iter::empty())? {
            ParsedFlags::Flags(flags, _notices) => Ok(Settings::from_flags(&flags)?),
            ParsedFlags::Help { .. } => unreachable!("no flag asks for help"),
        }
    }
}
