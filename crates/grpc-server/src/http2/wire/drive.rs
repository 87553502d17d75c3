//! The socket of a connection: reads, passes the bytes to the state machine, and writes its output.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http2::{Limits, ProcessResult, Tick};
use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::super::account::Account;
use super::super::meter::Meter;
use super::state::{BegunRequest, Wire, WireState};
use crate::socket::Ends;

/// Time without reads and writes after which a connection releases spare memory.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay of a pong, to write it together with responses. grpc-go sends a PING for most of its reads. With
/// immediate pongs, 3 of 10 writes of a connection with linearizable ranges were pongs. Clients with
/// keep-alive pings tolerate seconds.
const PONG_TIMEOUT: Duration = Duration::from_millis(20);

/// Time for a closing connection to deliver its last bytes. TLS writes a close_notify to the socket, which
/// the client may not read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes read before the task yields to other connections: about 100 µs of work.
const TURN_READ_BYTES: usize = 128 << 10;

/// Bytes written before the task yields to other connections. A client that reads as fast as its responses
/// are created would occupy the thread otherwise.
const TURN_WRITTEN_BYTES: usize = 128 << 10;

/// Bytes of the first read of a connection that was idle: the preface, or some calls.
const FIRST_READ_BYTES: usize = 1024;

/// The next step of the connection's task.
pub(crate) enum Turn {
    Call(BegunRequest),
    /// Streams were reset.
    Resets,
    /// No bytes were read or written for [`IDLE_TIMEOUT`].
    Idle,
    /// The connection is closed or broken.
    Closed,
}

/// Moves bytes between the socket and the state machine. Dropping it closes the connection.
pub(crate) struct WireDriver<I> {
    io: I,
    wire: Arc<Wire>,
    account: Arc<Account>,
    meter: Meter,
    output_bytes_max: usize,
    started: Instant,
    progress: ProcessResult,
    needs_flush: bool,
    /// Number of output bytes that the socket had not accepted at the last count.
    unwritten: usize,
    timer: Pin<Box<Sleep>>,
    is_timer_armed: bool,
    /// Time of the next idle check.
    look_at: Instant,
    /// True if a request has started since a held pong last reached its deadline.
    has_called: bool,
    /// Deadline of the held pong.
    pong_at: Option<Instant>,
    /// True if bytes were read or written since the timer was armed.
    was_busy: bool,
    /// True if the state machine has freed memory; the caller may do the same.
    became_idle: bool,
    /// True if all output was written and the timer limits the shutdown of the socket.
    is_closing: bool,
    /// Bytes read in this poll of the task.
    read_in_turn: usize,
}

/// Result of a step.
enum DriveStep {
    GoOn,
    Closed,
}

impl<I: AsyncRead + AsyncWrite + Ends + Unpin> WireDriver<I> {
    pub(crate) fn new(io: I, limits: Limits, meter: Meter, account: Arc<Account>) -> WireDriver<I> {
        WireDriver {
            io,
            output_bytes_max: limits.output_bytes_max,
            wire: Wire::new(limits, Arc::clone(&account)),
            account,
            meter,
            started: Instant::now(),
            progress: ProcessResult::NeedBytes,
            needs_flush: false,
            unwritten: 0,
            timer: Box::pin(sleep(IDLE_TIMEOUT)),
            is_timer_armed: true,
            look_at: Instant::now() + IDLE_TIMEOUT,
            has_called: false,
            pong_at: None,
            was_busy: true,
            became_idle: false,
            is_closing: false,
            read_in_turn: 0,
        }
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    /// Waits for the client's preface and first SETTINGS. Returns false if the connection was closed
    /// before they arrived.
    pub(crate) fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let wire = Arc::clone(&self.wire);
        let mut state = wire.state.lock();
        loop {
            if state.connection.is_open() {
                return Poll::Ready(true);
            }
            if let DriveStep::Closed = ready!(self.poll_step(&mut state, context)) {
                return Poll::Ready(false);
            }
        }
    }

    /// Reads and writes until a request has arrived, if `accepts` is set, or until streams were reset.
    pub(crate) fn poll_turn(&mut self, accepts: bool, context: &mut Context<'_>) -> Poll<Turn> {
        let wire = Arc::clone(&self.wire);
        let mut state = wire.state.lock();
        state.note_awake();
        loop {
            if accepts && let Some(begun) = state.next_begun() {
                self.has_called = true;
                return Poll::Ready(Turn::Call(begun));
            }
            match self.poll_step(&mut state, context) {
                Poll::Ready(DriveStep::GoOn) => {}
                Poll::Ready(DriveStep::Closed) => return Poll::Ready(Turn::Closed),
                Poll::Pending if state.take_new_resets() => return Poll::Ready(Turn::Resets),
                Poll::Pending if std::mem::take(&mut self.became_idle) => return Poll::Ready(Turn::Idle),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Returns the next request, if it was read already.
    pub(crate) fn next_begun(&self) -> Option<BegunRequest> {
        self.wire.state.lock().next_begun()
    }

    fn poll_step(&mut self, state: &mut WireState, context: &mut Context<'_>) -> Poll<DriveStep> {
        let written = self.poll_write(state, context);
        state.is_blocked = written.is_pending();
        self.count_unwritten(if state.is_blocked { state.connection.output().len() } else { 0 });
        if let Poll::Ready(Err(_)) = written {
            return Poll::Ready(DriveStep::Closed);
        }
        if std::mem::take(&mut state.was_closed) {
            self.process(state);
        }
        if state.connection.is_drained() || matches!(self.progress, ProcessResult::Failed { .. }) {
            let _nothing_waits = ready!(written);
            return self.poll_close(context).map(|()| DriveStep::Closed);
        }
        match self.progress {
            ProcessResult::More => self.process(state),
            ProcessResult::OutputFull if state.connection.output().len() <= self.output_bytes_max => {
                self.process(state);
            }
            ProcessResult::Paused { until } if self.now() >= until => self.process(state),
            ProcessResult::Paused { until } => {
                self.set_timer(self.started + Duration::from_millis(until));
                return self.poll_timer(state, context);
            }
            ProcessResult::NeedBytes => match self.poll_read(state, context) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(DriveStep::Closed),
                Poll::Ready(Ok(_)) => self.process(state),
                Poll::Pending => return self.poll_timer(state, context),
            },
            ProcessResult::OutputFull | ProcessResult::Failed { .. } => {
                return self.poll_timer(state, context);
            }
        }
        Poll::Ready(DriveStep::GoOn)
    }

    fn process(&mut self, state: &mut WireState) {
        self.progress = state.connection.process(self.now());
        self.meter.note_read(state.connection.take_work(), &self.account.seen);
        self.wire.hand_out(state);
    }

    /// Waits until the socket was shut down, failed, or timed out. The client is not required to read the
    /// close.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.set_timer(Instant::now() + CLOSE_TIMEOUT);
        }
        match Pin::new(&mut self.io).poll_shutdown(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.timer.as_mut().poll(context),
        }
    }

    /// Returns the milliseconds since the start of the connection.
    fn now(&self) -> Tick {
        self.started.elapsed().as_millis() as Tick
    }

    /// Writes all output. Pending while the socket accepts no more bytes, or when the task should yield.
    fn poll_write(&mut self, state: &mut WireState, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.release_pong(state);
        while !state.connection.output().is_empty() {
            if state.written_in_turn >= TURN_WRITTEN_BYTES {
                give_way(context);
                return Poll::Pending;
            }
            self.needs_flush = true;
            match ready!(Pin::new(&mut self.io).poll_write(context, state.connection.output()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => {
                    state.connection.written(bytes);
                    self.meter.note_written(bytes, &self.account.seen);
                    state.written_in_turn += bytes;
                }
            }
            self.note_busy();
            // Responses may be waiting for output capacity.
            self.wire.hand_out(state);
        }
        if self.needs_flush {
            ready!(Pin::new(&mut self.io).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the held pong, if other output leaves now or none is expected soon.
    fn release_pong(&mut self, state: &mut WireState) {
        if !state.connection.has_held_pong() {
            return;
        }
        let is_paused = matches!(self.progress, ProcessResult::Paused { .. });
        if !self.has_called || is_paused || !state.connection.output().is_empty() {
            state.connection.send_pong();
            self.pong_at = None;
        } else if self.pong_at.is_none() {
            let pong_at = Instant::now() + PONG_TIMEOUT;
            self.pong_at = Some(pong_at);
            if !self.is_timer_armed || self.timer.deadline() > pong_at {
                self.set_timer(pong_at);
            }
        }
    }

    fn poll_read(&mut self, state: &mut WireState, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read_in_turn >= TURN_READ_BYTES || self.meter.is_turn_over() {
            self.end_turn();
            give_way(context);
            return Poll::Pending;
        }
        let seen = &self.account.seen;
        ready!(self.meter.poll_waiting(seen, || self.io.has_ended(), context))?;
        state.keep_begun();
        let read = match state.connection.has_read_buffer() {
            true => {
                let mut buffer = state.connection.read_buffer().limit(self.meter.read_bytes_max());
                pin!(self.io.read_buf(&mut buffer)).poll(context)
            }
            false => self.poll_first_read(state, context),
        };
        let Poll::Ready(bytes) = read else {
            self.end_turn();
            self.meter.check_headers(state.connection.is_in_headers(), context)?;
            return Poll::Pending;
        };
        let bytes = bytes?;
        self.account.seen.note_read();
        self.read_in_turn += bytes;
        self.note_busy();
        Poll::Ready(Ok(bytes))
    }

    fn end_turn(&mut self) {
        self.read_in_turn = 0;
        self.meter.end_turn();
    }

    /// Reads into a stack buffer. The connection's buffer is allocated after bytes have arrived.
    fn poll_first_read(
        &mut self,
        state: &mut WireState,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); FIRST_READ_BYTES];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.io).poll_read(context, &mut read))?;
        if !read.filled().is_empty() {
            state.connection.receive(read.filled());
        }
        Poll::Ready(Ok(read.filled().len()))
    }

    fn note_busy(&mut self) {
        self.was_busy = true;
        if !self.is_timer_armed {
            self.look_later();
        }
    }

    /// Waits for the end of a pause or the deadline of a pong. Otherwise checks whether the connection is
    /// idle.
    fn poll_timer(&mut self, state: &mut WireState, context: &mut Context<'_>) -> Poll<DriveStep> {
        while self.is_timer_armed {
            ready!(self.timer.as_mut().poll(context));
            self.is_timer_armed = false;
            if let ProcessResult::Paused { .. } = self.progress {
                self.set_next_timer();
                return Poll::Ready(DriveStep::GoOn);
            }
            let now = Instant::now();
            if self.pong_at.is_some_and(|pong_at| pong_at <= now) {
                self.pong_at = None;
                self.has_called = false;
                self.set_next_timer();
                return Poll::Ready(DriveStep::GoOn);
            }
            // The timer was set for a pong, which may have been written with other output.
            if now < self.look_at {
                self.set_next_timer();
                continue;
            }
            let was_busy = std::mem::take(&mut self.was_busy);
            if !was_busy {
                state.shrink();
                self.became_idle = true;
            }
            // Idle streams, such as watches, do not keep the connection busy.
            if was_busy || state.connection.has_waiting_owners() {
                state.connection.tick(self.now());
                self.wire.hand_out(state);
                self.look_later();
            }
        }
        Poll::Pending
    }

    fn look_later(&mut self) {
        self.look_at = Instant::now() + IDLE_TIMEOUT;
        self.set_next_timer();
    }

    /// Sets the timer for the next check, or for a pong that is due before.
    fn set_next_timer(&mut self) {
        self.set_timer(self.pong_at.map_or(self.look_at, |pong_at| pong_at.min(self.look_at)));
    }

    fn set_timer(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.is_timer_armed = true;
    }
}

/// Yields: the task continues after other tasks have run and sockets were polled.
fn give_way(context: &mut Context<'_>) {
    let now = pin!(tokio::task::yield_now()).poll(context);
    assert!(now.is_pending(), "a task that yields is woken later");
}

impl<I> WireDriver<I> {
    fn count_unwritten(&mut self, bytes: usize) {
        if bytes != self.unwritten {
            self.account.change_unsent(self.unwritten, bytes);
            self.unwritten = bytes;
        }
    }
}

impl<I> Drop for WireDriver<I> {
    fn drop(&mut self) {
        self.count_unwritten(0);
        self.wire.state.lock().end();
    }
}

#[cfg(test)]
mod tests {
    use ::http2::{EndOfBody, HeaderBlock};
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::super::testing::counted_stream;
    use super::*;

    /// Size of the response. It fits in the client's initial windows.
    const ANSWER_BYTES: usize = 60_000;

    /// Returns the preface, the SETTINGS and the first request of a client.
    fn hello_and_a_request() -> Vec<u8> {
        let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")];
        let head = HeaderBlock::new(fields);
        let length = u8::try_from(head.bytes().len()).unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let headers = [&[0, 0, length, 1, 5, 0, 0, 0, 1][..], head.bytes()].concat();
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &headers].concat()
    }

    /// Returns a client that has sent a request and does not read, and the account of its connection.
    async fn client_with_an_answer() -> (DuplexStream, Arc<Account>, super::super::StreamWriter) {
        let (ours, mut theirs) = duplex(4096);
        theirs.write_all(&hello_and_a_request()).await.unwrap();
        let account = Arc::new(Account::new(Arc::default()));
        let mut writer = counted_stream(ours, Arc::clone(&account)).await;
        writer.send_head(&HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        writer.send_data(vec![0; ANSWER_BYTES].into(), EndOfBody::More).unwrap();
        // Let the connection's task run.
        sleep(Duration::from_millis(1)).await;
        (theirs, account, writer)
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_socket_does_not_take_counts_as_unsent_until_it_is_taken() {
        let (mut client, account, _writer) = client_with_an_answer().await;
        let unsent = account.unsent();
        assert!((ANSWER_BYTES - 4096..ANSWER_BYTES + 200).contains(&unsent), "{unsent}");
        let mut read = vec![0; ANSWER_BYTES];
        client.read_exact(&mut read).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(account.unsent(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ends_holds_nothing_and_its_streams_are_gone() {
        let (client, account, mut writer) = client_with_an_answer().await;
        drop(client);
        let gone = std::future::poll_fn(|context| writer.poll_reset(context));
        tokio::time::timeout(Duration::from_secs(1), gone).await.expect("the stream is notified");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(account.unsent(), 0);
        assert!(writer.send_data(vec![0; 10].into(), EndOfBody::More).is_err());
    }

    /// Returns a connection with a request, and the client end of its socket, which buffers `room` bytes.
    async fn asked(
        room: usize,
        limits: Limits,
    ) -> (DuplexStream, WireDriver<DuplexStream>, super::super::StreamWriter) {
        let (ours, mut client) = duplex(room);
        client.write_all(&hello_and_a_request()).await.unwrap();
        let mut connection =
            WireDriver::new(ours, limits, Meter::new(Duration::ZERO), Arc::new(Account::new(Arc::default())));
        let Turn::Call(begun) = std::future::poll_fn(|context| connection.poll_turn(true, context)).await
        else {
            panic!("a request was sent");
        };
        let (_reader, writer) = begun.open(connection.wire());
        (client, connection, writer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_all_at_once_has_a_turn_like_others() {
        use futures_util::FutureExt;
        const PIECE: usize = 64 << 10;
        const WINDOW: [u8; 13] = *b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01";
        let limits = Limits { stream_unsent_bytes_max: usize::MAX, ..Limits::default() };
        let (mut client, mut connection, mut writer) = asked(8 << 20, limits).await;
        let windows = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0";
        client.write_all(windows).await.unwrap();
        run_for(&mut connection, Duration::from_millis(1)).await;
        read_all(&mut client);
        writer.send_head(&HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        let wire = Arc::clone(connection.wire());
        let (mut turns, mut read) = (0, 0);
        let sent = std::future::poll_fn(|context| {
            turns += 1;
            let mut turn = 0;
            loop {
                assert!(connection.poll_turn(true, context).is_pending());
                turn += read_all(&mut client).len();
                // The client reads immediately, and the response grows while it is sent.
                client.write_all(&WINDOW).now_or_never().unwrap().unwrap();
                writer.send_data(vec![0; PIECE].into(), EndOfBody::More).unwrap();
                if wire.poll_rest(context).is_pending() {
                    break;
                }
            }
            assert!(turn <= TURN_WRITTEN_BYTES + 2 * PIECE, "{turn} bytes in a turn");
            read += turn;
            if read > 4 << 20 { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(Duration::from_secs(1), sent).await.expect("it goes on by itself");
        assert!(turns > 8, "{turns} turns");
    }

    /// Counts the runs of a connection's task in a minute without input from the client.
    async fn runs_in_a_minute(connection: &mut WireDriver<DuplexStream>) -> u32 {
        let mut runs = 0;
        let turns = async {
            loop {
                let turn = std::future::poll_fn(|context| {
                    runs += 1;
                    connection.poll_turn(true, context)
                });
                assert!(matches!(turn.await, Turn::Idle), "nothing else happens");
            }
        };
        tokio::time::timeout(Duration::from_secs(60), turns).await.unwrap_err();
        runs
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_streams_are_idle_gives_memory_back_and_sleeps() {
        let (_client, mut connection, mut writer) = asked(1 << 20, Limits::default()).await;
        writer.send_head(&HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        let mut answered = 0;
        // First after the request, then after responses without a preceding read.
        for _ in 0..2 {
            writer.send_data(vec![0; 20_000].into(), EndOfBody::More).unwrap();
            answered += 20_000;
            let runs = runs_in_a_minute(&mut connection).await;
            assert!(runs <= 5, "{runs} runs");
            let state = connection.wire().state.lock();
            let memory = state.connection.memory();
            assert_eq!(state.connection.streams(), 1);
            assert!(memory.output <= 1024 && memory.input <= 2048, "after {answered} bytes: {memory:?}");
        }
    }

    const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0payload1";
    const PONG: [u8; 17] = *b"\0\0\x08\x06\x01\0\0\0\0payload1";

    /// Returns a connection with a request. Its client has read all output.
    async fn called() -> (DuplexStream, WireDriver<DuplexStream>, super::super::StreamWriter) {
        called_within(Limits::default()).await
    }

    async fn called_within(
        limits: Limits,
    ) -> (DuplexStream, WireDriver<DuplexStream>, super::super::StreamWriter) {
        let (mut client, mut connection, writer) = asked(4096, limits).await;
        run_for(&mut connection, Duration::from_millis(1)).await;
        read_all(&mut client);
        (client, connection, writer)
    }

    async fn run_for(connection: &mut WireDriver<DuplexStream>, time: Duration) {
        let turns = std::future::poll_fn(|context| connection.poll_turn(true, context));
        assert!(tokio::time::timeout(time, turns).await.is_err(), "nothing is asked for");
    }

    /// Returns the bytes that have arrived, without waiting.
    fn read_all(client: &mut DuplexStream) -> Vec<u8> {
        use futures_util::FutureExt;
        let mut read = Vec::new();
        while client.read_buf(&mut read).now_or_never().is_some() {}
        read
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_a_ping_leaves_with_the_answer_of_a_call_or_after_20_ms() {
        let (mut client, mut connection, mut writer) = called().await;
        // Together with the response, after its frames.
        client.write_all(&PING).await.unwrap();
        run_for(&mut connection, PONG_TIMEOUT / 2).await;
        assert!(read_all(&mut client).is_empty());
        writer.send_head(&HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        run_for(&mut connection, Duration::from_millis(1)).await;
        let read = read_all(&mut client);
        assert!(read.len() > PONG.len() && read.ends_with(&PONG), "{read:?}");
        // After PONG_TIMEOUT without a response.
        client.write_all(&PING).await.unwrap();
        run_for(&mut connection, PONG_TIMEOUT - Duration::from_millis(2)).await;
        assert!(read_all(&mut client).is_empty());
        run_for(&mut connection, Duration::from_millis(4)).await;
        assert_eq!(read_all(&mut client), PONG);
        // Immediately after that, for long-running calls.
        client.write_all(&PING).await.unwrap();
        run_for(&mut connection, Duration::from_millis(1)).await;
        assert_eq!(read_all(&mut client), PONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_ping_sends_the_answers_of_both() {
        let (mut client, mut connection, _writer) = called().await;
        client.write_all(&PING.repeat(100)).await.unwrap();
        run_for(&mut connection, Duration::from_millis(1)).await;
        assert_eq!(read_all(&mut client), PONG.repeat(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_connection_answers_a_ping_and_becomes_idle_when_its_pause_ends() {
        const PRIORITY: [u8; 14] = *b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10";
        let limits =
            Limits { control_tokens_at_start: 32, control_tokens_per_interval: 10, ..Limits::default() };
        let (mut client, mut connection, _writer) = called_within(limits).await;
        client.write_all(&[&PING[..], &PRIORITY.repeat(10)].concat()).await.unwrap();
        run_for(&mut connection, Duration::from_millis(100)).await;
        assert!(matches!(connection.progress, ProcessResult::Paused { .. }));
        assert_eq!(read_all(&mut client), PONG);
        let idle = std::future::poll_fn(|context| connection.poll_turn(true, context));
        assert!(matches!(tokio::time::timeout(3 * IDLE_TIMEOUT, idle).await, Ok(Turn::Idle)));
    }

    /// Socket that never completes its shutdown.
    struct NeverShut(DuplexStream);

    impl Ends for NeverShut {
        fn has_ended(&self) -> bool {
            false
        }
    }

    impl AsyncRead for NeverShut {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for NeverShut {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_socket_takes_no_end_ends_in_5_s() {
        let (ours, mut client) = duplex(4096);
        client.write_all(b"no preface of HTTP/2, however long").await.unwrap();
        let account = Arc::new(Account::new(Arc::default()));
        let mut connection =
            WireDriver::new(NeverShut(ours), Limits::default(), Meter::new(Duration::ZERO), account);
        let began = Instant::now();
        let opened = std::future::poll_fn(|context| connection.poll_open(context));
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), opened).await, Ok(false));
        assert_eq!(began.elapsed(), CLOSE_TIMEOUT);
    }
}
