//! Command line of the server: its flags, and commands that need no running member.
//!
//! Everything else is a command of `kvctl`.

mod moved; // commands that `kvctl` has now

mod tree; // flags and commands, for help, scripts and pages

use std::ffi::OsString;
use std::process::ExitCode;

use process::command_line::{COMPLETION, MAN, run_completion, run_man};

use crate::check_config;
pub use tree::help;

/// Runs the command that the first argument names. Returns the arguments if it names none.
pub fn run_command(
    arguments: impl Iterator<Item = OsString>,
    environment: &[(OsString, OsString)],
) -> Result<ExitCode, Vec<OsString>> {
    let arguments: Vec<OsString> = arguments.collect();
    let Some((first, rest)) = arguments.split_first() else { return Err(arguments) };
    let rest = rest.iter().cloned();
    if first == check_config::COMMAND {
        Ok(check_config::run(rest, environment.iter().cloned()))
    } else if first == COMPLETION {
        Ok(run_completion(&tree::completed(), rest))
    } else if first == MAN {
        Ok(run_man(&tree::program(), rest))
    } else if let Some(line) = moved::line(&arguments) {
        Ok(moved::print(&line))
    } else {
        Err(arguments)
    }
}
