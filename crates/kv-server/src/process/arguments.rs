//! The arguments of a command.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

/// Parses the arguments after the name of `command`. If they make no sense, or ask for help, the message is
/// printed, and the result is the exit status.
pub fn parse<A: Parser>(command: &str, arguments: impl Iterator<Item = OsString>) -> Result<A, ExitCode> {
    let named = std::iter::once(OsString::from(command)).chain(arguments);
    A::try_parse_from(named).map_err(|error| {
        let _unwritten = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}
