//! Members as processes of their own: started, watched, talked to, killed.
//!
//! * Ports are asked of the kernel; a member that finds its port taken meanwhile fails its test with that
//!   line.
//! * A process is ended by its own handle, never by name, and none outlives its test.

#![allow(dead_code, reason = "each test uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a harness that fails here fails its test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::{HashKvRequest, PutRequest, RangeRequest, StatusRequest};
use tonic::transport::{Channel, Endpoint};

pub const READY: &str = "ready to serve client requests";
/// Far above what a start or an election takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A process and everything it said.
pub struct Process {
    child: Child,
    said: Arc<Said>,
}

#[derive(Default)]
struct Said {
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

/// The server that was built for this test.
pub const SERVER: &str = env!("CARGO_BIN_EXE_kv-server");

/// Starts the binary; nothing of our own environment reaches it.
pub fn start(arguments: &[&str]) -> Process {
    start_program(&[SERVER.to_owned()], arguments)
}

/// Starts `program`: a path, or an emulator with its arguments and then the path.
pub fn start_program(program: &[String], arguments: &[&str]) -> Process {
    let mut child = Command::new(&program[0])
        .args(&program[1..])
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test");
    let stderr = child.stderr.take().expect("stderr is piped");
    let said = Arc::new(Said::default());
    let heard = Arc::clone(&said);
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            heard.lines.lock().unwrap().0.push(line);
            heard.changed.notify_all();
        }
        heard.lines.lock().unwrap().1 = true;
        heard.changed.notify_all();
    });
    Process { child, said }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything said so far.
    pub fn said(&self) -> String {
        self.said.lines.lock().unwrap().0.join("\n")
    }

    /// Waits until a line contains `text`; fails with everything that was said instead.
    pub fn wait_for(&self, text: &str) {
        self.wait_for_within(text, PATIENCE);
    }

    pub fn wait_for_within(&self, text: &str, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut lines = self.said.lines.lock().unwrap();
        while !lines.0.iter().any(|line| line.contains(text)) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!lines.1 && !left.is_zero(), "never said {text:?}, but:\n{}", lines.0.join("\n"));
            lines = self.said.changed.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Waits for the end, and for the last line.
    pub fn wait_end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "did not end:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut lines = self.said.lines.lock().unwrap();
        while !lines.1 {
            lines = self.said.changed.wait(lines).unwrap();
        }
        let text = lines.0.join("\n");
        drop(lines);
        (status, text)
    }

    /// SIGTERM: a polite request.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// SIGSTOP: the process stands still, its connections stay open.
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// SIGCONT: it goes on.
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        rustix::process::kill_process(pid, signal).expect("the child lives");
    }

    /// SIGKILL: no last words.
    pub fn kill(mut self) {
        self.child.kill().expect("the child lives");
        self.child.wait().expect("a killed child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.said();
            let last: Vec<&str> = said.lines().rev().take(12).collect();
            eprintln!("--- last words of process {}", self.pid());
            last.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        // Ended already is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Ports that were free a moment ago, all different.
pub fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// A member of a cluster on this machine, running or not.
pub struct Member {
    pub name: String,
    pub client_port: u16,
    pub peer_port: u16,
    pub data_dir: PathBuf,
    initial_cluster: String,
    /// More flags, each as `--name=value`.
    pub extra: Vec<String>,
    /// What runs: `SERVER`, unless a test says otherwise.
    pub program: Vec<String>,
    pub process: Option<Process>,
}

impl Member {
    pub fn flags(&self) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let data_dir = self.data_dir.display().to_string();
        [
            ("name", self.name.as_str()),
            ("data-dir", &data_dir),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &self.initial_cluster),
        ]
        .iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .chain(self.extra.iter().cloned())
        .collect()
    }

    /// Starts the process without waiting for it.
    pub fn launch(&mut self) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.process = Some(start_program(&self.program, &flags));
    }

    pub fn wait_ready(&self) {
        self.running().wait_for(READY);
    }

    pub fn running(&self) -> &Process {
        self.process.as_ref().expect("the member was started")
    }

    pub fn kill(&mut self) {
        self.process.take().expect("the member was started").kill();
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://127.0.0.1:{}", self.client_port))
            .unwrap()
            .connect_timeout(Duration::from_secs(1))
            .timeout(Duration::from_secs(10))
    }

    pub async fn channel(&self) -> Channel {
        self.endpoint().connect().await.expect("a ready member can be dialled")
    }

    pub async fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel().await)
    }

    pub async fn put(&self, key: &str, value: &str) -> i64 {
        let answer = self.kv().await.put(put(key, value)).await.expect("a healthy cluster takes a put");
        answer.into_inner().header.expect("every answer has a header").revision
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        let answer = self.kv().await.range(get(key)).await.expect("a healthy cluster answers");
        let pair = answer.into_inner().kvs.pop()?;
        Some(String::from_utf8(pair.value.to_vec()).unwrap())
    }

    /// The leader, as this member sees it; 0 if there is none.
    pub async fn leader(&self) -> u64 {
        let mut client = MaintenanceClient::new(self.channel().await);
        client.status(StatusRequest {}).await.unwrap().into_inner().leader
    }

    pub async fn id(&self) -> u64 {
        let mut client = MaintenanceClient::new(self.channel().await);
        let header = client.status(StatusRequest {}).await.unwrap().into_inner().header;
        header.expect("every answer has a header").member_id
    }

    /// Hash of everything up to `revision`.
    pub async fn hash_kv(&self, revision: i64) -> (u32, i64) {
        let mut client = MaintenanceClient::new(self.channel().await);
        let answer = client.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
        (answer.hash, answer.compact_revision)
    }
}

/// The answer of the client port to one HTTP/1 request, such as `GET /health`, with its head.
pub fn http(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a member that serves");
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .expect("a member that serves");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a member that serves");
    answer
}

pub fn put(key: &str, value: &str) -> PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

pub fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

/// Members that know each other, below one temporary directory.
pub struct Cluster {
    pub members: Vec<Member>,
    _parent: tempfile::TempDir,
}

impl Cluster {
    pub fn new(size: usize) -> Cluster {
        let parent = tempfile::tempdir().unwrap();
        let ports = free_ports(2 * size);
        let initial_cluster: Vec<String> =
            (0..size).map(|at| format!("m{at}=http://127.0.0.1:{}", ports[2 * at + 1])).collect();
        let members = (0..size)
            .map(|at| Member {
                name: format!("m{at}"),
                client_port: ports[2 * at],
                peer_port: ports[2 * at + 1],
                data_dir: parent.path().join(format!("m{at}")),
                initial_cluster: initial_cluster.join(","),
                extra: Vec::new(),
                program: vec![SERVER.to_owned()],
                process: None,
            })
            .collect();
        Cluster { members, _parent: parent }
    }

    /// All of them, ready.
    pub fn started(size: usize) -> Cluster {
        let mut cluster = Cluster::new(size);
        cluster.start();
        cluster
    }

    pub fn start(&mut self) {
        self.members.iter_mut().for_each(Member::launch);
        self.members.iter().for_each(Member::wait_ready);
    }

    /// The index of the member that leads.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (at, member) in self.members.iter().enumerate() {
                if member.process.is_some() && member.leader().await == member.id().await {
                    return at;
                }
            }
            assert!(Instant::now() < deadline, "nobody leads");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until every member hashes everything up to `revision` alike.
    pub async fn assert_equal(&self, revision: i64) {
        let deadline = Instant::now() + PATIENCE;
        // A linearizable read makes a member catch up before it is asked.
        for member in &self.members {
            member.get("any").await;
        }
        loop {
            let mut hashes = Vec::new();
            for member in &self.members {
                hashes.push(member.hash_kv(revision).await);
            }
            if hashes.windows(2).all(|pair| pair[0] == pair[1]) {
                return;
            }
            assert!(Instant::now() < deadline, "members differ: {hashes:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Files and directories below `path`, with their modes.
pub fn modes(path: &Path) -> Vec<(PathBuf, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        found.push((path.clone(), std::fs::metadata(&path).unwrap().permissions().mode() & 0o777));
        if path.is_dir() {
            found.extend(modes(&path));
        }
    }
    found
}
