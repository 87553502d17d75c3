//! The command line: flags to plans, plans to reports, results to an exit status.

mod admit; // TLS and users
mod commands; // what each command does
mod flags; // what users may write
mod go; // values as Go's flag library reads them
mod help; // examples that teach
mod measure; // suites on one system or two
mod measure_flags; // what users may write for them
mod outputs; // where reports go
mod plans; // flags to plans
mod step_flags; // what users may write for several rates
mod steps; // one load at several rates
mod terminal; // what is said, and where
mod watch; // a run as its user sees it

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
