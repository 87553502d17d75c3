//! Command-line arguments and exit statuses of commands.

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::process::{ExitCode, Termination};

use clap::{Arg, Command, FromArgMatches, Parser};

use crate::log::causes;
use crate::visible::visible;

/// Runs `command` with the arguments after its name. Exit status: that of `work`; 1 after an error, with a
/// line that lists its causes; 2 for invalid arguments.
pub fn run<A: Parser, T: Termination, E: Error>(
    command: &str,
    arguments: impl Iterator<Item = OsString>,
    work: impl FnOnce(&A) -> Result<T, E>,
) -> ExitCode {
    run_as(command, A::command(), arguments, work)
}

/// Runs `command` like [`run`], with a definition whose texts were changed.
pub(super) fn run_as<A: FromArgMatches, T: Termination, E: Error>(
    command: &str,
    definition: Command,
    arguments: impl Iterator<Item = OsString>,
    work: impl FnOnce(&A) -> Result<T, E>,
) -> ExitCode {
    let ended = match parse_as(command, definition, arguments) {
        Ok(arguments) => work(&arguments),
        Err(status) => return status,
    };
    match ended {
        Ok(ended) => ended.report(),
        Err(error) => {
            let _unwritten = writeln!(std::io::stderr(), "{command}: {}", visible(&causes(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments after the name of `command`. For invalid arguments and help requests, prints the
/// message and returns the exit status.
pub fn parse<A: Parser>(command: &str, arguments: impl Iterator<Item = OsString>) -> Result<A, ExitCode> {
    parse_as(command, A::command(), arguments)
}

fn parse_as<A: FromArgMatches>(
    command: &str,
    definition: Command,
    arguments: impl Iterator<Item = OsString>,
) -> Result<A, ExitCode> {
    let mut definition = without_empty_variables(definition);
    let named = std::iter::once(OsString::from(command)).chain(arguments);
    let matches = definition.try_get_matches_from_mut(named);
    let parsed = matches.and_then(|mut matches| {
        A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
    });
    parsed.map_err(|error| {
        let _unwritten = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// Makes empty environment variables count as unset, as etcdctl does.
fn without_empty_variables(definition: Command) -> Command {
    let is_empty = |arg: &Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    definition
        .mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg })
        .mut_subcommands(without_empty_variables)
}
