//! The socket of a client connection as HTTP/2 reads it: frames are counted, floods are slowed down.
//!
//! ```text
//!   socket ──bytes──▶ Frames (9-byte headers only) ──cost of each frame──▶ Pace ──▶ read on, yield, or pause
//! ```
//!
//! The state machine bounds the memory of each flood; this bounds the processor time. Frames that ask for no
//! answer cost tokens; written bytes earn them, so that the budget of a connection grows with the work done
//! for it. A connection without tokens is not read until it has some again. It is not closed: a client whose
//! calls expired while this process stood still sends thousands of resets at once, and keeps its connection.
//!
//! Invariants:
//! - HEADERS and DATA are free, unless DATA is tiny and not the last of its stream. An answer earns more than
//!   such a frame costs: requests that are answered are not slowed down here.
//! - A turn of the connection's task processes frames of at most [`TURN_TOKENS_MAX`] and one read buffer.
//! - A connection with requests of streams that wait to be read is read slowly: one buffer in
//!   [`WAITING_PAUSE`]. It is not stopped: the window that lets answers leave, after which the requests are
//!   read, may be in what the client sent. It fails when its client is gone.
//! - A header block that was begun is complete within [`HEADERS_WITHIN`], or the connection fails.
//!
//! Cost per request: two frame headers looked at. No lock, no clock, no allocation.

mod frames; // headers of frames, and prices

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::socket::Ends;
use frames::{ACK, FRAME_HEADER_BYTES, Frame, Frames, PING, SETTINGS};

/// The smallest answer is some 60 bytes on the wire. It pays for a reset, or for four window updates.
const WRITTEN_BYTES_PER_TOKEN: usize = 16;
/// Enough for 1000 resets or pings each second: a hundredth of a processor.
const TOKENS_PER_SECOND: i64 = 4_000;
/// 2,000 resets before the first answer.
const TOKENS_AT_START: i64 = 8_000;
/// 20,000 resets: 2,000 callers with deadlines of 200 ms while this process stands still for 2 s.
const TOKENS_MAX: i64 = 80_000;
/// 100 resets, half a millisecond. Then the tasks of other connections have their turn.
const TURN_TOKENS_MAX: u32 = 400;
/// Small DATA frames that are read in one turn, and those of one read. Then the streams
/// take them, and the tasks of other connections have their turn.
const TURN_SMALL_MAX: u32 = 64;
/// A read after one with many small DATA frames: 64 to 128 renewals of a lease. Others are of up to 16 KiB.
const LITTLE_BYTES: usize = 2 << 10;
/// Bytes of requests that wait without slowing their connection down: some 500 requests.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// A connection whose requests wait is read this often: 300 of them send some 2.4 MB each second.
const WAITING_PAUSE: Duration = Duration::from_secs(1);
/// HEADERS and CONTINUATION of one request come in one packet or a few.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);

/// Pings that come too early and are tolerated. etcd's figure.
const PING_STRIKES_MAX: u32 = 2;
/// Between two pings while no call is open. etcd's figure.
const IDLE_PING_SPACING: Duration = Duration::from_secs(2 * 60 * 60);

/// What the reader has seen, for the connection's task.
#[derive(Default)]
pub(super) struct ReaderFlags {
    /// Set by the task: no call is open.
    is_idle: AtomicBool,
    /// The client pings more often than the flags allow.
    pings_too_often: AtomicBool,
    /// Bytes that the socket took. Set by the task that writes.
    written: AtomicU64,
    /// Reads that brought something, modulo 2^32. Set by the task that reads.
    reads: AtomicU32,
    /// Bytes of requests of streams that wait to be read.
    waiting: AtomicUsize,
    /// Notified when they are few again.
    reader: AtomicWaker,
}

impl ReaderFlags {
    /// True once, when the client has pinged too often.
    pub(super) fn take_pings_too_often(&self) -> bool {
        self.pings_too_often.load(Relaxed) && self.pings_too_often.swap(false, Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Changes when the client has sent something.
    pub(super) fn reads(&self) -> u32 {
        self.reads.load(Relaxed)
    }

    /// Replaces a part of the bytes that wait.
    pub(super) fn change_waiting(&self, before: usize, after: usize) {
        if after >= before {
            self.waiting.fetch_add(after - before, SeqCst);
            return;
        }
        let sum = self.waiting.fetch_sub(before - after, SeqCst);
        if sum > WAITING_BYTES_MAX && sum - (before - after) <= WAITING_BYTES_MAX {
            self.reader.wake();
        }
    }

    fn has_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > WAITING_BYTES_MAX
    }

    pub(super) fn note_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Relaxed);
    }
}

/// A socket whose frames are counted. What is written passes as it is.
pub(super) struct MeteredIo<I> {
    io: I,
    frames: Frames,
    pace: FramePace,
    pings: Pings,
    seen: Arc<ReaderFlags>,
    /// Runs while a header block is incomplete.
    headers_deadline: Option<Pin<Box<Sleep>>>,
    /// Runs while requests wait to be read.
    waiting_pause: Option<Pin<Box<Sleep>>>,
}

impl<I: Ends> MeteredIo<I> {
    /// `ping_spacing_min`: etcd's `--grpc-keepalive-min-time`; zero allows any.
    pub(super) fn new(io: I, ping_spacing_min: Duration, seen: Arc<ReaderFlags>) -> Self {
        let pings = Pings::new(ping_spacing_min);
        let (frames, pace) = (Frames::default(), FramePace::new());
        MeteredIo { io, frames, pace, pings, seen, headers_deadline: None, waiting_pause: None }
    }

    /// Ready when the socket may be read as far as requests that wait are concerned.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.seen.has_waiting() {
            self.seen.reader.register(context.waker());
            // Otherwise they were read before the waker was there.
            if self.seen.has_waiting() {
                if self.io.has_ended() {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                let pause = self.waiting_pause.get_or_insert_with(|| Box::pin(sleep(WAITING_PAUSE)));
                ready!(pause.as_mut().poll(context));
            }
        }
        self.waiting_pause = None;
        Poll::Ready(Ok(()))
    }

    /// Charges what was read.
    fn account(&mut self, bytes: &[u8]) {
        let MeteredIo { frames, pings, seen, .. } = self;
        let (mut tokens, mut small) = (0u32, 0u32);
        frames.feed(bytes, |frame| {
            tokens = tokens.saturating_add(frame.tokens());
            small += u32::from(frame.is_small_data());
            if matches!(frame.kind, PING | SETTINGS) && frame.flags & ACK == 0 {
                pings.owe(frame);
            }
            if frame.kind == PING && frame.flags & ACK == 0 && pings.is_too_early(seen) {
                seen.pings_too_often.store(true, Relaxed);
            }
        });
        seen.reads.store(seen.reads().wrapping_add(1), Relaxed);
        self.pace.note_small(small);
        if tokens > 0 {
            self.pace.charge(tokens);
        }
    }

    fn note_written(&mut self, bytes: usize) {
        self.pace.earn(bytes);
        self.pings.note_written(bytes);
        self.seen.written.store(self.seen.written() + bytes as u64, Relaxed);
    }

    /// An error when a header block has been incomplete for too long.
    fn check_headers(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.frames.is_in_headers() {
            self.headers_deadline = None;
            return Ok(());
        }
        let deadline = self.headers_deadline.get_or_insert_with(|| Box::pin(sleep(HEADERS_WITHIN)));
        if deadline.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl<I: AsyncRead + Ends + Unpin> AsyncRead for MeteredIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pace.poll(context));
        ready!(self.poll_waiting(context))?;
        let before = buffer.filled().len();
        let polled = match self.pace.reads_little {
            false => Pin::new(&mut self.io).poll_read(context, buffer),
            true => {
                let bytes = buffer.remaining().min(LITTLE_BYTES);
                let mut little = ReadBuf::new(buffer.initialize_unfilled_to(bytes));
                let polled = Pin::new(&mut self.io).poll_read(context, &mut little);
                let read = little.filled().len();
                buffer.advance(read);
                polled
            }
        };
        match polled {
            Poll::Ready(Ok(())) => self.account(&buffer.filled()[before..]),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.pace.end_turn();
                self.check_headers(context)?;
            }
        }
        polled
    }
}

impl<I: AsyncWrite + Ends + Unpin> AsyncWrite for MeteredIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, slices))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Tokens of one connection.
struct FramePace {
    tokens: i64,
    /// When the passing of time was last counted. The clock is read only when tokens run out.
    counted_at: Instant,
    turn_tokens: u32,
    /// Small DATA frames in this turn.
    turn_small: u32,
    /// The last read brought many of them.
    reads_little: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl FramePace {
    fn new() -> FramePace {
        let (tokens, counted_at) = (TOKENS_AT_START, Instant::now());
        FramePace { tokens, counted_at, turn_tokens: 0, turn_small: 0, reads_little: false, pause: None }
    }

    fn earn(&mut self, written: usize) {
        let earned = (written / WRITTEN_BYTES_PER_TOKEN) as i64;
        self.tokens = self.tokens.saturating_add(earned).min(TOKENS_MAX);
    }

    /// Counts the small DATA frames of one read.
    fn note_small(&mut self, count: u32) {
        self.turn_small = self.turn_small.saturating_add(count);
        self.reads_little = count > TURN_SMALL_MAX / 2;
    }

    fn charge(&mut self, tokens: u32) {
        self.turn_tokens = self.turn_tokens.saturating_add(tokens);
        self.tokens -= i64::from(tokens);
        if self.tokens >= 0 {
            return;
        }
        let now = Instant::now();
        let passed_ms = now.saturating_duration_since(self.counted_at).as_millis().min(60_000) as i64;
        self.counted_at = now;
        self.tokens = self.tokens.saturating_add(passed_ms * TOKENS_PER_SECOND / 1000).min(TOKENS_MAX);
        if self.tokens < 0 {
            let debt_ms = 1 + -self.tokens * 1000 / TOKENS_PER_SECOND;
            self.pause = Some(Box::pin(sleep(Duration::from_millis(debt_ms as u64))));
        }
    }

    /// Ready when the socket may be read.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.turn_tokens > TURN_TOKENS_MAX || self.turn_small > TURN_SMALL_MAX {
            self.end_turn();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn end_turn(&mut self) {
        (self.turn_tokens, self.turn_small) = (0, 0);
    }
}

/// etcd's rule for pings, which is that of gRPC's Go server: HEADERS or DATA sent since the last ping forgive
/// it. gRPC's Go client sends a ping for each answer, to estimate the bandwidth.
struct Pings {
    last: Option<Instant>,
    strikes: u32,
    spacing_min: Duration,
    /// Bytes written since the last ping, without what PING and SETTINGS of the client ask for.
    written: u32,
    /// Bytes of that, which were not written yet. They may wait, and leave together.
    owed: u32,
}

/// Two WINDOW_UPDATE frames, or a PING. More than that is an answer: the smallest has 58 bytes.
const NO_ANSWER_BYTES: u32 = 2 * 13;

impl Pings {
    fn new(spacing_min: Duration) -> Pings {
        Pings { last: None, strikes: 0, spacing_min, written: 0, owed: 0 }
    }

    /// A frame was read that is answered by one of the same kind: PING by as many bytes, SETTINGS by none.
    fn owe(&mut self, frame: Frame) {
        let payload = if frame.kind == PING { frame.length } else { 0 };
        let bytes = u32::try_from(FRAME_HEADER_BYTES + payload).unwrap_or(u32::MAX);
        self.owed = self.owed.saturating_add(bytes);
    }

    fn note_written(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let owed = self.owed.min(bytes);
        self.owed -= owed;
        self.written = self.written.saturating_add(bytes - owed);
    }

    /// Counts a ping. True when there were too many.
    fn is_too_early(&mut self, seen: &ReaderFlags) -> bool {
        let now = Instant::now();
        let last = self.last.replace(now);
        if self.spacing_min.is_zero() {
            return false;
        }
        if std::mem::take(&mut self.written) > NO_ANSWER_BYTES {
            self.strikes = 0;
            return false;
        }
        let spacing = if seen.is_idle.load(Relaxed) { IDLE_PING_SPACING } else { self.spacing_min };
        if last.is_some_and(|last| now.saturating_duration_since(last) < spacing) {
            self.strikes += 1;
        }
        self.strikes > PING_STRIKES_MAX
    }
}

#[cfg(test)]
mod tests;
