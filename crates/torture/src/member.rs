//! The server as a process: start on a directory, watch, stop.
//!
//! * Processes inherit no variables of this program's environment except those passed explicitly.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Process;
use testkit::process::ProcessEnd;

use crate::failure::{Attempt, ExperimentError, Result};

const READY: &str = "ready to serve client requests";
/// Timeout far above the duration of a call, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Identity and addresses of a member, the same for each of its lives.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    pub server: PathBuf,
    pub name: String,
    pub data_dir: PathBuf,
    pub client_port: u16,
    pub peer_port: u16,
    /// Peer port that the other members use. It is part of the identity, so images that run on
    /// other ports retain it.
    pub advertised_peer_port: u16,
    /// `NAME=URL,…` of the whole cluster.
    pub cluster: String,
    pub flags: Vec<String>,
    /// `ulimit -n`, soft and hard. None inherits this program's limit.
    pub descriptors_max: Option<u32>,
}

impl MemberPlace {
    /// Returns a single-member cluster.
    pub fn alone(server: &Path, data_dir: PathBuf, ports: (u16, u16)) -> MemberPlace {
        MemberPlace {
            server: server.to_owned(),
            name: "m0".to_owned(),
            data_dir,
            client_port: ports.0,
            peer_port: ports.1,
            advertised_peer_port: ports.1,
            cluster: format!("m0=http://127.0.0.1:{}", ports.1),
            flags: Vec::new(),
            descriptors_max: None,
        }
    }

    /// Starts the program with these variables in an otherwise empty environment.
    pub fn start(&self, environment: &[(&str, String)]) -> Result<Process> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = self.command();
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.data_dir.display()))
            .arg(format!("--listen-client-urls={}", url(self.client_port)))
            .arg(format!("--advertise-client-urls={}", url(self.client_port)))
            .arg(format!("--listen-peer-urls={}", url(self.peer_port)))
            .arg(format!("--initial-advertise-peer-urls={}", url(self.advertised_peer_port)))
            .arg(format!("--initial-cluster={}", self.cluster))
            .args(&self.flags)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        Process::spawn(&mut command).attempt("start", &self.server)
    }

    /// Returns the program itself, or a shell that lowers its limit and then execs the program.
    fn command(&self) -> Command {
        let program = if self.descriptors_max.is_some() { Path::new("/bin/sh") } else { &self.server };
        let mut command = Command::new(program);
        command.env_clear();
        if let Some(descriptors_max) = self.descriptors_max {
            command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh"]);
            command.arg(descriptors_max.to_string()).arg(&self.server);
        }
        command
    }
}

/// Waits until it serves. Fails with its output if it exits or stays silent.
pub fn wait_ready(process: &Process) -> Result<()> {
    match becomes_ready(process)? {
        true => Ok(()),
        false => Err(ExperimentError::new(format!("did not start: {}", process.said()))),
    }
}

/// Waits until it serves (true) or has exited (false).
pub fn becomes_ready(process: &Process) -> Result<bool> {
    let silent = || ExperimentError::new(format!("never became ready: {}", process.said()));
    process.says(READY).ok_or_else(silent)
}

/// Waits for the exit and the last line of output.
pub fn wait_end(mut process: Process) -> Result<ProcessEnd> {
    process.await_end().ok_or_else(|| ExperimentError::new(format!("did not end: {}", process.said())))
}

/// Sends SIGKILL and waits for the exit.
pub fn kill(process: Process) -> Result<ProcessEnd> {
    process.signal(Signal::KILL);
    wait_end(process)
}
