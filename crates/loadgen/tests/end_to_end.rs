//! Complete runs against a small in-process gRPC server: the received requests, and the reported results.

use crate::common::{Behaviour, Server};
use api::etcdserverpb::RangeRequest;
use loadgen::{
    CallFailure, CallObserver, Code, Endpoint, KeyOrder, Measurement, Pace, Run, Summary, Values, Workload,
    Writes,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Records every call of the observer.
#[derive(Default)]
struct Log {
    acknowledged: Mutex<Vec<(u64, Vec<u8>, i64)>>,
    failed: Mutex<Vec<(u64, CallFailure)>>,
}

impl CallObserver for Log {
    fn acknowledged(&self, position: u64, key: bytes::Bytes, revision: i64) {
        self.acknowledged.lock().unwrap().push((position, key.to_vec(), revision));
    }

    fn failed(&self, position: u64, failure: &CallFailure) {
        self.failed.lock().unwrap().push((position, failure.clone()));
    }
}

fn writes(key_space: u64) -> Writes {
    Writes {
        key_bytes: 8,
        value_bytes: 64,
        prefix: bytes::Bytes::new(),
        key_space,
        order: KeyOrder::Sequential,
        values: Values::PerKey,
        seed: 1,
    }
}

fn read() -> Workload {
    Workload::Range(RangeRequest { key: "k".into(), ..Default::default() })
}

fn plan(server: &Server, workload: Workload, total: u64) -> Run {
    Run { patience: Duration::from_secs(2), ..Run::new(server.endpoint.clone(), workload, total) }
}

fn counts(measurement: &Measurement) -> (u64, u64) {
    (measurement.tally.succeeded_len(), measurement.tally.failed_len())
}

#[test]
fn every_acknowledged_write_is_reported_with_its_key_and_revision() {
    let server = Server::start(Behaviour::Answers);
    let log = Arc::new(Log::default());
    let plan = Run {
        conns: 4,
        clients: 40,
        threads: 2,
        observer: Some(log.clone()),
        ..plan(&server, Workload::Put(writes(1000)), 1000)
    };
    assert_eq!(counts(&plan.measure().unwrap()), (1000, 0));
    let acknowledged: BTreeMap<_, _> =
        log.acknowledged.lock().unwrap().iter().map(|(_, key, revision)| (key.clone(), *revision)).collect();
    assert_eq!(acknowledged, *server.store.keys.lock().unwrap());
    assert_eq!(acknowledged.len(), 1000);
    let positions: HashSet<_> =
        log.acknowledged.lock().unwrap().iter().map(|(position, ..)| *position).collect();
    assert_eq!(positions, (0..1000).collect());
}

#[test]
fn a_txn_acknowledges_each_of_its_keys() {
    let server = Server::start(Behaviour::Answers);
    let log = Arc::new(Log::default());
    let workload = Workload::TxnPut { ops: 3, writes: writes(300) };
    let plan = Run { observer: Some(log.clone()), ..plan(&server, workload, 100) };
    assert_eq!(counts(&plan.measure().unwrap()), (100, 0));
    assert_eq!(log.acknowledged.lock().unwrap().len(), 300);
    assert_eq!(server.store.keys.lock().unwrap().len(), 300);
}

#[test]
fn connections_and_callers_are_as_many_as_asked_for() {
    let delay = Duration::from_millis(5);
    let servers =
        [Server::start(Behaviour::AnswersAfter(delay)), Server::start(Behaviour::AnswersAfter(delay))];
    let endpoints = servers.iter().map(|server| server.endpoint.clone()).collect();
    let plan = Run { endpoints, conns: 3, clients: 12, ..plan(&servers[0], read(), 240) };
    assert_eq!(counts(&plan.measure().unwrap()), (240, 0));
    for server in &servers {
        // Each of the three objects may stop at an odd call.
        let requests = server.store.requests.load(SeqCst);
        assert!((117..=123).contains(&requests), "calls go to the endpoints in turn: {requests}");
        assert_eq!(server.store.peers.lock().unwrap().len(), 3, "one connection per object and endpoint");
        assert!(server.store.in_flight_most.load(SeqCst) <= 12);
    }
}

#[test]
fn failures_are_grouped_and_do_not_count_as_latencies() {
    let server = Server::start(Behaviour::RefusesEvery(4));
    let log = Arc::new(Log::default());
    let plan = Run { observer: Some(log.clone()), ..plan(&server, read(), 100) };
    let measurement = plan.measure().unwrap();
    assert_eq!(counts(&measurement), (75, 25));
    let errors = Summary::of(&measurement).errors;
    assert_eq!(errors.len(), 1);
    let group = (errors[0].code.as_str(), errors[0].count, errors[0].sample.as_str());
    assert_eq!(group, ("Unavailable", 25, "etcdserver: request timed out"));
    assert_eq!(log.failed.lock().unwrap().len(), 25);
}

#[test]
fn large_and_streamed_replies_are_read_to_their_end() {
    let server = Server::start(Behaviour::ReturnsBytes(3_000_000));
    let measurement = plan(&server, read(), 5).measure().unwrap();
    assert_eq!(counts(&measurement), (5, 0));
    assert!(measurement.tally.body_bytes > 15_000_000);

    let stream = Workload::RangeStream(RangeRequest { key: "k".into(), ..Default::default() });
    assert_eq!(counts(&plan(&server, stream, 5).measure().unwrap()), (5, 0));
}

#[test]
fn callers_beyond_the_stream_limit_wait_in_order() {
    let server = Server::start_limited(Behaviour::Answers, Some(5));
    let plan = Run { clients: 100, ..plan(&server, read(), 1000) };
    assert_eq!(counts(&plan.measure().unwrap()), (1000, 0));
    assert!(server.store.in_flight_most.load(SeqCst) <= 5);
}

#[test]
fn a_rate_is_kept() {
    let server = Server::start(Behaviour::Answers);
    let plan = Run { clients: 20, pace: Pace::AtMost(1000.0), ..plan(&server, read(), 200) };
    let measurement = plan.measure().unwrap();
    assert_eq!(counts(&measurement), (200, 0));
    assert!(measurement.wall >= Duration::from_millis(198), "{:?}", measurement.wall);
}

#[test]
fn an_open_loop_counts_from_the_intended_moment() {
    // One caller, 5 ms per response, 1,000 per second intended: the nth response is about 4 n ms late.
    let server = Server::start(Behaviour::AnswersAfter(Duration::from_millis(5)));
    let tally = |pace| Run { pace, ..plan(&server, read(), 40) }.measure().unwrap().tally;
    let (open, closed) = (tally(Pace::Open(1000.0)), tally(Pace::AtMost(1000.0)));
    assert!(open.slowest_ns >= 140_000_000, "{}", open.slowest_ns);
    let [open, closed] = [open, closed].map(|tally| tally.latencies_ns.value_at_percentile(50.0));
    assert!(closed < open, "half of the calls took {closed} and {open} ns");
}

#[test]
fn service_time_begins_when_the_request_is_written() {
    // All callers of a link make their requests before it is polled, and large values take their time.
    let server = Server::start(Behaviour::Answers);
    let writes = Writes { value_bytes: 1 << 20, ..writes(1000) };
    let plan = Run { clients: 40, ..plan(&server, Workload::Put(writes), 40) };
    let tally = plan.measure().unwrap().tally;
    assert_eq!(tally.succeeded_len(), 40);
    assert!(tally.delayed >= 20, "{} of 40 requests were made long before they were written", tally.delayed);
    assert!(tally.services_ns.max() < tally.slowest_ns, "{} {}", tally.services_ns.max(), tally.slowest_ns);
}

#[test]
fn an_answer_that_does_not_come_in_time_is_a_failure() {
    let server = Server::start(Behaviour::NeverAnswers);
    let request_timeout = Some(Duration::from_millis(50));
    let plan = Run { clients: 2, request_timeout, ..plan(&server, read(), 4) };
    let measurement = plan.measure().unwrap();
    assert_eq!(counts(&measurement), (0, 4));
    assert!(measurement.tally.failures.contains_key(&Code::DEADLINE_EXCEEDED));
}

#[test]
fn a_stopped_run_keeps_what_it_measured() {
    let server = Server::start(Behaviour::AnswersAfter(Duration::from_millis(1)));
    let run = plan(&server, read(), 1_000_000).start().unwrap();
    while run.progress().answered < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.control().stop("interrupted");
    let measurement = run.finish().unwrap();
    assert_eq!(measurement.partial.as_deref(), Some("interrupted"));
    assert!((5..1_000_000).contains(&measurement.tally.succeeded_len()));
}

#[test]
fn a_run_of_a_duration_is_whole_when_its_time_is_over() {
    let server = Server::start(Behaviour::AnswersAfter(Duration::from_millis(1)));
    for pace in [Pace::Unlimited, Pace::Open(200.0)] {
        let seconds_max = Some(Duration::from_millis(400));
        let plan = Run { seconds_max, pace, clients: 4, ..plan(&server, read(), Run::OPEN_END) };
        let measurement = plan.measure().unwrap();
        assert!((0.3..10.0).contains(&measurement.wall.as_secs_f64()), "{:?}", measurement.wall);
        let succeeded = measurement.tally.succeeded_len();
        assert!(succeeded > 0 && measurement.planned == succeeded, "{pace:?}: {succeeded}");
        assert_eq!((measurement.partial, measurement.capped), (None, false), "{pace:?}");
    }
}

#[test]
fn a_server_that_ends_fails_its_calls_and_the_run_ends() {
    // Slow enough that calls are in flight whenever it dies.
    let mut server = Server::start(Behaviour::AnswersAfter(Duration::from_millis(5)));
    let patience = Duration::from_secs(3);
    let plan = Run { clients: 8, patience, ..plan(&server, read(), u64::MAX / 2) };
    let run = plan.start().unwrap();
    while run.progress().answered < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop();
    let measurement = run.finish().unwrap();
    assert!(measurement.tally.failures.contains_key(&Code::UNAVAILABLE), "{:?}", measurement.tally.failures);
    assert!(measurement.partial.unwrap().starts_with("no endpoint answered for 3s"));
}

#[test]
fn one_dead_endpoint_of_two_leaves_the_run_going() {
    let living = Server::start(Behaviour::Answers);
    let mut dying = Server::start(Behaviour::Answers);
    let endpoints = vec![living.endpoint.clone(), dying.endpoint.clone()];
    let run = Run { endpoints, clients: 4, ..plan(&living, read(), 1_000_000) }.start().unwrap();
    while run.progress().answered < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    dying.stop();
    let before = living.store.requests.load(SeqCst);
    while living.store.requests.load(SeqCst) < before + 500 {
        assert!(!run.progress().finished);
        std::thread::sleep(Duration::from_millis(1));
    }
    run.control().stop("enough");
    assert!(run.finish().unwrap().tally.failed_len() <= 4, "only what was in flight there");
}

#[test]
fn an_unreachable_endpoint_is_named() {
    let endpoint: Endpoint = format!("127.0.0.1:{}", testkit::port()).parse().unwrap();
    let Err(error) = Run::new(endpoint.clone(), read(), 1).start() else { panic!("the port is unused") };
    let expected = format!("open the connections: endpoint {endpoint}: Connection refused (os error 111)");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn invalid_plans_are_refused() {
    let server = Server::start(Behaviour::Answers);
    let good = plan(&server, read(), 1);
    for (plan, reason) in [
        (Run { clients: 0, ..good.clone() }, "0 clients would send nothing"),
        (Run { conns: 0, ..good.clone() }, "0 connections cannot carry a request"),
        (Run { conns: 2, ..good.clone() }, "2 connections are more than 1 clients can use"),
        (Run { threads: 0, ..good.clone() }, "0 threads would send nothing"),
        (Run { endpoints: Vec::new(), ..good.clone() }, "no endpoint given"),
    ] {
        let Err(error) = plan.start() else { panic!("{reason}") };
        assert_eq!(error.to_string(), reason);
    }
}

#[test]
fn a_warm_up_uses_the_connections_of_the_run_and_is_not_counted() {
    for pace in [Pace::Unlimited, Pace::Open(500.0)] {
        let server = Server::start(Behaviour::Answers);
        let plan = Run {
            conns: 4,
            clients: 8,
            pace,
            warm_up: Duration::from_millis(300),
            ..Run::new(server.endpoint.clone(), Workload::Put(writes(9)), 60)
        };
        let measurement = plan.measure().unwrap();
        let (requests, peers) =
            (server.store.requests.load(SeqCst), server.store.peers.lock().unwrap().len());
        assert_eq!((measurement.tally.succeeded_len(), measurement.planned, peers), (60, 60, 4), "{pace:?}");
        assert!(requests > 100 && measurement.sent_bytes < 60 * 1000, "{pace:?}: {requests}");
    }
}
