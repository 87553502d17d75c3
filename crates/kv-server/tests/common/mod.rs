//! Starts, controls and calls members as separate processes.
//!
//! * Ports and processes are allocated by `testkit`: tests never share a port, and no process outlives its
//!   test.

#![allow(dead_code, reason = "each test uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a harness that fails here fails its test")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::{HashKvRequest, MemberAddRequest, PutRequest, RangeRequest};
use client::{Channel, Client};
use tonic::Code;
use tonic::transport::Endpoint;

pub use testkit::process::{PATIENCE, Process};

pub const READY: &str = "ready to serve client requests";

/// Returns the path of the server. Cargo names it to the tests of its crate; for those of `kvctl`, it is next
/// to their program.
pub fn server() -> &'static str {
    static SERVER: OnceLock<String> = OnceLock::new();
    SERVER.get_or_init(|| {
        let own = option_env!("CARGO_BIN_EXE_kv-server");
        own.map_or_else(|| testkit::process::built("kv-server"), str::to_owned)
    })
}

/// Locks the default ports of a member, which exist once per machine. To be held while a member may listen on
/// them.
pub fn default_ports() -> MutexGuard<'static, ()> {
    static HELD: Mutex<()> = Mutex::new(());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the server with an otherwise empty environment.
pub fn start(arguments: &[&str]) -> Process {
    start_program(&[server().to_owned()], arguments)
}

/// Starts `program`: a path, or an emulator with its arguments and the path. The process inherits the mutant
/// that is enabled in this process.
pub fn start_program(program: &[String], arguments: &[&str]) -> Process {
    let mutant = std::env::var_os("KV_MUTANT").map(|name| ("KV_MUTANT", name));
    Process::start(Command::new(&program[0]).args(&program[1..]).args(arguments).env_clear().envs(mutant))
}

/// Runs a program until it exits. Returns whether it succeeded, and its output.
pub fn run(program: &str, arguments: &[String]) -> (bool, String) {
    let output = Command::new(program).args(arguments).env_clear().output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// A member of a cluster on this machine; it may be stopped.
pub struct Member {
    pub name: String,
    pub client_port: u16,
    pub peer_port: u16,
    pub data_dir: PathBuf,
    pub initial_cluster: String,
    /// Additional flags, each as `--name=value`.
    pub extra: Vec<String>,
    /// Program to run; the server by default.
    pub program: Vec<String>,
    pub process: Option<Process>,
}

impl Member {
    fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    /// Returns the flags with the member's identity: sufficient for a command that creates its directory.
    pub fn identity(&self) -> [String; 4] {
        [
            format!("--name={}", self.name),
            format!("--data-dir={}", self.data_dir.display()),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", self.peer_port),
            format!("--initial-cluster={}", self.initial_cluster),
        ]
    }

    pub fn flags(&self) -> Vec<String> {
        let (client, peer) = (self.client_url(), format!("http://127.0.0.1:{}", self.peer_port));
        let own = [
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
        ];
        [&self.identity()[..], &own, &self.extra].concat()
    }

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
        Endpoint::from_shared(self.client_url()).unwrap().timeout(PATIENCE)
    }

    pub async fn client(&self) -> Client {
        Client::new(self.endpoint().connect().await.expect("a ready member can be dialled"))
    }

    /// Returns a client without the default call deadline.
    pub async fn endless_client(&self) -> Client {
        Client::new(Endpoint::from_shared(self.client_url()).unwrap().connect().await.unwrap())
    }

    pub async fn kv(&self) -> KvClient<Channel> {
        self.client().await.kv()
    }

    /// Puts a key, and retries if the request was lost with a leader, since a test that kills a member may
    /// kill the leader.
    pub async fn put(&self, key: &str, value: &str) -> i64 {
        let (mut client, began) = (self.kv().await, Instant::now());
        loop {
            match client.put(put(key, value)).await {
                Ok(answer) => return answer.into_inner().header.expect("every answer has a header").revision,
                Err(status) => {
                    let is_lost = status.code() == Code::Unavailable && began.elapsed() < PATIENCE;
                    assert!(is_lost, "a healthy cluster takes a put: {status}");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        let answer = self.kv().await.range(get(key)).await.expect("a healthy cluster answers");
        let pair = answer.into_inner().kvs.pop()?;
        Some(String::from_utf8(pair.value.to_vec()).unwrap())
    }

    /// Returns the leader known to this member; 0 if none.
    pub async fn leader(&self) -> u64 {
        self.client().await.status().await.unwrap().leader
    }

    pub async fn id(&self) -> u64 {
        client::member_id(&self.client().await.status().await.unwrap())
    }

    pub async fn hash_kv(&self, revision: i64) -> (u32, i64) {
        let answer = self.client().await.maintenance().hash_kv(HashKvRequest { revision }).await;
        let answer = answer.unwrap().into_inner();
        (answer.hash, answer.compact_revision)
    }
}

pub fn metric(member: &Member, name: &str) -> f64 {
    let text = http(member.client_port, "GET /metrics");
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    let value = line.unwrap_or_else(|| panic!("{name} is missing")).rsplit(' ').next().unwrap();
    value.parse().unwrap()
}

/// Sends an HTTP/1 request, such as `GET /health`, to the client port. Returns the response with its head.
pub fn http(port: u16, request: &str) -> String {
    exchange(port, &format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

pub fn post(port: u16, path: &str, body: &str) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    exchange(port, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
}

fn exchange(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a member that serves");
    stream.write_all(request.as_bytes()).expect("a member that serves");
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

/// Adds a member through this one, and returns its id. Retries until each voter has been reachable for some
/// seconds.
pub async fn add(through: &Member, request: MemberAddRequest) -> u64 {
    let (mut client, deadline) = (through.client().await.cluster(), Instant::now() + PATIENCE);
    loop {
        match client.member_add(request.clone()).await {
            Ok(added) => return added.into_inner().member.unwrap().id,
            Err(status) if status.message() == "etcdserver: unhealthy cluster" => {
                assert!(Instant::now() < deadline, "{status}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(status) => panic!("{status}"),
        }
    }
}

/// A cluster of members below a temporary directory.
pub struct Cluster {
    pub members: Vec<Member>,
    _parent: tempfile::TempDir,
}

impl Cluster {
    pub fn new(size: usize) -> Cluster {
        let parent = tempfile::tempdir().unwrap();
        let ports = testkit::ports(2 * size);
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
                program: vec![server().to_owned()],
                process: None,
            })
            .collect();
        Cluster { members, _parent: parent }
    }

    /// Creates a stopped member that joins the cluster, with the flags that an operator would pass. `others`
    /// has the indexes of the current members.
    pub fn joiner(&mut self, others: &[usize]) -> usize {
        let at = self.members.len();
        let ports = testkit::ports(2);
        let name = format!("m{at}");
        let own = format!("{name}=http://127.0.0.1:{}", ports[1]);
        let known = others
            .iter()
            .map(|at| format!("{}=http://127.0.0.1:{}", self.members[*at].name, self.members[*at].peer_port));
        let initial_cluster = known.chain([own]).collect::<Vec<_>>().join(",");
        self.members.push(Member {
            data_dir: self._parent.path().join(&name),
            name,
            client_port: ports[0],
            peer_port: ports[1],
            initial_cluster,
            extra: vec!["--initial-cluster-state=existing".to_owned()],
            program: vec![server().to_owned()],
            process: None,
        });
        at
    }

    /// Starts a cluster and waits until all members are ready.
    pub fn started(size: usize) -> Cluster {
        Cluster::started_with(size, &[])
    }

    /// Starts a cluster with flags and waits until all members are ready.
    pub fn started_with(size: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::new(size);
        for member in &mut cluster.members {
            member.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
        }
        cluster.start();
        cluster
    }

    /// Starts a single member and waits until it is ready. Its program can be set by an environment variable.
    pub fn started_from(variable: &str, name: &str, flags: &[String]) -> Cluster {
        let mut cluster = Cluster::new(1);
        let member = &mut cluster.members[0];
        member.program = vec![std::env::var(variable).unwrap_or_else(|_| server().to_owned())];
        member.initial_cluster = format!("{name}=http://127.0.0.1:{}", member.peer_port);
        member.name = name.to_owned();
        member.extra = flags.to_vec();
        cluster.start();
        cluster
    }

    pub fn start(&mut self) {
        self.members.iter_mut().for_each(Member::launch);
        self.members.iter().for_each(Member::wait_ready);
    }

    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (at, member) in self.members.iter().enumerate() {
                if member.process.is_some() && client::leads(&member.client().await.status().await.unwrap()) {
                    return at;
                }
            }
            assert!(Instant::now() < deadline, "no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until all members have the same hash up to `revision`.
    pub async fn assert_equal(&self, revision: i64) {
        let deadline = Instant::now() + PATIENCE;
        // A linearizable read lets the member catch up first.
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

/// Returns files and directories below `path`, with their modes.
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
