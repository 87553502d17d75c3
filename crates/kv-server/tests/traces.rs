//! OpenTelemetry traces, as received by a collector.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Cluster, PATIENCE, get, put};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{WatchCreateRequest, WatchRequest};
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

const ASKED: &str = "00-11111111111111111111111111111111-2222222222222222-01";
const NOT_ASKED: &str = "00-33333333333333333333333333333333-2222222222222222-00";

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector. Returns it and its port.
    async fn start() -> (Collector, u16) {
        let collector = Collector::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        (collector, port)
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.0.lock();
        let scopes =
            received.iter().flat_map(|request| &request.resource_spans).flat_map(|of| &of.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.clone()?.value? {
        Value::StringValue(text) => Some((pair.key.clone(), text)),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

/// Starts a member that sends traces to this port.
fn traced(port: u16, more: &[&str]) -> Cluster {
    let address = format!("--distributed-tracing-address=127.0.0.1:{port}");
    Cluster::started_with(1, &[&["--enable-distributed-tracing", &address], more].concat())
}

fn with_parent<T>(message: T, parent: &'static str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request
}

/// Stops the member, which flushes pending spans.
fn end(cluster: &mut Cluster) {
    let ended = cluster.members[0].process.take().unwrap();
    ended.terminate();
    let (status, said) = ended.wait_end();
    assert!(status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_clients_ask_for_it_are_traced_with_their_stages() {
    let (collector, port) = Collector::start().await;
    let mut cluster =
        traced(port, &["--distributed-tracing-service-name=s", "--distributed-tracing-instance-id=i"]);
    let mut kv = cluster.members[0].kv().await;
    kv.put(with_parent(put("secret", "word"), ASKED)).await.unwrap();
    kv.range(with_parent(get("secret"), ASKED)).await.unwrap();
    kv.range(with_parent(get(""), ASKED)).await.unwrap_err();
    kv.range(with_parent(get("secret"), NOT_ASKED)).await.unwrap();
    kv.range(with_parent(get("secret"), "00-garbage")).await.unwrap();
    kv.range(get("secret")).await.unwrap();
    let mut watch = cluster.members[0].client().await.watch();
    let create = WatchCreateRequest { key: "secret".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let watching = watch.watch(with_parent(requests, ASKED)).await.unwrap();
    drop((watching, watch));
    end(&mut cluster);

    let spans = collector.spans();
    let child_of = |parent: &Span| {
        let mut names: Vec<&str> = Vec::new();
        for span in spans.iter().filter(|span| span.parent_span_id == parent.span_id) {
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
            assert!(span.end_time_unix_nano <= parent.end_time_unix_nano, "{span:?} after {parent:?}");
            names.push(&span.name);
        }
        names.join(", ")
    };
    let mut calls: Vec<String> = Vec::new();
    for span in &spans {
        assert_eq!(span.trace_id, [0x11; 16], "{span:?}");
        if span.parent_span_id == [0x22; 8] {
            let attributes = texts(&span.attributes);
            let code = attributes.get("rpc.response.status_code").map_or("", String::as_str);
            assert_eq!((attributes["rpc.method"].as_str(), span.kind), (span.name.as_str(), 2));
            calls.push(format!("{} {code}: {}", span.name, child_of(span)));
        }
    }
    calls.sort();
    assert_eq!(
        calls,
        [
            "etcdserverpb.KV/Put OK: replication",
            "etcdserverpb.KV/Range INVALID_ARGUMENT: ",
            "etcdserverpb.KV/Range OK: read index",
            "etcdserverpb.Watch/Watch CANCELLED: ",
        ]
    );
    let received = collector.0.lock();
    let resource = received[0].resource_spans[0].resource.as_ref().unwrap();
    let named = texts(&resource.attributes);
    assert_eq!((named["service.name"].as_str(), named["service.instance.id"].as_str()), ("s", "i"));
    let all = format!("{received:?}");
    assert!(!all.contains("secret") && !all.contains("word"), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_the_calls_is_traced_unless_their_clients_decline() {
    let (collector, port) = Collector::start().await;
    let mut cluster = traced(port, &["--distributed-tracing-sampling-rate=1000000"]);
    let mut kv = cluster.members[0].kv().await;
    kv.put(put("a", "1")).await.unwrap();
    kv.range(with_parent(get("a"), NOT_ASKED)).await.unwrap();
    end(&mut cluster);
    let roots: Vec<Span> =
        collector.spans().into_iter().filter(|span| span.parent_span_id.is_empty()).collect();
    let names: Vec<&str> = roots.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names.iter().filter(|name| name.ends_with("KV/Put")).count(), 1, "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with("KV/Range")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_or_silent_holds_neither_calls_nor_the_end() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [testkit::port(), silent.local_addr().unwrap().port()] {
        let mut cluster = traced(port, &["--distributed-tracing-sampling-rate=1000000"]);
        let began = Instant::now();
        let mut kv = cluster.members[0].kv().await;
        // More than the capacity of the span queue.
        for _ in 0..1500 {
            kv.put(put("a", "1")).await.unwrap();
        }
        end(&mut cluster);
        assert!(began.elapsed() < PATIENCE);
    }
}

/// Starts a response to each call without finishing it; counts the calls.
async fn begins_only(State(calls): State<Arc<AtomicUsize>>) -> axum::response::Response {
    calls.fetch_add(1, Ordering::Relaxed);
    let body = Body::from_stream(tokio_stream::pending::<Result<Bytes, Infallible>>());
    axum::response::Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits the 10 s that a collector has for a batch"]
async fn a_collector_that_begins_an_answer_and_never_ends_it_is_asked_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let router = axum::Router::new().route(path, axum::routing::post(begins_only)).with_state(calls.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::from(router));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut cluster = traced(port, &["--distributed-tracing-sampling-rate=1000000"]);
    let mut kv = cluster.members[0].kv().await;
    let began = Instant::now();
    while calls.load(Ordering::Relaxed) < 2 {
        kv.put(put("a", "1")).await.unwrap();
        assert!(began.elapsed() < PATIENCE, "the first batch is still waited for");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.members[0].running().wait_for("trace collector unavailable");
    end(&mut cluster);
}
