//! Client deadlines: the server terminates the call, and does no further work for it.
//!
//! The tests use h2 directly, since tonic's client enforces deadlines itself.

use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, http, put};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{HashKvRequest, RangeRequest, WatchCreateRequest, WatchRequest};
use api::v3electionpb::LeaderRequest;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use prost::Message;
use tokio::time::timeout;

/// Starts the binary under test, by default that of this build. An older one is measured for comparison.
fn started(size: usize) -> Cluster {
    let mut cluster = Cluster::new(size);
    if let Ok(program) = std::env::var("KV_SERVER_UNDER_TEST") {
        cluster.members.iter_mut().for_each(|member| member.program = vec![program.clone()]);
    }
    cluster.start();
    cluster
}

async fn connected(member: &Member) -> SendRequest<Bytes> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", member.client_port));
    let socket = socket.await.expect("a ready member can be dialled");
    let (client, connection) = h2::client::handshake(socket).await.expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    client
}

/// Sends a call on a new connection. Returns code and text of its status.
async fn status(member: &Member, path: &str, grpc_timeout: &str, message: &impl Message) -> (String, String) {
    status_on(&connected(member).await, path, grpc_timeout, message).await
}

/// Sends a call on this connection. Returns code and text of its status.
async fn status_on(
    client: &SendRequest<Bytes>,
    path: &str,
    grpc_timeout: &str,
    message: &impl Message,
) -> (String, String) {
    let call = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("grpc-timeout", grpc_timeout)
        .body(())
        .expect("a request");
    let mut client = client.clone().ready().await.expect("a connection that is open");
    let (answer, mut stream) = client.send_request(call, false).expect("a stream");
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    message.encode(&mut frame).expect("a buffer grows");
    stream.send_data(frame.freeze(), true).expect("an open stream");
    let answer = timeout(PATIENCE, answer).await.expect("in time").expect("headers");
    let (parts, mut body) = answer.into_parts();
    let mut headers = parts.headers;
    if !headers.contains_key("grpc-status") {
        while let Some(data) = timeout(PATIENCE, body.data()).await.expect("in time") {
            let bytes = data.expect("an orderly stream").len();
            body.flow_control().release_capacity(bytes).expect("an open stream");
        }
        headers = body.trailers().await.expect("an orderly end").expect("trailers");
    }
    let text = |name| headers.get(name).map_or("", |value| value.to_str().expect("text")).to_owned();
    (text("grpc-status"), text("grpc-message").replace("%20", " "))
}

fn exceeded() -> (String, String) {
    ("4".to_owned(), "context deadline exceeded".to_owned())
}

/// Waits until the series of `Put` named `series`, with `label`, is `wanted`.
async fn puts_counted(member: &Member, series: &str, label: &str, wanted: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = http(member.client_port, "GET /metrics");
        let named = |line: &&str| {
            line.starts_with(&format!("{series}{{"))
                && [label, "Put"].iter().all(|label| line.contains(&format!("\"{label}\"")))
        };
        let line = metrics.lines().find(named).expect("each series from the start");
        if line.ends_with(&format!(" {wanted}")) {
            return;
        }
        assert!(Instant::now() < deadline, "{line}, not {wanted}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_call_ends_at_its_deadline() {
    let cluster = started(3);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    cluster.members[1..].iter().for_each(|other| other.running().pause());
    let range = RangeRequest { key: "a".into(), ..RangeRequest::default() };
    let began = Instant::now();
    let watch =
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest::default())) };
    // Without a deadline, these calls last until the other members are resumed, or longer.
    let calls = [
        ("a put", status(member, "/etcdserverpb.KV/Put", "300m", &put("b", "2")).await),
        ("a linearizable range", status(member, "/etcdserverpb.KV/Range", "300m", &range).await),
        ("a stream", status(member, "/etcdserverpb.KV/RangeStream", "300m", &range).await),
        (
            "a stream that never ends",
            status(member, "/grpc.health.v1.Health/Watch", "300m", &HashKvRequest::default()).await,
        ),
        ("a watch", status(member, "/etcdserverpb.Watch/Watch", "300m", &watch).await),
    ];
    let took = began.elapsed();
    cluster.members[1..].iter().for_each(|other| other.running().resume());
    for (call, ended) in calls {
        assert_eq!(ended, exceeded(), "{call}");
    }
    assert!(took >= 5 * Duration::from_millis(300), "{took:?}: a call ended before its deadline");
    let malformed = status(member, "/etcdserverpb.KV/Put", "5x", &put("b", "2")).await;
    assert_eq!(malformed.0, "13", "{}", malformed.1);
}

/// A client sends the remaining time with each call. HPACK: only the first call contains the header's name.
#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_connection_has_its_own_deadline() {
    let cluster = started(3);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    let client = connected(member).await;
    let range = RangeRequest { key: "a".into(), ..RangeRequest::default() };
    let ok = ("0".to_owned(), String::new());
    for timeout in ["50S", "49S", "48S"] {
        assert_eq!(status_on(&client, "/etcdserverpb.KV/Range", timeout, &range).await, ok, "{timeout}");
        assert_eq!(
            status_on(&client, "/etcdserverpb.KV/RangeStream", timeout, &range).await,
            ok,
            "{timeout}"
        );
    }
    cluster.members[1..].iter().for_each(|other| other.running().pause());
    let watch =
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest::default())) };
    let mut ended = Vec::new();
    for timeout in ["301m", "302m", "303m", "5x", "304m"] {
        ended.push((timeout, status_on(&client, "/etcdserverpb.KV/Range", timeout, &range).await));
        ended.push((timeout, status_on(&client, "/etcdserverpb.KV/RangeStream", timeout, &range).await));
        ended.push((timeout, status_on(&client, "/etcdserverpb.Watch/Watch", timeout, &watch).await));
    }
    cluster.members[1..].iter().for_each(|other| other.running().resume());
    for (timeout, ended) in ended {
        let wanted = if timeout == "5x" { "13" } else { "4" };
        assert_eq!(ended.0, wanted, "{timeout}: {}", ended.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_deadline_passed_unproposed_is_never_applied() {
    let cluster = started(3);
    let leader = cluster.members[0].leader().await;
    let mut ids = Vec::new();
    for member in &cluster.members {
        ids.push(member.id().await);
    }
    // The other members are paused, including the leader, so that puts wait for a leader.
    let awake = ids.iter().position(|id| *id != leader).expect("three members, one leader");
    let others =
        || cluster.members.iter().enumerate().filter(|(at, _)| *at != awake).map(|(_, member)| member);
    others().for_each(|other| other.running().pause());
    let member = &cluster.members[awake];
    let deadline = Instant::now() + PATIENCE;
    while member.leader().await != 0 {
        assert!(Instant::now() < deadline, "a leader that sleeps is noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let late = status(member, "/etcdserverpb.KV/Put", "200m", &put("late", "1")).await;
    puts_counted(member, "grpc_server_handled_total", "DeadlineExceeded", 1).await;
    // The client of this put disconnects before its deadline, after the member has read the request.
    let gone = put("gone", "1");
    tokio::select! {
        ended = status(member, "/etcdserverpb.KV/Put", "1H", &gone) => panic!("no leader, and {ended:?}"),
        () = puts_counted(member, "grpc_server_msg_received_total", "Put", 2) => {}
    }
    puts_counted(member, "grpc_server_handled_total", "Canceled", 1).await;
    others().for_each(|other| other.running().resume());
    let deadline = Instant::now() + PATIENCE;
    while member.kv().await.put(put("after", "1")).await.is_err() {
        assert!(Instant::now() < deadline, "a leader is elected");
    }
    for key in ["late", "gone"] {
        assert_eq!(member.get(key).await, None, "{key}: applied although no client waited for it any more");
    }
    assert_eq!(late, exceeded());
}

/// The election has no leader, so there is no response before the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_line_of_a_stream_has_the_status_that_ended_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit.log");
    let to_file = format!("--audit-log={}", path.display());
    let mut cluster = Cluster::started_with(1, &[&to_file, "--audit-log-level=requests"]);
    let member = &mut cluster.members[0];
    let request = LeaderRequest { name: "e".into() };
    assert_eq!(status(member, "/v3electionpb.Election/Observe", "100m", &request).await, exceeded());
    let process = member.process.take().expect("it runs");
    process.terminate();
    assert!(process.wait_end().0.success());
    let text = std::fs::read_to_string(&path).expect("the log");
    let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one line");
    assert_eq!((&line["result"], &line["keys"][0]["key"]), (&"DeadlineExceeded".into(), &"ZQ==".into()));
}
