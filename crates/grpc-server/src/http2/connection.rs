//! The task of a connection: accepts streams, polls calls, and disconnects stalled clients.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ::http2::{EndOfBody, ErrorCode};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Method, StatusCode};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::Status;

use admission::Holder;

use super::account::{Account, CallerTotals, OpenStream};
use super::calls::{BegunCall, CallHandler};
use super::grpc::{TIMEOUT, is_call, send_status};
use super::meter::Meter;
use super::plain::{self, HttpService};
use super::shared::{ConnectionLimits, ConnectionShared, LAST_BYTES_TIMEOUT, LAST_RESPONSE_TIMEOUT};
use super::streaming;
use super::unary;
use super::wire::{BegunRequest, RequestHead, Turn, Wire, WireDriver, response_block};
use crate::socket::Ends;

/// Bytes in flight towards us on one stream: a request is at most 2 MiB, so it never waits for a window
/// update.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Receive window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Maximum size of a request's headers. etcd's clients send a few hundred bytes, including a token.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// One read of a busy connection: about 150 calls of 100 bytes, or one frame of a large request.
const READ_BYTES: usize = 16 << 10;
/// Stream resets per second by the client or because of violations. The tokens of `http2` allow as many in
/// a burst, and 1000 per second afterwards. Beyond it the connection is paused for the rest of the second.
const RESETS_MAX: u32 = 20_000;
/// Time for a client to take its pending responses, or [`UNSENT_PROGRESS_MAX`] bytes.
const UNSENT_TIMEOUT: Duration = Duration::from_secs(60);
/// 16 KiB each second.
const UNSENT_PROGRESS_MAX: usize = 1 << 20;
/// Interval of checks by a connection waiting for other connections to take their responses; it also checks
/// with each event.
const FULL_LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The handlers of a connection's requests.
#[derive(Clone)]
pub struct Services<C, S> {
    pub calls: C,
    /// Serves requests that are not gRPC calls.
    pub http: S,
}

/// A request after its head.
enum FoundMethod<'b, C> {
    Call(BegunCall<C>),
    /// The call was rejected by its headers.
    Rejected(Box<http::Response<()>>),
    /// Boxed, because most requests are calls.
    Plain(Box<Cow<'b, RequestHead>>),
}

fn find<'b, C: CallHandler>(calls: &C, begun: &'b BegunRequest) -> FoundMethod<'b, C::Call> {
    let RequestHead { method, uri, headers, .. } = begun.head();
    if !is_call(headers) {
        return FoundMethod::Plain(Box::new(begun.whole_head(TIMEOUT)));
    }
    if method != Method::POST {
        let given = method.as_str();
        let text = format!("Received a HEADERS frame with :method {given:?} which should be POST");
        let mut response = Status::internal(text).into_http();
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return FoundMethod::Rejected(Box::new(response));
    }
    match calls.begin(uri.path(), headers, begun.varying()) {
        Ok(call) => FoundMethod::Call(call),
        Err(status) => FoundMethod::Rejected(Box::new(status.into_http())),
    }
}

/// Serves a connection until the peer closes it, it breaks, or `stop` turns true and the last call is
/// complete.
///
/// Not an `async fn`, because its future would store each argument twice.
pub fn serve<I, C, S>(
    io: I,
    services: Services<C, S>,
    limits: ConnectionLimits,
    totals: Arc<CallerTotals>,
    holder: Arc<Holder>,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()>
where
    I: AsyncRead + AsyncWrite + Ends + Unpin + Send,
    C: CallHandler,
    S: HttpService,
{
    let shared = ConnectionShared::new(limits, totals, stop);
    let meter = Meter::new(limits.ping_spacing_min);
    let mut connection =
        WireDriver::new(io, state_machine_limits(limits), meter, Arc::clone(&shared.account));
    async move {
        if Box::pin(handshake(&mut connection, &shared, &holder)).await {
            serve_calls(&mut connection, &services, &shared, &holder).await;
        }
    }
}

async fn serve_calls<I, C, S>(
    connection: &mut WireDriver<I>,
    services: &Services<C, S>,
    shared: &ConnectionShared,
    holder: &Arc<Holder>,
) where
    I: AsyncRead + AsyncWrite + Ends + Unpin + Send,
    C: CallHandler,
    S: HttpService,
{
    let ConnectionShared { limits, account, .. } = shared;
    let wire = Arc::clone(connection.wire());
    let (mut keepalive, mut unsent) = (Keepalive::new(*limits), UnsentProgress::default());
    let mut stopped = pin!(shared.stopped());
    let (mut calls, mut open_streams) = (OpenCalls::none(), OpenCalls::none());
    let mut drain = Drain::No;
    let (mut look_again, mut accepted_in_turn) = (None, 0);
    let mut displaced = pin!(holder.displaced());
    loop {
        // Before more is read: they take their requests.
        poll_now(&mut open_streams);
        let is_idle = calls.is_empty() && open_streams.is_empty() && account.plain_requests() == 0;
        account.seen.note_idle(is_idle);
        account.look_again();
        let room = calls.len() + open_streams.len() <= limits.streams_max as usize;
        let answered = tokio::select! {
            biased;
            turn = turn(connection, account, room, calls.len()) => {
                match turn {
                    Turn::Call(begun) => {
                        let mut next = Some(begun);
                        while let Some(begun) = next {
                            match start(begun, services, &wire, shared) {
                                StartedCall::Unary(call) => calls.push(OpenCall::new(call)),
                                StartedCall::Stream(call) => open_streams.push(Box::pin(call)),
                                StartedCall::Answered | StartedCall::Plain => {}
                            }
                            accepted_in_turn += 1;
                            let is_full = account.is_full_for(calls.len());
                            let more = accepted_in_turn < STREAMS_PER_TURN && !is_full;
                            next = if more { connection.next_begun() } else { None };
                        }
                    }
                    Turn::Resets => calls.wake_all(),
                    Turn::Idle => {
                        calls.shrink();
                        open_streams.shrink();
                        unsent.shrink(account);
                    }
                    Turn::Closed => return,
                }
                // Before the socket is polled again: output caused by the read, such as a pong, leaves with
                // the responses.
                poll_now(&mut calls)
            }
            Some(()) = calls.next(), if !calls.is_empty() => true,
            Some(()) = open_streams.next(), if !open_streams.is_empty() => false,
            () = poll_fn(|context| keepalive.poll_gone(&wire, account, context)) => return,
            () = poll_fn(|context| unsent.poll_stalled(account, context)) => return,
            () = poll_fn(|context| poll_look_again(account, &mut look_again, context)) => false,
            () = poll_fn(|context| drain.poll_ended(stopped.as_mut(), &wire, is_idle, context)) => return,
            () = displaced.as_mut() => {
                // The client's next call has to use another connection; calls in progress are lost.
                wire.close(ErrorCode::NO_ERROR, "another connection has its place");
                drop(poll_fn(|context| connection.poll_turn(false, context)).now_or_never());
                return;
            }
            // Last: output queued above leaves before the task sleeps.
            () = poll_fn(|context| wire.poll_rest(context)) => false,
        };
        if accepted_in_turn >= STREAMS_PER_TURN {
            accepted_in_turn = 0;
            give_way(&wire).await;
        }
        if answered && !calls.is_empty() {
            // Yield first: responses that complete for this connection in the meantime share the write.
            give_way(&wire).await;
            poll_now(&mut calls);
        }
    }
}

/// Yields to the tasks of other connections.
async fn give_way(wire: &Wire) {
    tokio::task::yield_now().await;
    wire.begin_turn();
}

/// Polls the calls that can make progress. Returns whether any of them completed.
fn poll_now<F: Future<Output = ()>>(calls: &mut OpenCalls<F>) -> bool {
    let mut has_ended = false;
    while let Some(Some(())) = calls.next().now_or_never() {
        has_ended = true;
    }
    has_ended
}

/// A request after its start.
enum StartedCall<U, T> {
    /// The response was sent immediately.
    Answered,
    Unary(U),
    Stream(T),
    /// A separate task.
    Plain,
}

/// Starts to serve a request.
fn start<'a, C: CallHandler, S: HttpService>(
    mut begun: BegunRequest,
    services: &Services<C, S>,
    wire: &Arc<Wire>,
    shared: &'a ConnectionShared,
) -> StartedCall<impl Future<Output = ()> + use<'a, C, S>, impl Future<Output = ()> + use<'a, C, S>> {
    let calls = &services.calls;
    match find(calls, &begun) {
        FoundMethod::Call(BegunCall::Unary(call))
            if unary::answer_now(calls, &call, &begun, wire, shared) =>
        {
            StartedCall::Answered
        }
        FoundMethod::Call(BegunCall::Unary(call)) => {
            let (reader, writer) = begun.open(wire);
            StartedCall::Unary(unary::answer(calls.clone(), call, reader, writer, shared))
        }
        FoundMethod::Call(BegunCall::Stream(call)) => {
            let (reader, mut writer) = begun.open(wire);
            match OpenStream::new(&shared.account) {
                Ok(open) => {
                    let (calls, stream) = (calls.clone(), (reader, writer, open));
                    let serve =
                        move |requests, replies| async move { calls.stream(call, requests, replies).await };
                    StartedCall::Stream(streaming::serve(serve, stream, shared))
                }
                Err(status) => {
                    let _client_is_gone = send_status(&mut writer, status);
                    StartedCall::Answered
                }
            }
        }
        FoundMethod::Rejected(response) => {
            let (_reader, mut writer) = begun.open(wire);
            let _client_is_gone = writer.send_head(&response_block(&response), EndOfBody::Stream);
            StartedCall::Answered
        }
        FoundMethod::Plain(head) => {
            let head = head.into_owned();
            let counted_head = begun.take_counted_head();
            plain::spawn(&services.http, (&head, counted_head), begun.open(wire), shared);
            StartedCall::Plain
        }
    }
}

/// Shutdown of a connection when its member stops.
enum Drain {
    /// The member is running.
    No,
    /// Until this rings, the client may open streams.
    Announced(Pin<Box<Sleep>>),
    /// The connection closes if no call is open, and everything was written or this rings.
    Final(Pin<Box<Sleep>>),
}

impl Drain {
    /// Ready when the member has stopped, the client had its time, no call is open, and the client has
    /// taken the responses or missed [`LAST_BYTES_TIMEOUT`]. Must be polled after the connection, which
    /// writes, and before the last check of the output. `stopped` is created once per connection, because
    /// registering it takes a lock.
    fn poll_ended(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
        wire: &Wire,
        is_idle: bool,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            match self {
                Drain::No => {
                    ready!(stopped.as_mut().poll(context));
                    wire.shut_down();
                    *self = Drain::Announced(Box::pin(sleep(LAST_RESPONSE_TIMEOUT)));
                }
                Drain::Announced(alarm) => {
                    ready!(alarm.as_mut().poll(context));
                    // The client may not have acknowledged GOAWAY, and continue to open streams.
                    wire.end_drain();
                    *self = Drain::Final(Box::pin(sleep(LAST_BYTES_TIMEOUT)));
                }
                Drain::Final(_) if !is_idle => return Poll::Pending,
                Drain::Final(_) if wire.is_written() => return Poll::Ready(()),
                Drain::Final(alarm) => return alarm.as_mut().poll(context),
            }
        }
    }
}

/// Ready [`FULL_LOOK_AGAIN`] after a call started to wait for capacity. Must be polled after the calls,
/// since they may start to wait.
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

/// Whether the preface is complete. False if it is not in time, or displaced, or if the member stops.
async fn handshake<I>(connection: &mut WireDriver<I>, shared: &ConnectionShared, holder: &Holder) -> bool
where
    I: AsyncRead + AsyncWrite + Ends + Unpin,
{
    let opened = poll_fn(|context| connection.poll_open(context));
    tokio::select! {
        opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, opened) => opened.unwrap_or(false),
        () = shared.stopped() => false,
        () = holder.displaced() => false,
    }
}

fn state_machine_limits(limits: ConnectionLimits) -> ::http2::Limits {
    ::http2::Limits {
        streams_max: limits.streams_max,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        connection_window_bytes: CONNECTION_WINDOW_BYTES,
        header_list_bytes_max: HEADER_BYTES_MAX,
        header_block_bytes_max: HEADER_BYTES_MAX,
        read_bytes: READ_BYTES,
        varying_field: TIMEOUT,
        // `account` bounds what waits to be sent.
        stream_unsent_bytes_max: usize::MAX,
        connection_unsent_bytes_max: usize::MAX,
        resets_max: RESETS_MAX,
        ..::http2::Limits::default()
    }
}

/// Streams that a connection accepts before the task yields to other connections: about 100 µs of work. A
/// burst of requests delays other clients by that much, not by the whole read.
const STREAMS_PER_TURN: u32 = 32;

/// A client that does not complete the preface is disconnected after this long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Detects a client that does not take its pending responses.
#[derive(Default)]
struct UnsentProgress {
    /// Bytes written and bytes pending at the start of the period.
    written: u64,
    unsent: usize,
    /// Rings at the end of the period. Made when something waits.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl UnsentProgress {
    /// Ready if bytes are pending, and during a whole period less was written than was pending at its
    /// start, and less than [`UNSENT_PROGRESS_MAX`].
    fn poll_stalled(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<()> {
        if account.unsent() == 0 {
            // The client has taken all due responses: a later response gets a new period.
            self.unsent = 0;
            return Poll::Pending;
        }
        if self.alarm.is_none() {
            self.check(account);
        }
        loop {
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(UNSENT_TIMEOUT)));
            ready!(alarm.as_mut().poll(context));
            alarm.as_mut().reset(Instant::now() + UNSENT_TIMEOUT);
            if !self.check(account) {
                return Poll::Ready(());
            }
        }
    }

    /// Starts the next period. Returns whether the last one had enough progress.
    fn check(&mut self, account: &Account) -> bool {
        let (written, unsent) = (account.seen.written(), account.unsent());
        let progress = written - self.written;
        let has_gone_on = progress >= self.unsent.min(UNSENT_PROGRESS_MAX) as u64;
        (self.written, self.unsent) = (written, unsent);
        has_gone_on
    }

    /// Frees the alarm, if no bytes are pending.
    fn shrink(&mut self, account: &Account) {
        if account.unsent() == 0 {
            self.alarm = None;
        }
    }
}

/// Returns the next stream, if there is `room` for it and the client takes its responses. Polling this also
/// drives the socket: responses leave here.
async fn turn<I>(connection: &mut WireDriver<I>, account: &Account, room: bool, calls: usize) -> Turn
where
    I: AsyncRead + AsyncWrite + Ends + Unpin,
{
    poll_fn(|context| {
        account.begin_turn();
        loop {
            let was_full = account.is_full_for(calls);
            if was_full {
                account.note_waiting();
            }
            let turn = connection.poll_turn(room && !was_full, context);
            if account.seen.take_pings_too_often() {
                connection.wire().close(ErrorCode::ENHANCE_YOUR_CALM, "too_many_pings");
                continue;
            }
            // Responses have left in the meantime: accept again.
            if turn.is_pending() && was_full && !account.is_full_for(calls) {
                continue;
            }
            return turn;
        }
    })
    .await
}

/// Pings an idle client. Any received bytes count as a sign of life, since much data in flight may precede
/// a pong.
struct Keepalive {
    limits: ConnectionLimits,
    /// Value of the read counter at the last check.
    reads: u32,
    deadline: Instant,
    /// Rings at the deadline or before it. Set anew when it has rung, or would ring too late: a timer takes a
    /// lock.
    alarm: Pin<Box<Sleep>>,
    waiting: bool,
}

impl Keepalive {
    fn new(limits: ConnectionLimits) -> Self {
        let deadline = Instant::now() + limits.keepalive_interval;
        Self { limits, reads: 0, deadline, alarm: Box::pin(sleep_until(deadline)), waiting: false }
    }

    /// Ready when no bytes followed a ping in time. Must be polled after the connection, which reads.
    fn poll_gone(&mut self, wire: &Wire, account: &Account, context: &mut Context<'_>) -> Poll<()> {
        if self.limits.keepalive_interval.is_zero() {
            return Poll::Pending;
        }
        let reads = account.seen.reads();
        if reads != self.reads {
            (self.reads, self.deadline) = (reads, Instant::now() + self.limits.keepalive_interval);
            if std::mem::take(&mut self.waiting) && self.alarm.deadline() > self.deadline {
                self.alarm.as_mut().reset(self.deadline);
            }
        }
        loop {
            ready!(self.alarm.as_mut().poll(context));
            let now = Instant::now();
            if now >= self.deadline {
                if self.waiting || !wire.ping() {
                    return Poll::Ready(());
                }
                self.waiting = true;
                self.deadline = now + self.limits.keepalive_timeout;
            }
            self.alarm.as_mut().reset(self.deadline);
        }
    }
}

pin_project! {
    /// An open unary call. It is cancelled when its client resets it. Registering its waker with its stream
    /// would cost a lock and an entry each time the call waits. So the waker is stored here, and the
    /// connection wakes all of its calls after a stream was reset, which is rare. Each then checks its
    /// stream.
    struct OpenCall<F> {
        #[pin]
        work: F,
        // Set while it waits.
        waker: Option<Waker>,
    }
}

impl<F> OpenCall<F> {
    pub(super) fn new(work: F) -> OpenCall<F> {
        OpenCall { work, waker: None }
    }

    fn wake(self: Pin<&mut Self>) {
        if let Some(waker) = self.project().waker {
            waker.wake_by_ref();
        }
    }
}

/// Open calls of the same kind. An empty `FuturesUnordered` allocates memory for one future, so it is
/// created with the first call and dropped when the connection is idle.
struct OpenCalls<F>(Option<FuturesUnordered<F>>);

impl<F: Future> OpenCalls<F> {
    pub(super) fn none() -> OpenCalls<F> {
        OpenCalls(None)
    }

    pub(super) fn push(&mut self, future: F) {
        self.0.get_or_insert_default().push(future);
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, FuturesUnordered::len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the output of the first call to complete; None if there are none.
    pub(super) async fn next(&mut self) -> Option<F::Output> {
        self.0.as_mut()?.next().await
    }

    /// Frees the memory of an empty set.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.0 = None;
        }
    }
}

impl<F> OpenCalls<OpenCall<F>> {
    /// Has all calls polled again.
    fn wake_all(&mut self) {
        if let Some(calls) = &mut self.0 {
            Pin::new(calls).iter_pin_mut().for_each(OpenCall::wake);
        }
    }
}

impl<F: Future> Future for OpenCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.work.poll(context);
        if polled.is_pending() && !this.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *this.waker = Some(context.waker().clone());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const TIMEOUT: Duration = Duration::from_secs(15);
    const WINDOW_UPDATE: [u8; 13] = *b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01";

    /// A connection with its client, which asks whether that is there.
    struct Asking {
        client: DuplexStream,
        connection: WireDriver<DuplexStream>,
        account: Arc<Account>,
        keepalive: Keepalive,
    }

    impl Asking {
        async fn begin() -> Asking {
            let limits = ConnectionLimits {
                keepalive_interval: INTERVAL,
                keepalive_timeout: TIMEOUT,
                ..ConnectionLimits::for_tests(1)
            };
            let (ours, mut client) = duplex(4096);
            client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
            let account = Arc::new(Account::new(Arc::default()));
            let meter = Meter::new(Duration::ZERO);
            let connection = WireDriver::new(ours, state_machine_limits(limits), meter, Arc::clone(&account));
            let mut asking = Asking { client, connection, account, keepalive: Keepalive::new(limits) };
            assert!(!asking.ends_within(Duration::from_millis(1)).await);
            asking.pings();
            asking
        }

        async fn ends_within(&mut self, time: Duration) -> bool {
            let Asking { connection, account, keepalive, .. } = self;
            let wire = Arc::clone(connection.wire());
            let ends = poll_fn(|context| {
                let _idle = connection.poll_turn(true, context);
                let gone = keepalive.poll_gone(&wire, account, context);
                let _idle = connection.poll_turn(true, context);
                gone
            });
            timeout(time, ends).await.is_ok()
        }

        /// Pings that the client has got.
        fn pings(&mut self) -> usize {
            let mut read = Vec::new();
            while self.client.read_buf(&mut read).now_or_never().is_some() {}
            read.windows(8).filter(|bytes| bytes == b"liveness").count()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_taken_its_answers_is_not_judged_by_those_of_before() {
        const MOMENT: Duration = Duration::from_millis(1);
        for (large, written, is_given_up, wanted) in [
            (1 << 20, 100, false, true),
            (4 << 20, 1 << 20, false, false),
            (100, 100, false, false),
            // The call was cancelled: the rest of its answer waits no more.
            (1 << 20, 100, true, false),
        ] {
            let account = Account::new(Arc::default());
            let mut progress = UnsentProgress::default();
            let mut is_stalled = async || {
                let stalled = poll_fn(|context| progress.poll_stalled(&account, context));
                timeout(MOMENT, stalled).await.is_ok()
            };
            account.change_unsent(0, large);
            assert!(!is_stalled().await);
            Meter::new(Duration::ZERO).note_written(written, &account.seen);
            if is_given_up {
                account.change_unsent(large, 0);
                assert!(!is_stalled().await);
            }
            tokio::time::advance(UNSENT_TIMEOUT).await;
            if is_given_up {
                account.change_unsent(0, 1);
            }
            assert_eq!(is_stalled().await, wanted, "{written} of {large}, given up: {is_given_up}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_asked_and_cut_off_when_it_stays_silent() {
        let mut asking = Asking::begin().await;
        assert!(!asking.ends_within(INTERVAL - Duration::from_secs(1)).await);
        assert_eq!(asking.pings(), 0);
        assert!(!asking.ends_within(TIMEOUT).await);
        assert_eq!(asking.pings(), 1);
        assert!(asking.ends_within(Duration::from_secs(2)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_a_client_sends_is_a_sign_of_life() {
        let mut asking = Asking::begin().await;
        // Before it is asked, as a client that watches and sends nothing but its windows.
        for _ in 0..10 {
            asking.client.write_all(&WINDOW_UPDATE).await.unwrap();
            assert!(!asking.ends_within(INTERVAL - Duration::from_secs(1)).await);
        }
        assert_eq!(asking.pings(), 0);
        // And in place of an answer, which comes late, after other frames.
        for _ in 0..3 {
            assert!(!asking.ends_within(INTERVAL + Duration::from_secs(1)).await);
            assert_eq!(asking.pings(), 1, "after the interval, which is shorter than the time to answer");
            asking.client.write_all(&WINDOW_UPDATE).await.unwrap();
            assert!(!asking.ends_within(Duration::from_millis(1)).await);
        }
        assert!(asking.ends_within(INTERVAL + TIMEOUT + Duration::from_secs(1)).await);
    }
}
