//! One fresh member as a process of its own: temporary directory, loopback, ports that were free a moment
//! ago.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Names the binary to run in place of this project's.
const OVERRIDE: &str = "KV_CONFORMANCE_SERVER";
const READY: &str = "ready to serve client requests";
/// Far above what a start takes, even where four start at once on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Someone else may take a port between our looking and the server's binding.
const STARTS_MAX: usize = 3;
/// What the report of a failed start shows.
const LINES_SHOWN: usize = 10;

pub struct Server {
    process: Child,
    client_port: u16,
    _data: tempfile::TempDir,
}

pub fn overridden() -> bool {
    std::env::var_os(OVERRIDE).is_some()
}

impl Server {
    /// Returns when the member has said that it is ready.
    pub fn start() -> Result<Self, String> {
        let mut failure = String::new();
        for _ in 0..STARTS_MAX {
            match Self::start_once() {
                Ok(server) => return Ok(server),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    fn start_once() -> Result<Self, String> {
        let binary =
            std::env::var_os(OVERRIDE).unwrap_or_else(|| OsString::from(env!("CARGO_BIN_EXE_kv-server")));
        let data = tempfile::tempdir().map_err(|error| format!("make a data directory: {error}"))?;
        let [client_port, peer_port] = [testkit::port(), testkit::port()];
        let client = format!("http://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let mut process = Command::new(&binary)
            .args(["--name", "m1", "--data-dir"])
            .arg(data.path().join("m1"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("m1={peer}"), "--log-level", "info"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("start {}: {error}", binary.display()))?;
        let (sender, lines) = channel();
        follow(process.stdout.take().expect("stdout is piped"), sender.clone());
        follow(process.stderr.take().expect("stderr is piped"), sender);
        let server = Self { process, client_port, _data: data };
        await_ready(&lines)?;
        Ok(server)
    }

    pub fn client_port(&self) -> u16 {
        self.client_port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of it is needed any more; that it is gone already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads to the end, so that the process never waits for room in its pipe, also when no receiver is left.
fn follow(output: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
}

fn await_ready(lines: &Receiver<String>) -> Result<(), String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let mut last = VecDeque::new();
    let why = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains(READY) => return Ok(()),
            Ok(line) => last.push_back(line),
            Err(RecvTimeoutError::Disconnected) => break "the member ended before it was ready".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                break format!("the member was not ready after {READY_TIMEOUT:?}");
            }
        }
        if last.len() > LINES_SHOWN {
            last.pop_front();
        }
    };
    Err(format!("{why}; its last lines:\n{}", Vec::from(last).join("\n")))
}
