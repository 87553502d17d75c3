//! The real program as a process: started on a directory, watched, ended.
//!
//! * A process is ended by its own handle, never by name, and none outlives its `Process`.
//! * Nothing of this program's environment reaches it but what is meant for it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::{Attempt, ExperimentError, Result};

const READY: &str = "ready to serve client requests";
/// Far above what a start takes, even on a busy machine.
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

/// A process and everything it said.
pub struct MemberProcess {
    child: Child,
    said: Arc<MemberOutput>,
}

#[derive(Default)]
struct MemberOutput {
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

/// How a process ended, and its last words.
#[derive(Debug)]
pub struct ProcessEnd {
    pub status: ExitStatus,
    pub said: String,
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
    pub fn start(&self, environment: &[(&str, String)]) -> Result<MemberProcess> {
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
        MemberProcess::spawn(&mut command)
    }
}

impl MemberProcess {
    /// Starts a program with the environment that the command names, and no other.
    pub fn spawn(command: &mut Command) -> Result<MemberProcess> {
        let program = PathBuf::from(command.get_program());
        let given: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command.env_clear();
        command.envs(given.into_iter().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().attempt("start", &program)?;
        let stderr = child.stderr.take().expect("stderr is piped");
        let said = Arc::new(MemberOutput::default());
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
                heard.lock().0.push(line);
                heard.changed.notify_all();
            }
            heard.lock().1 = true;
            heard.changed.notify_all();
        });
        Ok(MemberProcess { child, said })
    }
}

impl MemberPlace {
    /// The program itself, or a shell that lowers its own limit and then becomes the program.
    fn command(&self) -> Command {
        let Some(descriptors_max) = self.descriptors_max else { return Command::new(&self.server) };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh"]);
        command.arg(descriptors_max.to_string()).arg(&self.server);
        command
    }
}

impl MemberOutput {
    fn lock(&self) -> MutexGuard<'_, (Vec<String>, bool)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemberProcess {
    /// Waits until it serves. An end before that, or silence, is a failure with everything that was said.
    pub fn wait_ready(&self) -> Result<()> {
        if self.becomes_ready()? {
            Ok(())
        } else {
            Err(ExperimentError::new(format!("did not start: {}", self.said())))
        }
    }

    /// Waits until it serves (true) or has ended (false).
    pub fn becomes_ready(&self) -> Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.said.lock();
        loop {
            if lines.0.iter().any(|line| line.contains(READY)) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.1 {
                return Ok(false);
            }
            if left.is_zero() {
                return Err(ExperimentError::new(format!("never became ready: {}", lines.0.join("\n"))));
            }
            let waited = self.said.changed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn said(&self) -> String {
        self.said.lock().0.join("\n")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn end_seen(&mut self) -> Option<ProcessEnd> {
        let status = self.child.try_wait().ok().flatten()?;
        let mut lines = self.said.lock();
        while !lines.1 {
            lines = self.said.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        Some(ProcessEnd { status, said: lines.0.join("\n") })
    }

    /// SIGTERM: a polite request.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// SIGSTOP: it runs no further until [`MemberProcess::resume`], and its sockets stay open.
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// SIGKILL without waiting for the end.
    pub fn begin_kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// SIGKILL: no last words.
    pub fn kill(self) -> Result<ProcessEnd> {
        self.begin_kill();
        self.wait_end()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // One that has ended already needs no signal; its number is not given away before it was waited for.
        let _ended = rustix::process::kill_process(pid.expect("a child has a number"), signal);
    }

    /// Waits for the end and the last line.
    pub fn wait_end(mut self) -> Result<ProcessEnd> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().or_say("wait for the process")? {
                break status;
            }
            if Instant::now() > deadline {
                return Err(ExperimentError::new(format!("did not end: {}", self.said())));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut lines = self.said.lock();
        while !lines.1 {
            lines = self.said.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        let said = lines.0.join("\n");
        drop(lines);
        Ok(ProcessEnd { status, said })
    }
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        // Ended already is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
