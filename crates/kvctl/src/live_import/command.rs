//! Command line of `import --live`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use tokio::sync::watch;
use tonic::Status;

use super::copy::{CopyError, copy};
use super::follow::{self, FollowError, Follower, Proof, Until, cluster_name, first_signal};
use super::place::{Begin, ImportPlace, PlaceError};
use super::progress::{ImportProgress, say};
use super::source::{Head, Session, may_pass};
use super::target::{ImportTarget, TargetError};
use crate::import::{CheckedFile, HashCheck, ImportError, MemberFlags, MemberFlagsError};
use crate::operator::{ClientFlags, ClientFlagsError, OperatorClient};
use config::Settings;
use data_dir::Directory;
use process::command_line::run as run_command;
use process::log::causes;
use process::{files, shutdown};
use snapshot_file::Revisions;

const FLAG: &str = "--live";
/// Delay before a failed copy is retried.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of interrupted copies.
const COPIES_MAX: u32 = 10;

/// Arguments of a live import.
#[derive(Debug, Parser)]
#[command(
    name = "kvctl import",
    about = "Creates a data directory from a running etcd 3.5 to 3.7 or kv-server cluster: copies it at one \
             revision, and follows it. SIGINT or SIGTERM ends it: it then catches up with the source, \
             compares the hashes and finishes the directory. Run again, it continues."
)]
struct LiveImportArguments {
    /// Copy the cluster at these client URLs [default: those of --endpoints].
    #[arg(long, value_delimiter = ',', required = true, num_args = 0..=1, value_name = "ENDPOINTS")]
    live: Vec<String>,
    #[command(flatten)]
    access: ClientFlags,
    #[command(flatten)]
    member: MemberFlags,
    /// Directory to create for another member of --initial-cluster. One run creates the directories of all
    /// members, because their stores must be equal.
    #[arg(long, value_name = "NAME=DIR")]
    other_data_dir: Vec<String>,
    /// Exit as soon as the directory has all that the cluster had when this command connected.
    #[arg(long)]
    until_caught_up: bool,
    /// Seconds without a response of the cluster after which the command fails.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

#[derive(Debug, thiserror::Error)]
enum LiveError {
    #[error(transparent)]
    Member(#[from] MemberFlagsError),
    #[error(transparent)]
    Client(#[from] ClientFlagsError),
    #[error("--other-data-dir={0:?} is not NAME=DIR, with the NAME of another member of --initial-cluster")]
    Other(String),
    #[error(
        "--other-data-dir={0:?} is the directory of another member or in --wal-dir: give each member its own"
    )]
    SameDirectory(String),
    #[error(
        "--initial-cluster has member {0:?}, and no --other-data-dir names its directory. One run makes the \
         directories of all members: two runs would end at different revisions"
    )]
    NoDirectory(String),
    #[error("start the client")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("query the source: {}", .0.message())]
    Refused(Status),
    #[error("no complete copy after {copies} attempts, and no response for {seconds} s: {reason}")]
    Silent { copies: u32, seconds: u64, reason: String },
    #[error("query the source: {reason}. The previous import is unchanged: rerun to resume")]
    Unreached { reason: String },
    #[error("stopped before the copy was complete. Rerun to start again")]
    Stopped,
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("the copied store")]
    Target(#[from] TargetError),
    #[error(transparent)]
    Follow(#[from] FollowError),
}

/// Reports whether the arguments of `import` request a live import.
pub fn is_wanted(arguments: &[OsString]) -> bool {
    let is_flag = |argument: &str| argument == FLAG || argument.starts_with("--live=");
    arguments.iter().filter_map(|argument| argument.to_str()).any(is_flag)
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    LiveImportArguments::command()
}

/// Runs `command`; `arguments` follow its name. Exit status: 0 if the directory was finished, 1 if not, 2 for
/// an invalid command line, 130 after a second signal.
pub fn run(command: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command(command, arguments, |arguments: &LiveImportArguments| {
        let Proof { revision, compact_revision, hash, leases, source_revision } = try_run(arguments)?;
        let _unwritten = writeln!(
            io::stdout(),
            "imported into {}: revision {revision}, compact revision {compact_revision}, {leases} \
             leases, HashKV {hash} as in the source",
            arguments.member.data_dir
        );
        if source_revision > revision {
            say(&format!(
                "the source still receives writes: it is at revision {source_revision}. Rerun to catch up"
            ));
        }
        Ok::<(), LiveError>(())
    })
}

fn try_run(arguments: &LiveImportArguments) -> Result<Proof, LiveError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let settings = arguments.member.settings()?;
    let others = others(&arguments.member, &settings, &arguments.other_data_dir)?;
    // The calling thread applies events; the worker drives connections.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(LiveError::Runtime)?.block_on(async {
        let client = match arguments.live.is_empty() {
            true => arguments.access.client()?,
            false => arguments.access.client_at(&arguments.live)?,
        };
        // At a second signal the process exits; the durable state is at a whole revision.
        let on_first =
            || say("catching up with the source before finishing the directory; press Ctrl-C again to abort");
        let importing = Importing {
            client,
            signalled: shutdown::signals(on_first),
            until: if arguments.until_caught_up { Until::CaughtUp } else { Until::Signalled },
            patience: Duration::from_secs(arguments.timeout),
        };
        importing.run(&settings, &others).await
    })
}

/// Returns the settings of the remaining members. `own` belongs to the first member.
fn others(member: &MemberFlags, own: &Settings, given: &[String]) -> Result<Vec<Settings>, LiveError> {
    let urls: Vec<(&str, &str)> = member.initial_members().collect();
    let mut settings: Vec<Settings> = Vec::new();
    let mut known = vec![member.name.as_str()];
    for text in given {
        let refused = || LiveError::Other(text.clone());
        let (name, data_dir) = text.split_once('=').ok_or_else(refused)?;
        let peers: Vec<&str> = urls.iter().filter(|(of, _)| *of == name).map(|(_, url)| *url).collect();
        if peers.is_empty() || known.contains(&name) || data_dir.is_empty() {
            return Err(refused());
        }
        known.push(name);
        let other = MemberFlags {
            data_dir: data_dir.to_owned(),
            wal_dir: None,
            name: name.to_owned(),
            initial_advertise_peer_urls: peers.join(","),
            ..member.clone()
        };
        let other = other.settings()?;
        let is_in_log = own.wal_dir.as_ref().is_some_and(|log| Directory::lies_in(&other.data_dir, log));
        let is_same = |known: &Settings| files::resolved(&known.data_dir) == files::resolved(&other.data_dir);
        if is_in_log || is_same(own) || settings.iter().any(is_same) {
            return Err(LiveError::SameDirectory(text.clone()));
        }
        settings.push(other);
    }
    match urls.iter().find(|(name, _)| !known.contains(name)) {
        Some((name, _)) => Err(LiveError::NoDirectory((*name).to_owned())),
        None => Ok(settings),
    }
}

struct Importing {
    client: OperatorClient,
    signalled: watch::Receiver<bool>,
    until: Until,
    patience: Duration,
}

impl Importing {
    async fn run(mut self, settings: &Settings, others: &[Settings]) -> Result<Proof, LiveError> {
        let mut place = ImportPlace::open(settings)?;
        let others: Result<Vec<ImportPlace>, PlaceError> = others.iter().map(ImportPlace::open).collect();
        let (mut others, begin) = (others?, place.begin());
        if begin == Begin::Follow {
            let head = self.reach().await?;
            follow::check_cluster(head, place.source().unwrap_or_default())?;
        }
        let was_finished = place.is_finished();
        place.take()?;
        if begin == Begin::Copy {
            self.make_store(&mut place).await?;
        }
        let begun = Instant::now();
        let target = ImportTarget::open(&place.store_dir())?;
        let members: Vec<u64> = place.identity().members.iter().map(|member| member.id).collect();
        if target.members()? != members {
            return Err(PlaceError::OtherMembers(settings.data_dir.clone()).into());
        }
        others.iter_mut().try_for_each(ImportPlace::take_other)?;
        let before = target.revision();
        say(&format!("following from revision {before}, opened in {:.1} s", begun.elapsed().as_secs_f64()));
        let source = place.source().unwrap_or_default().to_owned();
        let followed =
            Follower::new(self.client, target, source, self.patience, self.signalled, self.until).run().await;
        // The directory may be the only remaining copy of the source.
        let is_kept =
            followed.is_err() && was_finished && ImportTarget::open(&place.store_dir())?.revision() == before;
        if followed.is_ok() || is_kept {
            for other in &mut others {
                other.copy_store(&place.store_dir())?;
                other.finish()?;
            }
            place.finish()?;
        }
        if is_kept {
            say(&format!("no new revisions: finished at revision {before} again"));
        }
        Ok(followed?)
    }

    /// Reads the source's revision, before the state of an earlier run is modified.
    async fn reach(&mut self) -> Result<Head, LiveError> {
        let begun = Instant::now();
        loop {
            let asked = async { Session::open(&mut self.client).await?.head().await };
            let status = match asked.await {
                Ok(head) => return Ok(head),
                Err(status) => status,
            };
            let reason = status.message().to_owned();
            if !may_pass(&status) || begun.elapsed() >= follow::patience(self.patience, &self.signalled) {
                return Err(LiveError::Unreached { reason });
            }
            say(&format!("querying the source again: {reason}"));
            self.client.turn_away();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Phase 1: creates the store from a snapshot.
    async fn make_store(&mut self, place: &mut ImportPlace) -> Result<(), LiveError> {
        let path = place.file_path();
        let (mut progress, begun) = (ImportProgress::default(), Instant::now());
        let (mut answered, mut cut) = (begun, 0);
        let head = loop {
            let mut signalled = self.signalled.clone();
            let copied = tokio::select! {
                biased;
                () = first_signal(&mut signalled) => return Err(LiveError::Stopped),
                copied = async {
                    let session = Session::open(&mut self.client).await.map_err(CopyError::Source)?;
                    let head = session.head().await.map_err(CopyError::Source)?;
                    (answered, cut) = (Instant::now(), cut + 1);
                    copy(&session, &path, &mut progress).await.map(|_| head)
                } => copied,
            };
            let reason = match copied {
                Ok(head) => break head,
                Err(CopyError::Source(status)) if !may_pass(&status) => {
                    return Err(LiveError::Refused(status));
                }
                Err(error @ CopyError::File { .. }) => return Err(error.into()),
                Err(error @ (CopyError::Source(_) | CopyError::Silent | CopyError::Cut(_))) => causes(&error),
            };
            if answered.elapsed() >= self.patience || cut >= COPIES_MAX {
                let seconds = answered.elapsed().as_secs();
                return Err(LiveError::Silent { copies: cut, seconds, reason });
            }
            say(&format!("snapshot copy failed, retrying: {reason}"));
            self.client.turn_away();
            tokio::time::sleep(PAUSE).await;
        };
        let file = CheckedFile::open(&path, HashCheck::Required)?;
        let imported = file.into_store(&place.store_dir(), Revisions::default(), place.identity())?;
        say(&format!(
            "revision {}: {} changes and {} leases in {:.1} s",
            imported.revision,
            imported.changes,
            imported.leases,
            begun.elapsed().as_secs_f64()
        ));
        Ok(place.copied(cluster_name(head))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_member_has_a_directory_of_its_own() {
        let parent = tempfile::tempdir().unwrap();
        let at = |text: &str| text.replace("DIR", parent.path().to_str().unwrap());
        let own = "import --live=h:1 --data-dir=DIR/a --wal-dir=DIR/log --name=a \
                   --initial-cluster=a=http://h:1,,b=http://h:2,c=http://h:3, \
                   --initial-advertise-peer-urls=http://h:1";
        for (given, wanted) in [
            ("b=DIR/b c=DIR/c", ""),
            ("b=DIR/b", "no --other-data-dir names its directory"),
            ("b=DIR/b c=DIR/./b", "is the directory of another member"),
            ("b=DIR/b c=DIR/a/../a", "is the directory of another member"),
            ("b=DIR/b c=DIR/log/c", "is the directory of another member or in --wal-dir"),
            ("b=DIR/b b=DIR/c", "is not NAME=DIR"),
            ("b=DIR/b a=DIR/c", "is not NAME=DIR"),
            ("b=DIR/b c=", "is not NAME=DIR"),
        ] {
            let flags = given.split(' ').map(|given| format!("--other-data-dir={}", at(given)));
            let line = own.split_whitespace().map(at).chain(flags);
            let LiveImportArguments { member, other_data_dir, .. } =
                LiveImportArguments::try_parse_from(line).unwrap();
            let others = others(&member, &member.settings().unwrap(), &other_data_dir);
            let said = others.err().map_or_else(String::new, |error| error.to_string());
            assert!(said.contains(wanted) && said.is_empty() == wanted.is_empty(), "{given}: {said}");
        }
    }
}
