//! Where experiments are made: directories that go away with them, ports, and the program under test.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::{Attempt, ExperimentError, Result};

/// With so much room in memory, experiments are made there: a crash image is hundreds of megabytes.
const MEMORY_BYTES_WANTED: u64 = 4 << 30;

/// The means of an experiment.
#[derive(Clone, Debug)]
pub struct Environment {
    pub server: PathBuf,
    pub scratch: PathBuf,
    /// First of the ports that may be used: below those that the kernel gives to outgoing connections.
    pub port: u16,
}

/// A directory that is removed in the end, unless it is kept as evidence.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
    kept: bool,
}

impl Environment {
    /// The ports of slot `number`: for clients and for peers.
    pub fn ports(&self, number: u16) -> (u16, u16) {
        (self.port + 2 * number, self.port + 2 * number + 1)
    }

    pub fn directory(&self, purpose: &str) -> Result<ScratchDir> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("torture-{}-{purpose}-{number}", std::process::id());
        let path = self.scratch.join(name);
        DirBuilder::new().mode(0o700).create(&path).attempt("create", &path)?;
        Ok(ScratchDir { path: path.canonicalize().attempt("resolve", &path)?, kept: false })
    }
}

impl ScratchDir {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Leaves it for inspection.
    pub fn keep(&mut self) -> String {
        self.kept = true;
        self.path.display().to_string()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed is litter, and no reason to fail.
            let _litter = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// The program: the given one, or the one built next to this.
pub fn server(given: Option<PathBuf>) -> Result<PathBuf> {
    let own = std::env::current_exe().or_say("find this program")?;
    let server = given.unwrap_or_else(|| own.with_file_name("kv-server"));
    if server.is_file() {
        return Ok(server);
    }
    let path = server.display();
    Err(ExperimentError::new(format!("{path} does not exist: build it, or name another with --server")))
}

/// Memory if there is much of it, else the usual place.
pub fn scratch(given: Option<PathBuf>) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let roomy =
        rustix::fs::statvfs(&memory).is_ok_and(|facts| facts.f_bavail * facts.f_frsize > MEMORY_BYTES_WANTED);
    given.unwrap_or_else(|| if roomy { memory } else { std::env::temp_dir() })
}

/// Copies a directory with everything in it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to).attempt("create", to)?;
    for entry in std::fs::read_dir(from).attempt("list", from)? {
        let (source, target) = {
            let entry = entry.attempt("list", from)?;
            (entry.path(), to.join(entry.file_name()))
        };
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            std::fs::copy(&source, &target).attempt("copy", &source)?;
        }
    }
    Ok(())
}

/// Prints a line of progress.
pub fn say(line: &str) {
    use std::io::Write;
    // A closed output is no reason to stop.
    let _nobody = writeln!(std::io::stdout(), "{line}");
}
