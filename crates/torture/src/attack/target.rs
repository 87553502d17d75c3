//! The cluster under attack: one or more member processes of kv-server or etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::Process;

use crate::bench::{Environment, ScratchDir};
use crate::clients::client::connect;
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace};

/// The start of a log line suffices to identify the event.
const LINE_CHARS_SHOWN: usize = 400;
/// Markers of the log line with the cause of an exit, in both programs. A long backtrace may follow it.
const CAUSES: [&str; 5] =
    ["\"level\":\"error\"", "\"level\":\"fatal\"", "\"level\":\"panic\"", "panic: ", "panicked at"];
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of a server. Peer ports differ; everything else is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    KvServer,
    Etcd,
}

#[derive(Clone, Debug)]
pub struct ServerProgram {
    pub path: PathBuf,
    pub kind: ProgramKind,
}

/// Start options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    pub members: u16,
    pub flags: Vec<String>,
    /// `ulimit -n` of each member.
    pub descriptors_max: Option<u32>,
}

pub struct AttackTarget {
    pub places: Vec<MemberPlace>,
    processes: Vec<Process>,
    /// Last field: the directory is removed after the processes have exited.
    _scratch: ScratchDir,
}

/// Public ids, available to any client.
#[derive(Clone, Debug)]
pub struct Ids {
    pub cluster: u64,
    /// Ordered by member name.
    pub members: Vec<u64>,
    pub leader: u64,
    pub term: u64,
}

impl ServerProgram {
    /// Runs the program with `--version` to determine its kind.
    pub fn at(path: &Path) -> Result<ServerProgram> {
        let output = std::process::Command::new(path).arg("--version").output().attempt("run", path)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let kind = match said.lines().next().unwrap_or_default() {
            first if first.starts_with("etcd Version") => ProgramKind::Etcd,
            first if first.starts_with("kv-server Version") => ProgramKind::KvServer,
            other => {
                let path = path.display();
                return Err(ExperimentError::new(format!("{path} is neither etcd nor kv-server: {other}")));
            }
        };
        Ok(ServerProgram { path: path.to_owned(), kind })
    }
}

impl AttackTarget {
    /// Starts the members and waits until all of them serve.
    pub fn start(bench: &Environment, program: &ServerProgram, setup: &ClusterSetup) -> Result<AttackTarget> {
        let scratch = bench.directory("attack")?;
        let ports: Vec<(u16, u16)> = (0..setup.members).map(|number| bench.ports(number)).collect();
        let url = |(number, (_, peer)): (usize, &(u16, u16))| format!("m{number}=http://127.0.0.1:{peer}");
        let cluster = ports.iter().enumerate().map(url).collect::<Vec<_>>().join(",");
        let place = |(number, ports): (usize, &(u16, u16))| MemberPlace {
            name: format!("m{number}"),
            cluster: cluster.clone(),
            flags: setup.flags.clone(),
            descriptors_max: setup.descriptors_max,
            ..MemberPlace::alone(&program.path, scratch.join(&format!("m{number}")), *ports)
        };
        let places: Vec<MemberPlace> = ports.iter().enumerate().map(place).collect();
        let started: Result<Vec<Process>> = places.iter().map(|place| place.start(&[])).collect();
        let processes = started?;
        processes.iter().try_for_each(member::wait_ready)?;
        Ok(AttackTarget { places, processes, _scratch: scratch })
    }

    pub fn client_ports(&self) -> Vec<u16> {
        self.places.iter().map(|place| place.client_port).collect()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }

    /// Returns the exit status of an exited member, and the last log line with a cause.
    pub fn ended(&mut self) -> Option<String> {
        let ended = self.processes.iter_mut().find_map(|process| process.end())?;
        let is_cause = |line: &&str| CAUSES.iter().any(|cause| line.contains(cause));
        let cause = ended.said.lines().rfind(is_cause).or(ended.said.lines().last()).unwrap_or_default();
        Some(format!("{}: {}", ended.status, cause.chars().take(LINE_CHARS_SHOWN).collect::<String>()))
    }

    pub async fn ids(&self) -> Result<Ids> {
        let client = connect(self.places[0].client_port, QUESTION_TIMEOUT).await?;
        let status = client.status().await.or_say("ask for the leader")?;
        let cluster = status.header.as_ref().map(|header| header.cluster_id);
        let mut members = client.members(false).await.or_say("list the members")?;
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Ids {
            cluster: cluster.ok_or_else(|| ExperimentError::new("a response without a header"))?,
            members: members.into_iter().map(|member| member.id).collect(),
            leader: status.leader,
            term: status.raft_term,
        })
    }
}
