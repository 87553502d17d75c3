//! The same matrix with etcdctl and curl, if installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::authority::{Authority, Files, Issued};
use super::caller::Outcome;

/// Sends requests to the client port with each installed tool and each certificate.
pub fn check_clients(
    port: u16,
    files: &Files,
    authority: &Authority,
    cells: &[(&str, Option<&Issued>, Outcome)],
) {
    let ca = files.write("tools-ca.pem", &authority.pem);
    for (cell, shown, wanted) in cells {
        if let Some(issued) = shown {
            files.write_pair("tool", issued);
        }
        let pair = shown.as_ref().map(|_| (files.path("tool.pem"), files.path("tool.key")));
        for (tool, served) in [("etcdctl", etcdctl(port, &ca, &pair)), ("curl", curl(port, &ca, &pair))] {
            let Some(is_served) = served else { continue };
            assert_eq!(is_served, *wanted == Outcome::Served, "{tool}: {cell}");
        }
    }
}

type Pair = Option<(PathBuf, PathBuf)>;

/// None if etcdctl is not installed.
fn etcdctl(port: u16, ca: &str, pair: &Pair) -> Option<bool> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/bin/etcdctl");
    if !program.exists() {
        return None;
    }
    let mut command = Command::new(program);
    command.args(["--dial-timeout=2s", "--command-timeout=2s", "--cacert", ca]);
    command.arg(format!("--endpoints=https://127.0.0.1:{port}"));
    if let Some((certificate, key)) = pair {
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
    }
    succeeds(command.args(["put", "key", "value"]))
}

/// None if curl is not installed.
fn curl(port: u16, ca: &str, pair: &Pair) -> Option<bool> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--fail", "--max-time", "5", "--cacert", ca]);
    if let Some((certificate, key)) = pair {
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
    }
    succeeds(command.arg(format!("https://127.0.0.1:{port}/health")))
}

fn succeeds(command: &mut Command) -> Option<bool> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.ok().map(|status| status.success())
}
