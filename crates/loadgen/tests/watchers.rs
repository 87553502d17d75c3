//! Tracking of events against a small in-process server that may fail to deliver them.

use api::etcdserverpb::kv_server::{Kv, KvServer};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::watch_server::{Watch, WatchServer};
use api::etcdserverpb::*;
use api::mvccpb::{Event, KeyValue};
use bytes::Bytes;
use loadgen::{Awaits, Endpoint, Measurement, OpenWatchers, Pace, Run, Workload};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// Treatment of events by the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    Delivers,
    /// Does not deliver the event of this revision.
    Drops(i64),
    /// Does not deliver the events from this revision on.
    Freezes(i64),
    /// Does not respond to puts from this revision on.
    Stops(i64),
    /// Delivers the event twice.
    Repeats(i64),
    /// Rejects the put and does not deliver it.
    Refuses(i64),
    /// Rejects the put but delivers it.
    RefusesButWrites(i64),
    /// Cancels each watcher.
    Cancels(i64),
    /// Sends each watcher an event without a put.
    Invents,
}

type Answers = mpsc::UnboundedSender<Result<WatchResponse, Status>>;

#[derive(Default)]
struct Store {
    revision: i64,
    watchers: Vec<(i64, WatchCreateRequest, Answers)>,
}

#[derive(Clone)]
struct Service(Server, Arc<Mutex<Store>>);

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}

fn event(watch_id: i64, key: &Bytes, value: &Bytes, mod_revision: i64) -> WatchResponse {
    let kv = KeyValue { key: key.clone(), value: value.clone(), mod_revision, ..Default::default() };
    let events = vec![Event { kv: Some(kv), ..Default::default() }];
    WatchResponse { watch_id, header: header(mod_revision), events, ..Default::default() }
}

#[tonic::async_trait]
impl Kv for Service {
    type RangeStreamStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let PutRequest { key, value, .. } = request.into_inner();
        let next = self.1.lock().unwrap().revision + 1;
        if matches!(self.0, Server::Stops(it) if it <= next) {
            std::future::pending::<()>().await;
        }
        let mut store = self.1.lock().unwrap();
        store.revision += 1;
        let revision = store.revision;
        let copies = match self.0 {
            Server::Drops(it) | Server::Refuses(it) if it == revision => 0,
            Server::Freezes(it) if it <= revision => 0,
            Server::Repeats(it) if it == revision => 2,
            _ => 1,
        };
        for (id, create, answers) in &store.watchers {
            if matches!(self.0, Server::Cancels(it) if it == revision) {
                let cancel_reason = "etcdserver: no leader".to_owned();
                let canceled =
                    WatchResponse { watch_id: *id, canceled: true, cancel_reason, ..Default::default() };
                let _ = answers.send(Ok(canceled));
            }
            if create.key == key && create.start_revision <= revision {
                (0..copies).for_each(|_| drop(answers.send(Ok(event(*id, &key, &value, revision)))));
            }
        }
        match self.0 {
            Server::Refuses(it) | Server::RefusesButWrites(it) if it == revision => {
                Err(Status::unavailable("etcdserver: request timed out"))
            }
            _ => Ok(Response::new(PutResponse { header: header(revision), prev_kv: None })),
        }
    }

    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let revision = self.1.lock().unwrap().revision;
        Ok(Response::new(RangeResponse { header: header(revision), ..Default::default() }))
    }

    async fn range_stream(
        &self,
        _: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }
}

#[tonic::async_trait]
impl Watch for Service {
    type WatchStream = UnboundedReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, stream) = mpsc::unbounded_channel();
        let (service, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            let mut watch_id = 0;
            while let Some(Ok(request)) = requests.next().await {
                let Some(RequestUnion::CreateRequest(create)) = request.request_union else { continue };
                let mut store = service.1.lock().unwrap();
                let created = WatchResponse {
                    watch_id,
                    created: true,
                    header: header(store.revision),
                    ..Default::default()
                };
                let _ = answers.send(Ok(created));
                // History: one event for each revision from the first.
                for revision in create.start_revision..=store.revision {
                    let _ = answers.send(Ok(event(watch_id, &create.key, &Bytes::new(), revision)));
                }
                if service.0 == Server::Invents {
                    let never = Bytes::copy_from_slice(&u64::MAX.to_le_bytes());
                    let _ = answers.send(Ok(event(watch_id, &create.key, &never, store.revision + 1)));
                }
                store.watchers.push((watch_id, create, answers.clone()));
                watch_id += 1;
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

/// Serves on a separate thread until the test finishes.
fn serve(server: Server, revision: i64) -> Endpoint {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let service = Service(server, Arc::new(Mutex::new(Store { revision, ..Store::default() })));
            let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
            let router = tonic::transport::Server::builder().add_service(KvServer::new(service.clone()));
            router.add_service(WatchServer::new(service)).serve_with_incoming(incoming).await.unwrap();
        });
    });
    endpoint
}

/// Three streams of four watchers of two keys.
fn watching(awaits: Awaits) -> OpenWatchers {
    let keys = ["a", "b"].map(Bytes::from).into();
    OpenWatchers { streams: 3, per_stream: 4, keys, prev_kv: false, awaits, since_answer: true }
}

/// Twenty puts to two keys with six watchers each.
fn plan(server: Server) -> Run {
    let watching = watching(Awaits::Puts);
    let workload = Workload::PutKeys { keys: watching.keys.clone(), value_bytes: 8 };
    Run {
        conns: 2,
        clients: 4,
        threads: 2,
        patience: Duration::from_millis(500),
        watching: Some(watching),
        ..Run::new(serve(server, 0), workload, 20)
    }
}

fn measure(server: Server) -> Measurement {
    plan(server).measure().unwrap()
}

#[test]
fn events_that_are_due_when_a_run_is_stopped_count_with_their_wait() {
    // One caller: revisions are in the order of positions.
    let plan = Run { patience: Duration::from_secs(60), conns: 1, clients: 1, ..plan(Server::Freezes(7)) };
    let run = plan.start().unwrap();
    while run.progress().answered < 36 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let since = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    run.control().stop("interrupted");
    let measurement = run.finish().unwrap();
    let tally = &measurement.tally;
    assert_eq!((tally.succeeded_len(), tally.unanswered.count, measurement.failed_len()), (36, 84, 0));
    let waited = Duration::from_nanos(tally.slowest_ns);
    assert!(waited >= Duration::from_millis(300) && waited <= since.elapsed() * 2, "{waited:?}");
    assert_eq!(measurement.partial.as_deref(), Some("interrupted"));
}

#[test]
fn puts_that_wait_are_shown_where_events_are_measured() {
    let plan = Run { patience: Duration::from_secs(60), ..plan(Server::Stops(7)) };
    let run = plan.start().unwrap();
    let begin = std::time::Instant::now();
    // All four callers wait.
    while run.progress().waiting.in_flight < 4 || run.by_endpoint()[0].waiting.in_flight < 4 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", run.progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(run.progress().waiting.oldest.is_some());
    run.control().stop("interrupted");
    run.finish().unwrap();
}

#[test]
fn every_event_of_every_put_is_counted_once() {
    let measurement = measure(Server::Delivers);
    assert_eq!((measurement.tally.succeeded_len(), measurement.failed_len()), (120, 0));
    assert_eq!((measurement.planned, measurement.capped), (120, false));
    let parts: Vec<_> =
        measurement.parts.iter().map(|part| (part.title.as_str(), part.tally.succeeded_len())).collect();
    let expected = [
        ("Watch creation summary:", 12),
        ("Put summary:", 20),
        ("Watch events received summary:", 120),
        ("Watch events summary, from the answer of the put:", 120),
    ];
    assert_eq!(parts, expected);
}

#[test]
fn lost_repeated_invented_and_canceled_events_are_failures() {
    // (server, events counted, failures, part of their texts)
    for (server, counted, failed, text) in [
        (Server::Drops(7), 114, 6, "no event within 500ms after the last one"),
        (Server::Drops(20), 114, 6, "no event within"),
        (Server::Repeats(7), 120, 6, "event of revision 7: twice, out of order, or of no put"),
        (Server::Refuses(7), 114, 1, "etcdserver: request timed out"),
        // Writes of a failed put count, and no event is missing.
        (Server::RefusesButWrites(7), 120, 1, "etcdserver: request timed out"),
        (Server::Invents, 120, 12, "event of revision 1: twice, out of order, or of no put"),
    ] {
        let measurement = measure(server);
        let texts: Vec<_> = measurement
            .tallies()
            .flat_map(|tally| tally.failures.values().map(|failures| failures.sample.clone()))
            .collect();
        let found = (measurement.tally.succeeded_len(), measurement.failed_len());
        assert_eq!(found, (counted, failed), "{server:?}: {texts:?}");
        assert!(texts.iter().any(|found| found.contains(text)), "{server:?}: {texts:?}");
    }
    // The latencies include the waits for events that never arrived.
    let dropped = measure(Server::Drops(7)).tally;
    assert_eq!(dropped.counted_len(), 120);
    assert!(dropped.slowest_ns >= 500_000_000, "{}", dropped.slowest_ns);
    // The rate of the received events covers more than the time in which they arrived.
    let paced = Run { pace: Pace::Open(40.0), ..plan(Server::Freezes(3)) };
    let lost = paced.measure().unwrap();
    assert_eq!((lost.tally.succeeded_len(), lost.failed_len(), lost.capped), (12, 108, false));
    assert!(lost.wall >= Duration::from_millis(400) && lost.busiest_thread < 1.0, "{lost:?}");
    let canceled = measure(Server::Cancels(1));
    let failures: Vec<_> = canceled.tally.failures.values().map(|failures| &failures.sample).collect();
    assert_eq!(canceled.failed_len(), 3 + 120, "each stream ends, and no event arrives: {failures:?}");
    assert!(
        failures.iter().any(|text| text.contains("watcher canceled: etcdserver: no leader")),
        "{failures:?}"
    );
}

#[test]
fn watchers_of_history_end_with_its_last_event() {
    let watching = watching(Awaits::History { revision: 3, events: 8 });
    let idle = Workload::PutKeys { keys: watching.keys.clone(), value_bytes: 8 };
    let plan = Run { watching: Some(watching.clone()), ..Run::new(serve(Server::Delivers, 10), idle, 0) };
    let measurement = plan.measure().unwrap();
    assert_eq!((measurement.tally.succeeded_len(), measurement.failed_len()), (96, 0));
    assert_eq!((measurement.planned, measurement.capped, measurement.partial), (96, false, None));

    let get = Workload::Range(RangeRequest { key: "abc".into(), ..Default::default() });
    let endpoint = serve(Server::Delivers, 10);
    let plan = Run { watching: Some(watching.clone()), ..Run::new(endpoint, get.clone(), Run::OPEN_END) };
    let measurement = plan.measure().unwrap();
    let gets = measurement.tally.succeeded_len();
    assert!(gets > 0 && measurement.planned == gets && !measurement.capped, "{gets}");
    assert_eq!((measurement.parts[2].tally.succeeded_len(), measurement.failed_len()), (96, 0));

    // One event fewer than expected.
    let patience = Duration::from_millis(300);
    let endpoint = serve(Server::Delivers, 9);
    let plan = Run { watching: Some(watching), patience, ..Run::new(endpoint, get, Run::OPEN_END) };
    assert_eq!(plan.measure().unwrap().failed_len(), 12);
}

#[test]
fn idle_watchers_leave_the_puts_as_what_is_measured() {
    let keys = ["x"].map(Bytes::from).into();
    let puts = Workload::PutKeys { keys, value_bytes: 8 };
    let watching = Some(watching(Awaits::Nothing));
    let plan = Run { watching, ..Run::new(serve(Server::Delivers, 0), puts, 20) };
    let measurement = plan.measure().unwrap();
    assert_eq!(
        (measurement.tally.succeeded_len(), measurement.failed_len(), measurement.parts.len()),
        (20, 0, 2)
    );
}
