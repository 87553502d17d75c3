//! Streams of a client that is idle, slow, gone or wrong.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use admission::{Holder, Places};
use api::grpc::PREFIX_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::body::Body;

use super::*;
use crate::http2::{Answer, BegunCall, CallHandler, ConnectionLimits, Room, SendNow, Services, serve};

const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Sends each request back. `/flood` sends without end what one request holds.
#[derive(Clone)]
struct EchoStreams(mpsc::UnboundedSender<String>);

impl CallHandler for EchoStreams {
    type Call = String;
    type Long = Infallible;

    fn of(&self, _connection: &auth::Connection, _holder: &Arc<Holder>) -> EchoStreams {
        self.clone()
    }

    fn begin(
        &self,
        path: &str,
        _headers: &HeaderMap,
        _timeout: Option<&[u8]>,
    ) -> Result<BegunCall<String>, Status> {
        Ok(BegunCall::Stream(path.to_owned()))
    }

    fn deadline(_call: &String) -> Option<Instant> {
        None
    }

    fn user(_call: &String) -> Option<u64> {
        None
    }

    fn answer_now(&self, _call: &String, _message: &Bytes, _send: &mut SendNow<'_>) -> bool {
        false
    }

    async fn unary(&self, call: String, _: Bytes, _: Room<'_>) -> Result<Answer<Infallible>, Status> {
        unreachable!("{call} is a stream")
    }

    async fn stream(&self, call: String, mut requests: Requests, mut replies: Replies) -> Status {
        let _ends = StreamEnds(self.0.clone());
        if call == "/one" {
            return self.one(requests, replies).await;
        }
        while let Some(request) = requests.next().await {
            let request = match request {
                Ok(request) => request,
                Err(status) => return status,
            };
            loop {
                self.0.send(format!("message of {}", request.len())).unwrap();
                if replies.send(request.clone()).await.is_err() {
                    return Status::cancelled("gone");
                }
                if call != "/flood" {
                    break;
                }
            }
        }
        self.0.send("half-closed".to_owned()).unwrap();
        std::future::pending().await
    }
}

impl EchoStreams {
    /// Sends the single request back, as a response that holds memory.
    async fn one(&self, mut requests: Requests, mut replies: Replies) -> Status {
        let request = match requests.only().await {
            Ok(request) => request,
            Err(status) => return status,
        };
        let frame = message(request.len());
        let sent = tokio::select! {
            biased;
            status = requests.excess() => return status,
            sent = replies.send_in_time(frame) => sent,
        };
        self.0.send(format!("sent: {}", sent.is_ok())).unwrap();
        tokio::select! {
            status = requests.excess() => status,
            () = std::future::pending() => unreachable!("it never completes"),
        }
    }
}

struct StreamEnds(mpsc::UnboundedSender<String>);

impl Drop for StreamEnds {
    fn drop(&mut self) {
        let _test_has_ended = self.0.send("ended".to_owned());
    }
}

struct StreamBench {
    client: SendRequest<Bytes>,
    events: mpsc::UnboundedReceiver<String>,
    stop: watch::Sender<bool>,
    holder: Arc<Holder>,
}

impl StreamBench {
    async fn new() -> StreamBench {
        let (ours, theirs) = duplex(1 << 20);
        let (done, events) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let holder = Holder::new();
        tokio::spawn(serve_echo(ours, EchoStreams(done), Arc::clone(&holder), stopped));
        // For small answers that wait here.
        let mut client = h2::client::Builder::new();
        let client = client.data_frame_budget(64 << 20).handshake(theirs);
        let (client, connection) = client.await.unwrap();
        tokio::spawn(connection);
        StreamBench { client, events, stop, holder }
    }

    async fn open(&self, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
        let kind = if path == "/plain" { "application/json" } else { "application/grpc" };
        let request = Request::post(format!("http://localhost{path}")).header("content-type", kind);
        let request = request.body(()).unwrap();
        self.client.clone().ready().await.unwrap().send_request(request, false).unwrap()
    }

    async fn event(&mut self) -> String {
        timeout(Duration::from_secs(3600), self.events.recv()).await.expect("an event").unwrap()
    }
}

async fn serve_echo(
    io: DuplexStream,
    streams: EchoStreams,
    holder: Arc<Holder>,
    stop: watch::Receiver<bool>,
) {
    let limits = ConnectionLimits::for_tests(MESSAGE_BYTES_MAX);
    // Sends the request's body back.
    let http = tower::service_fn(|request: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    serve(io, Services { calls: streams, http }, limits, Arc::default(), holder, stop).await;
}

fn message(bytes: usize) -> Bytes {
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(bytes).unwrap());
    message.put_bytes(7, bytes);
    message.freeze()
}

/// Reads until there are `wanted` bytes.
async fn read(body: &mut RecvStream, wanted: usize) -> Bytes {
    let mut read = BytesMut::new();
    while read.len() < wanted {
        let data = body.data().await.expect("more data").expect("an open stream");
        body.flow_control().release_capacity(data.len()).unwrap();
        read.extend_from_slice(&data);
    }
    read.freeze()
}

/// Status and text of a call that has ended.
async fn end(response: ResponseFuture) -> (String, String) {
    let response = response.await.unwrap();
    let mut headers = response.headers().clone();
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    headers.extend(body.trailers().await.unwrap().unwrap_or_default());
    let text = |name| headers.get(name).map_or("", |value| value.to_str().unwrap()).replace("%20", " ");
    (text("grpc-status"), text("grpc-message"))
}

#[tokio::test(start_paused = true)]
async fn a_stream_stays_open_while_it_is_idle_and_after_its_requests_have_ended() {
    for path in ["/echo", "/plain"] {
        let mut bench = StreamBench::new().await;
        let (response, mut requests) = bench.open(path).await;
        requests.send_data(message(10), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(read(&mut body, 15).await, message(10), "{path}");
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        requests.send_data(message(20), true).unwrap();
        assert_eq!(read(&mut body, 25).await, message(20), "{path}");
        if path == "/echo" {
            let events = [bench.event().await, bench.event().await, bench.event().await];
            assert_eq!(events, ["message of 15", "message of 25", "half-closed"]);
            assert!(timeout(Duration::from_secs(3600), body.data()).await.is_err(), "it goes on");
            assert!(bench.events.try_recv().is_err(), "it goes on");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_displaced_connection_ends_with_its_calls() {
    let mut bench = StreamBench::new().await;
    let places = Places::new(1);
    let _place = places.take(1, &bench.holder).unwrap();
    let (response, mut requests) = bench.open("/echo").await;
    requests.send_data(message(10), false).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(read(&mut body, 15).await, message(10));
    assert!(places.take(2, &Holder::new()).is_some(), "its services have not kept it");
    // Until the connection has ended.
    while bench.events.recv().await.is_some() {}
}

#[tokio::test]
async fn messages_are_cut_at_their_borders_however_they_arrive() {
    for parts in [1, 2, 3, 7, 1000] {
        let mut bench = StreamBench::new().await;
        let (response, mut requests) = bench.open("/echo").await;
        let sizes = [0, 1, 100, 0, 40_000, 3];
        let bytes: Vec<u8> = sizes.iter().flat_map(|size| message(*size)).collect();
        for part in bytes.chunks(bytes.len().div_ceil(parts)) {
            requests.send_data(Bytes::copy_from_slice(part), false).unwrap();
        }
        let mut body = response.await.unwrap().into_body();
        assert_eq!(read(&mut body, bytes.len()).await, bytes);
        for size in sizes {
            assert_eq!(bench.event().await, format!("message of {}", PREFIX_BYTES + size), "{parts} parts");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_message_ends_the_call_in_the_words_of_grpc_go() {
    let large = [&[0][..], &(MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes()].concat();
    let large_and_compressed = [&[1][..], &large[1..]].concat();
    let too_large =
        format!("grpc: received message larger than max ({} vs. {MESSAGE_BYTES_MAX})", (1 << 20) + 1);
    let cases = [
        (large, "8", too_large.clone()),
        (large_and_compressed, "8", too_large),
        (vec![2, 0, 0, 0, 0], "13", "grpc: received unexpected payload format 2".to_owned()),
        (vec![1, 0, 0, 0, 0], "13", "grpc: compressed flag set with identity or empty encoding".to_owned()),
    ];
    for (bytes, code, text) in cases {
        let bench = StreamBench::new().await;
        let (response, mut requests) = bench.open("/echo").await;
        requests.send_data(message(3), false).unwrap();
        requests.send_data(bytes.into(), false).unwrap();
        assert_eq!(end(response).await, (code.to_owned(), text));
    }
    let bench = StreamBench::new().await;
    let (response, mut requests) = bench.open("/echo").await;
    requests.send_data(message(100).slice(..50), true).unwrap();
    assert_eq!(end(response).await, ("13".to_owned(), "unexpected EOF".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_has_begun_has_to_arrive_in_its_time() {
    let bench = StreamBench::new().await;
    let (response, mut requests) = bench.open("/echo").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let began = Instant::now();
    requests.send_data(message(100).slice(..50), false).unwrap();
    assert_eq!(end(response).await.0, "4");
    assert_eq!(began.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_costs_what_its_window_holds() {
    let mut bench = StreamBench::new().await;
    let (response, mut requests) = bench.open("/flood").await;
    requests.send_data(message(10_000), false).unwrap();
    let mut sent = 0;
    while timeout(Duration::from_secs(3600), bench.events.recv()).await.is_ok() {
        sent += 10_000;
    }
    assert!(sent < 100_000, "{sent} bytes were made for a window of 65535");
    let mut body = response.await.unwrap().into_body();
    read(&mut body, 1_000_000).await;
}

#[tokio::test(start_paused = true)]
async fn requests_wait_while_the_client_does_not_read_and_none_is_lost() {
    const REQUESTS: usize = 60_000;
    let bench = StreamBench::new().await;
    let (response, mut requests) = bench.open("/echo").await;
    for _ in 0..REQUESTS {
        requests.send_data(message(10), false).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let mut body = response.await.unwrap().into_body();
    let answers = read(&mut body, REQUESTS * 15).await;
    assert!(answers == message(10).repeat(REQUESTS));
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_the_call_whatever_it_waits_for() {
    for (path, half_closes) in [("/echo", false), ("/echo", true), ("/flood", false)] {
        let mut bench = StreamBench::new().await;
        let (_response, mut requests) = bench.open(path).await;
        requests.send_data(message(10_000), half_closes).unwrap();
        while timeout(Duration::from_secs(1), bench.events.recv()).await.is_ok() {}
        requests.send_reset(h2::Reason::CANCEL);
        assert_eq!(bench.event().await, "ended", "{path}, half-closed: {half_closes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_streams_at_once() {
    for path in ["/echo", "/plain"] {
        let bench = StreamBench::new().await;
        let (response, mut requests) = bench.open(path).await;
        requests.send_data(message(10), false).unwrap();
        let response = response.await.unwrap();
        let mut body = response.into_body();
        read(&mut body, 15).await;
        bench.stop.send(true).unwrap();
        assert!(body.data().await.is_none(), "{path}");
        let trailers = body.trailers().await.unwrap().expect("a status");
        assert_eq!(trailers["grpc-status"], "14", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_one_request_takes_one_that_comes_in_time() {
    for (bytes, ends, code, seconds) in [
        (Bytes::new(), true, "13", 0),
        (Bytes::new(), false, "4", 60),
        (message(10).slice(..7), true, "13", 0),
        (message(10).slice(..7), false, "4", 60),
        ([message(10), message(0)].concat().into(), false, "13", 0),
    ] {
        let bench = StreamBench::new().await;
        let (response, mut requests) = bench.open("/one").await;
        requests.send_data(bytes.clone(), ends).unwrap();
        let began = Instant::now();
        assert_eq!((end(response).await.0.as_str(), began.elapsed().as_secs()), (code, seconds), "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_a_response_with_memory_is_given_up() {
    for takes in [true, false] {
        let mut bench = StreamBench::new().await;
        let (response, mut requests) = bench.open("/one").await;
        requests.send_data(message(100_000), true).unwrap();
        let began = Instant::now();
        let mut body = response.await.unwrap().into_body();
        if takes {
            read(&mut body, 100_005).await;
        }
        // A client that takes none of its responses may lose its connection first.
        assert_eq!(bench.event().await == "sent: true", takes);
        assert_eq!(began.elapsed().as_secs() >= 60, !takes);
    }
}
