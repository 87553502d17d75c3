//! Command line of the program: its commands, and its help.

mod directories; // import and restore

mod tree; // all commands, in groups

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use process::command_line::{COMPLETION, MAN, run_completion, run_man, version_text};
use process::descriptors;
use process::visible::visible;

use crate::{archive, inspect, operator, top};
use api::version;
use directories::Directory;
use tree::NAME;

/// Runs the command that the first argument names. Returns the exit status of the process.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<OsString> = arguments.collect();
    // `help COMMAND` is `COMMAND --help`.
    if arguments.len() > 1 && arguments[0] == "help" {
        arguments.rotate_left(1);
        *arguments.last_mut().expect("two or more") = OsString::from("--help");
    }
    let mut arguments = arguments.into_iter();
    let Some(first) = arguments.next() else {
        let _unwritten = io::stderr().write_all(tree::help().as_bytes());
        return ExitCode::from(2);
    };
    if let Some(directory) = Directory::ALL.into_iter().find(|directory| first == directory.name()) {
        descriptors::raise();
        return directories::run(directory, arguments);
    }
    match first.to_str() {
        Some(archive::COMMAND) => {
            descriptors::raise();
            archive::run(arguments)
        }
        Some(inspect::COMMAND) => {
            descriptors::raise();
            inspect::run(arguments)
        }
        Some(operator::COMMAND) => operator::run(arguments),
        Some(top::COMMAND) => top::run(arguments),
        Some(COMPLETION) => run_completion(&tree::program(), arguments),
        Some(MAN) => run_man(&tree::program(), arguments),
        Some("--help" | "-h" | "help") => say(&tree::help()),
        Some("--version" | "-V" | "version") => say(&own_version()),
        _ => {
            let (first, instead) = (first.to_string_lossy(), tree::instead(&first.to_string_lossy()));
            let _unwritten =
                writeln!(io::stderr(), "{NAME}: no command {:?}: {instead}", visible(&first).to_string());
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    let _unwritten = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Returns the text of `--version`. Target, commit and date come from the build script in `deploy/version`.
fn own_version() -> String {
    let build = [env!("BUILD_TARGET"), env!("BUILD_COMMIT"), env!("BUILD_DATE")];
    version_text(NAME, version::OWN, version::ETCD, build)
}
