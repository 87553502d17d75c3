//! Valid requests that cost as much as a request can.

use std::io;
use std::time::Duration;

use api::etcdserverpb::PutRequest;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use super::ground::{AttackPace, Ground};
use crate::attack::http2::connection::{RawConnection, ReadMode};
use crate::attack::http2::session::{Http2Session, finish, send_body};
use crate::attack::http2::{frame, requests};
use crate::attack::preload::Preload;

/// Keys of 1.4 MB until the quota is used up.
pub const KEYS_QUOTA_BYTES: u64 = 64 << 20;
const KEY_BYTES: usize = 1_400_000;
const KEY_CALLERS: usize = 4;
/// Rate of all callers together, puts rejected by the quota included.
const KEY_PUTS_PER_SECOND: u64 = 40;

pub async fn maximal_keys(ground: Ground) {
    ground.keep(KEY_CALLERS, maximal_keys_session).await;
}

async fn maximal_keys_session(ground: Ground) -> io::Result<()> {
    let mut kv = requests::kv(ground.client_port()).await?;
    let mut pace = AttackPace::new(KEY_PUTS_PER_SECOND / KEY_CALLERS as u64);
    loop {
        let mut key = vec![0; KEY_BYTES];
        key.extend_from_slice(&ground.ledger.acts().to_be_bytes());
        ground.ledger.add_acts(1);
        // A rejected put counts as a response.
        let _answer = kv.put(PutRequest { key: key.into(), ..PutRequest::default() }).await;
        pace.take(1).await;
    }
}

/// Depths around the recursion limits of protobuf decoders, and far beyond them.
const DEPTHS: [usize; 14] = [2, 32, 47, 48, 49, 50, 97, 99, 100, 127, 128, 1_000, 10_000, 1_000_000];
pub const TXN_PRELOAD: Preload = Preload { keys: 1_000, value_bytes: 64 };
const DEEP_PER_SECOND: u64 = 20;
const WIDE_ATTACKERS: usize = 2;
const WIDE_PER_SECOND: u64 = 2;

pub async fn deep_transactions(ground: Ground) {
    ground.keep(1, deep_session).await;
}

async fn deep_session(ground: Ground) -> io::Result<()> {
    let bodies: Vec<Bytes> = DEPTHS.iter().map(|depth| requests::nested_txn(*depth).into()).collect();
    transactions(&ground, &bodies, DEEP_PER_SECOND).await
}

pub async fn wide_transactions(ground: Ground) {
    ground.keep(WIDE_ATTACKERS, wide_session).await;
}

async fn wide_session(ground: Ground) -> io::Result<()> {
    transactions(&ground, &[requests::wide_txn().into()], WIDE_PER_SECOND).await
}

const COUNTLESS_ATTACKERS: usize = 2;
const COUNTLESS_PER_SECOND: u64 = 10;

pub async fn countless_operations(ground: Ground) {
    ground.keep(COUNTLESS_ATTACKERS, countless_session).await;
}

async fn countless_session(ground: Ground) -> io::Result<()> {
    let bodies = [requests::countless_txn().into(), requests::countless_nested_txn().into()];
    transactions(&ground, &bodies, COUNTLESS_PER_SECOND).await
}

async fn transactions(ground: &Ground, bodies: &[Bytes], per_second: u64) -> io::Result<()> {
    let mut session = Http2Session::open(ground.client_port()).await?;
    let mut pace = AttackPace::new(per_second);
    for body in bodies.iter().cycle() {
        let (response, mut stream) = session.call(requests::TXN).await?;
        send_body(&mut stream, frame::message(body).into(), true).await?;
        ground.ledger.add_acts(1);
        finish(response).await?;
        pace.take(1).await;
    }
    Ok(())
}

/// Large enough that one hash takes some milliseconds.
pub const HASH_PRELOAD: Preload = Preload { keys: 20_000, value_bytes: 1 << 10 };
const HASH_ATTACKERS: usize = 4;
const HASHES_PER_SECOND: u64 = 500;
const HASH_BATCH: u64 = 10;
/// Long enough for the server to have started the hash.
const RESET_DELAY: Duration = Duration::from_millis(5);

/// Requests hashes, and resets the calls once the server has started them.
pub async fn hash_kv(ground: Ground) {
    ground.keep(HASH_ATTACKERS, hash_kv_session).await;
}

async fn hash_kv_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let (headers, body) = (frame::call_headers(requests::HASH_KV), frame::message(&requests::hash_kv()));
    let mut pace = AttackPace::new(HASHES_PER_SECOND);
    loop {
        let (mut calls, mut resets) = (Vec::new(), Vec::new());
        for _ in 0..HASH_BATCH {
            let stream = connection.put_call(&mut calls, &headers, &body);
            frame::put(&mut resets, frame::RST_STREAM, 0, stream, &frame::CANCEL.to_be_bytes());
        }
        connection.send(&calls).await?;
        tokio::time::sleep(RESET_DELAY).await;
        connection.send(&resets).await?;
        ground.ledger.add_acts(HASH_BATCH);
        pace.take(HASH_BATCH).await;
    }
}

/// Eleven concurrent puts of 1.5 MiB exceed a proposal budget of 16 MiB.
const LARGE_CALLERS: usize = 11;
const LARGE_ROUNDS_PER_SECOND: u64 = 2;

pub async fn large_puts(ground: Ground) {
    ground.keep(LARGE_CALLERS, large_puts_session).await;
}

async fn large_puts_session(ground: Ground) -> io::Result<()> {
    let mut kv = requests::kv(ground.client_port()).await?;
    let mut pace = AttackPace::new(LARGE_ROUNDS_PER_SECOND);
    let key = Bytes::from(format!("large/{:02}", ground.ledger.acts()));
    loop {
        ground.ledger.add_acts(1);
        let _answer = kv.put(requests::large_put(key.clone(), usize::MAX)).await;
        pace.take(1).await;
    }
}

/// Parameters of callers with short deadlines while the whole process is stopped.
const DEADLINE: Duration = Duration::from_millis(200);
const STALL: Duration = Duration::from_secs(2);
const STALL_INTERVAL: Duration = Duration::from_secs(4);
/// Time to work off the backlog after a stall.
const BACKLOG: Duration = Duration::from_millis(500);
const DEADLINE_CONNECTIONS: usize = 4;
const DEADLINE_CALLERS: usize = 25;
const DEADLINE_CALL_INTERVAL: Duration = Duration::from_millis(50);

pub async fn deadlines_in_stalls(ground: Ground) {
    let (calls, stalls) = (ground.clone(), ground.clone());
    tokio::join!(calls.keep(DEADLINE_CONNECTIONS, deadline_session), stalls_until_end(stalls));
}

/// Counts a call as lost if it neither gets a response nor reaches its own deadline.
async fn deadline_session(ground: Ground) -> io::Result<()> {
    let kv = requests::kv(ground.client_port()).await?;
    let mut callers = JoinSet::new();
    for caller in 0..DEADLINE_CALLERS {
        let (mut kv, ground) = (kv.clone(), ground.clone());
        callers.spawn(async move {
            loop {
                let body = PutRequest {
                    key: Bytes::from(format!("deadline/{caller}")),
                    value: Bytes::from_static(b"v"),
                    ..PutRequest::default()
                };
                ground.ledger.add_acts(1);
                let answer = tokio::time::timeout(DEADLINE, kv.put(body)).await;
                if let Ok(Err(status)) = answer
                    && status.code() != Code::DeadlineExceeded
                {
                    ground.ledger.add_lost();
                }
                tokio::time::sleep(DEADLINE_CALL_INTERVAL).await;
            }
        });
    }
    callers.join_next().await;
    Ok(())
}

async fn stalls_until_end(ground: Ground) {
    tokio::time::sleep(BACKLOG).await;
    while Instant::now() + STALL + BACKLOG < ground.ends {
        let began = Instant::now();
        let stalled = StalledProcess::begin(ground.pids[0]);
        tokio::time::sleep(STALL).await;
        drop(stalled);
        ground.ledger.add_frozen(began, Instant::now() + BACKLOG);
        tokio::time::sleep_until(began + STALL_INTERVAL).await;
    }
}

/// A process that is stopped until this is dropped.
struct StalledProcess {
    pid: rustix::process::Pid,
}

impl StalledProcess {
    fn begin(pid: u32) -> StalledProcess {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a child has a number");
        // Signalling a process that exited has no effect: its pid is not reused before it is waited for.
        let _ended = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        StalledProcess { pid }
    }
}

impl Drop for StalledProcess {
    fn drop(&mut self) {
        let _ended = rustix::process::kill_process(self.pid, rustix::process::Signal::CONT);
    }
}
