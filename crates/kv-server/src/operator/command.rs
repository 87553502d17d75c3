//! The command lines of `member replace` and `member reseed`, and the loop of the former.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use api::etcdserverpb::Member;
use clap::{CommandFactory, Parser, Subcommand};
use tokio::runtime::Runtime;
use tonic::Status;

use super::client::{Client, may_pass};
use super::flags::{ClientFlags, ClientFlagsError};
use super::plan::{self, Refusal, Replacement, Step};
use super::progress::{Said, say};
use super::reseed::{ReseedError, Reseeding};
use crate::config::{UrlError, Urls};
use crate::process::log::causes;

/// The first argument that leads here.
pub const COMMAND: &str = "member";

/// Between two looks at the members.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Parser)]
#[command(name = "kv-server member", about = "Changes the members of a running cluster.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a new member in the place of another one: adds it as a learner, waits until it is in sync, promotes it and
    /// removes the old one. Run again after an interruption, it goes on where it was.
    Replace(Replace),
    /// Let a member that an alarm CORRUPT names take over the leader's state, and clear the alarm. It keeps its log, its
    /// votes and its data directory. Run again after an interruption, it goes on where it was.
    Reseed(Reseed),
}

#[derive(Debug, clap::Args)]
struct Reseed {
    /// Name or id of the member.
    member: String,
    /// Client URLs of the cluster.
    #[arg(long, env = "ETCDCTL_ENDPOINTS", value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    #[command(flatten)]
    access: ClientFlags,
    /// Seconds without progress after which the command gives up. It can be run again.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

#[derive(Debug, clap::Args)]
struct Replace {
    /// Name or id of the member to replace.
    old: String,
    /// Name and peer URLs of the new member, as NAME=URL[,URL…].
    #[arg(value_name = "NEW-NAME=URL")]
    new: String,
    /// Client URLs of the cluster.
    #[arg(long, env = "ETCDCTL_ENDPOINTS", value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    #[command(flatten)]
    access: ClientFlags,
    /// Go on though the old member is gone: an earlier run has removed it.
    #[arg(long)]
    removed: bool,
    /// Seconds without progress after which the command gives up. It can be run again.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

/// Why a command ended early.
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
    Refused(#[from] Refusal),
    #[error("{0}")]
    Call(String),
    #[error("no progress within {seconds} s: {reason}. Run again to go on")]
    Stuck { seconds: u64, reason: String },
    #[error(transparent)]
    Reseed(#[from] ReseedError),
}

/// The command line, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    Arguments::command()
}

/// The whole of the command; `arguments` are those after its name. Exit status: 0 when the new member is in the
/// place of the old one, or the member has the leader's state; 1 if not, 2 for a command line that makes no sense.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let named = std::iter::once(OsString::from("kv-server member")).chain(arguments);
    let command = match Arguments::try_parse_from(named) {
        Ok(arguments) => arguments.command,
        Err(error) => {
            let _unwritten = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let (name, ended) = match &command {
        Command::Replace(arguments) => ("replace", try_replace(arguments)),
        Command::Reseed(arguments) => ("reseed", try_reseed(arguments)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "kv-server member {name}: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn try_replace(arguments: &Replace) -> Result<(), CommandError> {
    let wanted = wanted(arguments)?;
    runtime()?.block_on(async {
        let client = arguments.access.client(&arguments.endpoints)?;
        Replacing { client, wanted, patience: Duration::from_secs(arguments.timeout) }.run().await
    })
}

fn try_reseed(arguments: &Reseed) -> Result<(), CommandError> {
    runtime()?.block_on(async {
        let client = arguments.access.client(&arguments.endpoints)?;
        let (wanted, patience) = (arguments.member.clone(), Duration::from_secs(arguments.timeout));
        Ok(Reseeding { client, wanted, patience }.run().await?)
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
    })
}

struct Replacing {
    client: Client,
    wanted: Replacement,
    patience: Duration,
}

/// What a look at the members led to.
enum Stepped {
    /// A step was taken, or a learner has come so far: progress, if the line is another one than before.
    Moved(String),
    /// Nothing could be done yet.
    Waits(String),
    Done,
}

impl Replacing {
    async fn run(mut self) -> Result<(), CommandError> {
        let mut said = Said::new();
        loop {
            match self.step().await? {
                Stepped::Done => {
                    say(&format!("{} is in the place of {}", self.wanted.new_name, self.wanted.old));
                    return Ok(());
                }
                Stepped::Moved(line) => said.line(line, true),
                Stepped::Waits(line) => said.line(line, false),
            }
            if said.without_progress() >= self.patience {
                return Err(CommandError::Stuck { seconds: self.patience.as_secs(), reason: said.last() });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Looks at the members and takes the next step.
    async fn step(&mut self) -> Result<Stepped, CommandError> {
        let members = match self.client.members().await {
            Ok(members) => members,
            Err(status) => return later(&status, "list the members"),
        };
        self.client.add_endpoints(&members);
        let mut answering = Vec::new();
        for member in &members {
            if self.client.status(member).await.is_some() {
                answering.push(member.id);
            }
        }
        let name = self.wanted.new_name.clone();
        match plan::next(&members, &self.wanted, &|id| answering.contains(&id))? {
            Step::Done => Ok(Stepped::Done),
            Step::Add => match self.client.add_learner(&self.wanted.new_urls).await {
                Ok(id) => {
                    self.start_line(&members, id);
                    Ok(Stepped::Moved(format!("added {name} as a learner with id {id:x}")))
                }
                Err(status) => later(&status, "add the new member"),
            },
            Step::AwaitStart { id } => {
                Ok(Stepped::Waits(format!("waiting for {name} ({id:x}) to be started")))
            }
            Step::Promote { id } => match self.client.promote(id).await {
                Ok(()) => Ok(Stepped::Moved(format!("promoted {name} ({id:x})"))),
                Err(status) => self.behind(&members, id, &status).await,
            },
            Step::Remove { id } => match self.client.remove(id).await {
                Ok(()) => {
                    self.wanted.is_old_removed = true;
                    Ok(Stepped::Moved(format!("removed {} ({id:x})", self.wanted.old)))
                }
                Err(status) => later(&status, "remove the old member"),
            },
        }
    }

    /// How far a learner is that could not be promoted.
    async fn behind(&self, members: &[Member], id: u64, status: &Status) -> Result<Stepped, CommandError> {
        let waits = later(status, "promote the new member")?;
        let Some(learner) = members.iter().find(|member| member.id == id) else { return Ok(waits) };
        let Some(learner) = self.client.status(learner).await else { return Ok(waits) };
        let Some(leader) = members.iter().find(|member| member.id == learner.leader) else {
            return Ok(waits);
        };
        let Some(leader) = self.client.status(leader).await else { return Ok(waits) };
        let (has, of) = (learner.raft_applied_index, leader.raft_index);
        let line = format!("waiting for {} to be in sync: entry {has} of {of}", self.wanted.new_name);
        Ok(Stepped::Moved(line))
    }

    /// Says how the new member is started.
    fn start_line(&self, members: &[Member], id: u64) {
        let Replacement { new_name, new_urls, .. } = &self.wanted;
        let entry = |member: &Member| {
            let urls = member.peer_ur_ls.iter().map(|url| format!("{}={url}", member.name));
            urls.collect::<Vec<_>>()
        };
        let mut cluster: Vec<String> = members.iter().flat_map(entry).collect();
        cluster.extend(new_urls.iter().map(|url| format!("{new_name}={url}")));
        say(&format!(
            "start it now, with an empty data directory: kv-server --name {new_name} --initial-advertise-peer-urls {} \
             --initial-cluster {} --initial-cluster-state existing … (its id is {id:x})",
            new_urls.join(","),
            cluster.join(",")
        ));
    }
}

/// The line of a call that may succeed later; otherwise the end.
fn later(status: &Status, action: &str) -> Result<Stepped, CommandError> {
    let line = format!("{action}: {}", status.message());
    if may_pass(status) { Ok(Stepped::Waits(line)) } else { Err(CommandError::Call(line)) }
}
