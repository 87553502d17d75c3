//! What one client, or a few, can do to a member through its connections.
//!
//! `SERVER_UNDER_TEST=<path>` runs the same attacks against another build of the server.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::admission::threads;
use crate::common::{Cluster, Member, PATIENCE, get, put, server};
use api::authpb::Permission;
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::range_request::SortTarget;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest,
};
use api::health::HealthCheckRequest;
use api::v3electionpb::LeaderRequest;
use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::SendRequest;
use tokio::net::TcpSocket;
use tonic::Code;
use tonic::metadata::AsciiMetadataValue;

/// A lone member, ready, below a limit of open files if one is given.
fn member(open_files_max: Option<u32>) -> Cluster {
    let mut cluster = Cluster::new(1);
    let server = std::env::var("SERVER_UNDER_TEST").unwrap_or_else(|_| server().to_owned());
    let member = &mut cluster.members[0];
    member.program = match open_files_max {
        None => vec![server],
        Some(limit) => {
            let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
            vec!["/bin/sh".to_owned(), "-c".to_owned(), script, server]
        }
    };
    member.extra = vec!["--snapshot-count=2".to_owned()];
    member.launch();
    member.wait_ready();
    cluster
}

fn dial(member: &Member) -> TcpStream {
    TcpStream::connect(("127.0.0.1", member.client_port)).unwrap()
}

/// Connections that send `bytes` and then nothing.
fn silent(member: &Member, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    (0..count)
        .map(|_| {
            let mut stream = dial(member);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect()
}

/// Waits until the member closes `stream`, and returns how long that took.
fn closed_after(stream: &mut TcpStream) -> Duration {
    let began = Instant::now();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return began.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return began.elapsed(),
            Err(error) => panic!("still open: {error}"),
        }
    }
}

fn resident_mib(member: &Member) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", member.running().pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The most that the member has grown by, in the three seconds after it has grown by `wanted`: by then an
/// attack has reached it.
async fn most_resident(member: &Member, before: u64, wanted: u64) -> u64 {
    let (mut most, mut samples, deadline) = (0, 0, Instant::now() + PATIENCE);
    while samples < 30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(resident_mib(member).saturating_sub(before));
        samples += u32::from(most >= wanted);
        assert!(Instant::now() < deadline, "the attack did not reach the member");
    }
    most
}

/// Processor time that the member has used, in hundredths of a second.
fn cpu_ticks(member: &Member) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", member.running().pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// An HTTP/2 connection whose streams start with a window of `window` bytes, without gRPC on top.
async fn http2(member: &Member, window: u32) -> SendRequest<Bytes> {
    http2_from(Ipv4Addr::LOCALHOST, member, window).await
}

/// From an address of this machine.
async fn http2_from(source: Ipv4Addr, member: &Member, window: u32) -> SendRequest<Bytes> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let stream = socket.connect((Ipv4Addr::LOCALHOST, member.client_port).into()).await.unwrap();
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .initial_max_send_streams(1000)
        .handshake(stream)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    requests
}

fn request(path: &str) -> http::Request<()> {
    http::Request::post(format!("http://member{path}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn framed(message: &impl prost::Message) -> Bytes {
    let length = (message.encoded_len() as u32).to_be_bytes();
    [&[0][..], &length, &message.encode_to_vec()].concat().into()
}

#[tokio::test]
async fn a_full_descriptor_table_fails_no_file_and_keeps_no_newcomer_out() {
    let mut cluster = member(Some(200));
    let member = &cluster.members[0];
    let mut kv = member.kv().await;
    kv.put(put("k0", "v")).await.unwrap();
    let idle = silent(member, 260, b"");
    for number in 1..5 {
        kv.put(put(&format!("k{number}"), "v")).await.expect("a connection that was there goes on");
    }
    // By now each two puts have made a checkpoint due, which opens files.
    let deadline = Instant::now() + PATIENCE;
    while !member.data_dir.join("store/blocks/000001.blk").exists() {
        assert!(Instant::now() < deadline, "no checkpoint");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kv.put(put("k5", "v")).await.expect("the member goes on");
    assert_eq!(member.get("k4").await.as_deref(), Some("v"), "on a new connection");
    drop(idle);
    cluster.members[0].process.take().unwrap().terminate();
}

/// One of 20 addresses of strangers.
fn stranger(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(number % 20).unwrap() + 1)
}

/// Connections of strangers with an open call that anyone may make, or without a call.
async fn strangers(member: &Member, count: usize, is_calling: bool) -> Vec<impl Sized> {
    let mut held = Vec::new();
    for number in 0..count {
        let mut requests = http2_from(stranger(number), member, 65_535).await;
        let call = is_calling.then(|| {
            let (answer, mut body) = requests.send_request(request(HEALTH_WATCH), false).unwrap();
            body.send_data(framed(&HealthCheckRequest::default()), true).unwrap();
            answer
        });
        held.push((requests, call));
    }
    held
}

const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const PUT: &str = "/etcdserverpb.KV/Put";

/// Makes a call on this connection and no other. Reports whether it was answered.
async fn is_answered(requests: &SendRequest<Bytes>, head: http::Request<()>, message: Bytes) -> bool {
    let answered = async {
        let mut requests = requests.clone().ready().await?;
        let (answer, mut body) = requests.send_request(head, false)?;
        body.send_data(message, true)?;
        let mut answer = answer.await?.into_body();
        while let Some(part) = answer.data().await {
            drop(part?);
        }
        Ok::<_, h2::Error>(answer.trailers().await?.is_some_and(|trailers| trailers["grpc-status"] == "0"))
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("an answer or an end").unwrap_or(false)
}

#[tokio::test]
async fn connections_without_a_call_that_needs_permission_keep_no_newcomer_out() {
    let cluster = member(Some(200));
    let member = &cluster.members[0];
    let mut kv = member.kv().await;
    kv.put(put("k", "v")).await.unwrap();
    for is_calling in [false, true] {
        let _held = strangers(member, 80, is_calling).await;
        for _ in 0..10 {
            assert_eq!(member.get("k").await.as_deref(), Some("v"), "on a new connection");
        }
        kv.put(put("k", "v")).await.expect("a connection that was there goes on");
    }
}

/// All of one address, which has more of them than any stranger.
#[tokio::test]
async fn served_connections_are_never_displaced_and_newcomers_beyond_capacity_are_refused() {
    let cluster = member(Some(200));
    let member = &cluster.members[0];
    let message = framed(&put("k", "v"));
    let mut served = Vec::new();
    for _ in 0..10 {
        let requests = http2(member, 65_535).await;
        assert!(is_answered(&requests, request(PUT), message.clone()).await);
        served.push(requests);
    }
    let mut watcher = http2(member, 65_535).await;
    let (answer, mut watch) = watcher.send_request(request("/etcdserverpb.Watch/Watch"), false).unwrap();
    let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    watch.send_data(framed(&create), false).unwrap();
    let mut events = answer.await.unwrap().into_body();
    drop(events.data().await.unwrap().unwrap());

    let _silent = silent(member, 100, b"");
    let _strangers = strangers(member, 60, true).await;
    for requests in &served {
        assert!(is_answered(requests, request(PUT), message.clone()).await, "on the same connection");
    }
    let event = tokio::time::timeout(PATIENCE, events.data()).await.expect("an event");
    assert!(event.is_some_and(|event| event.is_ok()), "on the same stream");

    let mut more = Vec::new();
    loop {
        let requests = http2(member, 65_535).await;
        if !is_answered(&requests, request(PUT), message.clone()).await {
            break;
        }
        more.push(requests);
        assert!(more.len() < 100, "served beyond capacity");
    }
    for requests in served.iter().chain(&more) {
        assert!(is_answered(requests, request(PUT), message.clone()).await, "on the same connection");
    }
    drop(more);
    let deadline = Instant::now() + PATIENCE;
    while !is_answered(&http2(member, 65_535).await, request(PUT), message.clone()).await {
        assert!(Instant::now() < deadline, "their places are not free");
    }
}

#[tokio::test]
async fn while_permissions_are_checked_calls_without_a_token_keep_no_place() {
    let cluster = member(Some(200));
    let member = &cluster.members[0];
    let (_client, token) = with_root(member).await;
    let message = framed(&put("k", "v"));
    let as_root = || {
        let mut head = request(PUT);
        head.headers_mut().insert("token", token.to_str().unwrap().parse().unwrap());
        head
    };
    let mut served = Vec::new();
    for _ in 0..10 {
        let requests = http2(member, 65_535).await;
        assert!(is_answered(&requests, as_root(), message.clone()).await);
        served.push(requests);
    }
    let mut held = Vec::new();
    for number in 0..60 {
        let requests = http2_from(stranger(number), member, 65_535).await;
        assert!(!is_answered(&requests, request(PUT), message.clone()).await, "it has no token");
        held.push(requests);
    }
    for _ in 0..10 {
        assert!(is_answered(&http2(member, 65_535).await, as_root(), message.clone()).await, "a newcomer");
    }
    for requests in &served {
        assert!(is_answered(requests, as_root(), message.clone()).await, "on the same connection");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_many_parts_are_decoded_by_two_threads() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let mut requests = http2(member, 65_535).await;
    // One put, in 30,000 empty parts.
    let (mut txn, before) = (vec![0; 5], threads(member));
    prost::encoding::bytes::encode(2, &[0x12, 0].repeat(30_000), &mut txn);
    let bytes = u32::try_from(txn.len() - 5).unwrap();
    txn[1..5].copy_from_slice(&bytes.to_be_bytes());
    let txn = Bytes::from(txn);
    let mut answers = Vec::new();
    for _ in 0..200 {
        requests = requests.ready().await.unwrap();
        let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Txn"), false).unwrap();
        body.send_data(txn.clone(), true).unwrap();
        answers.push(answer);
    }
    let answered = tokio::spawn(join_all(answers));
    let mut most = 0;
    while !answered.is_finished() {
        most = most.max(threads(member));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(answered.await.unwrap().iter().all(Result::is_ok));
    assert!(most <= before + 6, "{most} threads, {before} before");
}

fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Their answers would have everything, while other clients read nothing of answers that fill the memory for
/// them. Each transaction takes 20 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_many_parts_that_wait_have_one_bound() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let (mut kv, value) = (member.kv().await, "v".repeat(1 << 20));
    for number in 0..40 {
        kv.put(put(&format!("k{number}"), &value)).await.unwrap();
    }
    let (zero, before) = (Bytes::from_static(b"\0"), resident_mib(member));
    let sort_target = SortTarget::Value as i32;
    let range =
        RangeRequest { key: zero.clone(), range_end: zero.clone(), sort_target, ..Default::default() };
    let mut unread = Vec::new();
    for address in 2..4 {
        let mut requests = http2_from(Ipv4Addr::new(127, 0, 0, address), member, 10).await;
        let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Range"), false).unwrap();
        body.send_data(framed(&range), true).unwrap();
        unread.push((requests, answer.await.unwrap()));
    }
    assert!(resident_mib(member) >= before + 60, "the answers are not held");
    let mut txn = TxnRequest::default();
    for _ in 0..3 {
        txn = TxnRequest { success: vec![op(Op::RequestTxn(txn)); 42], ..TxnRequest::default() };
    }
    let all = DeleteRangeRequest { key: zero.clone(), range_end: zero, prev_kv: true };
    txn.success.push(op(Op::RequestDeleteRange(all)));
    let (txn, before) = (framed(&txn), resident_mib(member));
    let mut requests = http2(member, 65_535).await;
    let mut waiting = Vec::new();
    for _ in 0..24 {
        requests = requests.ready().await.unwrap();
        let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Txn"), false).unwrap();
        body.send_data(txn.clone(), true).unwrap();
        waiting.push((answer, body));
    }
    let most = most_resident(member, before, 15).await;
    assert!(most <= 160, "{most} MiB more");
    drop((unread, waiting));
}

#[test]
fn a_partial_preface_costs_nothing_and_is_closed() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let mut streams = silent(member, 400, b"PR");
    let before = cpu_ticks(member);
    std::thread::sleep(Duration::from_secs(2));
    let ticks = cpu_ticks(member) - before;
    // A loop over what cannot be read yet would take a whole processor, or its share of a busy one. Some of
    // the connections may still be accepted in this time.
    assert!(ticks <= 40, "{ticks} hundredths of a second in two seconds");
    closed_after(streams.last_mut().unwrap());
}

#[test]
fn an_http1_head_that_does_not_end_is_closed() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let mut slow = dial(member);
    slow.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
    let mut large = dial(member);
    large.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
    // The member may close before all of it is written.
    drop(large.write_all(&vec![b'x'; 1 << 20]));
    // Sooner than a head that does not end.
    assert!(closed_after(&mut large) < Duration::from_secs(9), "a head of a megabyte is read");
    closed_after(&mut slow);
}

#[tokio::test]
async fn a_stream_that_ends_in_a_frame_of_its_own_is_answered_and_not_reset() {
    let cluster = member(None);
    let mut requests = http2(&cluster.members[0], 65_535).await;
    let range = framed(&RangeRequest { key: "k".into(), ..RangeRequest::default() });
    for _ in 0..3 {
        requests = requests.ready().await.unwrap();
        let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Range"), false).unwrap();
        body.send_data(range.clone(), false).unwrap();
        let mut answer = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap().into_body();
        while let Some(part) = answer.data().await {
            drop(part.unwrap());
        }
        assert_eq!(answer.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        // Once another call is answered, a reset of this stream would have arrived.
        requests = requests.ready().await.unwrap();
        let (second, mut second_body) =
            requests.send_request(request("/etcdserverpb.KV/Range"), false).unwrap();
        second_body.send_data(range.clone(), true).unwrap();
        second.await.unwrap();
        let reset = poll_fn(|context| Poll::Ready(body.poll_reset(context))).await;
        assert!(reset.is_pending(), "the member reset the stream: {reset:?}");
        body.send_data(Bytes::new(), true).unwrap();
    }
}

#[tokio::test]
async fn a_connection_may_have_as_many_streams_as_the_flag_says() {
    let cluster = Cluster::started_with(1, &["--max-concurrent-streams=7"]);
    let mut requests = http2(&cluster.members[0], 65_535).await;
    let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Range"), false).unwrap();
    body.send_data(framed(&RangeRequest { key: "k".into(), ..RangeRequest::default() }), true).unwrap();
    // The member's SETTINGS are before its first answer.
    tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
    assert_eq!(requests.current_max_send_streams(), 7);
}

#[tokio::test]
async fn bodies_that_never_end_hold_a_bounded_amount_of_memory() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let before = resident_mib(member);
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut requests = http2(member, 65_535).await;
        for _ in 0..100 {
            requests = requests.ready().await.unwrap();
            let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Put"), false).unwrap();
            let bytes = [&[0, 0, 0x18, 0, 0][..], &vec![7; (3 << 19) - 100]].concat();
            body.send_data(bytes.into(), false).unwrap();
            open.push((answer, body));
        }
        open.push((
            requests.send_request(request("/none"), true).unwrap().0,
            requests.send_request(request("/none"), true).unwrap().1,
        ));
        std::mem::forget(requests);
    }
    let most = most_resident(member, before, 50).await;
    assert!(most <= 250, "600 MiB of incomplete bodies hold {most} MiB");
    member.put("a", "1").await;
}

/// Also of calls that are not hot.
/// Has permissions checked. Returns a client, and the token of the user `root`.
async fn with_root(member: &Member) -> (client::Client, AsciiMetadataValue) {
    let client = member.client().await;
    let (name, password) = ("root".to_owned(), "pw".to_owned());
    let user = AuthUserAddRequest { name: name.clone(), password: password.clone(), ..Default::default() };
    client.auth().user_add(user).await.unwrap();
    let role = AuthUserGrantRoleRequest { user: name.clone(), role: name.clone() };
    client.auth().user_grant_role(role).await.unwrap();
    client.auth().auth_enable(AuthEnableRequest {}).await.unwrap();
    let token = client.authenticate(&name, &password).await.unwrap();
    (client, token)
}

#[tokio::test]
async fn bodies_that_never_end_leave_room_to_large_calls_of_a_user() {
    let cluster = member(None);
    let member = &cluster.members[0];
    let (client, token) = with_root(member).await;
    let mut of_root = client.with_token(Some(token)).auth();
    of_root.role_add(AuthRoleAddRequest { name: "r".to_owned() }).await.unwrap();
    let perm = Permission { key: vec![b'k'; 40 << 10].into(), ..Permission::default() };
    let grant = AuthRoleGrantPermissionRequest { name: "r".to_owned(), perm: Some(perm) };
    let mut of_none = member.kv().await;
    let large = PutRequest { key: "k".into(), value: vec![1; 40 << 10].into(), ..PutRequest::default() };
    // Each connection takes a half of what is left. A put is counted before its caller is judged.
    let (mut open, mut connections, deadline) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
    while of_none.put(large.clone()).await.unwrap_err().code() != Code::ResourceExhausted {
        assert!(Instant::now() < deadline, "the bodies do not fill what there is for their address");
        let mut requests = http2(member, 65_535).await;
        for _ in 0..100 {
            requests = requests.ready().await.unwrap();
            let (answer, mut body) = requests.send_request(request("/etcdserverpb.KV/Put"), false).unwrap();
            body.send_data([&[0, 0, 0x18, 0, 0][..], &[7; 32 << 10]].concat().into(), false).unwrap();
            open.push((answer, body));
        }
        connections.push(requests);
    }
    of_root.role_grant_permission(grant).await.unwrap();
}

#[tokio::test]
async fn answers_that_nobody_takes_hold_a_bounded_amount_of_memory() {
    let cluster = member(None);
    let member = &cluster.members[0];
    member
        .kv()
        .await
        .put(PutRequest { key: "k".into(), value: vec![1; 60 << 10].into(), ..PutRequest::default() })
        .await
        .unwrap();
    let before = resident_mib(member);
    let range = framed(&RangeRequest { key: "k".into(), ..RangeRequest::default() });
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut requests = http2(member, 0).await;
        for _ in 0..1000 {
            let Ok(Ok(ready)) = tokio::time::timeout(Duration::from_secs(1), requests.clone().ready()).await
            else {
                break;
            };
            requests = ready;
            let Ok((answer, mut body)) = requests.send_request(request("/etcdserverpb.KV/Range"), false)
            else {
                break;
            };
            drop(body.send_data(range.clone(), true));
            held.push((answer, body));
        }
    }
    let most = most_resident(member, before, 0).await;
    assert!(most <= 80, "3,000 ranges of 60 KiB that are not read hold {most} MiB");
    member.put("a", "1").await;
}

/// Calls that a separate task answers, from 8 keys of somewhat less than 1 MiB each, on one connection.
async fn check_answers_that_are_not_read(path: &str, message: Bytes) {
    let cluster = member(None);
    let member = &cluster.members[0];
    let mut kv = member.kv().await;
    for number in b'/'..b'/' + 8 {
        let value = vec![number; 1000 << 10].into();
        kv.put(PutRequest { key: vec![b'k', number].into(), value, ..PutRequest::default() }).await.unwrap();
    }
    let before = resident_mib(member);
    let mut requests = http2(member, 0).await;
    let mut held = Vec::new();
    for _ in 0..400 {
        requests = requests.ready().await.unwrap();
        let (answer, mut body) = requests.send_request(request(path), false).unwrap();
        body.send_data(message.clone(), true).unwrap();
        held.push((answer, body));
    }
    let most = most_resident(member, before, 10).await;
    assert!(most <= 250, "400 calls of {path} that are not read hold {most} MiB");
    member.put("a", "1").await;
}

#[tokio::test]
async fn streamed_ranges_that_are_not_read_hold_a_bounded_amount_of_memory() {
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
    let sorted = RangeRequest { sort_target: SortTarget::Value as i32, ..all.clone() };
    for range in [all, sorted] {
        check_answers_that_are_not_read("/etcdserverpb.KV/RangeStream", framed(&range)).await;
    }
}

#[tokio::test]
async fn answers_of_elections_that_are_not_read_hold_a_bounded_amount_of_memory() {
    let name = framed(&LeaderRequest { name: "k".into() });
    for path in ["/v3electionpb.Election/Leader", "/v3electionpb.Election/Observe"] {
        check_answers_that_are_not_read(path, name.clone()).await;
    }
}

/// Sends `flood` again and again for `time`. When the member closes the connection, the next one follows
/// after [`REDIAL_DELAY`]: what is measured is the cost of frames, not of new connections.
fn flood(port: u16, flood: &dyn Fn(u32) -> Vec<u8>, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        let mut answers = [0; 1 << 16];
        for round in 0.. {
            if Instant::now() > end {
                return;
            }
            drop(stream.read(&mut answers)); // A pong that is not read would stop the flood.
            match stream.write(&out) {
                Ok(count) => drop(out.drain(..count)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => break,
            }
            if out.is_empty() {
                out = flood(round);
            }
        }
        std::thread::sleep(REDIAL_DELAY);
    }
}

const REDIAL_DELAY: Duration = Duration::from_millis(50);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn floods_of_frames_cost_a_bounded_share_of_a_processor() {
    // :method POST, :scheme http, :path /etcdserverpb.KV/Range, :authority a
    let headers = [&[0x83, 0x86, 0x44, 22][..], b"/etcdserverpb.KV/Range", &[0x41, 1, b'a']].concat();
    let resets = move |round: u32| {
        let pair = |at| {
            let stream = (round * 500 + at) * 2 + 1;
            [frame(1, 4, stream, &headers), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
        };
        (0..500).flat_map(pair).collect::<Vec<u8>>()
    };
    let pings = |_| frame(6, 0, 0, &[7; 8]).repeat(500);
    let settings = |_| frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(500);
    let window_updates = |_| frame(8, 0, 0, &[0, 0, 0, 1]).repeat(500);
    type Flood<'a> = (&'a str, &'a dyn Fn(u32) -> Vec<u8>);
    let floods: [Flood<'_>; 4] = [
        ("resets", &resets),
        ("pings", &pings),
        ("settings", &settings),
        ("window updates", &window_updates),
    ];
    let cluster = member(None);
    let member = &cluster.members[0];
    let mut shares = Vec::new();
    for (name, bytes) in floods {
        let before = cpu_ticks(member);
        flood(member.client_port, bytes, Duration::from_secs(3));
        shares.push((name, (cpu_ticks(member) - before) / 3));
    }
    assert!(shares.iter().all(|(_, percent)| *percent <= 40), "percent of a processor: {shares:?}");
}

/// Ranges with deadlines of 200 ms, one after the other, until `end`. Returns how many failed otherwise than
/// by it.
async fn ranges(mut kv: KvClient<client::Channel>, end: Instant) -> u32 {
    let mut failed = 0;
    while Instant::now() < end {
        let answer = tokio::time::timeout(Duration::from_millis(200), kv.range(get("a"))).await;
        failed += u32::from(matches!(answer, Ok(Err(_))));
    }
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_deadlines_pass_in_a_stall_keeps_its_connection() {
    let cluster = member(None);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    let client = member.client().await;
    let end = Instant::now() + Duration::from_secs(5);
    let callers: Vec<_> = (0..100).map(|_| tokio::spawn(ranges(client.kv(), end))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    member.running().pause();
    tokio::time::sleep(Duration::from_secs(2)).await;
    member.running().resume();
    let failed: u32 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(failed, 0, "calls that a closed connection ended");
}

#[tokio::test]
async fn open_streams_end_with_unavailable_when_the_member_stops() {
    let mut cluster = member(None);
    let member = &cluster.members[0];
    let mut health = member.client().await.health();
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let idle = silent(member, 5, b"PRI * HT");
    let process = cluster.members[0].process.take().unwrap();
    process.terminate();
    let status = tokio::time::timeout(PATIENCE, watch.message()).await.expect("it ends").unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
    let (status, said) = tokio::task::spawn_blocking(|| process.wait_end()).await.unwrap();
    assert!(status.success(), "{said}");
    assert!(!said.contains("did not close in time"), "{said}");
    drop(idle);
}

/// As on etcd, but for GET: a probe must not take a refusal for health.
#[tokio::test]
async fn a_request_that_is_no_call_is_refused_and_get_is_answered() {
    let cluster = member(None);
    let mut requests = http2(&cluster.members[0], 1 << 16).await;
    for (method, path, content_type, wanted) in [
        ("GET", "/health", None, 200),
        ("GET", "/nothing", None, 404),
        ("GET", "//health", None, 307),
        ("HEAD", "/health", None, 415),
        ("POST", "/health", None, 415),
        ("POST", "/v3/kv/range", Some("application/json"), 415),
        ("POST", "/etcdserverpb.KV/Range", Some("application/json"), 415),
        ("POST", "/etcdserverpb.Watch/Watch", None, 415),
        ("POST", "/etcdserverpb.Maintenance/Status", Some("application/grpc-web"), 415),
        ("GET", "/etcdserverpb.KV/Range", Some("application/grpc"), 405),
        ("PUT", "/etcdserverpb.Watch/Watch", Some("application/grpc"), 405),
        ("DELETE", "/etcdserverpb.Maintenance/Status", Some("application/grpc+proto"), 405),
        ("POST", "/etcdserverpb.KV/Range", Some("application/grpc;x"), 200),
        ("POST", "/etcdserverpb.KV/Range", Some("application/grpc+proto"), 200),
    ] {
        let mut request = http::Request::builder().method(method).uri(format!("http://member{path}"));
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let (answer, _body) = requests.send_request(request.body(()).unwrap(), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), wanted, "{method} {path} {content_type:?}");
        if let Some((_, status)) = [(415, "3"), (405, "13")].iter().find(|(code, _)| *code == wanted) {
            assert_eq!(answer.headers()["grpc-status"], *status);
            assert_eq!(answer.headers()["content-type"], "application/grpc");
        }
    }
}
