//! Streamed ranges: equal to paged responses, during writes and compactions, and after a client or a member
//! has disconnected.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, metric, put};
use api::etcdserverpb::range_request::SortOrder;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{CompactionRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{join_all, try_join_all};
use h2::client::{ResponseFuture, SendRequest};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;

/// Number of keys: a window and a half of data.
const KEYS: usize = 50;
const VALUE_BYTES: usize = 1 << 20;
/// Less than the time after which an unread call is reset.
const UNREAD_MAX: Duration = Duration::from_secs(50);
/// Limit of concurrent large ranges.
const TURNS: usize = 3;

fn key(number: usize) -> String {
    format!("k{:03}", number * 37 % KEYS)
}

/// Writes keys scattered over the blocks, some of them twice. Returns the revision.
async fn fill(member: &Member) -> i64 {
    let mut revision = 0;
    let mut kv = member.kv().await;
    for number in 0..KEYS + KEYS / 4 {
        let value = number.to_string().repeat(VALUE_BYTES)[..VALUE_BYTES - number].to_owned();
        let answer = kv.put(put(&key(number), &value)).await.expect("a healthy member takes a put");
        revision = answer.into_inner().header.expect("every answer has a header").revision;
    }
    revision
}

fn everything() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() }
}

/// Returns the complete range, assembled from small ranges.
async fn in_pieces(member: &Member, revision: i64) -> RangeResponse {
    let mut kv = member.kv().await;
    let mut whole = RangeResponse::default();
    loop {
        let mut from = whole.kvs.last().map_or(vec![0], |kv| kv.key.to_vec());
        from.push(0);
        let request = RangeRequest { key: from.into(), limit: 10, revision, ..everything() };
        let answer = kv.range(request).await.expect("a healthy member answers").into_inner();
        whole.count = whole.count.max(answer.count);
        whole.header = answer.header;
        whole.kvs.extend(answer.kvs);
        if !answer.more {
            return whole;
        }
    }
}

/// Connects from an address of this machine.
async fn connection(member: &Member, from: [u8; 4]) -> SendRequest<Bytes> {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("every address of loopback is this machine's");
    let socket = socket.connect(([127, 0, 0, 1], member.client_port).into());
    let socket = socket.await.expect("a ready member can be dialled");
    let (client, connection) = h2::client::handshake(socket).await.expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    client
}

async fn ask(client: &mut SendRequest<Bytes>, method: &str, request: &RangeRequest) -> ResponseFuture {
    let call = http::Request::post(format!("http://localhost/etcdserverpb.KV/{method}"));
    let call = call.header("content-type", "application/grpc").body(()).expect("a request");
    poll_fn(|context| client.poll_ready(context)).await.expect("a connection that is open");
    let (answer, mut stream) = client.send_request(call, false).expect("a stream");
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(request.encoded_len() as u32);
    request.encode(&mut frame).expect("a buffer grows");
    stream.send_data(frame.freeze(), true).expect("an open stream");
    answer
}

/// An open call with explicit reads.
struct Call {
    body: h2::RecvStream,
}

impl Call {
    async fn begin(member: &Member, request: &RangeRequest) -> Call {
        Call::begin_method(member, "Range", request).await
    }

    async fn begin_method(member: &Member, method: &str, request: &RangeRequest) -> Call {
        let mut client = connection(member, [127, 0, 0, 1]).await;
        let answer = ask(&mut client, method, request).await;
        let answer = timeout(PATIENCE, answer).await.expect("in time").expect("headers");
        assert_eq!(answer.headers().get("grpc-status"), None, "an answer, not a status");
        Call { body: answer.into_body() }
    }

    /// Returns the next bytes; `None` after the last.
    async fn data(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let data = timeout(PATIENCE, self.body.data()).await.expect("the server goes on");
        if let Some(Ok(data)) = &data {
            self.body.flow_control().release_capacity(data.len()).expect("an open stream");
        }
        data
    }

    /// Reads the message to its last byte. Returns it without its prefix.
    async fn message(mut self) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(data) = self.data().await {
            read.extend_from_slice(&data.expect("a whole answer"));
        }
        let trailers = self.body.trailers().await.expect("an orderly end").expect("trailers");
        assert_eq!(trailers.get("grpc-status").expect("a status"), "0");
        assert_eq!(read[..5], [&[0][..], &((read.len() - 5) as u32).to_be_bytes()].concat());
        read.split_off(5)
    }
}

#[tokio::test]
async fn a_large_range_is_byte_for_byte_what_small_ones_give() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let newest = fill(member).await;
    for (revision, limit) in [(0, 0), (newest - 10, 0), (newest, 40), (0, 1000)] {
        let mut wanted = in_pieces(member, revision).await;
        assert_eq!(wanted.count, KEYS as i64);
        wanted.more = limit > 0 && limit < wanted.kvs.len();
        wanted.kvs.truncate(if limit > 0 { limit } else { KEYS });
        for serializable in [false, true] {
            let request = RangeRequest { revision, limit: limit as i64, serializable, ..everything() };
            let message = Call::begin(member, &request).await.message().await;
            assert!(message == wanted.encode_to_vec(), "revision {revision}, limit {limit}");
        }
    }
}

/// Small records lower the mean size from which the server estimates whether a response fits in memory.
#[tokio::test]
async fn a_page_that_proves_too_large_to_be_held_is_sent_as_a_large_range() {
    const MORE: usize = 30;
    const SMALL: usize = 512;
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    for number in 0..SMALL {
        member.put(&format!("small{number:03}"), "").await;
    }
    fill(member).await;
    let value = "v".repeat(VALUE_BYTES);
    for number in 0..MORE {
        member.put(&format!("l{number:03}"), &value).await;
    }
    let page = RangeRequest { limit: (KEYS + MORE) as i64, ..everything() };
    let mut wanted = in_pieces(member, 0).await;
    assert_eq!(wanted.count, (KEYS + MORE + SMALL) as i64);
    wanted.more = true;
    wanted.kvs.truncate(KEYS + MORE);
    let revision = wanted.header.as_ref().expect("every answer has a header").revision;
    for (serializable, revision) in [(false, 0), (true, 0), (false, revision)] {
        let request = RangeRequest { serializable, revision, ..page.clone() };
        let message = Call::begin(member, &request).await.message().await;
        assert!(message == wanted.encode_to_vec(), "serializable {serializable}, revision {revision}");
    }
    // These responses are built in memory.
    let descending = RangeRequest { sort_order: SortOrder::Descend as i32, ..everything() };
    let filtered = RangeRequest { min_mod_revision: 1, ..page };
    let mut kv = member.kv().await;
    for request in [descending, filtered] {
        let refused = kv.range(request).await.map(drop).expect_err("more than one answer may hold");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("(134217728 bytes)"), "{refused}");
    }
}

#[tokio::test]
async fn what_happens_while_it_is_sent_does_not_show() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let newest = fill(member).await;
    let wanted = in_pieces(member, newest).await.encode_to_vec();
    let mut call = Call::begin(member, &everything()).await;
    let first = call.data().await.expect("a beginning").expect("of an answer");
    for number in 0..KEYS {
        member.put(&key(number), "another").await;
    }
    let request = CompactionRequest { revision: newest + KEYS as i64, physical: true };
    member.kv().await.compact(request).await.expect("a revision that is there");
    let mut read = first.to_vec();
    while let Some(data) = call.data().await {
        read.extend_from_slice(&data.expect("a whole answer"));
    }
    assert!(read[5..] == wanted, "the answer of the moment when it was asked for");
}

#[tokio::test]
async fn clients_that_go_away_or_do_not_read_leave_room_for_others() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    fill(member).await;
    let began = Instant::now();
    // Some clients read a little and disconnect; some stay and do not read. More of each than the limit.
    for _ in 0..2 * TURNS {
        let mut call = Call::begin(member, &everything()).await;
        call.data().await.expect("a beginning").expect("of an answer");
    }
    let silent = try_join_all(
        (0..2 * TURNS)
            .map(async |_| Ok::<_, std::convert::Infallible>(Call::begin(member, &everything()).await)),
    );
    let silent = silent.await.expect("never fails");
    // The timeout exceeds the time slots of the clients that do not read.
    let all = try_join_all((0..TURNS).map(async |_| {
        let call = Call::begin(member, &everything()).await;
        timeout(Duration::from_secs(120), call.message()).await
    }));
    for message in all.await.expect("in time") {
        assert_eq!(RangeResponse::decode(&message[..]).expect("a message").kvs.len(), KEYS);
    }
    // A client that resumes reading receives the complete response. After a minute, its call is reset.
    for call in silent {
        if began.elapsed() < UNREAD_MAX {
            let message = call.message().await;
            assert_eq!(RangeResponse::decode(&message[..]).expect("a message").kvs.len(), KEYS);
        }
    }
}

/// Unread chunks use the per-address share of the response memory.
#[tokio::test]
async fn a_range_does_not_wait_for_streams_that_another_address_does_not_read() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    fill(member).await;
    let twenty = RangeRequest { range_end: "k020".into(), ..everything() };
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut client = connection(member, [127, 0, 0, 2]).await;
        for _ in 0..25 {
            silent.push(ask(&mut client, "RangeStream", &everything()).await);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while metric(member, "kv_server_reads_waiting") < 150.0 {
        assert!(Instant::now() < deadline, "most streams wait for what the others hold");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let call = Call::begin(member, &twenty).await;
    let message = timeout(Duration::from_secs(5), call.message()).await.expect("in time");
    assert_eq!(RangeResponse::decode(&message[..]).expect("a message").kvs.len(), 20);
}

/// The number of keys per chunk follows from the bytes of the previous chunk: the fourth would have 80 MiB.
#[tokio::test]
async fn a_stream_gives_large_values_after_small_ones() {
    const SMALL: usize = 70;
    const LARGE: usize = 80;
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let value = "v".repeat(VALUE_BYTES);
    let keys: Vec<_> = (0..SMALL + LARGE).map(|number| format!("k{number:03}")).collect();
    for (number, key) in keys.iter().enumerate() {
        member.put(key, if number < SMALL { "" } else { &value }).await;
    }
    let stream = member.kv().await.range_stream(everything()).await.expect("a healthy member answers");
    let (mut stream, mut read, mut last) = (stream.into_inner(), Vec::new(), None);
    while let Some(chunk) = stream.message().await.expect("a whole answer") {
        let chunk = chunk.range_response.expect("a chunk");
        assert!(chunk.encoded_len() < 13 << 20, "{} keys", chunk.kvs.len());
        read.extend(chunk.kvs.iter().map(|kv| kv.key.clone()));
        last = Some((chunk.header.is_some(), chunk.count, chunk.more));
    }
    assert_eq!(last, Some((true, keys.len() as i64, false)));
    assert!(read == keys, "each key once");
}

/// An unread chunk holds only its encoded form, and the remainder after the last chunk needs no memory.
#[tokio::test]
async fn a_stream_holds_its_chunk_alone_and_ends_with_its_last_chunk() {
    const CALLS: usize = 20;
    const CHUNK: usize = 10;
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let value = "v".repeat(140_000);
    for number in 0..2 * CHUNK {
        member.put(&format!("k{number:02}"), &value).await;
    }
    let first = RangeRequest { range_end: "k10".into(), ..everything() };
    let calls = (0..CALLS).map(async |_| Call::begin_method(member, "RangeStream", &first).await);
    let calls = join_all(calls).await;
    // While a chunk is encoded, its pairs are held as well.
    let deadline = Instant::now() + PATIENCE;
    while metric(member, "kv_server_answer_bytes") as usize >= CALLS * (CHUNK + 1) * value.len() {
        assert!(Instant::now() < deadline, "{} bytes", metric(member, "kv_server_answer_bytes"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Use up the per-address memory.
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut client = connection(member, [127, 0, 0, 1]).await;
        for _ in 0..25 {
            silent.push(ask(&mut client, "RangeStream", &everything()).await);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while metric(member, "kv_server_answer_bytes") < 90e6 || metric(member, "kv_server_reads_waiting") < 20.0
    {
        assert!(Instant::now() < deadline, "the others hold what one address may");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for call in calls {
        call.message().await;
    }
}

#[tokio::test]
#[ignore = "takes more than a minute"]
async fn a_client_that_never_reads_is_reset_after_a_minute() {
    let mut cluster = Cluster::new(1);
    if let Ok(program) = std::env::var("KV_SERVER_UNDER_TEST") {
        cluster.members[0].program = vec![program]; // An older version is measured for comparison.
    }
    cluster.start();
    let member = &cluster.members[0];
    fill(member).await;
    let mut call = Call::begin(member, &everything()).await;
    let ended = timeout(Duration::from_secs(90), async {
        loop {
            // Read from the socket without releasing window capacity.
            match call.body.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => panic!("an orderly end without a window"),
            }
        }
    });
    let error = ended.await.expect("the call is reset");
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
}

/// Up to half a gigabyte of deleted files remains open for readers.
#[tokio::test]
#[ignore = "writes a gigabyte"]
async fn who_keeps_deleted_files_open_is_reset_and_the_next_reader_is_not() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut readers: Vec<Call> = Vec::new();
    let mut lost = None;
    for round in 0..20 {
        let mut revision = 0;
        let mut kv = member.kv().await;
        for number in 0..KEYS {
            // Incompressible.
            let mut state = (round * KEYS + number) as u64 + 1;
            let noise = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b' ' + (state >> 33) as u8 % 94)
            });
            let value: String = noise.take(VALUE_BYTES).collect();
            let answer = kv.put(put(&key(number), &value)).await.expect("a healthy member takes a put");
            revision = answer.into_inner().header.expect("every answer has a header").revision;
        }
        kv.compact(CompactionRequest { revision, physical: true }).await.expect("a revision that is there");
        // More than the 64 KiB that keep a call alive.
        for (number, reader) in readers.iter_mut().enumerate() {
            for _ in 0..8 {
                let data = reader.data().await.expect("no orderly end");
                lost = lost.or(data.err().map(|error| (number, error)));
            }
        }
        readers.push(Call::begin(member, &everything()).await);
        if lost.is_some() {
            break;
        }
    }
    let newest = readers.pop().expect("a reader that has taken nothing yet");
    // Resets occur oldest first, but a reader may first receive data that was already buffered.
    let (number, shown) = lost.map_or((1, None), |(number, error)| (number, Some(error)));
    let mut resets = Vec::from_iter(shown);
    for reader in &mut readers[..number] {
        resets.push(loop {
            if let Err(error) = reader.data().await.expect("no orderly end") {
                break error;
            }
        });
    }
    let reasons: Vec<_> = resets.iter().map(h2::Error::reason).collect();
    assert_eq!(reasons, vec![Some(h2::Reason::ENHANCE_YOUR_CALM); reasons.len()]);
    let message = newest.message().await;
    assert_eq!(RangeResponse::decode(&message[..]).expect("a message").kvs.len(), KEYS);
}

#[tokio::test]
async fn inside_a_transaction_a_range_of_any_size_is_one_answer() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    fill(member).await;
    let ranges = RequestOp { request: Some(Op::RequestRange(everything())) };
    let request = TxnRequest { success: vec![ranges], ..TxnRequest::default() };
    let mut kv = member.kv().await;
    let answer = kv.txn(request).await.expect("a healthy member answers").into_inner();
    let Some(api::etcdserverpb::response_op::Response::ResponseRange(range)) = &answer.responses[0].response
    else {
        panic!("a range is answered with a range");
    };
    assert_eq!(range.kvs.len(), KEYS);
}
