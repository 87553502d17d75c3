//! The task of one connection: accepts streams, polls hot calls, closes what does not go on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::account::{Account, Totals};
use super::meter::Metered;
use super::methods::HotMethods;
use super::open::{self, OpenCall};
use super::relay::{self, GrpcService};
use super::shared::{Limits, Shared};
use super::streaming::{self, StreamMethods};
use super::unary;

/// Bytes in flight towards us on one stream: a request is at most 2 MiB, so it never waits for a window
/// update.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// And on one connection.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// What h2 may keep for DATA frames below 256 bytes that were not taken yet. Twice the requests of 1000 streams,
/// each in one frame: requests of streams are taken in the turn in which they are read. Beyond it the connection
/// is closed.
const SMALL_DATA_BUDGET_BYTES: usize = 512 << 10;
/// Response bytes that h2 may hold for one stream before the sender has to wait: what a slow reader can cost
/// us.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Bytes of the headers of one request. etcd's clients send some hundred, a token included.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Streams that were reset before they were accepted. All that one turn of `meter` reads, several times over:
/// a turn accepts what the one before has read. Beyond it the connection is closed.
const RESETS_PENDING_MAX: usize = 4096;
/// Streams that h2 resets because the client broke the protocol, in the life of a connection. Beyond it the
/// connection is closed. Each costs what a reset by the client costs.
pub(super) const ERROR_RESETS_MAX: usize = 16 << 10;
/// Time in which a client has to take the answers that wait for it, or [`UNSENT_PROGRESS_MAX`] bytes.
const UNSENT_WITHIN: Duration = Duration::from_secs(60);
/// 16 KiB each second.
const UNSENT_PROGRESS_MAX: usize = 1 << 20;
/// A connection that waits for other connections to take their answers looks this often, and with each event.
const FULL_LOOK_AGAIN: Duration = Duration::from_millis(100);
/// After the last answer of a stopping member: time for the client to read it and to close.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What a connection serves.
#[derive(Clone)]
pub struct Methods<H, T, S> {
    pub hot: H,
    pub streams: T,
    pub services: S,
}

/// What answers a call.
enum Found<H, T> {
    Hot(H),
    Stream(T),
    Relayed,
}

impl<H: HotMethods, T: StreamMethods, S> Methods<H, T, S> {
    fn find(&self, request: &Request<RecvStream>) -> Found<H::Call, T::Call> {
        let (path, headers) = (request.uri().path(), request.headers());
        if let Some(call) = self.hot.find(path, headers) {
            return Found::Hot(call);
        }
        match self.streams.find(path, headers) {
            Some(call) => Found::Stream(call),
            None => Found::Relayed,
        }
    }
}

/// Serves a connection until the peer closes it, it breaks, or `stop` turns true and the last call is
/// answered.
pub async fn serve<I, H, T, S>(
    io: I,
    methods: Methods<H, T, S>,
    limits: Limits,
    totals: Arc<Totals>,
    mut stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send,
    H: HotMethods,
    T: StreamMethods,
    S: GrpcService,
{
    let shared = Shared { limits, account: Arc::new(Account::new(totals)), stop: stop.clone() };
    let account = &shared.account;
    let Some(mut connection) = handshake(io, &shared).await else { return };
    let mut keepalive = Keepalive::new(connection.ping_pong(), limits);
    let mut unsent = UnsentProgress::default();
    let mut stall = pin!(sleep(UNSENT_WITHIN));
    let mut calls = FuturesUnordered::new();
    let mut open_streams = FuturesUnordered::new();
    // When the connection closes if no call is open, once the member stops.
    let mut stops_at = None;
    let (mut look_again, mut accepted_in_turn) = (None, 0);
    loop {
        // Before more is read: they take their requests from h2.
        while let Some(Some(())) = open_streams.next().now_or_never() {}
        let is_idle = calls.is_empty() && open_streams.is_empty() && account.relayed() == 0;
        account.seen.note_idle(is_idle);
        account.look_again();
        let room = calls.len() + open_streams.len() <= limits.streams_max as usize;
        let answered = tokio::select! {
            biased;
            accepted = accept(&mut connection, account, room) => {
                keepalive.seen();
                match accepted {
                    Accepted::Call(request, respond) => {
                        match methods.find(&request) {
                            Found::Hot(call) => {
                                let (hot, body) = (methods.hot.clone(), request.into_body());
                                calls.push(OpenCall::new(unary::answer(hot, call, body, respond, &shared)));
                            }
                            Found::Stream(call) => {
                                let (streams, body) = (methods.streams.clone(), request.into_body());
                                open_streams.push(streaming::serve(streams, call, body, respond, &shared));
                            }
                            Found::Relayed => relay::spawn(&methods.services, request, respond, &shared),
                        }
                        accepted_in_turn += 1;
                    }
                    Accepted::Resets => open::wake_all(&mut calls),
                    Accepted::Closed => return,
                }
                false
            }
            Some(()) = calls.next(), if !calls.is_empty() => true,
            Some(()) = open_streams.next(), if !open_streams.is_empty() => false,
            alive = keepalive.check() => {
                if !alive { return }
                false
            }
            () = stall.as_mut(), if account.unsent() > 0 => {
                if !unsent.check(account) { return }
                stall.as_mut().reset(Instant::now() + UNSENT_WITHIN);
                false
            }
            () = poll_fn(|context| poll_look_again(account, &mut look_again, context)) => false,
            _ = stop.wait_for(|stop| *stop), if stops_at.is_none() => {
                stops_at = Some(Instant::now() + LAST_ANSWER_WITHIN);
                connection.graceful_shutdown();
                false
            }
            () = passed(stops_at), if is_idle => return,
        };
        if accepted_in_turn >= STREAMS_PER_TURN {
            accepted_in_turn = 0;
            tokio::task::yield_now().await;
        }
        if answered && !calls.is_empty() {
            // Others first: what they complete for this connection leaves with the same write.
            tokio::task::yield_now().await;
            while let Some(Some(())) = calls.next().now_or_never() {}
        }
    }
}

/// Returns at `moment`, or never if there is none.
async fn passed(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Ready [`FULL_LOOK_AGAIN`] after something began to wait for room. To be polled after the calls: one of
/// them may begin to wait.
fn poll_look_again(
    account: &Account,
    look_again: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    if look_again.is_none() && !account.has_waiting() {
        return Poll::Pending;
    }
    let pause = look_again.get_or_insert_with(|| Box::pin(sleep(FULL_LOOK_AGAIN)));
    ready!(pause.as_mut().poll(context));
    *look_again = None;
    Poll::Ready(())
}

/// The connection, once its preface is complete. None if it is not complete in time, or the member stops.
async fn handshake<I>(io: I, shared: &Shared) -> Option<Connection<Metered<I>, Bytes>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let Shared { limits, account, .. } = shared;
    let io = Metered::new(io, limits.ping_spacing_min, Arc::clone(&account.seen));
    let handshake = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX))
        .data_frame_budget(SMALL_DATA_BUDGET_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .handshake::<_, Bytes>(io);
    tokio::select! {
        handshaken = tokio::time::timeout(HANDSHAKE_WITHIN, handshake) => handshaken.ok()?.ok(),
        () = shared.stopped() => None,
    }
}

/// Streams that a connection accepts before the tasks of other connections have their turn: some 100 µs of
/// work. A burst of requests of one client delays others by that much, not by all that was read at once.
const STREAMS_PER_TURN: u32 = 32;

/// A client that has begun the preface and does not finish it is cut off after this long.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// Finds a client that does not take what waits for it.
#[derive(Default)]
struct UnsentProgress {
    /// Bytes written when the last period began, and bytes that waited then.
    written: u64,
    unsent: usize,
}

impl UnsentProgress {
    /// To be called once in a period, while something waits. False if less was written in the whole period
    /// than waited at its beginning, and less than [`UNSENT_PROGRESS_MAX`].
    fn check(&mut self, account: &Account) -> bool {
        let (written, unsent) = (account.seen.written(), account.unsent());
        let progress = written - self.written;
        let has_gone_on = progress >= self.unsent.min(UNSENT_PROGRESS_MAX) as u64;
        (self.written, self.unsent) = (written, unsent);
        has_gone_on
    }
}

/// What a connection brings.
#[expect(clippy::large_enum_variant, reason = "lives for a moment; a box would cost each call an allocation")]
enum Accepted {
    Call(Request<RecvStream>, SendResponse<Bytes>),
    /// Streams were reset.
    Resets,
    /// It is closed, or broken.
    Closed,
}

/// The next stream, if there is `room` for it and the client takes its answers. Polling this also drives the
/// socket: answers leave here.
async fn accept<I>(connection: &mut Connection<Metered<I>, Bytes>, account: &Account, room: bool) -> Accepted
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|context| {
        account.begin_turn();
        loop {
            if account.seen.take_pings_too_often() {
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            let was_full = account.is_full();
            if was_full {
                account.note_waiting();
            }
            let polled = if room && !was_full {
                connection.poll_accept(context)
            } else {
                connection.poll_closed(context).map(|_ended| None)
            };
            // What was read is accepted by now: read on. Or answers have left meanwhile: accept again.
            let again = account.seen.release() || (was_full && !account.is_full());
            return Poll::Ready(match polled {
                Poll::Pending if again => continue,
                Poll::Pending if account.seen.take_new_resets() => Accepted::Resets,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok((request, respond)))) => Accepted::Call(request, respond),
                Poll::Ready(Some(Err(_)) | None) => Accepted::Closed,
            });
        }
    })
    .await
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

    /// A stream has been opened: the client is alive. Cheap enough for every call.
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
