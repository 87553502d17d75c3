//! Calls of a client that does not take its answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use admission::Holder;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tonic::body::Body;

use super::*;
use crate::http2::{
    BegunCall, CallerTotals, ConnectionLimits, Replies, Requests, Room, SendNow, Services, serve,
};

/// Two answers of it are below the bound of a connection, twelve above.
const LARGE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy)]
enum TestMethod {
    /// Waits for room, and answers with `LARGE_BYTES`.
    Large,
    /// Waits for the signal, and says that it goes on.
    Holds,
    /// Waits for the signal, then for room, and says that it goes on.
    Reads,
    /// Is answered at once if it can be, and says so.
    Now,
    /// Is answered with a header field.
    Metadata,
}

/// Methods that say on a channel what they have done.
#[derive(Clone)]
struct ScriptedMethods {
    signal: Arc<Semaphore>,
    done: mpsc::UnboundedSender<&'static str>,
}

impl CallHandler for ScriptedMethods {
    type Call = TestMethod;
    type Long = Infallible;

    fn of(&self, _connection: &auth::Connection, _holder: &Arc<Holder>) -> ScriptedMethods {
        self.clone()
    }

    fn begin(
        &self,
        path: &str,
        _headers: &HeaderMap,
        _timeout: Option<&[u8]>,
    ) -> Result<BegunCall<TestMethod>, Status> {
        Ok(BegunCall::Unary(match path {
            "/large" => TestMethod::Large,
            "/holds" => TestMethod::Holds,
            "/now" => TestMethod::Now,
            "/reads" => TestMethod::Reads,
            "/metadata" => TestMethod::Metadata,
            _ => return Err(Status::unimplemented("no method")),
        }))
    }

    fn user(_call: &TestMethod) -> Option<u64> {
        None
    }

    fn deadline(call: &TestMethod) -> Option<Instant> {
        matches!(call, TestMethod::Holds).then(|| Instant::now() + Duration::from_secs(2))
    }

    fn answer_now(&self, call: &TestMethod, _: &Bytes, send: &mut SendNow<'_>) -> bool {
        let is_answered = matches!(call, TestMethod::Now) && send(&NOW);
        if is_answered {
            self.done.send("now").unwrap();
        }
        is_answered
    }

    async fn stream(&self, method: TestMethod, _requests: Requests, _replies: Replies) -> Status {
        unreachable!("{:?} is unary", std::mem::discriminant(&method))
    }

    async fn unary(
        &self,
        method: TestMethod,
        _message: Bytes,
        room: Room<'_>,
    ) -> Result<Answer<Infallible>, Status> {
        let done = match method {
            TestMethod::Metadata => {
                let field = ("name", "value");
                let metadata = HeaderMap::from_iter([(field.0.parse().unwrap(), field.1.parse().unwrap())]);
                return Ok(Answer::WithMetadata(Box::new(metadata), Bytes::from_static(&NOW)));
            }
            TestMethod::Large => {
                room.wait().await;
                self.done.send("large").unwrap();
                return Ok(Answer::Whole(vec![0; LARGE_BYTES].into()));
            }
            TestMethod::Holds => {
                let ends = CallEnds(self.done.clone());
                self.signal.acquire().await.unwrap().forget();
                self.done.send("held").unwrap();
                drop(ends);
                return Ok(Answer::Whole(Bytes::from_static(&[0; PREFIX_BYTES])));
            }
            TestMethod::Now => {
                self.done.send("called").unwrap();
                return Ok(Answer::Whole(Bytes::from_static(&NOW)));
            }
            TestMethod::Reads => {
                self.signal.acquire().await.unwrap().forget();
                room.wait().await;
                "read"
            }
        };
        self.done.send(done).unwrap();
        Ok(Answer::Whole(Bytes::from_static(&[0; PREFIX_BYTES])))
    }
}

/// An answer of one byte.
const NOW: [u8; PREFIX_BYTES + 1] = [0, 0, 0, 0, 1, 7];

/// Says that a call has ended, by its answer or by a reset.
struct CallEnds(mpsc::UnboundedSender<&'static str>);

impl Drop for CallEnds {
    fn drop(&mut self) {
        let _test_has_ended = self.0.send("ended");
    }
}

async fn serve_scripted(io: DuplexStream, hot: ScriptedMethods, totals: Arc<CallerTotals>) {
    let (_stops, stop) = watch::channel(false);
    serve_until(stop, io, hot, totals).await;
}

async fn serve_until(
    stop: watch::Receiver<bool>,
    io: DuplexStream,
    hot: ScriptedMethods,
    totals: Arc<CallerTotals>,
) {
    let limits = ConnectionLimits::for_tests(1 << 20);
    let done = hot.done.clone();
    let http = tower::service_fn(move |request| plain(request, done.clone()));
    serve(io, Services { calls: hot, http }, limits, totals, Holder::new(), stop).await;
}

/// Reads the request to its end, or to an error, but for one, and says so.
async fn plain(
    mut request: Request<Body>,
    done: mpsc::UnboundedSender<&'static str>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let frame = |body: &mut Body, context: &mut Context<'_>| Pin::new(body).poll_frame(context);
    let reads = path != "/unread";
    while reads && let Some(read) = poll_fn(|context| frame(request.body_mut(), context)).await {
        let _test_has_ended = done.send(if read.is_ok() { "read" } else { "refused" });
        if read.is_err() {
            break;
        }
    }
    let made = MadeBody { ends: CallEnds(done), is_made: false };
    Ok(Response::new(if path == "/made" { Body::new(made) } else { Body::empty() }))
}

/// A body of `LARGE_BYTES`, which says when it is made.
struct MadeBody {
    ends: CallEnds,
    is_made: bool,
}

impl http_body::Body for MadeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        if std::mem::replace(&mut self.is_made, true) {
            return Poll::Ready(None);
        }
        self.ends.0.send("made").unwrap();
        Poll::Ready(Some(Ok(http_body::Frame::data(vec![0; LARGE_BYTES].into()))))
    }
}

/// A client of a connection that serves [`Scripted`].
struct TestClient {
    requests: SendRequest<Bytes>,
    pings: PingPong,
    /// Lets one call go on with each permit.
    signal: Arc<Semaphore>,
    events: mpsc::UnboundedReceiver<&'static str>,
}

impl TestClient {
    /// `totals` counts what other connections hold as well.
    async fn new(totals: Arc<CallerTotals>) -> TestClient {
        let (ours, theirs) = duplex(1 << 20);
        let (signal, (done, events)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
        let hot = ScriptedMethods { signal: Arc::clone(&signal), done };
        tokio::spawn(serve_scripted(ours, hot, totals));
        let (requests, mut connection) = h2::client::handshake(theirs).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        tokio::spawn(connection);
        TestClient { requests, pings, signal, events }
    }

    /// Sends the headers of a request.
    async fn call(&self, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
        self.request(path, "application/grpc").await
    }

    async fn request(&self, path: &str, content_type: &str) -> (ResponseFuture, SendStream<Bytes>) {
        let request = Request::post(format!("http://localhost{path}")).header("content-type", content_type);
        let request = request.body(()).unwrap();
        self.requests.clone().ready().await.unwrap().send_request(request, false).unwrap()
    }

    /// Sends a whole request with an empty message.
    async fn send(&self, path: &str) -> ResponseFuture {
        let (response, mut body) = self.call(path).await;
        body.send_data(Bytes::from_static(&[0; PREFIX_BYTES]), true).unwrap();
        response
    }

    /// Sends a whole request that is no gRPC call, with an empty body.
    async fn ask(&self, path: &str) -> ResponseFuture {
        let (response, mut body) = self.request(path, "application/json").await;
        body.send_data(Bytes::new(), true).unwrap();
        response
    }

    /// The connection's task has had its turn when it answers a ping.
    async fn ping(&mut self) {
        self.pings.ping(Ping::opaque()).await.unwrap();
    }

    /// The next event, if there is one within ten seconds.
    async fn event(&mut self) -> Option<&'static str> {
        timeout(Duration::from_secs(10), self.events.recv()).await.ok().flatten()
    }
}

#[tokio::test]
async fn a_call_whose_headers_exceed_their_bound_is_rejected() {
    for (bytes, is_served) in [(48 << 10, true), (80 << 10, false)] {
        let client = TestClient::new(Arc::default()).await;
        let request = Request::post("http://localhost/now").header("content-type", "application/grpc");
        let request = request.header("field", "v".repeat(bytes)).body(()).unwrap();
        let (response, mut body) =
            client.requests.clone().ready().await.unwrap().send_request(request, false).unwrap();
        drop(body.send_data(Bytes::from_static(&[0; PREFIX_BYTES]), true));
        let response = timeout(Duration::from_secs(60), response).await.expect("a response or an error");
        let is_ok = |status: Option<&HeaderValue>| status.is_none_or(|status| status == "0");
        let got = response
            .is_ok_and(|response| response.status() == 200 && is_ok(response.headers().get("grpc-status")));
        assert_eq!(got, is_served, "{bytes} bytes");
    }
}

#[tokio::test]
async fn a_call_goes_on_while_its_client_takes_no_answers_and_a_read_waits_for_room() {
    let mut client = TestClient::new(Arc::default()).await;
    let mut calls = vec![client.send("/reads").await, client.send("/holds").await];
    for _ in 0..12 {
        calls.push(client.send("/large").await);
    }
    for _ in 0..9 {
        assert_eq!(client.event().await, Some("large"), "up to the bound of a connection");
    }
    client.signal.add_permits(2);
    assert_eq!(client.event().await, Some("held"), "a call stands still, with what it holds");
    assert_eq!(client.event().await, Some("ended"));
    client.ping().await;
    let next = client.events.try_recv();
    assert!(next.is_err(), "a read was made with nothing taken: {next:?}");
    calls.push(client.send("/now").await);
    assert_eq!(client.event().await, Some("called"), "a call that makes no large answer does not wait");

    // The client takes its answers.
    let (mut large, mut read) = (0, 0);
    for call in calls {
        tokio::spawn(async move {
            let mut body = call.await.unwrap().into_body();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
            }
        });
    }
    while (large, read) != (3, 1) {
        match client.event().await {
            Some("large") => large += 1,
            Some("read") => read += 1,
            other => panic!("{other:?} after {large} large answers and {read} reads"),
        }
    }
}

#[tokio::test]
async fn a_response_without_grpc_is_made_when_its_client_has_taken_those_before() {
    let mut client = TestClient::new(Arc::default()).await;
    let mut requests = Vec::new();
    for _ in 0..12 {
        requests.push(client.ask("/made").await);
    }
    for _ in 0..9 {
        assert_eq!(client.event().await, Some("made"), "up to the bound of a connection");
    }
    client.ping().await;
    assert!(client.events.try_recv().is_err(), "a response was made with nothing taken");
    let (waiting, mut body) = client.request("/made", "application/json").await;
    body.send_data(Bytes::new(), true).unwrap();
    client.ping().await;
    body.send_reset(Reason::CANCEL);
    assert_eq!(client.event().await, Some("ended"), "a request whose client has gone waits on");
    drop(waiting);

    let mut more = Vec::new();
    for _ in requests.len()..64 {
        more.push(client.ask("/made").await);
    }
    client.ping().await;
    requests.push(client.send("/now").await);
    client.ping().await;
    assert!(client.events.try_recv().is_err(), "all requests are requests of the connection");
    drop(more);

    // The client takes its responses.
    let taken = requests.into_iter().map(|request| async {
        let mut body = request.await.unwrap().into_body();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data.unwrap().len()).unwrap();
        }
    });
    let taken = timeout(Duration::from_secs(60), futures_util::future::join_all(taken)).await;
    taken.expect("what waited is made");
}

#[tokio::test]
async fn metadata_of_a_response_is_sent_in_its_headers() {
    let client = TestClient::new(Arc::default()).await;
    let response = client.send("/metadata").await.await.unwrap();
    assert_eq!((&response.headers()["name"], response.status().as_u16()), (&"value".parse().unwrap(), 200));
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let mut body = response.into_body();
    assert_eq!(body.data().await.unwrap().unwrap()[..], NOW);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_rejected_call_has_its_status_before_its_message() {
    let client = TestClient::new(Arc::default()).await;
    let (response, _body) = client.call("/other").await;
    let response = timeout(Duration::from_secs(10), response).await.unwrap().unwrap();
    assert_eq!(response.headers()["grpc-status"], "12");
    let request = Request::put("http://localhost/now").header("content-type", "application/grpc");
    let request = request.body(()).unwrap();
    let (response, _) = client.requests.clone().ready().await.unwrap().send_request(request, true).unwrap();
    let response = timeout(Duration::from_secs(10), response).await.unwrap().unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (405, &"13".parse().unwrap())
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_of_grpc_goes_on_as_long_as_its_client_does() {
    let mut client = TestClient::new(Arc::default()).await;
    let (response, mut body) = client.request("/read", "application/json").await;
    for _ in 0..6 {
        tokio::time::advance(Duration::from_secs(20)).await;
        body.send_data(Bytes::from_static(b"{}"), false).unwrap();
        assert_eq!(client.event().await, Some("read"));
    }
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_call_is_answered_at_once_if_its_message_is_whole_and_its_client_takes_the_answer() {
    let mut client = TestClient::new(Arc::default()).await;
    let answer = async |response: ResponseFuture| {
        let mut body = response.await.unwrap().into_body();
        let data = body.data().await.unwrap().unwrap();
        assert_eq!(data[..], NOW);
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    };
    let (response, mut body) = client.call("/now").await;
    client.ping().await;
    assert!(client.events.try_recv().is_err(), "its message has not come");
    body.send_data(Bytes::from_static(&[0; PREFIX_BYTES]), true).unwrap();
    assert_eq!(client.event().await, Some("called"));
    answer(response).await;
    answer(client.send("/now").await).await;
    assert_eq!(client.event().await, Some("now"));
    // Its client has taken nothing of an answer that fills the window of the connection.
    let large = client.send("/large").await;
    assert_eq!(client.event().await, Some("large"));
    let response = client.send("/now").await;
    assert_eq!(client.event().await, Some("called"));
    let mut body = large.await.unwrap().into_body();
    tokio::spawn(async move {
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
        }
    });
    answer(response).await;
}

#[tokio::test]
async fn a_waiting_call_ends_when_its_client_resets_it() {
    let mut client = TestClient::new(Arc::default()).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        let (response, mut body) = client.call("/holds").await;
        body.send_data(Bytes::from_static(&[0; PREFIX_BYTES]), true).unwrap();
        calls.push((response, body));
    }
    client.ping().await;
    for _ in 0..2 {
        let (_response, mut body) = calls.remove(1);
        body.send_reset(h2::Reason::CANCEL);
        assert_eq!(client.event().await, Some("ended"), "a call whose client has gone goes on");
        assert!(client.events.try_recv().is_err(), "another call ends with it");
    }
    client.signal.add_permits(1);
    assert_eq!(client.event().await, Some("held"), "the call that was not reset is answered");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_other_connections_goes_on_when_they_have_taken_their_answers() {
    go_on_after_other_connections(true).await;
    go_on_after_other_connections(false).await;
}

/// `is_busy`: this connection gets an event after the others have taken their answers.
async fn go_on_after_other_connections(is_busy: bool) {
    let elsewhere = Arc::new(Account::new(Arc::default()));
    let mut client = TestClient::new(elsewhere.totals()).await;
    let mut calls = vec![client.send("/reads").await, client.send("/large").await];
    assert_eq!(client.event().await, Some("large"), "its client does not take it");
    let unread_elsewhere = counted(&elsewhere, vec![0; 130 << 20].into());
    client.signal.add_permits(1);
    client.ping().await;
    assert!(client.events.try_recv().is_err(), "it waits for room");

    drop(unread_elsewhere);
    if is_busy {
        calls.push(client.send("/large").await);
    }
    let mut done = Vec::new();
    for _ in 0..1 + usize::from(is_busy) {
        done.extend(client.event().await);
    }
    assert!(done.contains(&"read"), "busy: {is_busy}, done: {done:?}");
}

#[tokio::test]
async fn large_messages_count_against_their_bound_until_their_calls_end() {
    let mut client = TestClient::new(Arc::default()).await;
    let length = (1 << 20) - PREFIX_BYTES as u32;
    let mut message = vec![0; 1 << 20];
    message[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    let message = Bytes::from(message);
    let mut calls = Vec::new();
    for _ in 0..50 {
        let (response, mut body) = client.call("/holds").await;
        body.send_data(message.clone(), true).unwrap();
        calls.push(Box::pin(timeout(Duration::from_secs(60), response)));
    }
    let (response, _, rest) = futures_util::future::select_all(calls).await;
    let response = response.expect("all are held").unwrap();
    assert_eq!(response.headers()["grpc-status"], "8", "50 MiB of messages are held");
    client.signal.add_permits(50);
    let mut held = 0;
    while let Some(event) = client.event().await {
        held += usize::from(event == "held");
        if held == 48 {
            break;
        }
    }
    assert_eq!(held, 48, "those within the bound are answered");
    drop(rest);
}

#[test]
fn connections_that_hold_requests_leave_some_bytes_to_others() {
    let connection = Arc::new(Account::new(Arc::default()));
    let totals = connection.totals();
    let hoarders: Vec<Vec<super::Body>> = (1..4)
        .map(|caller| {
            let account = Arc::new(Account::new(totals.all().of(caller)));
            let request = || {
                let mut body = super::Body::new(&account);
                body.add(1 << 20, None).ok().map(|()| body)
            };
            std::iter::from_fn(request).collect()
        })
        .collect();
    assert_eq!(hoarders[0].len(), 48, "the bound of a connection");
    let mut body = super::Body::new(&connection);
    assert!(body.add(2 << 20, None).is_ok(), "the largest request of a connection that holds nothing");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_covers_its_body() {
    let client = TestClient::new(Arc::default()).await;
    for (path, seconds, status) in [("/holds", 2, "4"), ("/reads", 60, "4")] {
        let (response, mut body) = client.call(path).await;
        body.send_data(Bytes::from_static(&[0; PREFIX_BYTES - 1]), false).unwrap();
        let began = Instant::now();
        let response = response.await.unwrap();
        assert_eq!(
            (response.headers()["grpc-status"].to_str().unwrap(), began.elapsed().as_secs()),
            (status, seconds)
        );
    }
}

/// A client that receives a reset at once may not see the answer before it.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_read_has_a_second_to_end_after_its_answer() {
    for (parts, ends) in [(0, true), (1, true), (100, true), (0, false), (100, false)] {
        let client = TestClient::new(Arc::default()).await;
        let (response, mut body) = client.request("/unread", "application/json").await;
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let answered = Instant::now();
        for _ in 0..parts {
            body.send_data(Bytes::from_static(&[0; 64 << 10]), false).unwrap();
        }
        if ends {
            tokio::time::sleep(Duration::from_millis(900)).await;
            let sent = body.send_data(Bytes::new(), true);
            assert!(sent.is_ok(), "{parts} parts: {sent:?}");
        }
        let reset = timeout(Duration::from_secs(10), poll_fn(|context| body.poll_reset(context))).await;
        if ends {
            // Its stream is closed: no reset can come.
            assert!(!matches!(reset, Ok(Ok(_))), "{parts} parts: {reset:?}");
        } else {
            let reset = reset.unwrap();
            assert!(matches!(reset, Ok(Reason::NO_ERROR)), "{parts} parts: {reset:?}");
            assert_eq!(answered.elapsed().as_secs(), 1, "{parts} parts");
        }
    }
}

/// HEADERS of a request that does not end.
fn opening(stream: u32, path: &str) -> Vec<u8> {
    let content_type = if path == "/read" { "application/json" } else { "application/grpc" };
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", content_type),
    ];
    let block = ::http2::HeaderBlock::new(fields);
    let length = u8::try_from(block.bytes().len()).unwrap();
    [&[0, 0, length, 1, 4][..], &stream.to_be_bytes(), block.bytes()].concat()
}

/// The client answers no ping, and opens a stream every half second after GOAWAY.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_requests_that_do_not_end_or_come_later() {
    for path in ["/holds", "/read"] {
        let (ours, mut client) = duplex(1 << 16);
        let (stops, stop) = watch::channel(false);
        let hot = ScriptedMethods { signal: Arc::new(Semaphore::new(0)), done: mpsc::unbounded_channel().0 };
        let serving = tokio::spawn(serve_until(stop, ours, hot, Arc::default()));
        let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        client.write_all(&[hello, opening(1, path)].concat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // The request has begun: the clock is paused.
        stops.send(true).unwrap();
        let stopped = Instant::now();
        for stream in (3..103).step_by(2) {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if client.write_all(&opening(stream, path)).await.is_err() {
                break;
            }
        }
        serving.await.unwrap();
        let lasted = stopped.elapsed();
        assert!(lasted <= Duration::from_secs(4), "{path}: {lasted:?}");
    }
}

/// The client takes its answer, which the windows allow at once, when the time for new requests is over.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_given_before_a_stop_is_written() {
    for (pause, is_whole) in [(3, true), (30, false)] {
        let (ours, mut client) = duplex(1 << 12);
        let (stops, stop) = watch::channel(false);
        let (done, mut seen) = mpsc::unbounded_channel();
        let hot = ScriptedMethods { signal: Arc::new(Semaphore::new(0)), done };
        let serving = tokio::spawn(serve_until(stop, ours, hot, Arc::default()));
        // Windows of 16 MiB, of streams and of the connection.
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0];
        let window = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff];
        let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &window].concat();
        let end = [0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0];
        client.write_all(&[&hello[..], &opening(1, "/large"), &end].concat()).await.unwrap();
        assert_eq!(seen.recv().await, Some("large"));
        stops.send(true).unwrap();
        let stopped = Instant::now();
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let mut taken = Vec::new();
        client.read_to_end(&mut taken).await.unwrap();
        serving.await.unwrap();
        assert_eq!(taken.len() > LARGE_BYTES, is_whole, "{} bytes after {pause} s", taken.len());
        assert!(stopped.elapsed() <= Duration::from_secs(pause + 1), "{:?}", stopped.elapsed());
    }
}
