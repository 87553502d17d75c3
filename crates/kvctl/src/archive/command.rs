//! Command lines of `archive`, `archive list` and `archive verify`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser};

use super::follow::{Archiver, FollowError, FollowOptions};
use super::metrics::{self, ArchiveMetrics};
use super::place::{ArchivePlace, PlaceError};
use super::review::{self, ReviewError};
use crate::live_import::say;
use crate::operator::{ClientFlags, ClientFlagsError};
use process::command_line::run as run_command;
use process::shutdown;

/// Name of the command.
pub const COMMAND: &str = "archive";
/// Names of the commands below it.
const LIST: &str = "list";
const VERIFY: &str = "verify";

/// Arguments of the archiver.
#[derive(Debug, Parser)]
#[command(
    name = "kvctl archive",
    about = "Archives every revision of a cluster, from now on, in a directory or a bucket. The cluster is \
             etcd 3.5 to 3.7 or kv-server. `kvctl restore --from DIR --revision N` creates a data directory \
             from the archive. SIGINT or SIGTERM ends the command; run again, it continues."
)]
struct ArchiveArguments {
    #[command(flatten)]
    access: ClientFlags,
    /// Directory of the archive, created if it does not exist, or s3://BUCKET/PREFIX. Endpoint, region and
    /// credentials of a bucket are read from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on.
    #[arg(long, value_name = "DIR|s3://…")]
    to: String,
    /// Interval between full snapshots. A restore reads one snapshot and all later events.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    base_every: Duration,
    /// Interval between writes of events. Later events may be lost with the cluster.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    segment_every: Duration,
    /// Size at which events are written earlier.
    #[arg(long, default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1 << 16..1 << 30))]
    segment_bytes: u32,
    /// Remove objects that only older states need [default: keep all].
    #[arg(long, value_parser = humantime::parse_duration)]
    keep: Option<Duration>,
    /// Serve metrics at http://ADDRESS/metrics.
    #[arg(long, value_name = "ADDRESS")]
    listen_metrics: Option<SocketAddr>,
}

#[derive(Debug, Parser)]
#[command(name = "kvctl archive list", about = "Lists the revisions and times that an archive can restore.")]
struct ListArguments {
    #[command(flatten)]
    archive: ArchiveFlags,
}

#[derive(Debug, Parser)]
#[command(
    name = "kvctl archive verify",
    about = "Reads all objects of an archive: checksums, revisions, and that they share one history."
)]
struct VerifyArguments {
    #[command(flatten)]
    archive: ArchiveFlags,
}

/// Archive to read.
#[derive(Debug, Args)]
struct ArchiveFlags {
    /// The directory of the archive, or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR|s3://…")]
    from: String,
}

impl ArchiveFlags {
    /// Opens the archive and passes it to `work`.
    fn read<T>(&self, work: impl FnOnce(&ArchivePlace) -> Result<T, ReviewError>) -> Result<T, ArchiveError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(ArchiveError::Runtime)?;
        Ok(work(&ArchivePlace::at(&self.from, runtime.handle())?)?)
    }
}

#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    #[error(transparent)]
    Client(#[from] ClientFlagsError),
    #[error("start the client")]
    Runtime(#[source] io::Error),
    #[error("listen for metrics at {0}")]
    Metrics(SocketAddr, #[source] io::Error),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error("no revision was archived")]
    Nothing,
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    ArchiveArguments::command()
        .override_usage(format!(
            "kvctl archive --to DIR|s3://… [FLAGS]\n       kvctl archive {LIST} --from DIR|s3://…\n       \
             kvctl archive {VERIFY} --from DIR|s3://…"
        ))
        .disable_help_subcommand(true)
        .subcommand(ListArguments::command().name(LIST))
        .subcommand(VerifyArguments::command().name(VERIFY))
}

/// Runs the command; `arguments` follow its name. Exit status: 0 after a signal if all received revisions are
/// archived, or if a listed or verified archive is intact; 1 after a permanent failure, if no revision was
/// received or if objects are corrupt; 2 for an invalid command line.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == LIST).is_some() {
        return run_command("kvctl archive list", arguments, |arguments: &ListArguments| {
            arguments.archive.read(review::list).map(|text| print(&text))
        });
    }
    if arguments.next_if(|first| first == VERIFY).is_some() {
        return run_command("kvctl archive verify", arguments, |arguments: &VerifyArguments| {
            let verified = arguments.archive.read(|place| review::verify(place, say));
            verified.map(|summary| print(&format!("{summary}\n")))
        });
    }
    if arguments.next_if(|first| first == "--help" || first == "-h").is_some() {
        let _unwritten = described().print_long_help();
        return ExitCode::SUCCESS;
    }
    run_command("kvctl archive", arguments, |arguments: &ArchiveArguments| {
        try_run(arguments).map(|revision| say(&format!("archived up to revision {revision}")))
    })
}

fn print(text: &str) {
    let _unwritten = io::stdout().write_all(text.as_bytes());
}

fn try_run(arguments: &ArchiveArguments) -> Result<i64, ArchiveError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(ArchiveError::Runtime)?;
    let place = ArchivePlace::take(&arguments.to, runtime.handle())?;
    runtime.block_on(async {
        let client = arguments.access.client()?;
        let figures = Arc::new(ArchiveMetrics::default());
        let (_stopper, stop) = shutdown::stop();
        if let Some(address) = arguments.listen_metrics {
            let served = metrics::serve(figures.clone(), address, &stop).await;
            let bound = served.map_err(|error| ArchiveError::Metrics(address, error))?;
            say(&format!("metrics at http://{bound}/metrics"));
        }
        let options = FollowOptions {
            base_every: arguments.base_every,
            segment_every: arguments.segment_every,
            segment_bytes: arguments.segment_bytes as usize,
            keep: arguments.keep,
        };
        // At the second signal the process exits; archived objects are complete.
        let signalled = shutdown::signals(|| ());
        let archiver =
            tokio::task::block_in_place(|| Archiver::open(client, place, options, signalled, figures))?;
        match archiver.run().await? {
            0 => Err(ArchiveError::Nothing),
            revision => Ok(revision),
        }
    })
}
