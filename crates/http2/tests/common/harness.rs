//! A connection as one task of tokio, for tests and the example: the member has a task that does more.
//!
//! ```text
//!   read once ──▶ handle all of it ──▶ write once ──▶ yield if more is there
//! ```
//!
//! * All requests of a read are handled before anything is written, so their answers leave together.
//! * A round is bounded by `Limits::read_bytes` and `Limits::round_bytes_max`; then other
//!   tasks run.
//! * Output that the socket does not take stops reading once the output buffer is full.
//! * Waits that last too long end: see [`Deadlines`].

#![allow(dead_code, reason = "each user needs its part")]

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::io::poll_read_buf;

use http2::{Connection, ErrorCode, Limits, PeerWait, ProcessResult, StreamId, Tick};

/// What answers the requests of a connection. It is dropped when the connection ends, and with it what it
/// had begun.
pub trait Handler {
    /// Takes the events of a round, until there are none, and answers what it can answer at once.
    fn round(&mut self, connection: &mut Connection);

    /// Sends answers that became ready later. Ready when it has sent something; it is then polled again.
    fn poll(&mut self, _context: &mut Context<'_>, _connection: &mut Connection) -> Poll<()> {
        Poll::Pending
    }

    /// The request may stay open as long as it likes: it is a stream of messages.
    fn stays_open(&self, _stream: StreamId) -> bool {
        false
    }
}

/// How often deadlines are checked: late by a second does not matter where they are tens of them.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long, and for how many bytes, a client is read after the last GOAWAY, so that it can receive GOAWAY
/// before the kernel answers its bytes with a reset.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// How long a client may take to answer the first GOAWAY of a shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves one connection until it ends. `shutdown` begins a graceful end: streams under way are still served.
pub async fn serve<S, H>(
    socket: S,
    handler: H,
    limits: Limits,
    deadlines: Deadlines,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    let output_bytes_max = limits.output_bytes_max;
    let connection = Connection::new(limits, 0);
    let timer = Box::pin(sleep(CHECK_INTERVAL));
    let started = Instant::now();
    let mut task = Task {
        socket,
        handler,
        connection,
        deadlines,
        output_bytes_max,
        started,
        timer,
        timer_armed: true,
        idle: false,
        stopping_since: None,
    };
    let mut shutdown = pin!(shutdown);
    let mut progress = ProcessResult::NeedBytes;
    loop {
        match poll_fn(|context| task.poll_next(context, progress, shutdown.as_mut())).await? {
            Next::Round => {}
            Next::Yield => tokio::task::yield_now().await,
            Next::End => return Ok(()),
            Next::Close => return task.close().await,
        }
        progress = task.round();
    }
}

/// What the task does next.
enum Next {
    Round,
    /// A round after other tasks.
    Yield,
    /// The client has closed.
    End,
    /// GOAWAY was written.
    Close,
}

struct Task<S, H> {
    socket: S,
    handler: H,
    connection: Connection,
    deadlines: Deadlines,
    output_bytes_max: usize,
    started: Instant,
    timer: Pin<Box<Sleep>>,
    /// An idle connection without waits has no timer.
    timer_armed: bool,
    /// Nothing was read since the last check.
    idle: bool,
    /// When the shutdown began.
    stopping_since: Option<Tick>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> Task<S, H> {
    /// Milliseconds since the start. `u64` lasts.
    fn now(&self) -> Tick {
        self.started.elapsed().as_millis() as Tick
    }

    fn round(&mut self) -> ProcessResult {
        let progress = self.connection.process(self.now());
        self.handler.round(&mut self.connection);
        progress
    }

    /// Writes what there is, then waits for what comes first: bytes, answers, time, shutdown.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        progress: ProcessResult,
        shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<io::Result<Next>> {
        if self.stopping_since.is_none() && shutdown.poll(context).is_ready() {
            self.stopping_since = Some(self.now());
            self.connection.shut_down();
            self.arm(Instant::now() + DRAIN);
        }
        if !self.timer_armed {
            self.connection.tick(self.now());
        }
        while self.handler.poll(context, &mut self.connection).is_ready() {}
        let written = self.poll_write(context)?;
        if written.is_pending() && !self.timer_armed {
            self.arm(Instant::now() + CHECK_INTERVAL);
        }
        // An answer that used less of the window than there was leaves the rest to the next.
        if self.connection.has_events() {
            return Poll::Ready(Ok(Next::Round));
        }
        if self.connection.is_drained() {
            return Poll::Ready(Ok(Next::Close));
        }
        match progress {
            ProcessResult::Failed { .. } => {
                ready!(written);
                return Poll::Ready(Ok(Next::Close));
            }
            ProcessResult::More => return Poll::Ready(Ok(Next::Yield)),
            ProcessResult::OutputFull if self.connection.output().len() <= self.output_bytes_max => {
                return Poll::Ready(Ok(Next::Yield));
            }
            ProcessResult::Paused { until } => self.arm(self.started + Duration::from_millis(until)),
            ProcessResult::OutputFull => {}
            ProcessResult::NeedBytes => {
                if let Poll::Ready(next) = self.poll_read(context) {
                    return Poll::Ready(next);
                }
            }
        }
        self.poll_timer(context)
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let buffer = self.connection.read_buffer();
        let room = buffer.capacity() - buffer.len();
        let bytes = ready!(poll_read_buf(Pin::new(&mut self.socket), context, buffer))?;
        self.idle = false;
        if !self.timer_armed {
            self.arm(Instant::now() + CHECK_INTERVAL);
        }
        Poll::Ready(Ok(match bytes {
            0 => Next::End,
            // The socket probably holds more: the others first.
            _ if bytes == room => Next::Yield,
            _ => Next::Round,
        }))
    }

    /// Ready when everything was written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        while !self.connection.output().is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, self.connection.output())? {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => {
                    self.connection.written(bytes);
                    // There may be room for answers that waited.
                    self.handler.round(&mut self.connection);
                }
            }
        }
        Ok(match Pin::new(&mut self.socket).poll_flush(context)? {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        })
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Next>> {
        if !self.timer_armed {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(context));
        let now = self.now();
        self.connection.tick(now);
        let handler = &self.handler;
        let checked = self.deadlines.check(&mut self.connection, now, |stream| handler.stays_open(stream));
        if checked == Checked::Dead {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if let Some(since) = self.stopping_since {
            self.connection.end_drain();
            if now.saturating_sub(since) >= self.deadlines.drain {
                self.connection.close(ErrorCode::NO_ERROR, "streams did not end in time");
            }
        }
        if self.idle && checked == Checked::Nothing && self.stopping_since.is_none() {
            self.connection.shrink();
            self.timer_armed = false;
        } else {
            self.arm(Instant::now() + CHECK_INTERVAL);
        }
        self.idle = true;
        Poll::Ready(Ok(Next::Round))
    }

    fn arm(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.timer_armed = true;
    }

    /// Ends the connection after GOAWAY: reads and drops what comes, until the client closes.
    async fn close(mut self) -> io::Result<()> {
        poll_fn(|context| Pin::new(&mut self.socket).poll_shutdown(context)).await?;
        let mut buffer = bytes::BytesMut::with_capacity(4096);
        let drained = async {
            let mut total = 0;
            while total < LINGER_BYTES_MAX {
                buffer.clear();
                let socket = &mut self.socket;
                let read = poll_fn(|context| poll_read_buf(Pin::new(&mut *socket), context, &mut buffer));
                match read.await {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => total += bytes,
                }
            }
        };
        // The socket is closed next, whether the client closed, sent too much, or time is up.
        drop(timeout(LINGER, drained).await);
        Ok(())
    }
}

/// Milliseconds that each wait may last. The defaults suit clients on slow networks, and end those that send
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the accepted socket to the client's SETTINGS.
    pub preface: Tick,
    /// From the accepted socket to the acknowledgement of the server's SETTINGS.
    pub settings_ack: Tick,
    /// From the first byte of a frame or header block to its last.
    pub frame: Tick,
    /// From the head of a request to its end, unless [`Handler::stays_open`].
    pub body: Tick,
    /// Without a byte of an answer that the client's windows admit. The stream is reset.
    pub window: Tick,
    /// Without a byte that the socket takes.
    pub output: Tick,
    /// From the first GOAWAY of a shutdown to the end of the last stream: one that stays open may have no
    /// end. Then the connection is closed.
    pub drain: Tick,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        let second = 1000;
        Deadlines {
            preface: 10 * second,
            settings_ack: 60 * second,
            frame: 60 * second,
            body: 60 * second,
            window: 60 * second,
            output: 60 * second,
            drain: 60 * second,
        }
    }
}

/// What the deadlines did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checked {
    /// Something may still time out.
    Waits,
    Nothing,
    /// The socket has taken nothing: no error can be sent either.
    Dead,
}

impl Deadlines {
    fn of(&self, waiting: PeerWait) -> Tick {
        match waiting {
            PeerWait::Preface => self.preface,
            PeerWait::SettingsAck => self.settings_ack,
            PeerWait::Frame => self.frame,
            PeerWait::Body(_) => self.body,
            PeerWait::Window(_) => self.window,
            PeerWait::Output => self.output,
        }
    }

    /// Ends what has waited too long.
    fn check(
        &self,
        connection: &mut Connection,
        now: Tick,
        stays_open: impl Fn(StreamId) -> bool,
    ) -> Checked {
        let mut any = false;
        let late: Vec<PeerWait> = connection
            .waits()
            .filter(|wait| !matches!(wait.waiting, PeerWait::Body(stream) if stays_open(stream)))
            .inspect(|_| any = true)
            .filter(|wait| now.saturating_sub(wait.since) >= self.of(wait.waiting))
            .map(|wait| wait.waiting)
            .collect();
        for waiting in late {
            match waiting {
                PeerWait::Preface => connection.close(ErrorCode::PROTOCOL_ERROR, "no preface in time"),
                PeerWait::SettingsAck => {
                    connection.close(ErrorCode::SETTINGS_TIMEOUT, "SETTINGS not acknowledged in time");
                }
                PeerWait::Frame => connection.close(ErrorCode::PROTOCOL_ERROR, "a frame did not end in time"),
                PeerWait::Body(stream) | PeerWait::Window(stream) => {
                    connection.cancel(stream, ErrorCode::CANCEL);
                }
                PeerWait::Output => return Checked::Dead,
            }
        }
        if any { Checked::Waits } else { Checked::Nothing }
    }
}
