//! Command line of `inspect`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, ValueEnum};

use super::report::{InspectError, InspectReport};
use super::{store, wal};
use data_dir::Directory;
use process::command_line::run as run_command;

/// Name of the command.
pub const COMMAND: &str = "inspect";

/// Arguments of the command.
#[derive(Debug, Parser)]
#[command(name = "kvctl inspect", about = "Shows and verifies the contents of a data directory.")]
struct InspectArguments {
    /// Part of the directory.
    what: What,
    /// The data directory.
    #[arg(long)]
    data_dir: PathBuf,
    /// Directory of the log [default: in the data directory].
    #[arg(long)]
    wal_dir: Option<PathBuf>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    /// `store`: also every record of every block.
    #[arg(long)]
    records: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The log.
    Wal,
    /// Positions of the stores.
    Snapshot,
    /// The current store.
    Store,
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    InspectArguments::command()
}

/// Runs the command; `arguments` follow its name. Exit status: 0 if the directory is intact, 1 if it is
/// corrupt or unreadable, 2 for an invalid command line.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command("kvctl inspect", arguments, |arguments: &InspectArguments| {
        let mut report = InspectReport::new(io::BufWriter::new(io::stdout().lock()), arguments.json);
        match show(arguments, &mut report).and_then(|()| Ok(report.finish()?)) {
            Ok(0) => Ok(ExitCode::SUCCESS),
            Ok(_damages) => Ok(ExitCode::FAILURE),
            // Ignore a closed pipe.
            Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Err(error),
        }
    })
}

fn show<W: Write>(arguments: &InspectArguments, report: &mut InspectReport<W>) -> Result<(), InspectError> {
    let data_dir = &arguments.data_dir;
    if !data_dir.is_dir() {
        return Err(InspectError::Missing(data_dir.clone()));
    }
    let wal_dir = arguments.wal_dir.clone().unwrap_or_else(|| Directory::wal_in(data_dir));
    let store_dir = Directory::store_in(data_dir);
    match arguments.what {
        What::Wal => wal::show(&wal_dir, report),
        What::Snapshot => store::show_all(data_dir, &store_dir, report),
        What::Store => store::show(&store_dir, arguments.records, report),
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
