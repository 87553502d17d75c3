//! The environment of experiments: temporary directories, ports, and the program under test.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::{Attempt, ExperimentError, Result};

/// Free space in `/dev/shm` that makes it the scratch directory: a crash image takes hundreds of megabytes.
const MEMORY_BYTES_WANTED: u64 = 4 << 30;

/// Resources of an experiment.
#[derive(Clone, Debug)]
pub struct Environment {
    pub server: PathBuf,
    pub scratch: PathBuf,
    /// First port of the usable range, below the kernel's ephemeral ports.
    pub port: u16,
}

/// A directory that is removed on drop, unless it is retained as evidence.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
    kept: bool,
}

impl Environment {
    /// Returns the ports of slot `number` for clients and for peers.
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

    /// Retains the directory for inspection and returns its path.
    pub fn keep(&mut self) -> String {
        self.kept = true;
        self.path.display().to_string()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if !self.kept {
            // A failure to remove the directory only leaves litter.
            let _litter = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Returns the given program, or the kv-server next to this executable.
pub fn server(given: Option<PathBuf>) -> Result<PathBuf> {
    let own = std::env::current_exe().or_say("find this program")?;
    let server = given.unwrap_or_else(|| own.with_file_name("kv-server"));
    if server.is_file() {
        return Ok(server);
    }
    let path = server.display();
    Err(ExperimentError::new(format!("{path} does not exist: build it, or name another with --server")))
}

/// Returns `/dev/shm` if it has enough space, else the system's temporary directory.
pub fn scratch(given: Option<PathBuf>) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let roomy =
        rustix::fs::statvfs(&memory).is_ok_and(|facts| facts.f_bavail * facts.f_frsize > MEMORY_BYTES_WANTED);
    given.unwrap_or_else(|| if roomy { memory } else { std::env::temp_dir() })
}

/// Copies a directory recursively.
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
    // A closed output does not stop the experiment.
    let _nobody = writeln!(std::io::stdout(), "{line}");
}
