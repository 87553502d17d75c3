//! A connection as one tokio task, for tests and the example. The member has its own, larger
//! implementation.
//!
//! ```text
//!   read once ──▶ handle all of it ──▶ write once ──▶ yield if more is there
//! ```
//!
//! * All requests of a read are handled before the next write, so that their responses leave together.
//! * A round is bounded by `Limits::read_bytes` and `Limits::round_bytes_max`; then other
//!   tasks run.
//! * If the socket does not accept output, reading stops once the output buffer is full.
//! * Waits have deadlines: see [`Deadlines`].

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

/// Serves the requests of a connection. Dropped with the connection, including its unfinished work.
pub trait Handler {
    /// Takes all events of a round, and sends the responses that are available immediately.
    fn round(&mut self, connection: &mut Connection);

    /// Sends responses that became available later. Ready when it has sent some; it is then polled again.
    fn poll(&mut self, _context: &mut Context<'_>, _connection: &mut Connection) -> Poll<()> {
        Poll::Pending
    }

    /// Reports whether the request may stay open indefinitely, as a stream of messages.
    fn stays_open(&self, _stream: StreamId) -> bool {
        false
    }
}

/// Interval of deadline checks: a second late does not matter for deadlines of tens of seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Limits on reading from a client after the last GOAWAY, so that it receives GOAWAY before the kernel
/// resets the connection because of unread bytes.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// Time for a client to acknowledge the first GOAWAY of a shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves one connection until it is closed. `shutdown` starts a graceful shutdown: open streams are still
/// served.
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

/// The next step of the task.
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
    /// No bytes were read since the last check.
    idle: bool,
    /// Start of the shutdown.
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

    /// Writes the output, then waits for the first of: bytes, responses, time, shutdown.
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
        // A response that used less of the window than available leaves the rest to the next owner.
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
            // The socket probably holds more: yield to other tasks first.
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
                    // Responses may have been waiting for capacity.
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

    /// Closes the connection after GOAWAY: discards input until the client closes it.
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

/// Maximum durations of waits in milliseconds. The defaults suit clients on slow networks, and disconnect
/// silent ones.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the accepted socket to the client's SETTINGS.
    pub preface: Tick,
    /// From the accepted socket to the acknowledgement of the server's SETTINGS.
    pub settings_ack: Tick,
    /// From the first byte of a frame or header block to its last.
    pub frame: Tick,
    /// From the head of a request to its last byte, unless [`Handler::stays_open`].
    pub body: Tick,
    /// Without progress of a response that the client's windows admit. The stream is reset.
    pub window: Tick,
    /// Without output accepted by the socket.
    pub output: Tick,
    /// From the first GOAWAY of a shutdown to the last stream's completion, as streams may stay open
    /// indefinitely. Then the connection is closed.
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

/// The result of a deadline check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checked {
    /// Something may still time out.
    Waits,
    Nothing,
    /// The socket accepts no output, so an error cannot be sent either.
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

    /// Applies the deadlines.
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
