//! Command line of `archive`.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};

use super::follow::{Archiver, FollowError, FollowOptions};
use super::metrics::{self, ArchiveMetrics};
use super::place::{ArchivePlace, PlaceError};
use crate::live_import::say;
use crate::operator::{ClientFlags, ClientFlagsError};
use process::arguments::run as run_command;
use process::shutdown;

/// Name of the command.
pub const COMMAND: &str = "archive";

/// What was asked for.
#[derive(Debug, Parser)]
#[command(
    name = "kv-server archive",
    about = "Keeps every revision of a cluster of etcd 3.5 to 3.7 or kv-server, from now on, in a directory or \
             a bucket. `kv-server restore --from DIR --revision N` makes a data directory of one of them. SIGINT or SIGTERM \
             ends it; run again, it goes on where it was."
)]
struct ArchiveArguments {
    /// Client URLs of the cluster.
    #[arg(long, value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    #[command(flatten)]
    access: ClientFlags,
    /// Directory of the archive, which is made if it does not exist, or s3://BUCKET/PREFIX. The endpoint,
    /// region and credentials of a bucket are those of AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so
    /// on.
    #[arg(long, value_name = "DIR|s3://…")]
    to: String,
    /// Time between two snapshots of the whole cluster. A restore reads one, and all events after it.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    base_every: Duration,
    /// Events are written so often: what may be lost with the cluster.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    segment_every: Duration,
    /// Or as soon as there are so many bytes of them.
    #[arg(long, default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1 << 16..1 << 30))]
    segment_bytes: u32,
    /// Remove what only states need that are older than this [default: keep all].
    #[arg(long, value_parser = humantime::parse_duration)]
    keep: Option<Duration>,
    /// Serve metrics at http://ADDRESS/metrics.
    #[arg(long, value_name = "ADDRESS")]
    listen_metrics: Option<SocketAddr>,
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
    #[error("nothing was archived")]
    Nothing,
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    ArchiveArguments::command()
}

/// Runs the command; `arguments` follow its name. Exit status: 0 after a signal if all received revisions are
/// archived, 1 after a permanent failure or if no revision was received, 2 for an invalid command line.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command("kv-server archive", arguments, |arguments: &ArchiveArguments| {
        try_run(arguments).map(|revision| say(&format!("archived up to revision {revision}")))
    })
}

fn try_run(arguments: &ArchiveArguments) -> Result<i64, ArchiveError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(ArchiveError::Runtime)?;
    let place = ArchivePlace::take(&arguments.to, runtime.handle())?;
    runtime.block_on(async {
        let client = arguments.access.client(&arguments.endpoints)?;
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
