//! The command lines of `member replace` and `member reseed`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::runtime::Runtime;

use super::flags::{ClientFlags, ClientFlagsError};
use super::plan::{ReplaceRefusal, Replacement};
use super::progress::RunError;
use super::replace::Replacing;
use super::reseed::Reseeding;
use super::reseed_plan::ReseedRefusal;
use config::{UrlError, Urls};
use process::command_line::parse;
use process::log::causes;

/// Name of the command.
pub const COMMAND: &str = "member";

#[derive(Debug, Parser)]
#[command(name = "kvctl member", about = "Replaces or repairs members of a running cluster.")]
struct OperatorArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replaces a member: adds the new one as a learner, waits until it is in sync, promotes it, and removes the
    /// old one. An unreachable old member is removed first, after --grace. Run again after an interruption, the
    /// command continues.
    Replace(Replace),
    /// Repairs a member that has an alarm CORRUPT: replaces its state by the leader's, and clears the alarm. The
    /// member keeps its log, its votes and its data directory. Run again after an interruption, the command
    /// continues.
    Reseed(ReseedArguments),
}

#[derive(Debug, clap::Args)]
struct ReseedArguments {
    /// Name or ID of the member.
    member: String,
    #[command(flatten)]
    access: ClientFlags,
    /// Seconds without progress before the command fails; rerun to resume.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

#[derive(Debug, clap::Args)]
struct Replace {
    /// Name or ID of the member to replace.
    old: String,
    /// Name and peer URLs of the new member, as NAME=URL[,URL…].
    #[arg(value_name = "NEW-NAME=URL")]
    new: String,
    #[command(flatten)]
    access: ClientFlags,
    /// Continue although the old member is missing: an earlier run has removed it.
    #[arg(long)]
    removed: bool,
    /// Remove the old member although the new one votes already: an earlier run has promoted it.
    #[arg(long)]
    promoted: bool,
    /// Seconds for which an old member must be unreachable before it is removed: it may be rebooting.
    #[arg(long, default_value_t = 60)]
    grace: u64,
    /// Print the plan without changing anything.
    #[arg(long)]
    dry_run: bool,
    /// Seconds without progress before the command fails; rerun to resume.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

/// Reason a command failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("{0:?} is not NEW-NAME=URL")]
    New(String),
    #[error("the URL of the new member")]
    Url(#[source] UrlError),
    #[error("start the client")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Client(#[from] ClientFlagsError),
    #[error(transparent)]
    Replace(#[from] RunError<ReplaceRefusal>),
    #[error(transparent)]
    Reseed(#[from] RunError<ReseedRefusal>),
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    OperatorArguments::command()
}

/// Runs the command; `arguments` follow its name. Exit status: 0 if the old member is replaced, or the member
/// has the leader's state; 1 if not, 2 for an invalid command line.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = match parse("kvctl member", arguments) {
        Ok(OperatorArguments { command }) => command,
        Err(status) => return status,
    };
    let (name, ended) = match &command {
        Command::Replace(arguments) => ("replace", try_replace(arguments)),
        Command::Reseed(arguments) => ("reseed", try_reseed(arguments)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "kvctl member {name}: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn try_replace(arguments: &Replace) -> Result<(), CommandError> {
    let wanted = wanted(arguments)?;
    runtime()?.block_on(async {
        let client = arguments.access.client()?;
        let (patience, grace) =
            (Duration::from_secs(arguments.timeout), Duration::from_secs(arguments.grace));
        let replacing = Replacing::new(client, wanted, grace, arguments.dry_run);
        // The grace is no time without progress.
        Ok(replacing.run(patience + grace).await?)
    })
}

fn try_reseed(arguments: &ReseedArguments) -> Result<(), CommandError> {
    runtime()?.block_on(async {
        let client = arguments.access.client()?;
        let (wanted, patience) = (arguments.member.clone(), Duration::from_secs(arguments.timeout));
        Ok(Reseeding { client, wanted, cleared: None }.run(patience).await?)
    })
}

fn runtime() -> Result<Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(CommandError::Runtime)
}

fn wanted(arguments: &Replace) -> Result<Replacement, CommandError> {
    let (name, urls) =
        arguments.new.split_once('=').ok_or_else(|| CommandError::New(arguments.new.clone()))?;
    let urls = Urls::collect(urls.split(',')).map_err(CommandError::Url)?;
    let mut new_urls = urls.texts();
    new_urls.sort_unstable();
    Ok(Replacement {
        old: arguments.old.clone(),
        new_name: name.to_owned(),
        new_urls,
        is_old_removed: arguments.removed,
        is_new_promoted: arguments.promoted,
    })
}
