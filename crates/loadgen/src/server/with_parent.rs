//! Starts programs that die with this process, even if it is killed by SIGKILL.
//!
//! ```text
//!   loadgen ─fork, exec─▶ loadgen with WORD ─asks for SIGKILL at its parent's end, then exec─▶ the program
//! ```
//!
//! The kernel sends the signal when the starting thread, here the main thread, exits. Setting it between
//! fork and exec would need `unsafe`; the setting survives exec, so this program starts itself, sets it and
//! then execs the target.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// First argument of such a start, followed by the parent's id, the program and its arguments.
const WORD: &str = "__end-with-parent";

/// Wraps `command` in the program at `loadgen`, if given.
pub fn through(loadgen: Option<&Path>, command: Command) -> Command {
    let Some(loadgen) = loadgen else { return command };
    let mut start = Command::new(loadgen);
    start.arg(WORD).arg(std::process::id().to_string());
    start.arg(command.get_program()).args(command.get_args());
    start
}

/// Executes the program in these arguments if they start with the marker word. Returns only on failure, with
/// the reason.
pub fn requested(arguments: &[OsString]) -> Option<String> {
    let (_, rest) = arguments.split_first()?;
    let (word, rest) = rest.split_first()?;
    if word != WORD {
        return None;
    }
    let [parent, program, rest @ ..] = rest else { return Some(format!("{WORD}: which program?")) };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Some(format!("ask for a signal at the end of the parent: {error}"));
    }
    // The parent may have exited before the request.
    let alive = getppid().is_some_and(|pid| parent.to_str() == Some(&pid.as_raw_nonzero().to_string()));
    if !alive {
        return Some("the program that started this one has ended".into());
    }
    let error = Command::new(program).args(rest).exec();
    Some(format!("run {}: {error}", program.display()))
}
