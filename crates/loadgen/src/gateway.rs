//! The load over HTTP/1.1 with JSON, as servers offer it beside gRPC: `POST /v3/kv/put` and `/v3/kv/range`.
//!
//! One connection per caller and one request at a time on it, as the tools had it with which such servers were measured
//! first. A task per caller: hundreds of them, not thousands; whoever wants many callers wants gRPC.

use crate::control::{Control, Counters};
use crate::dial::{Speech, Stream, connect};
use crate::endpoint::Endpoint;
use crate::failure::{Code, Failure};
use crate::frame::PREFIX_BYTES;
use crate::recorder::{Start, Tally};
use crate::schedule::{Schedule, Turn};
use crate::wire::Metered;
use crate::workload::{Source, Workload};
use api::etcdserverpb::{PutRequest, RangeRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longer headers are no answer of such a server.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// A server that takes longer to say whether it has a gateway cannot be measured.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between a broken connection and the next attempt.
const REST: Duration = Duration::from_millis(200);
/// Between looks at whether the run was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// The callers of one worker, connected.
pub struct Gateway {
    conns: Vec<Conn>,
    shared: Rc<Shared>,
}

/// What all callers of a worker use in turn.
struct Shared {
    workload: Workload,
    source: RefCell<Source>,
    tally: RefCell<Tally>,
    control: Arc<Control>,
    counters: Arc<Counters>,
}

struct Conn {
    endpoint: Endpoint,
    stream: Metered<Stream>,
    read: BytesMut,
}

/// The bare facts of an answer.
struct Reply {
    status: u16,
    body: Bytes,
    keep: bool,
}

/// Whether the server offers the gateway; why not otherwise.
pub async fn probe(endpoint: &Endpoint) -> Result<(), String> {
    let asked = async {
        let mut conn = Conn::open(endpoint, &Arc::default()).await?;
        let workload = Workload::Range(RangeRequest { key: "foo".into(), ..Default::default() });
        let request = http_request(&workload, endpoint, &workload.source(0).request(0));
        conn.call(&request).await
    };
    match tokio::time::timeout(PROBE_TIMEOUT, asked).await {
        Err(_) => Err(format!("no answer to POST /v3/kv/range within {PROBE_TIMEOUT:?}")),
        Ok(Err(error)) => Err(format!("POST /v3/kv/range: {error}")),
        Ok(Ok(reply)) if reply.status == 200 => Ok(()),
        Ok(Ok(reply)) => Err(format!("POST /v3/kv/range answers with status {}", reply.status)),
    }
}

impl Gateway {
    /// Opens a connection for each caller, to the endpoints in turn.
    pub async fn connect(
        endpoints: &[Endpoint],
        callers: usize,
        workload: &Workload,
        worker: usize,
        control: Arc<Control>,
        counters: Arc<Counters>,
    ) -> Result<Self, String> {
        let mut conns = Vec::with_capacity(callers);
        for caller in 0..callers {
            let endpoint = &endpoints[caller % endpoints.len()];
            let conn = Conn::open(endpoint, &counters).await;
            conns.push(conn.map_err(|error| format!("endpoint {endpoint}: {error}"))?);
        }
        let shared = Rc::new(Shared {
            source: RefCell::new(workload.source(worker)),
            workload: workload.clone(),
            tally: RefCell::new(Tally::new()),
            control,
            counters,
        });
        Ok(Self { conns, shared })
    }

    /// Sends and receives until the schedule is used up or the run is stopped.
    pub async fn run(self, schedule: Arc<Schedule>, start: Instant) -> io::Result<Tally> {
        let start = Start::new(start);
        let callers = tokio::task::LocalSet::new();
        for conn in self.conns {
            callers.spawn_local(self.shared.clone().drive(conn, schedule.clone(), start));
        }
        let control = self.shared.control.clone();
        tokio::select! {
            () = callers => {}
            () = async {
                while !control.is_stopped() {
                    tokio::time::sleep(LOOK).await;
                }
            } => {}
        }
        Ok(self.shared.tally.take())
    }
}

impl Shared {
    /// The life of one caller.
    async fn drive(self: Rc<Self>, mut conn: Conn, schedule: Arc<Schedule>, start: Start) {
        while let Some(turn) = schedule.take(Instant::now()) {
            if let Some(due) = turn.due {
                tokio::time::sleep_until(due.into()).await;
            }
            let sent_at = Instant::now();
            let frame = self.source.borrow_mut().request(turn.position);
            let request = http_request(&self.workload, &conn.endpoint, &frame);
            let reply = conn.call(&request).await;
            let keep = reply.as_ref().is_ok_and(|reply| reply.keep);
            self.record(turn, sent_at, reply, start);
            if !keep && !self.reopen(&mut conn).await {
                return;
            }
        }
    }

    fn record(&self, turn: Turn, sent_at: Instant, reply: io::Result<Reply>, start: Start) {
        let mut tally = self.tally.borrow_mut();
        let failure = match reply {
            Ok(reply) if reply.status == 200 => {
                let now = Instant::now();
                let sample = start.sample(turn.counts_from(sent_at), sent_at, now, reply.body.len() as u64);
                tally.record(&sample);
                return self.counters.add_answered(sample.latency.as_nanos() as u64);
            }
            Ok(reply) => refusal(&reply),
            Err(error) => Failure::unavailable(format!("connection: {error}")),
        };
        tally.failed_at(turn.position, &failure);
        self.counters.add_failed();
    }

    /// A new connection in place of one that ended; false when the run is over before there is one.
    async fn reopen(&self, conn: &mut Conn) -> bool {
        while !self.control.is_stopped() {
            match Conn::open(&conn.endpoint, &self.counters).await {
                Ok(opened) => {
                    *conn = opened;
                    return true;
                }
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
        false
    }
}

/// What the gateway says in place of an answer: gRPC's code and text as JSON.
fn refusal(reply: &Reply) -> Failure {
    let said: Option<serde_json::Value> = serde_json::from_slice(&reply.body).ok();
    let field = |name: &str| said.as_ref().and_then(|said| said.get(name));
    let code = field("code").and_then(serde_json::Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let message = field("message").and_then(serde_json::Value::as_str);
    let status = format!("HTTP status {}", reply.status);
    Failure::new(code.map_or(Code::UNKNOWN, Code), message.map_or(status, str::to_owned))
}

/// The HTTP form of a gRPC frame.
fn http_request(workload: &Workload, endpoint: &Endpoint, frame: &Bytes) -> Vec<u8> {
    let message = frame.slice(PREFIX_BYTES..);
    let body = match workload {
        Workload::Put(_) | Workload::TxnPut { .. } => {
            let put = PutRequest::decode(message).expect("our own frame of one put");
            format!(r#"{{"key":"{}","value":"{}"}}"#, STANDARD.encode(&put.key), STANDARD.encode(&put.value))
        }
        Workload::Range(_) | Workload::RangeStream(_) => {
            let range = RangeRequest::decode(message).expect("our own frame of one range");
            format!(r#"{{"key":"{}","serializable":{}}}"#, STANDARD.encode(&range.key), range.serializable)
        }
    };
    let path = match workload {
        Workload::Put(_) | Workload::TxnPut { .. } => "put",
        Workload::Range(_) | Workload::RangeStream(_) => "range",
    };
    format!(
        "POST /v3/kv/{path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Conn {
    async fn open(endpoint: &Endpoint, counters: &Arc<Counters>) -> io::Result<Self> {
        let stream = Metered::new(connect(endpoint, Speech::Http1).await?, counters.clone());
        Ok(Self { endpoint: endpoint.clone(), stream, read: BytesMut::new() })
    }

    async fn call(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.stream.write_all(request).await?;
        let head_bytes = loop {
            if let Some(end) = find(&self.read, b"\r\n\r\n") {
                break end + 4;
            }
            if self.read.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("headers without an end"));
            }
            self.fill().await?;
        };
        let head = self.read.split_to(head_bytes);
        let head = String::from_utf8_lossy(&head);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no HTTP status"))?;
        let keep = !header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let body = match header(&head, "content-length").and_then(|length| length.parse().ok()) {
            Some(length) => self.take(length).await?,
            None => self.chunks().await?,
        };
        Ok(Reply { status, body, keep })
    }

    async fn chunks(&mut self) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let line_bytes = loop {
                if let Some(end) = find(&self.read, b"\r\n") {
                    break end;
                }
                self.fill().await?;
            };
            let line = self.take(line_bytes + 2).await?;
            let length =
                std::str::from_utf8(&line).ok().map(|line| line.trim().split(';').next().unwrap_or(""));
            let length = length.and_then(|length| usize::from_str_radix(length, 16).ok());
            let length = length.ok_or_else(|| io::Error::other("neither a length nor chunks"))?;
            body.extend_from_slice(&self.take(length).await?);
            self.take(2).await?;
            if length == 0 {
                return Ok(body.freeze());
            }
        }
    }

    async fn take(&mut self, bytes: usize) -> io::Result<Bytes> {
        while self.read.len() < bytes {
            self.fill().await?;
        }
        Ok(self.read.split_to(bytes).copy_to_bytes(bytes))
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.read.reserve(4096);
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Order;
    use crate::report::model::Protocol;
    use crate::run::Plan;
    use crate::workload::{Values, Writes};
    use std::io::{Read, Write};

    /// Answers every request of every connection with the same bytes; tells the requests it got.
    fn server(answer: &'static str) -> (Endpoint, Arc<std::sync::Mutex<Vec<String>>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, kept) = (stream.unwrap(), kept.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        kept.lock().unwrap().push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (endpoint, requests)
    }

    fn plan(endpoint: Endpoint) -> Plan {
        let writes = Writes {
            key_bytes: 2,
            value_bytes: 3,
            key_space: 9,
            order: Order::Sequential,
            values: Values::Same,
            seed: 1,
        };
        Plan {
            protocol: Protocol::HttpJson,
            conns: 3,
            clients: 3,
            ..Plan::new(endpoint, Workload::Put(writes), 30)
        }
    }

    #[test]
    fn every_request_is_a_post_with_base64_and_counts_once() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        ] {
            let (endpoint, requests) = server(answer);
            let measurement = plan(endpoint.clone()).measure().unwrap();
            assert_eq!((measurement.tally.succeeded_len(), measurement.tally.failed_len()), (30, 0));
            assert_eq!(measurement.tally.body_bytes(), 60);
            let requests = requests.lock().unwrap();
            assert_eq!(requests.len(), 30);
            let head = format!("POST /v3/kv/put HTTP/1.1\r\nHost: {endpoint}\r\n");
            assert!(requests[0].starts_with(&head), "{}", requests[0]);
            assert!(requests.iter().any(|request| request.contains(r#"{"key":"AgA=","value":""#)));
        }
    }

    #[test]
    fn a_refusal_counts_by_its_grpc_code() {
        let answer =
            "HTTP/1.1 503 Unavailable\r\nContent-Length: 34\r\n\r\n{\"code\":14,\"message\":\"no leader.\"}";
        let (endpoint, _) = server(answer);
        let measurement = plan(endpoint).measure().unwrap();
        let failures = &measurement.tally.failures()[&Code::UNAVAILABLE];
        assert_eq!((failures.count, failures.sample.as_str()), (30, "no leader."));
    }

    #[tokio::test]
    async fn a_server_without_a_gateway_says_so() {
        let (endpoint, _) = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(probe(&endpoint).await, Err("POST /v3/kv/range answers with status 404".into()));
        let (endpoint, _) = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(probe(&endpoint).await, Ok(()));
    }
}
