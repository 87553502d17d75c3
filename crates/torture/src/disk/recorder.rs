//! The recorder, `preload/record.c`, compiled on demand, and the environment that activates it.
//!
//! Written in C because it replaces functions of the C library inside a foreign process, and this
//! workspace forbids `unsafe`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Attempt, ExperimentError, Result};

const SOURCE: &str = include_str!("../../preload/record.c");

/// A compiled recorder.
#[derive(Clone, Debug)]
pub struct RecorderLibrary {
    library: PathBuf,
}

/// Additional action of the recorder. Operations are counted from 1 in each life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interference {
    None,
    /// Kills the process instead of this operation.
    KillAt(u64),
    /// Fails this operation with this errno.
    FailAt(u64, i32),
}

impl RecorderLibrary {
    /// Compiles it with the machine's C compiler.
    pub fn build(dir: &Path) -> Result<RecorderLibrary> {
        let (source, library) = (dir.join("record.c"), dir.join("record.so"));
        std::fs::write(&source, SOURCE).attempt("write", &source)?;
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .args(["-ldl", "-lpthread"])
            .output()
            .or_say("run cc, the C compiler")?;
        if !compiled.status.success() {
            let said = String::from_utf8_lossy(&compiled.stderr);
            return Err(ExperimentError::new(format!("compile the recorder: {said}")));
        }
        Ok(RecorderLibrary { library })
    }

    /// Returns the environment of a process with files below `root`, which must be an absolute path
    /// without symbolic links.
    pub fn environment(
        &self,
        root: &Path,
        log: &Path,
        interference: Interference,
    ) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("TORTURE_ROOT", root.display().to_string()),
            ("TORTURE_LOG", log.display().to_string()),
        ];
        match interference {
            Interference::None => {}
            Interference::KillAt(number) => environment.push(("TORTURE_KILL_AT", number.to_string())),
            Interference::FailAt(number, error) => {
                environment.push(("TORTURE_FAIL_AT", number.to_string()));
                environment.push(("TORTURE_FAIL_ERRNO", error.to_string()));
            }
        }
        environment
    }
}
