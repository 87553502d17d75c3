//! The program against complete members as processes, and members whose data directory it has made.
//!
//! Needs the server's program, which `cargo test --workspace` builds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../kv-server/tests/common/mod.rs"]
mod common;

#[allow(dead_code, reason = "a part of it")]
#[path = "../../kv-server/tests/tls/authority.rs"]
mod authority;

mod archive;
mod archive_histories;
mod archive_restores;
mod arguments;
mod corruption;
mod first_starts;
mod replace;
mod top;

use std::process::Command;

use common::Process;

const KVCTL: &str = env!("CARGO_BIN_EXE_kvctl");

/// Starts the program with an otherwise empty environment.
fn start(arguments: &[&str]) -> Process {
    Process::start(Command::new(KVCTL).args(arguments).env_clear())
}

/// Runs the program until it exits. Returns whether it succeeded, and its output.
fn run(arguments: &[String]) -> (bool, String) {
    let output = Command::new(KVCTL).args(arguments).env_clear().output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}
