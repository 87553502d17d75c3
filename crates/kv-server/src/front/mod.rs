//! Front: one HTTP/2 connection of a client, served by one task.
//!
//! ```text
//!                      ┌─ hot unary call ──▶ read one message ──▶ HotMethods::call ──▶ headers, message, trailers
//! accept a stream ─────┤      (a future inside this task: no task, no box per call)
//!                      └─ anything else ───▶ relay to the gRPC services, a task of its own per call
//! ```
//!
//! * A hot call never leaves the connection's task: its future is polled here, beside the socket, so that the answers
//!   of one burst leave in one write. When one is ready and more are under way, the task steps back once, to the end
//!   of the runtime's queue: what completes meanwhile shares the write (half as many writes and an eighth less server
//!   time for linearizable ranges of 1000 clients).
//! * An answer that is large is made as it is sent ([`LongAnswer`]), so that none of it waits in memory for its client.
//! * A hot call is refused before its body is read further than the limit allows.
//! * The peer decides how many streams it opens, up to [`Limits::streams_max`]; each holds at most one request of
//!   [`Limits::message_bytes_max`].
//! * When the connection breaks, its hot calls are dropped with it. A proposal that was already made stays made: the
//!   client sees a broken call, as with any other server.
//!
//! Knows nothing of what a method means; [`HotMethods`] does.

mod long; // one message out, made as it is sent
mod relay; // the calls that other services answer
mod unary; // one message in, one message out

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tonic::Status;

pub use relay::GrpcService;
pub use unary::PREFIX_BYTES;

/// What one connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one request message; etcd's `--max-request-bytes` and its overhead of 512 KiB.
    pub message_bytes_max: usize,
    /// Streams open at one time; etcd's `--max-concurrent-streams`.
    pub streams_max: u32,
    /// Time without any frame after which the client is asked whether it is still there; zero asks never.
    pub keepalive_interval: Duration,
    /// Time it has to answer before the connection is closed.
    pub keepalive_timeout: Duration,
}

/// Bytes in flight towards us on one stream: a request is at most 2 MiB, so it never waits for a window update.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// And on one connection. Small DATA frames draw on a budget tied to this window; a small one kills busy connections.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Response bytes that h2 may hold for one stream before the sender has to wait: what a slow reader can cost us.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The methods that are answered inside the connection's task.
pub trait HotMethods: Clone + Send + 'static {
    /// Names one method, cheaply.
    type Method: Copy + Send;
    /// What is answered piece by piece; `Infallible` if nothing is.
    type Long: LongAnswer;

    /// The method behind a path such as `/etcdserverpb.KV/Put`, if it is a hot one.
    fn find(&self, path: &str) -> Option<Self::Method>;

    /// Answers one encoded message with another, gRPC's five bytes of prefix included.
    fn call(
        &self,
        method: Self::Method,
        headers: HeaderMap,
        message: Bytes,
    ) -> impl Future<Output = Result<Answer<Self::Long>, Status>> + Send;
}

/// What a hot call is answered with.
#[derive(Debug)]
pub enum Answer<L> {
    /// The message, with its prefix.
    Whole(Bytes),
    /// One that is made while it is sent.
    Long(L),
}

/// One message that is too large to be held as a whole.
pub trait LongAnswer: Send + 'static {
    /// Does what comes before the first byte, and says how many there will be, prefix included. Called once, first.
    fn begin(&mut self) -> impl Future<Output = Result<u64, Status>> + Send;

    /// Makes bytes from `position` on, at least one. The same position gives the same bytes again: what a client did not take
    /// in time is dropped, and asked for once more.
    fn part(&mut self, position: u64) -> impl Future<Output = Result<Part, Status>> + Send;
}

/// Some bytes of a message, and the right to hold them: where memory is short, others wait for it.
#[derive(Debug)]
pub struct Part {
    /// In pieces, each of which is free once it was sent.
    pub pieces: VecDeque<Bytes>,
    pub turn: Option<OwnedSemaphorePermit>,
}

impl Part {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl LongAnswer for Infallible {
    async fn begin(&mut self) -> Result<u64, Status> {
        match *self {}
    }

    async fn part(&mut self, _position: u64) -> Result<Part, Status> {
        match *self {}
    }
}

/// Serves a connection until the peer closes it, it breaks, or `stop` turns true and the last call is answered.
pub async fn serve<I, H, S>(io: I, hot: H, services: S, limits: Limits, mut stop: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
    H: HotMethods,
    S: GrpcService,
{
    let handshake = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .handshake::<_, Bytes>(io);
    let Ok(Ok(mut connection)) = tokio::time::timeout(HANDSHAKE_SECONDS_MAX, handshake).await else { return };
    let mut keepalive = Keepalive::new(connection.ping_pong(), limits);
    let mut calls = FuturesUnordered::new();
    let mut stopping = false;
    loop {
        let answered = tokio::select! {
            biased;
            accepted = accept(&mut connection) => {
                let Some(Ok((request, respond))) = accepted else { return };
                keepalive.seen();
                match hot.find(request.uri().path()).filter(|_| is_plain(request.headers())) {
                    Some(method) => calls.push(unary::answer(hot.clone(), method, request, respond, limits)),
                    None => relay::spawn(services.clone(), request, respond),
                }
                false
            }
            Some(()) = calls.next(), if !calls.is_empty() => true,
            alive = keepalive.check() => {
                if !alive { return }
                false
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.graceful_shutdown();
                false
            }
        };
        if answered && !calls.is_empty() {
            // Others first: what they complete for this connection leaves with the same write.
            tokio::task::yield_now().await;
            while let Some(Some(())) = calls.next().now_or_never() {}
        }
    }
}

/// A peer that has opened the socket but does not finish the preface is cut off after this long.
const HANDSHAKE_SECONDS_MAX: Duration = Duration::from_secs(10);

type Accepted = Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>;

/// The next stream. Polling this also drives the socket: answers leave here.
async fn accept<I>(connection: &mut Connection<I, Bytes>) -> Option<Accepted>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|context| connection.poll_accept(context)).await
}

/// A compressed request goes to the services, which can decompress.
fn is_plain(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity")
}

/// Asks a silent client whether it is still there.
struct Keepalive {
    ping: Option<PingPong>,
    limits: Limits,
    deadline: Instant,
    waiting: bool,
}

impl Keepalive {
    fn new(ping: Option<PingPong>, limits: Limits) -> Self {
        let deadline = Instant::now() + limits.keepalive_interval;
        Self { ping, limits, deadline, waiting: false }
    }

    /// A stream has been opened: the client lives. Cheap enough for every call.
    fn seen(&mut self) {
        if !self.waiting {
            self.deadline = Instant::now() + self.limits.keepalive_interval;
        }
    }

    /// Returns when a ping was answered (true) or was not answered in time (false).
    async fn check(&mut self) -> bool {
        let Some(ping) = self.ping.as_mut().filter(|_| !self.limits.keepalive_interval.is_zero()) else {
            return std::future::pending().await;
        };
        if !self.waiting {
            tokio::time::sleep_until(self.deadline).await;
            if ping.send_ping(Ping::opaque()).is_err() {
                return false;
            }
            self.waiting = true;
            self.deadline = Instant::now() + self.limits.keepalive_timeout;
        }
        let answered = poll_fn(|context| ping.poll_pong(context));
        let alive = matches!(tokio::time::timeout_at(self.deadline, answered).await, Ok(Ok(_)));
        self.waiting = false;
        self.deadline = Instant::now() + self.limits.keepalive_interval;
        alive
    }
}
