//! An HTTP/2 connection to an endpoint, which reconnects after a failure.
//!
//! ```text
//!   dialing ──▶ open ──server's settings──▶ up ──broke──▶ resting ──a while──▶ dialing …
//!      └──failed───┴──────────────────────────────────────▲
//! ```
//!
//! * Windows are far larger than the replies that callers can have in flight, so flow control never stalls a
//!   small reply, and the server's small DATA frames never exhaust the connection's frame budget.
//! * Requests wait for the server's MAX_CONCURRENT_STREAMS, because the first burst would be rejected
//!   otherwise. Calls beyond that limit wait at the worker, not inside h2.
//! * Headers are the same for each call of a link, so after the first call HPACK encodes most of them in one
//!   byte.
//!
//! Independent of callers: the worker tracks which caller waits for which link.

use crate::client::access::TOKEN;
use crate::client::dial::{self, DialedStream};
use crate::client::endpoint::Endpoint;
use crate::stats::progress::WorkerCounters;
use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use http::{HeaderValue, Method, Request, Version, header};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Far above the largest default reply of etcd. A caller has one reply in flight.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 20;
/// Delay after a failed dial: short enough to notice a restart, long enough not to flood a dead host.
const REST: Duration = Duration::from_millis(200);
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection with the means to reopen it.
pub struct Link {
    endpoint: Endpoint,
    request: Request<()>,
    state: LinkState,
    /// Reason of the last failure.
    reason: String,
    counters: Arc<WorkerCounters>,
    in_flight: usize,
}

pub type OpenedLink = (SendRequest<Bytes>, Connection<DialedStream, Bytes>);

enum LinkState {
    Dialing { since: Instant, opening: Pin<Box<dyn Future<Output = Result<OpenedLink, String>>>> },
    Open { sender: SendRequest<Bytes>, connection: Box<Connection<DialedStream, Bytes>>, settled: bool },
    Resting { until: Instant },
}

/// State change found by a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    Nothing,
    CameUp,
    WentDown,
}

impl Link {
    /// Creates a link for calls of the method at `path`, with bytes added to `counters`.
    pub fn new(
        endpoint: Endpoint,
        path: &'static str,
        counters: Arc<WorkerCounters>,
    ) -> Result<Self, http::Error> {
        let request = request(&endpoint, path)?;
        let state = LinkState::Resting { until: Instant::now() };
        Ok(Self { endpoint, request, state, reason: String::new(), counters, in_flight: 0 })
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Open { settled: true, .. })
    }

    /// Reports whether the server accepts another call now. False while the link is down.
    pub fn has_room(&self) -> bool {
        match &self.state {
            LinkState::Open { sender, settled: true, .. } => {
                self.in_flight < sender.current_max_send_streams()
            }
            LinkState::Open { .. } | LinkState::Dialing { .. } | LinkState::Resting { .. } => false,
        }
    }

    /// Releases the slot of a completed call.
    pub fn call_ended(&mut self) {
        assert!(self.in_flight > 0, "a call ends once");
        self.in_flight -= 1;
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns why the link is down.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Reads, writes, opens and closes as far as possible without blocking.
    pub fn poll(&mut self, now: Instant, context: &mut Context<'_>) -> LinkChange {
        match &mut self.state {
            LinkState::Open { connection, sender, settled } => {
                match Pin::new(connection.as_mut()).poll(context) {
                    Poll::Pending if !*settled && sender.current_max_send_streams() > 0 => {
                        *settled = true;
                        LinkChange::CameUp
                    }
                    Poll::Pending => LinkChange::Nothing,
                    Poll::Ready(Ok(())) => self.went_down("server closed the connection".into(), now),
                    Poll::Ready(Err(error)) => self.went_down(error.to_string(), now),
                }
            }
            LinkState::Dialing { since, opening } => match opening.as_mut().poll(context) {
                Poll::Pending if now - *since > DIAL_TIMEOUT => {
                    self.went_down(format!("no connection within {DIAL_TIMEOUT:?}"), now)
                }
                Poll::Pending => LinkChange::Nothing,
                Poll::Ready(Err(reason)) => self.went_down(reason, now),
                Poll::Ready(Ok((sender, connection))) => {
                    self.state = LinkState::Open { sender, connection: Box::new(connection), settled: false };
                    // The first poll writes the preface and registers the connection's waker.
                    self.poll(now, context)
                }
            },
            LinkState::Resting { until } if now < *until => LinkChange::Nothing,
            LinkState::Resting { .. } => {
                let opening = Box::pin(open(self.endpoint.clone(), self.counters.clone()));
                self.state = LinkState::Dialing { since: now, opening };
                self.poll(now, context)
            }
        }
    }

    /// Starts a call. The link must be polled afterwards to transmit it.
    pub fn send(&mut self, frame: Bytes, context: &mut Context<'_>) -> Result<ResponseFuture, h2::Error> {
        let LinkState::Open { sender, settled: true, .. } = &mut self.state else {
            panic!("the worker sends on links that are up");
        };
        if sender.poll_ready(context)?.is_pending() {
            // The server has lowered its limit. h2 queues a call beyond it, but only for a handle without a
            // queued call.
            *sender = sender.clone();
        }
        let (response, mut stream) = sender.send_request(self.request.clone(), false)?;
        stream.send_data(frame, true)?;
        self.in_flight += 1;
        Ok(response)
    }

    fn went_down(&mut self, reason: String, now: Instant) -> LinkChange {
        self.reason = reason;
        self.state = LinkState::Resting { until: now + REST };
        LinkChange::WentDown
    }
}

/// Returns the headers of a call.
pub fn request(endpoint: &Endpoint, path: &str) -> Result<Request<()>, http::Error> {
    let mut request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("{}{path}", endpoint.url()))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header(header::TE, HeaderValue::from_static("trailers"));
    if let Some(token) = endpoint.token() {
        request = request.header(TOKEN, token.as_encoded_bytes());
    }
    request.body(())
}

/// Connects, with TLS if the endpoint needs it.
pub async fn open(endpoint: Endpoint, counters: Arc<WorkerCounters>) -> Result<OpenedLink, String> {
    let stream = dial::connect(&endpoint, dial::HTTP2).await.map_err(|error| error.to_string())?;
    h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .enable_push(false)
        .initial_max_send_streams(0) // until the server's settings arrive
        .handshake(dial::counted(stream, counters))
        .await
        .map_err(|error| format!("HTTP/2 handshake: {error}"))
}
