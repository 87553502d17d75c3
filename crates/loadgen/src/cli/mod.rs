//! The command line: flags to plans, plans to reports, results to an exit status.

mod flags; // the command line

mod access; // TLS and users
mod plans; // flags to plans

mod coordination; // the same for watchers, leases and transactions

mod outputs; // files of a report
mod progress; // the progress of a run, on standard error
mod terminal; // standard output and standard error

mod commands; // what each command does
mod measure; // suites on one system or two
mod steps; // one load at several rates

use flags::Cli;
use std::process::ExitCode;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let cli = Cli::from_process();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&format!("start the runtime: {error}")),
    };
    match runtime.block_on(commands::execute(cli)) {
        Ok(code) => code,
        Err(reason) => refuse(&reason),
    }
}

#[expect(clippy::print_stderr, reason = "the program's own voice")]
fn refuse(reason: &str) -> ExitCode {
    eprintln!("loadgen: {reason}");
    ExitCode::FAILURE
}
