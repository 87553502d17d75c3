//! The load over HTTP/1.1 with JSON: `POST /v3/kv/put` and `/v3/kv/range` of etcd's gateway.
//!
//! Each caller has a connection with a single request at a time, like in the tools of the published
//! measurements.

use crate::client::dial;
use crate::client::dial::{Http1, Http1Reply};
use crate::client::endpoint::Endpoint;
use crate::client::failure::{CallFailure, Code};
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use crate::stats::progress::{Control, WorkerCounters};
use crate::workload::frame::PREFIX_BYTES;
use crate::workload::{Workload, WorkloadSource};
use api::etcdserverpb::{PutRequest, RangeRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use prost::Message;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PUT: &str = "/v3/kv/put";
/// A slower gateway cannot be measured.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout after a reply until the connection is ready; it is replaced otherwise.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before the next attempt to reconnect.
const REST: Duration = Duration::from_millis(200);

/// A caller: a connection with a single request at a time.
pub struct Conn {
    endpoint: Endpoint,
    /// Index of its endpoint.
    place: usize,
    http: Http1,
    workload: Rc<Workload>,
    source: Rc<RefCell<WorkloadSource>>,
    counters: Arc<WorkerCounters>,
    /// Time of reconnecting before the run is aborted.
    patience: Duration,
}

/// Checks that the server has a gateway; the error is the reason.
pub async fn probe(endpoint: &Endpoint) -> Result<(), String> {
    let asked = async {
        let workload = Workload::Range(RangeRequest { key: "foo".into(), ..Default::default() });
        let request = http_request(&workload, endpoint, &workload.source(0).request(0));
        open(endpoint, &Arc::default()).await?.call(request).await
    };
    match tokio::time::timeout(PROBE_TIMEOUT, asked).await {
        Err(_) => Err(format!("no answer to POST /v3/kv/range within {PROBE_TIMEOUT:?}")),
        Ok(Err(error)) => Err(format!("POST /v3/kv/range: {error}")),
        Ok(Ok(reply)) if reply.status == StatusCode::OK => Ok(()),
        Ok(Ok(reply)) => Err(format!("POST /v3/kv/range answers with status {}", reply.status.as_u16())),
    }
}

/// Opens a connection for each caller, round-robin over the endpoints.
pub async fn connect(
    endpoints: &[Endpoint],
    callers: usize,
    workload: Workload,
    source: WorkloadSource,
    counters: &Arc<WorkerCounters>,
    patience: Duration,
) -> Result<Vec<Conn>, String> {
    let (workload, source) = (Rc::new(workload), Rc::new(RefCell::new(source)));
    let mut conns = Vec::with_capacity(callers);
    for caller in 0..callers {
        let place = caller % endpoints.len();
        let endpoint = &endpoints[place];
        let http = open(endpoint, counters).await;
        let http = http.map_err(|error| format!("endpoint {endpoint}: {error}"))?;
        let (workload, source, counters) = (workload.clone(), source.clone(), counters.clone());
        let endpoint = endpoint.clone();
        conns.push(Conn { endpoint, place, http, workload, source, counters, patience });
    }
    Ok(conns)
}

impl CallerTask for Conn {
    async fn call(&mut self, position: u64) -> Result<AnsweredCall, CallFailure> {
        let frame = self.source.borrow_mut().request(position);
        let request = http_request(&self.workload, &self.endpoint, &frame);
        let reply = self.http.call(request).await;
        let reply = reply.map_err(|error| CallFailure::unavailable(format!("connection: {error}")))?;
        if reply.status != StatusCode::OK {
            return Err(refusal(&reply));
        }
        Ok(AnsweredCall { body_bytes: reply.body.len() as u64, retries: 0 })
    }

    /// Replaces a connection that cannot be reused.
    async fn settle(&mut self, control: &Control) -> bool {
        if self.http.is_reusable(READY_TIMEOUT).await {
            return true;
        }
        let begin = Instant::now();
        while !control.is_stopped() {
            match open(&self.endpoint, &self.counters).await {
                Ok(opened) => {
                    self.http = opened;
                    return true;
                }
                Err(error) if begin.elapsed() > self.patience => {
                    let (endpoint, patience) = (&self.endpoint, self.patience);
                    control.stop(format!("no connection to {endpoint} for {patience:?} ({error})"));
                }
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
        false
    }

    fn endpoint(&self) -> usize {
        self.place
    }
}

/// Parses the gateway's error body: gRPC's code and message as JSON.
fn refusal(reply: &Http1Reply) -> CallFailure {
    let said: Option<serde_json::Value> = serde_json::from_slice(&reply.body).ok();
    let field = |name: &str| said.as_ref().and_then(|said| said.get(name));
    let code = field("code").and_then(serde_json::Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let message = field("message").and_then(serde_json::Value::as_str);
    let status = format!("HTTP status {}", reply.status.as_u16());
    CallFailure::new(code.map_or(Code::UNKNOWN, Code), message.map_or(status, str::to_owned))
}

/// Reports whether requests of this kind are supported.
pub fn carries(workload: &Workload) -> bool {
    path(workload).is_some()
}

fn path(workload: &Workload) -> Option<&'static str> {
    match workload {
        Workload::Put(_) | Workload::PutKeys { .. } | Workload::TxnPut { .. } => Some(PUT),
        Workload::Range(_) | Workload::RangeStream(_) => Some("/v3/kv/range"),
        Workload::TxnMixed { .. }
        | Workload::LeaseKeepAlive(_)
        | Workload::Pages(_)
        | Workload::Stm(_)
        | Workload::Ycsb(_)
        | Workload::Kubernetes(_) => None,
    }
}

fn http_request(workload: &Workload, endpoint: &Endpoint, frame: &Bytes) -> Request<Full<Bytes>> {
    let message = frame.slice(PREFIX_BYTES..);
    let path = path(workload).expect("a plan of what the gateway does not carry is refused");
    let body = if path == PUT {
        let put = PutRequest::decode(message).expect("our own frame of one put");
        let (key, value) = (STANDARD.encode(&put.key), STANDARD.encode(&put.value));
        format!(r#"{{"key":"{key}","value":"{value}"}}"#)
    } else {
        let range = RangeRequest::decode(message).expect("our own frame of one range");
        let (key, serializable) = (STANDARD.encode(&range.key), range.serializable);
        format!(r#"{{"key":"{key}","serializable":{serializable}}}"#)
    };
    let request = Request::post(path).header(header::HOST, endpoint.authority());
    let request = request.header(header::CONTENT_TYPE, "application/json").body(body.into());
    request.expect("an authority is a valid header")
}

async fn open(endpoint: &Endpoint, counters: &Arc<WorkerCounters>) -> io::Result<Http1> {
    let opening = async {
        let stream = dial::connect(endpoint, dial::HTTP1).await?;
        Http1::open(dial::counted(stream, counters.clone())).await
    };
    tokio::time::timeout(DIAL_TIMEOUT, opening).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use crate::workload::Writes;
    use bench_report::model::KeyOrder;
    use bench_report::model::Protocol;
    use bench_report::model::Values;
    use std::io::{Read, Write};
    use std::time::Instant;

    /// Starts a server with a constant response; returns the requests that it received.
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

    fn plan(endpoint: Endpoint) -> Run {
        let writes = Writes {
            key_bytes: 2,
            value_bytes: 3,
            prefix: bytes::Bytes::new(),
            key_space: 9,
            order: KeyOrder::Sequential,
            values: Values::Same,
            seed: 1,
        };
        Run {
            protocol: Protocol::HttpJson,
            conns: 3,
            clients: 3,
            ..Run::new(endpoint, Workload::Put(writes), 30)
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
            assert_eq!(measurement.tally.body_bytes, 60);
            let requests = requests.lock().unwrap();
            assert_eq!(requests.len(), 30);
            let head = format!("POST /v3/kv/put HTTP/1.1\r\nHost: {endpoint}\r\n");
            assert!(requests[0].starts_with(&head), "{}", requests[0]);
            assert!(requests.iter().any(|request| request.contains(r#"{"key":"AgA=","value":""#)));
        }
    }

    #[test]
    fn a_warm_up_uses_the_connections_of_the_run() {
        let (endpoint, requests) = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        let measurement = Run { warm_up: Duration::from_millis(100), ..plan(endpoint) }.measure().unwrap();
        assert_eq!((measurement.tally.succeeded_len(), measurement.tally.counted_len()), (30, 30));
        assert!(requests.lock().unwrap().len() > 30);
    }

    #[test]
    fn a_refusal_counts_by_its_grpc_code() {
        let answer =
            "HTTP/1.1 503 Unavailable\r\nContent-Length: 34\r\n\r\n{\"code\":14,\"message\":\"no leader.\"}";
        let (endpoint, _) = server(answer);
        let measurement = plan(endpoint).measure().unwrap();
        let failures = &measurement.tally.failures[&Code::UNAVAILABLE];
        assert_eq!((failures.count, failures.sample.as_str()), (30, "no leader."));
    }

    #[test]
    fn a_request_without_an_answer_in_time_is_a_failure() {
        let (endpoint, _) = server("");
        let request_timeout = Some(Duration::from_millis(20));
        let run = Run { request_timeout, total: 6, ..plan(endpoint) }.start().unwrap();
        let begin = Instant::now();
        while !run.progress().finished && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(run.progress().finished, "the run waits for answers that never come");
        assert_eq!(run.finish().unwrap().tally.failures[&Code::DEADLINE_EXCEEDED].count, 6);
    }

    #[test]
    fn a_server_that_is_gone_ends_the_run() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        std::thread::spawn(move || {
            let streams: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
            drop(listener);
            for mut stream in streams {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                // Closed without a response.
            }
        });
        let run = Run { patience: Duration::from_millis(300), ..plan(endpoint) }.start().unwrap();
        let begin = Instant::now();
        while !run.progress().finished && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(run.progress().finished, "the run dials for ever");
        let partial = run.finish().unwrap().partial.unwrap();
        assert!(partial.starts_with("no connection to 127.0.0.1:"), "{partial}");
    }

    #[test]
    fn a_run_that_ends_counts_the_requests_without_an_answer() {
        for limit in [None, Some(Duration::from_millis(50))] {
            let (endpoint, _) = server("");
            let patience = Duration::from_millis(150);
            let run = Run { seconds_max: limit, patience, total: 6, ..plan(endpoint) }.start().unwrap();
            if limit.is_none() {
                std::thread::sleep(Duration::from_millis(200));
                let of = run.by_endpoint().remove(0).waiting;
                assert!(of.in_flight == 3 && of.oldest < Some(Duration::from_millis(100)), "{of:?}");
                run.control().stop("interrupted");
            }
            let tally = run.finish().unwrap().tally;
            assert_eq!((tally.succeeded_len(), tally.counted_len()), (0, 3), "{limit:?}");
            assert!(tally.slowest_ns >= 150_000_000, "{limit:?}: {}", tally.slowest_ns);
        }
    }

    #[tokio::test]
    async fn a_server_without_a_gateway_says_so() {
        let (endpoint, _) = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(probe(&endpoint).await, Err("POST /v3/kv/range answers with status 404".into()));
        let (endpoint, _) = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(probe(&endpoint).await, Ok(()));
    }
}
