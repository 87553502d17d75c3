//! The healthy clients: an open loop of puts and ranges that measures the impact of an attack.
//!
//! * The latency of a call counts from the time at which it was due, so a stall delays all calls that were
//!   due during it.
//! * A failed call counts with the latency of its timeout.
//! * Some of the clients make large puts, puts through the gateway, and probes, each on a new connection.
//! * A put rejected by the quota counts as a response: etcd returns the same error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::{PutRequest, RangeRequest};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::attack::http2::connection::dial;
use crate::attack::http2::requests;
use crate::failure::{Attempt, Result};

pub const CLIENTS: u32 = 100;
/// Several callers share a connection, like in a typical service.
const CLIENTS_PER_CONNECTION: u32 = 10;
/// Interval of one client. All clients together make 500 calls a second, a few percent of the
/// server's capacity.
const CALL_INTERVAL: Duration = Duration::from_millis(200);
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const VALUE: &[u8] = &[b'v'; 64];
/// Too large for the first read; its body counts against the shared budget of all bodies.
const LARGE_VALUE: &[u8] = &[b'v'; 48 << 10];
/// One in `KIND_INTERVAL` clients makes large puts, one calls the gateway, and one is a probe.
const KIND_INTERVAL: u32 = 25;
const GATEWAY_PUT: &str = "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                           Content-Length: 25\r\n\r\n{\"key\":\"aA==\",\"value\":\"\"}";
const QUOTA: &str = "database space exceeded";
/// Excludes NOSPACE: some attacks use up the quota, which is no failure.
const PROBE: &str = "GET /health?exclude=NOSPACE HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[derive(Clone, Debug)]
pub struct HealthyCall {
    pub due: Instant,
    pub latency: Duration,
    /// Error of a failed call.
    pub failure: Option<String>,
}

pub struct HealthyLoad {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<HealthyCall>>>,
}

impl HealthyLoad {
    /// Connects to these members round-robin and starts the load. Must be called within a runtime.
    pub async fn start(ports: &[u16]) -> Result<HealthyLoad> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        let began = Instant::now();
        for connection in 0..CLIENTS / CLIENTS_PER_CONNECTION {
            let port = ports[connection as usize % ports.len()];
            let channel = requests::connect(port, CALL_TIMEOUT).await.or_say("dial")?;
            for client in 0..CLIENTS_PER_CONNECTION {
                let number = connection * CLIENTS_PER_CONNECTION + client;
                // Staggered over the interval for an even load.
                let first = began + CALL_INTERVAL * number / CLIENTS;
                let kv = KvClient::new(channel.clone());
                clients.push(tokio::spawn(call_regularly((kv, port), number, first, Arc::clone(&stop))));
            }
        }
        Ok(HealthyLoad { stop, clients })
    }

    /// All calls, in no order.
    pub async fn finish(self) -> Vec<HealthyCall> {
        self.stop.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        for client in self.clients {
            samples
                .extend(client.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
        }
        samples
    }
}

async fn call_regularly(
    (mut kv, port): (KvClient<Channel>, u16),
    number: u32,
    first: Instant,
    stop: Arc<AtomicBool>,
) -> Vec<HealthyCall> {
    let mut samples = Vec::new();
    let mut due = first;
    let key = Bytes::from(format!("healthy/{number:03}"));
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep_until(due).await;
        let is_put = samples.len() % 2 == 0;
        let called = async {
            let kind = number % KIND_INTERVAL;
            if kind == 1 || kind == 2 {
                return ask(port, if kind == 1 { GATEWAY_PUT } else { PROBE }).await;
            }
            if is_put {
                let value = Bytes::from_static(if kind == 0 { LARGE_VALUE } else { VALUE });
                kv.put(PutRequest { key: key.clone(), value, ..PutRequest::default() }).await.map(drop)
            } else {
                kv.range(RangeRequest { key: key.clone(), ..RangeRequest::default() }).await.map(drop)
            }
        };
        // The endpoint's timeout does not cover the time to connect.
        let answer = tokio::time::timeout(2 * CALL_TIMEOUT, called).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no connection")));
        let failure = answer.err().filter(|status| !is_quota(status));
        let latency = due.elapsed();
        samples.push(match failure {
            None => HealthyCall { due, latency, failure: None },
            Some(status) => {
                let failure = format!("{:?}: {}", status.code(), status.message());
                HealthyCall { due, latency: latency.max(CALL_TIMEOUT), failure: Some(failure) }
            }
        });
        due += CALL_INTERVAL;
    }
    samples
}

fn is_quota(status: &Status) -> bool {
    status.message().contains(QUOTA)
}

/// One request on a new connection.
async fn ask(port: u16, request: &str) -> std::result::Result<(), Status> {
    let answer = async {
        let mut stream = dial(port).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(CALL_TIMEOUT, answer).await;
    match answer.map_err(|_| Status::deadline_exceeded("no answer"))? {
        Ok(answer) if answer.starts_with("HTTP/1.1 200 ") || answer.contains(QUOTA) => Ok(()),
        Ok(answer) => Err(Status::unavailable(answer.lines().next().unwrap_or("no answer").to_owned())),
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}
