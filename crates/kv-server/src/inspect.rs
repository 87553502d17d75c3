//! `kv-server inspect`: what lies in a data directory, shown and checked, without touching it.
//!
//! ```text
//!   inspect wal       segments, every entry with its requests, hard states; every frame's checksum
//!   inspect snapshot  how far each store in the directory reaches: the present one, one being received, those set aside
//!   inspect store     marks, items, files and blocks of the present store; every block's checksum; with --records the history
//! ```
//!
//! * Nothing is written, locked or repaired. A running member's directory may be looked at, though its end may look torn.
//! * Everything that can be read is shown, also behind damage. What is damaged is shown as that, and the exit status is 1.
//! * With `--json` each line is an object with a `kind`; without, the same fields as `name=value`.

mod report; // lines on stdout
mod requests; // commands in words
mod store; // checkpoints
mod wal; // the log

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::directory::Directory;
use crate::log::causes;
use report::Report;

/// The first argument that leads here.
pub const COMMAND: &str = "inspect";

/// What was asked for.
#[derive(Debug, Parser)]
#[command(name = "kv-server inspect", about = "Shows and checks what lies in a data directory.")]
struct Arguments {
    /// What to look at.
    what: What,
    /// The data directory.
    #[arg(long)]
    data_dir: PathBuf,
    /// Directory of the log, if it does not lie in the data directory.
    #[arg(long)]
    wal_dir: Option<PathBuf>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    /// `store`: every record of every block as well.
    #[arg(long)]
    records: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The log.
    Wal,
    /// How far the stores reach.
    Snapshot,
    /// The present store.
    Store,
}

/// Why nothing could be shown, or not to the end.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error("look at the log")]
    Log(#[from] ::wal::Error),
    #[error("look at the store")]
    Store(#[from] mvcc::Error),
    #[error("make a directory for a copy of the catalogue in {}", path.display())]
    Scratch { path: PathBuf, source: io::Error },
    #[error("no data directory {}", .0.display())]
    Missing(PathBuf),
    #[error("write")]
    Output(#[from] io::Error),
}

/// The whole of the command; `arguments` are those behind its name. Exit status: 0 if all is well, 1 if damage was found or the
/// directory cannot be looked at, 2 for a command line that makes no sense.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let named = std::iter::once(OsString::from("kv-server inspect")).chain(arguments);
    let arguments = match Arguments::try_parse_from(named) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _nobody_reads = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut report = Report::new(io::BufWriter::new(io::stdout().lock()), arguments.json);
    let shown = show(&arguments, &mut report).and_then(|()| Ok(report.finish()?));
    match shown {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_damages) => ExitCode::FAILURE,
        // Whoever read the lines has seen enough.
        Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(io::stderr(), "kv-server inspect: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn show<W: Write>(arguments: &Arguments, report: &mut Report<W>) -> Result<(), InspectError> {
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

/// A directory of our own that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, InspectError> {
        use std::os::unix::fs::DirBuilderExt;
        let parent = std::env::temp_dir();
        let path =
            parent.join(format!("kv-server-inspect-{}-{:016x}", std::process::id(), rand::random::<u64>()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| InspectError::Scratch { path: parent, source })?;
        Ok(Scratch(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests;
