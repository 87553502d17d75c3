//! The real program as a process: started on a directory, watched, ended.
//!
//! * Nothing of this program's environment reaches it but what is meant for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Process;
use testkit::process::ProcessEnd;

use crate::failure::{Attempt, ExperimentError, Result};

const READY: &str = "ready to serve client requests";
/// Far above what a call takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where a member lives and listens; the same for each of its lives.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    pub server: PathBuf,
    pub name: String,
    pub data_dir: PathBuf,
    pub client_port: u16,
    pub peer_port: u16,
    /// What the other members have; part of the identity, so images on other ports keep it.
    pub advertised_peer_port: u16,
    /// `NAME=URL,…` of the whole cluster.
    pub cluster: String,
    /// Anything else.
    pub flags: Vec<String>,
    /// `ulimit -n`, soft and hard. None: that of this program.
    pub descriptors_max: Option<u32>,
}

impl MemberPlace {
    /// A member that is alone in its cluster.
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

    /// Starts the program with these additions to its empty environment.
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

    /// The program itself, or a shell that lowers its own limit and then becomes the program.
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

/// Waits until it serves. An end before that, or silence, is a failure with everything that was said.
pub fn wait_ready(process: &Process) -> Result<()> {
    match becomes_ready(process)? {
        true => Ok(()),
        false => Err(ExperimentError::new(format!("did not start: {}", process.said()))),
    }
}

/// Waits until it serves (true) or has ended (false).
pub fn becomes_ready(process: &Process) -> Result<bool> {
    let silent = || ExperimentError::new(format!("never became ready: {}", process.said()));
    process.says(READY).ok_or_else(silent)
}

/// Waits for the end and the last line.
pub fn wait_end(mut process: Process) -> Result<ProcessEnd> {
    process.await_end().ok_or_else(|| ExperimentError::new(format!("did not end: {}", process.said())))
}

/// SIGKILL: no last words.
pub fn kill(process: Process) -> Result<ProcessEnd> {
    process.signal(Signal::KILL);
    wait_end(process)
}
