//! Floods of small stream messages from many connections, while a healthy client measures latency.
//!
//! `SERVER_UNDER_TEST=<path>` runs the same attacks against another build of the server.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, get};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Connections of the attack on memory.
const MANY: usize = 300;
/// Connections of the attack on latency, in a debug build on a busy machine.
const SOME: usize = 40;
/// Maximum memory growth: 32 MiB of pending requests, in buffers that double, and as much again for the
/// connections. Typical is 75 to 82.
const GROWN_MIB_MAX: u64 = 96;
const ATTACK: Duration = Duration::from_secs(6);
const LEASE: i64 = 7;
const LARGE: &str = "large";

fn lone_member() -> Cluster {
    Cluster::started_from("SERVER_UNDER_TEST", "m0", &[])
}

fn resident_mib(member: &Member) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", member.running().pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the bytes before the flood: preface, settings, and an open call.
fn opened(path: &str, first: &[u8]) -> Vec<u8> {
    let path = [&[0x44, path.len() as u8][..], path.as_bytes()].concat();
    let content_type = [&[0x0f, 0x10, 16][..], b"application/grpc"].concat();
    // :method POST, :scheme http, :path, :authority a, content-type
    let block = [&[0x83, 0x86][..], &path, &[0x41, 1, b'a'], &content_type].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let first = if first.is_empty() { Vec::new() } else { frame(0, 0, 1, first) };
    [preface, frame(1, 4, 1, &block), first].concat()
}

fn framed(message: &impl Message) -> Vec<u8> {
    [&[0][..], &(message.encoded_len() as u32).to_be_bytes(), &message.encode_to_vec()].concat()
}

/// An attacking connection: writes as much as the socket accepts, reads no data.
struct Attacker {
    socket: Option<TcpStream>,
    unsent: Vec<u8>,
    /// Time to reconnect after the member has closed the connection.
    redial_at: Instant,
}

impl Attacker {
    /// Writes `opening` and then `flood`, as far as the socket accepts. Returns whether it accepted any
    /// bytes.
    fn go_on(&mut self, port: u16, opening: &[u8], flood: &[u8]) -> bool {
        let Some(socket) = &mut self.socket else {
            if Instant::now() >= self.redial_at {
                let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
                socket.set_nonblocking(true).unwrap();
                (self.socket, self.unsent) = (Some(socket), opening.to_vec());
            }
            return false;
        };
        if self.unsent.is_empty() {
            self.unsent.extend_from_slice(flood);
        }
        match socket.write(&self.unsent) {
            Ok(count) => drop(self.unsent.drain(..count)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => {
                (self.socket, self.redial_at) = (None, Instant::now() + Duration::from_millis(200));
            }
        }
        true
    }
}

/// Floods the member over `connections` connections until `ends` is set.
fn flood(port: u16, connections: usize, opening: &[u8], message: &[u8], ends: &AtomicBool) {
    let flood = message.repeat(200);
    let idle = || Attacker { socket: None, unsent: Vec::new(), redial_at: Instant::now() };
    let mut attackers: Vec<Attacker> = (0..connections).map(|_| idle()).collect();
    while !ends.load(Relaxed) {
        let mut taken = false;
        for attacker in &mut attackers {
            taken |= attacker.go_on(port, opening, &flood);
        }
        if !taken {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Effects of a flood.
#[derive(Debug)]
struct Seen {
    grown_mib: u64,
    /// Slowest lease renewal of the healthy client.
    slowest: Duration,
    renewals: usize,
}

async fn flooded(connections: usize, opening: Vec<u8>, message: Vec<u8>) -> Seen {
    let cluster = lone_member();
    let member = &cluster.members[0];
    let mut leases = member.client().await.lease();
    leases.lease_grant(LeaseGrantRequest { id: LEASE, ttl: 600 }).await.unwrap();
    member.put(LARGE, &"v".repeat(200 << 10)).await;
    let (renew, renewals) = mpsc::unbounded_channel();
    renew.send(LeaseKeepAliveRequest { id: LEASE }).unwrap();
    let mut answers =
        leases.lease_keep_alive(UnboundedReceiverStream::new(renewals)).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    let before = resident_mib(member);
    let ends = Arc::new(AtomicBool::new(false));
    let attack = {
        let (port, ends) = (member.client_port, Arc::clone(&ends));
        std::thread::spawn(move || flood(port, connections, &opening, &message, &ends))
    };
    let mut seen = Seen { grown_mib: 0, slowest: Duration::ZERO, renewals: 0 };
    let began = Instant::now();
    while began.elapsed() < ATTACK {
        let asked = Instant::now();
        renew.send(LeaseKeepAliveRequest { id: LEASE }).unwrap();
        answers.message().await.unwrap().unwrap();
        seen.slowest = seen.slowest.max(asked.elapsed());
        seen.renewals += 1;
        seen.grown_mib = seen.grown_mib.max(resident_mib(member).saturating_sub(before));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ends.store(true, Relaxed);
    attack.join().unwrap();
    seen
}

/// Floods a member, and checks that other clients are barely affected.
async fn check(path: &str, first: &[u8], data: &[u8]) {
    for connections in [MANY, SOME] {
        let seen = flooded(connections, opened(path, first), frame(0, 0, 1, data)).await;
        let is_timely = connections == MANY || seen.slowest < Duration::from_secs(1);
        let flood = format!("{path}, {connections} connections, frames of {} bytes", data.len());
        assert!(seen.grown_mib <= GROWN_MIB_MAX && is_timely, "{flood}: {seen:?}");
    }
}

#[tokio::test]
async fn renewals_whose_answers_are_not_read_hold_little_memory_and_delay_others_little() {
    let renewal = framed(&LeaseKeepAliveRequest { id: LEASE });
    for data in [renewal.clone(), renewal.repeat(2000)] {
        check("/etcdserverpb.Lease/LeaseKeepAlive", &[], &data).await;
    }
}

#[tokio::test]
async fn progress_requests_whose_answers_are_not_read_hold_little_memory_and_delay_others_little() {
    let union = RequestUnion::CreateRequest(WatchCreateRequest { key: "k".into(), ..Default::default() });
    let create = framed(&WatchRequest { request_union: Some(union) });
    let union = RequestUnion::ProgressRequest(WatchProgressRequest {});
    let progress = framed(&WatchRequest { request_union: Some(union) });
    check("/etcdserverpb.Watch/Watch", &create, &progress).await;
}

#[tokio::test]
async fn bytes_after_the_message_of_a_unary_call_hold_little_memory() {
    // The response exceeds the window.
    let range = framed(&get(LARGE));
    for data in [vec![0; 16], vec![0; 16 << 10]] {
        check("/etcdserverpb.KV/Range", &range, &data).await;
    }
}
