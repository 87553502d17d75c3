//! A local cluster of one program, started on free loopback ports in a new directory, and killed on drop.

use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::server::{Probe, with_parent};
use std::fs::{DirBuilder, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Timeout of a start, including elections and first syncs.
/// Quota of every started member. With the default of 2 GB, etcd would reject the later writes of long rows.
const QUOTA_BYTES: &str = "17179869184";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Number of log lines in the error of a failed member.
const LOG_TAIL_LINES: usize = 5;

/// A server program with etcd's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub path: PathBuf,
}

/// Directories and launcher of clusters.
#[derive(Clone, Copy, Debug)]
pub struct ClusterPlaces<'a> {
    pub data: &'a Path,
    /// Parent directory of the logs, if different.
    pub wal: Option<&'a Path>,
    /// Launcher of the members, which stops them together with this process: see [`with_parent`].
    pub loadgen: Option<&'a Path>,
}

/// A running cluster. Dropping it kills the members and removes their files.
pub struct StartedCluster {
    members: Vec<ServerProcess>,
    dirs: Vec<PathBuf>,
    /// Version reported by the first member.
    pub version: String,
    /// Command line of the first member.
    pub command: String,
}

struct ServerProcess {
    name: String,
    endpoint: Endpoint,
    child: Child,
    log: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("prepare {path}")]
    Prepare { path: PathBuf, source: io::Error },
    #[error("find free ports")]
    Ports(#[source] io::Error),
    #[error("run {path}")]
    Spawn { path: PathBuf, source: io::Error },
    #[error("member {member} ended with {status}; the end of its log:\n{log}")]
    Ended { member: String, status: String, log: String },
    #[error("no leader that all members agree on within {START_TIMEOUT:?} ({reason})")]
    Timeout { reason: String },
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.into(), path: path.into() })
            }
            _ => Err(format!("{text:?}: expected NAME=PATH")),
        }
    }
}

impl StartedCluster {
    /// Starts the members and waits until all of them agree on a leader.
    pub async fn start(
        program: &Program,
        places: ClusterPlaces<'_>,
        members_len: usize,
    ) -> Result<Self, Error> {
        let dir = fresh_dir(places.data, &program.name)?;
        let mut cluster =
            Self { members: Vec::new(), dirs: vec![dir], version: String::new(), command: String::new() };
        if let Some(wal) = places.wal {
            cluster.dirs.push(fresh_dir(wal, &program.name)?);
        }
        let ports = free_ports(2 * members_len).map_err(Error::Ports)?;
        let (client_ports, peer_ports) = ports.split_at(members_len);
        let all: Vec<_> =
            peer_ports.iter().enumerate().map(|(n, port)| format!("m{n}=http://127.0.0.1:{port}")).collect();
        for (n, (client_port, peer_port)) in client_ports.iter().zip(peer_ports).enumerate() {
            let all = all.join(",");
            let member = spawn(program, &mut cluster, n, *client_port, *peer_port, &all, places.loadgen)?;
            cluster.members.push(member);
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub fn probes(&self) -> Vec<Probe> {
        let probe =
            |member: &ServerProcess| Probe::Process { name: member.name.clone(), pid: member.child.id() };
        self.members.iter().map(probe).collect()
    }

    async fn wait_ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIMEOUT;
        let endpoints = self.endpoints();
        loop {
            for member in &mut self.members {
                member.check_running()?;
            }
            let reason = match admin::survey(&endpoints).await {
                Ok(members) if agree(&members) => {
                    self.version = members[0].status.version.clone();
                    return Ok(());
                }
                Ok(_) => "no agreement on a leader".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(Error::Timeout { reason });
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn agree(members: &[admin::MemberInfo]) -> bool {
    let leader = members[0].status.leader;
    leader != 0 && members.iter().all(|member| member.status.leader == leader)
}

impl ServerProcess {
    fn check_running(&mut self) -> Result<(), Error> {
        let status = match self.child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        Err(Error::Ended { member: self.name.clone(), status, log: tail })
    }
}

impl Drop for StartedCluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Fails only for a child that has exited and been reaped.
            let _ = member.child.kill();
        }
        for member in &mut self.members {
            let _ = member.child.wait();
        }
        for dir in &self.dirs {
            // A directory that cannot be removed stays.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

fn spawn(
    program: &Program,
    cluster: &mut StartedCluster,
    n: usize,
    client_port: u16,
    peer_port: u16,
    initial_cluster: &str,
    loadgen: Option<&Path>,
) -> Result<ServerProcess, Error> {
    let name = format!("m{n}");
    let dir = &cluster.dirs[0];
    let log = dir.join(format!("{name}.log"));
    let prepare = |source| Error::Prepare { path: log.clone(), source };
    let out = File::create(&log).map_err(prepare)?;
    let err = out.try_clone().map_err(prepare)?;
    let client_url = format!("http://127.0.0.1:{client_port}");
    let peer_url = format!("http://127.0.0.1:{peer_port}");
    let mut command = Command::new(&program.path);
    command.args(["--name", &name, "--data-dir"]).arg(dir.join(format!("{name}.data")));
    if let Some(wal) = cluster.dirs.get(1) {
        command.arg("--wal-dir").arg(wal.join(format!("{name}.wal")));
    }
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", initial_cluster, "--initial-cluster-state", "new"]);
    command.args(["--quota-backend-bytes", QUOTA_BYTES]);
    if cluster.command.is_empty() {
        cluster.command = written_out(&command);
    }
    let mut command = with_parent::through(loadgen, command);
    let spawned = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
    let child = spawned.map_err(|source| Error::Spawn { path: program.path.clone(), source })?;
    let endpoint = client_url.parse().expect("a loopback address is an endpoint");
    Ok(ServerProcess { name, endpoint, child, log })
}

fn written_out(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Returns the output of `--version` in one line.
pub fn version_text(path: &Path) -> Option<String> {
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Describes a file by size and time, to detect a rebuilt one.
pub fn file_text(path: &Path) -> Option<String> {
    let file = path.metadata().ok()?;
    let modified = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} bytes, written at {}", file.len(), modified.as_secs()))
}

/// Creates a directory with a new name, inaccessible to other users.
fn fresh_dir(parent: &Path, name: &str) -> Result<PathBuf, Error> {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = parent.join(format!("loadgen-{:016x}-{name}", rand::random::<u64>()));
    let made = DirBuilder::new().mode(0o700).create(&path);
    made.and_then(|()| path.canonicalize()).map_err(|source| Error::Prepare { path, source })
}

/// Returns free ports. They are bound at the same time, so that all differ, then released for the members.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    listeners?.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_paths() {
        let program: Program = "kv=/a/b=c".parse().unwrap();
        assert_eq!((program.name.as_str(), program.path.to_str()), ("kv", Some("/a/b=c")));
        for text in ["", "/usr/bin/etcd", "=x", "x="] {
            assert!(text.parse::<Program>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_at_once_is_reported_with_its_log_and_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("server");
        std::fs::write(&script, "#!/bin/sh\necho cannot listen\nexit 3\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let program = Program { name: "broken".into(), path: script };
        let clusters = dir.path().join("clusters");
        std::fs::create_dir(&clusters).unwrap();
        let Err(error) =
            StartedCluster::start(&program, ClusterPlaces { data: &clusters, wal: None, loadgen: None }, 1)
                .await
        else {
            panic!("it cannot start")
        };
        let expected = "member m0 ended with exit status: 3; the end of its log:\ncannot listen";
        assert_eq!(error.to_string(), expected);
        assert_eq!(std::fs::read_dir(&clusters).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let program = Program { name: "none".into(), path: "/nonexistent/server".into() };
        let Err(error) =
            StartedCluster::start(&program, ClusterPlaces { data: dir.path(), wal: None, loadgen: None }, 1)
                .await
        else {
            panic!("it cannot start")
        };
        assert_eq!(error.to_string(), "run /nonexistent/server");
    }

    #[test]
    fn a_program_that_was_built_anew_is_told_from_the_one_before() {
        let program = tempfile::NamedTempFile::new().unwrap();
        let before = file_text(program.path());
        assert!(before.is_some() && before == file_text(program.path()));
        std::fs::write(program.path(), "#!/bin/sh").unwrap();
        assert_ne!(before, file_text(program.path()));
    }

    #[test]
    fn free_ports_are_distinct() {
        let mut ports = free_ports(20).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
