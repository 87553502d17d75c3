//! The command line: turns flags into loads, runs into reports, and results into an exit status.

mod flags; // the command line

mod refusal; // reasons to exit without a result

mod access; // TLS and users
mod loads; // flags to a load, and its run

mod exporter; // metrics of a run in progress
mod outputs; // files of a report
mod progress; // the progress of a run, on standard error
mod report; // files from a saved result
mod terminal; // standard output and standard error

mod commands; // execution of each command
mod measure; // suites on one system or two
mod single; // a load at one rate
mod steps; // a load at several rates

use crate::server::with_parent;
use flags::Cli;
use refusal::ExitReason;
use std::process::ExitCode;

const COMMAND_LINE_STATUS: u8 = 2;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(error) = with_parent::requested(&arguments) {
        return refuse(&error, ExitCode::FAILURE);
    }
    let cli = Cli::from_process();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&format!("start the runtime: {error}"), ExitCode::FAILURE),
    };
    let executed = runtime.block_on(commands::execute(cli));
    // Connections that are still opening must not delay the exit.
    runtime.shutdown_background();
    match executed {
        Ok(code) => code,
        Err(ExitReason::CommandLine(reason)) => refuse(&reason, ExitCode::from(COMMAND_LINE_STATUS)),
        Err(ExitReason::Run(reason)) => refuse(&reason, ExitCode::FAILURE),
        Err(ExitReason::Interrupted(reason)) => refuse(&reason, ExitCode::from(progress::INTERRUPTED_STATUS)),
    }
}

#[expect(clippy::print_stderr, reason = "the program's own voice")]
fn refuse(reason: &str, code: ExitCode) -> ExitCode {
    eprintln!("loadgen: {reason}");
    code
}
