//! Calls over a websocket: each message is a part of the body, each line of the response a text message.
//!
//! * Compatible with the proxy in front of etcd's gateway. The request counts as POST. Browsers cannot set
//!   headers, so the token is in the list of protocols, `Bearer, TOKEN`, or in the cookie `token`; other
//!   headers are ignored.
//! * The call is cancelled when the client closes the websocket, and the websocket closes with the call.
//! * At most [`super::WEBSOCKETS_MAX`] are open, shared between callers, and a message has at most
//!   [`MESSAGE_BYTES_MAX`]. A response is passed on in the parts in which it arrives, as fragments of a
//!   message.
//! * A client that is silent between two pings is disconnected, and so is a client that takes no data. This
//!   is checked during the whole call, since its response may not start before the client sends more.
//! * While the call takes no request, the websocket is not read, so pongs are not seen. Such a client is
//!   disconnected when its connection fails.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval_at, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tonic::Code;

use super::Gateway;
use super::refusal::refused;
use super::turns::{BoundedIo, TURN_BYTES};
use admission::Holder;
use grpc_server::local::LocalConnection;

/// Maximum size of a message: 128 MiB with all websockets in use.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes buffered for a client.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time for a client to take a frame.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a client to close a websocket after its call.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// RFC 6455, 1.3.
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const BEARER: &str = "Bearer";

/// Messages read before the task yields: a write, such as the pong of a ping, is done immediately.
const TURN_MESSAGES: usize = 64;

type GatewaySocket = WebSocketStream<BoundedIo<TokioIo<Upgraded>>>;

impl Gateway {
    /// Returns the response that switches to a websocket for the call.
    pub(super) fn websocket(self, mut request: Request) -> Response {
        let headers = request.headers();
        let key = headers.get(SEC_WEBSOCKET_KEY).cloned();
        let is_version = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
        let (Some(key), true, &Method::GET, Version::HTTP_11) =
            (key, is_version, request.method(), request.version())
        else {
            return bad_handshake();
        };
        let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else { return bad_handshake() };
        let Some(connection) = request.extensions().get::<LocalConnection>() else { return bad_handshake() };
        let places =
            WebSocketPlaces { connection: Arc::clone(connection.holder()), websocket: Holder::new() };
        let caller = (self.client_of)(connection.client(), &call_headers(request.headers())).caller;
        let Some(place) = self.websockets.take(caller, &places.websocket) else {
            return refused(Code::ResourceExhausted, "etcdserver: too many requests");
        };
        let protocol = request.headers().get(SEC_WEBSOCKET_PROTOCOL).cloned();
        let call = call(request);
        tokio::spawn(async move {
            let _place = place;
            // An error means that the client disconnected.
            let Ok(upgraded) = upgrade.await else { return };
            let config = WebSocketConfig::default()
                .read_buffer_size(TURN_BYTES)
                .max_message_size(Some(MESSAGE_BYTES_MAX))
                .max_frame_size(Some(MESSAGE_BYTES_MAX))
                .max_write_buffer_size(WRITE_BYTES_MAX);
            let socket = GatewaySocket::from_raw_socket(
                BoundedIo::new(TokioIo::new(upgraded)),
                Role::Server,
                Some(config),
            )
            .await;
            tokio::select! {
                () = serve(socket, self, call, &places) => {}
                () = places.connection.displaced() => {}
                () = places.websocket.displaced() => {}
            }
        });
        switched(&key, protocol.as_ref())
    }
}

/// The holders of the two places that a websocket has: as a connection, and as a websocket.
struct WebSocketPlaces {
    connection: Arc<Holder>,
    websocket: Arc<Holder>,
}

impl WebSocketPlaces {
    /// Notes a message. A websocket without one may be displaced, however its call is permitted.
    fn note_message(&self) {
        if self.connection.is_kept() { self.websocket.keep() } else { self.websocket.note_open() }
    }
}

fn bad_handshake() -> Response {
    let mut response = Response::new(Body::from("Bad Request\n"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    response
}

fn switched(key: &HeaderValue, protocol: Option<&HeaderValue>) -> Response {
    let accepted = Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accepted) = HeaderValue::try_from(STANDARD.encode(accepted)) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    }
    if protocol.is_some_and(|list| list.as_bytes().starts_with(BEARER.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(BEARER));
    }
    response
}

/// Returns the call for the request, without a body: its path, its connection and its token.
fn call(request: Request) -> Request {
    let (mut parts, _) = request.into_parts();
    (parts.method, parts.headers) = (Method::POST, call_headers(&parts.headers));
    Request::from_parts(parts, Body::empty())
}

/// Returns the headers of the call, which contain the token.
fn call_headers(headers: &HeaderMap) -> HeaderMap {
    let token = token(headers).and_then(|token| HeaderValue::try_from(format!("{BEARER} {token}")).ok());
    token.map(|token| (AUTHORIZATION, token)).into_iter().collect()
}

/// Returns the token. The cookie takes precedence over the protocols.
fn token(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let mut cookies = text(COOKIE).into_iter().flat_map(|list| list.split(';'));
    let cookie = cookies.find_map(|cookie| cookie.trim().strip_prefix("token="));
    let protocol = || text(SEC_WEBSOCKET_PROTOCOL)?.split_once("Bearer,").map(|(_, token)| token.trim());
    cookie.or_else(protocol).map(str::to_owned)
}

async fn serve(socket: GatewaySocket, gateway: Gateway, call: Request, places: &WebSocketPlaces) {
    let (mut sink, source) = socket.split();
    let (requests, body) = mpsc::channel(1);
    let body = Body::from_stream(ReceiverStream::new(body).map(Ok::<Bytes, Infallible>));
    let signs = Signs::default();
    let mut client = WebSocketClient::new(&mut sink, &signs);
    let answer = async {
        // An error means that the client does not read, or disconnected.
        drop(client.answer(gateway.call(call.map(|_| body))).await);
        drop(timeout(CLOSE_TIMEOUT, client.sink.close()).await);
    };
    let mut receiving = pin!(receive(source, requests, &signs, || places.note_message()));
    tokio::select! {
        // Read pending input, since the kernel would otherwise drop unread output.
        () = answer => drop(timeout(CLOSE_TIMEOUT, receiving).await),
        () = &mut receiving => {}
    }
}

/// Signs of life of a client.
#[derive(Default)]
struct Signs {
    /// Data was received since the last ping.
    was_heard: AtomicBool,
    /// The websocket is not read, because a message waits for the call.
    is_held_back: AtomicBool,
}

impl Signs {
    /// Reports whether the client was alive since the last ping, or could not show it.
    fn since_ping(&self) -> bool {
        self.was_heard.swap(false, Relaxed) || self.is_held_back.load(Relaxed)
    }
}

/// Passes messages on as lines of the body, until the client closes the websocket.
async fn receive(
    mut source: impl StreamExt<Item = Result<Message, Error>> + Unpin,
    requests: mpsc::Sender<Bytes>,
    signs: &Signs,
    note_message: impl Fn(),
) {
    let mut taken = 0_usize;
    while let Some(Ok(message)) = source.next().await {
        taken += 1;
        if taken.is_multiple_of(TURN_MESSAGES) {
            tokio::task::yield_now().await;
        }
        signs.was_heard.store(true, Relaxed);
        let payload = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        note_message();
        let mut line = BytesMut::with_capacity(payload.len() + 1);
        line.put(payload);
        line.put_u8(b'\n');
        signs.is_held_back.store(true, Relaxed);
        // Fails when the call takes no further requests; its response may still be in progress.
        drop(requests.send(line.freeze()).await);
        // Input sent in the meantime is read after this.
        signs.was_heard.store(true, Relaxed);
        signs.is_held_back.store(false, Relaxed);
    }
}

/// A client waiting for a response.
struct WebSocketClient<'a, S> {
    sink: &'a mut S,
    pings: Interval,
    signs: &'a Signs,
}

impl<'a, S: SinkExt<Message, Error = Error> + Unpin> WebSocketClient<'a, S> {
    fn new(sink: &'a mut S, signs: &'a Signs) -> Self {
        // Its handshake is a sign of life.
        signs.was_heard.store(true, Relaxed);
        WebSocketClient { sink, pings: interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL), signs }
    }

    /// Passes on the lines of a response. Fails if the client disconnects or the response is aborted.
    async fn answer(&mut self, answer: impl Future<Output = Response>) -> Result<(), Error> {
        let mut pieces = self.during(answer).await?.into_body().into_data_stream();
        let mut line = HeadLine::default();
        // An aborted body aborts the websocket.
        while let Some(mut piece) =
            self.during(pieces.try_next()).await?.map_err(|_| Error::ConnectionClosed)?
        {
            while !piece.is_empty() {
                let end = piece.iter().position(|byte| *byte == b'\n');
                let part = piece.split_to(end.unwrap_or(piece.len()));
                if end.is_some() {
                    drop(piece.split_to(1));
                }
                if let Some(frame) = line.frame(part, end.is_some()) {
                    self.send(Message::Frame(frame)).await?;
                }
            }
        }
        match line.frame(Bytes::new(), true) {
            Some(frame) => self.send(Message::Frame(frame)).await,
            None => Ok(()),
        }
    }

    /// Waits, and sends pings in the meantime. Fails if the client disconnects.
    async fn during<T>(&mut self, waiting: impl Future<Output = T>) -> Result<T, Error> {
        let mut waiting = pin!(waiting);
        loop {
            tokio::select! {
                done = &mut waiting => return Ok(done),
                _ = self.pings.tick() => {
                    if !self.signs.since_ping() {
                        return Err(Error::ConnectionClosed);
                    }
                    self.send(Message::Ping(Bytes::new())).await?;
                }
            }
        }
    }

    async fn send(&mut self, message: Message) -> Result<(), Error> {
        timeout(STALL_TIMEOUT, self.sink.send(message)).await.map_err(|_| Error::ConnectionClosed)?
    }
}

/// A line of a response, sent as fragments of a message.
#[derive(Default)]
struct HeadLine {
    has_begun: bool,
}

impl HeadLine {
    /// Returns the fragment for a part of the line. None for an empty line.
    fn frame(&mut self, part: Bytes, is_last: bool) -> Option<Frame> {
        if part.is_empty() && !(self.has_begun && is_last) {
            return None;
        }
        let kind = if self.has_begun { Data::Continue } else { Data::Text };
        self.has_begun = !is_last;
        Some(Frame::message(part, OpCode::Data(kind), is_last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_in_a_cookie_or_in_the_protocols() {
        for (protocol, cookie, wanted) in [
            ("", "", None),
            ("Bearer, a.1", "", Some("a.1")),
            ("Bearer,a.1", "", Some("a.1")),
            ("Bearer", "", None),
            ("v1, Bearer, a.1", "", Some("a.1")),
            ("Bearer, a.1", "x=y; token=b.2", Some("b.2")),
            ("", "tokens=b.2", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            headers.insert(COOKIE, HeaderValue::from_static(cookie));
            assert_eq!(token(&headers).as_deref(), wanted, "{protocol} {cookie}");
        }
    }

    /// Texts of messages, with `+` between their fragments.
    async fn messages(pieces: &[&'static str]) -> Vec<String> {
        let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes())));
        let body = Body::from_stream(tokio_stream::iter(pieces.collect::<Vec<_>>()));
        let sent = std::cell::RefCell::new(vec![String::new()]);
        let sink = futures_util::sink::unfold((), async |(), message| {
            let mut sent = sent.borrow_mut();
            if let Message::Frame(frame) = message {
                let last = sent.last_mut().unwrap();
                *last += std::str::from_utf8(frame.payload()).unwrap();
                if frame.header().is_final {
                    sent.push(String::new());
                } else {
                    *last += "+";
                }
            }
            Ok::<_, Error>(())
        });
        let (mut sink, signs) = (pin!(sink), Signs::default());
        let answer = std::future::ready(Response::new(body));
        WebSocketClient::new(&mut sink, &signs).answer(answer).await.unwrap();
        sent.into_inner()
    }

    #[tokio::test]
    async fn a_client_that_sends_without_end_gives_way_to_others() {
        use futures_util::FutureExt;
        for message in [Message::Ping(Bytes::new()), Message::Pong(Bytes::new()), Message::Text("}".into())] {
            let taken = std::cell::Cell::new(0);
            let messages = (0..100_000).map(|_| {
                taken.set(taken.get() + 1);
                Ok(message.clone())
            });
            let (requests, taken_no_more) = mpsc::channel(1);
            drop(taken_no_more);
            let signs = Signs::default();
            let mut receiving = pin!(receive(futures_util::stream::iter(messages), requests, &signs, || {}));
            assert!((&mut receiving).now_or_never().is_none(), "all at once");
            assert!(taken.get() <= TURN_MESSAGES, "{} at once", taken.get());
            receiving.await;
            assert_eq!(taken.get(), 100_000);
        }
    }

    /// Measures the time until a client is disconnected that reads `frames` frames and then stops. It sends
    /// continuously if `says` is true.
    async fn is_given_up(frames: usize, answer: impl Future<Output = Response>, says: bool) -> Duration {
        let sink = futures_util::sink::unfold(frames, async |left, _| match left {
            0 => std::future::pending().await,
            left => Ok::<_, Error>(left - 1),
        });
        let (mut sink, signs, began) = (pin!(sink), Signs::default(), Instant::now());
        let talks = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                signs.was_heard.store(says, Relaxed);
            }
        };
        let mut client = WebSocketClient::new(&mut sink, &signs);
        tokio::select! {
            answered = client.answer(answer) => assert!(answered.is_err()),
            () = talks => {}
            () = tokio::time::sleep(Duration::from_secs(3600)) => panic!("its place is held for ever"),
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_noticed_whatever_the_call_waits_for() {
        // A watch responds only after its first request.
        let given_up = is_given_up(usize::MAX, std::future::pending(), false).await;
        assert!(given_up <= 2 * PING_INTERVAL, "no answer yet: {given_up:?}");
        let silence =
            || Response::new(Body::from_stream(tokio_stream::pending::<Result<Bytes, Infallible>>()));
        let given_up = is_given_up(usize::MAX, async { silence() }, false).await;
        assert!(given_up <= 2 * PING_INTERVAL, "an answer that waits: {given_up:?}");
        let line = || Ok::<_, Infallible>(Bytes::from_static(b"{}\n"));
        let lines = || Response::new(Body::from_stream(tokio_stream::iter([line(), line(), line()])));
        for frames in [0, 1, 2] {
            let given_up = is_given_up(frames, async { lines() }, true).await;
            assert!(given_up <= STALL_TIMEOUT + Duration::from_secs(1), "{frames} frames: {given_up:?}");
        }
        let given_up = is_given_up(0, async { silence() }, true).await;
        assert!(given_up <= PING_INTERVAL + STALL_TIMEOUT + Duration::from_secs(1), "a ping: {given_up:?}");
    }

    /// The client sends more than the call reads, and replies to pings.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_not_read_is_not_taken_for_gone() {
        let mut sink = pin!(futures_util::sink::drain().sink_map_err(|_| Error::ConnectionClosed));
        let signs = Signs::default();
        let (requests, mut body) = mpsc::channel(1);
        let messages = futures_util::stream::iter((0..3).map(|_| Ok(Message::Text("{}".into()))));
        let source = messages.chain(tokio_stream::pending());
        let receiving = receive(source, requests, &signs, || {});
        let mut client = WebSocketClient::new(&mut sink, &signs);
        let call = async {
            tokio::time::sleep(10 * PING_INTERVAL).await;
            for _ in 0..3 {
                body.recv().await;
            }
            // Its pongs would be read here, but it sends none.
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        tokio::select! {
            answered = client.answer(std::future::pending()) => assert!(answered.is_err()),
            () = receiving => panic!("it has not closed the websocket"),
            () = call => {}
        }
        let given_up = began.elapsed();
        assert!(given_up > 10 * PING_INTERVAL, "a client that is not read was given up after {given_up:?}");
        assert!(given_up <= 12 * PING_INTERVAL, "a silent client was given up after {given_up:?}");
    }

    #[tokio::test]
    async fn each_line_is_a_message_wherever_the_body_is_cut() {
        for (pieces, wanted) in [
            (&[][..], &[""][..]),
            (&["{}"], &["{}+", ""]),
            (&["{}\n"], &["{}", ""]),
            (&["{}\n\n{1}\n"], &["{}", "{1}", ""]),
            (&["{", "2}\n{", "3", "}", "\n"], &["{+2}", "{+3+}+", ""]),
        ] {
            assert_eq!(messages(pieces).await, wanted, "{pieces:?}");
        }
    }

    #[test]
    fn the_key_is_answered_as_in_the_rfc() {
        let response = switched(&HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="), None);
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
