//! The socket of a client connection as HTTP/2 reads it: frames are counted, floods are slowed down.
//!
//! ```text
//!   socket ──bytes──▶ Frames (9-byte headers only) ──cost of each frame──▶ Pace ──▶ read on, yield, or pause
//! ```
//!
//! h2 bounds the memory of each flood; it does not bound the processor time. Frames that ask for no answer
//! cost tokens; written bytes earn them, so that the budget of a connection grows with the work done for it.
//! A connection without tokens is not read until it has some again. It is not closed: a client whose calls
//! expired while this process stood still sends thousands of resets at once, and keeps its connection.
//!
//! Invariants:
//! - HEADERS and DATA are free, unless DATA is tiny and not the last of its stream. An answer earns more than
//!   such a frame costs: requests that are answered are not slowed down here.
//! - A turn of the connection's task processes frames of at most [`TURN_TOKENS_MAX`] and one read buffer.
//! - A header block that was begun is complete within [`HEADERS_WITHIN`], or the connection fails.
//!
//! Cost per request: two frame headers looked at. No lock, no clock, no allocation.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// RST_STREAM and PING. A reset costs most: its call was set up for nothing. A pong is written for each PING.
const DEAR_TOKENS: u32 = 4;
/// SETTINGS: h2 looks at every stream when the window changes.
const SETTINGS_TOKENS: u32 = 32;
/// WINDOW_UPDATE, PRIORITY, CONTINUATION, tiny DATA, and frames that HTTP/2 does not know.
const CHEAP_TOKENS: u32 = 1;
/// Payload of a DATA frame that is worth its handling. Smaller ones are whole requests, or a flood.
const TINY_DATA_BYTES: usize = 64;
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
/// HEADERS and CONTINUATION of one request come in one packet or a few.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);

/// Pings that come too early and are tolerated. etcd's figure.
const PING_STRIKES_MAX: u32 = 2;
/// Between two pings while no call is open. etcd's figure.
const IDLE_PING_SPACING: Duration = Duration::from_secs(2 * 60 * 60);

/// What the reader has seen, for the connection's task.
#[derive(Default)]
pub(super) struct Seen {
    /// A stream was reset since the connection was opened.
    resets: AtomicBool,
    /// And since the open calls were woken for it.
    new_resets: AtomicBool,
    /// Streams that were reset may wait to be accepted. Nothing is read before they are.
    holds: AtomicBool,
    /// Set by the task: no call is open.
    is_idle: AtomicBool,
    /// The client pings more often than the flags allow.
    pings_too_often: AtomicBool,
    /// Bytes that the socket took. Set by the task that writes.
    written: AtomicU64,
}

impl Seen {
    pub(super) fn resets(&self) -> bool {
        self.resets.load(Relaxed)
    }

    /// True once after each read that brought resets.
    pub(super) fn take_new_resets(&self) -> bool {
        self.new_resets.load(Relaxed) && self.new_resets.swap(false, Relaxed)
    }

    /// True once, when the client has pinged too often.
    pub(super) fn take_pings_too_often(&self) -> bool {
        self.pings_too_often.load(Relaxed) && self.pings_too_often.swap(false, Relaxed)
    }

    /// Lets the socket be read again. Returns whether it was not.
    pub(super) fn release(&self) -> bool {
        self.holds.load(Relaxed) && self.holds.swap(false, Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub(super) fn note_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Relaxed);
    }
}

/// A socket whose frames are counted. What is written passes as it is.
pub(super) struct Metered<I> {
    io: I,
    frames: Frames,
    pace: Pace,
    pings: Pings,
    seen: Arc<Seen>,
    /// Runs while a header block is incomplete.
    headers_deadline: Option<Pin<Box<Sleep>>>,
}

impl<I> Metered<I> {
    /// `ping_spacing_min`: etcd's `--grpc-keepalive-min-time`; zero allows any.
    pub(super) fn new(io: I, ping_spacing_min: Duration, seen: Arc<Seen>) -> Self {
        let pings = Pings::new(ping_spacing_min);
        Metered { io, frames: Frames::default(), pace: Pace::new(), pings, seen, headers_deadline: None }
    }

    /// Charges what was read.
    fn account(&mut self, bytes: &[u8]) {
        let Metered { frames, pings, seen, .. } = self;
        let mut tokens = 0u32;
        frames.feed(bytes, |frame| {
            tokens = tokens.saturating_add(frame.tokens());
            match frame.kind {
                RST_STREAM => {
                    seen.resets.store(true, Relaxed);
                    seen.new_resets.store(true, Relaxed);
                    seen.holds.store(true, Relaxed);
                }
                PING if frame.flags & ACK == 0 && pings.is_too_early(seen) => {
                    seen.pings_too_often.store(true, Relaxed);
                }
                _ => {}
            }
        });
        if tokens > 0 {
            self.pace.charge(tokens);
        }
    }

    fn note_written(&mut self, bytes: usize) {
        self.pace.earn(bytes);
        self.pings.written = self.pings.written.saturating_add(bytes);
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

impl<I: AsyncRead + Unpin> AsyncRead for Metered<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seen.holds.load(Relaxed) {
            return Poll::Pending; // The task polls again once it has accepted what was read.
        }
        ready!(self.pace.poll(context));
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
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

impl<I: AsyncWrite + Unpin> AsyncWrite for Metered<I> {
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
struct Pace {
    tokens: i64,
    /// When the passing of time was last counted. The clock is read only when tokens run out.
    counted_at: Instant,
    turn_tokens: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    fn new() -> Pace {
        Pace { tokens: TOKENS_AT_START, counted_at: Instant::now(), turn_tokens: 0, pause: None }
    }

    fn earn(&mut self, written: usize) {
        let earned = (written / WRITTEN_BYTES_PER_TOKEN) as i64;
        self.tokens = self.tokens.saturating_add(earned).min(TOKENS_MAX);
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
        if self.turn_tokens > TURN_TOKENS_MAX {
            self.turn_tokens = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn end_turn(&mut self) {
        self.turn_tokens = 0;
    }
}

/// etcd's rule for pings, which is that of gRPC's Go server: HEADERS or DATA sent since the last ping forgive
/// it. gRPC's Go client sends a ping for each answer, to estimate the bandwidth.
struct Pings {
    last: Option<Instant>,
    strikes: u32,
    spacing_min: Duration,
    /// Bytes written since the last ping.
    written: usize,
}

/// What is written for a PING (17 bytes) and a SETTINGS frame (9). More than that is an answer.
const ACK_BYTES: usize = 17 + 9;

impl Pings {
    fn new(spacing_min: Duration) -> Pings {
        Pings { last: None, strikes: 0, spacing_min, written: 0 }
    }

    /// Counts a ping. True when there were too many.
    fn is_too_early(&mut self, seen: &Seen) -> bool {
        let now = Instant::now();
        let last = self.last.replace(now);
        if self.spacing_min.is_zero() {
            return false;
        }
        if std::mem::take(&mut self.written) > ACK_BYTES {
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

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// Of SETTINGS and PING.
const ACK: u8 = 1;
/// Of DATA and HEADERS.
const END_STREAM: u8 = 1;
/// Of HEADERS and CONTINUATION.
const END_HEADERS: u8 = 4;

const FRAME_HEADER_BYTES: usize = 9;
const PREFACE_BYTES: usize = 24;

/// One frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: usize,
}

impl Frame {
    fn tokens(self) -> u32 {
        match self.kind {
            HEADERS => 0,
            DATA if self.length >= TINY_DATA_BYTES || self.flags & END_STREAM != 0 => 0,
            SETTINGS if self.flags & ACK == 0 => SETTINGS_TOKENS,
            RST_STREAM | PING => DEAR_TOKENS,
            _ => CHEAP_TOKENS,
        }
    }
}

/// Finds the frame headers in what a client sends. Does not judge them: h2 does.
struct Frames {
    /// Bytes of the preface or of a payload that are yet to come.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    last: Frame,
    is_block_open: bool,
}

impl Default for Frames {
    fn default() -> Self {
        let last = Frame { kind: SETTINGS, flags: 0, length: 0 };
        let header = [0; FRAME_HEADER_BYTES];
        Frames { skip: PREFACE_BYTES, header, header_bytes: 0, last, is_block_open: false }
    }
}

impl Frames {
    fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Frame)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let [a, b, c, kind, flags, ..] = match bytes.split_first_chunk() {
                // Nearly every header comes whole.
                Some((header, rest)) if self.header_bytes == 0 => {
                    bytes = rest;
                    *header
                }
                _ => {
                    let Some(header) = self.gather(&mut bytes) else { return };
                    header
                }
            };
            self.last = Frame { kind, flags, length: u32::from_be_bytes([0, a, b, c]) as usize };
            self.skip = self.last.length;
            if matches!(kind, HEADERS | CONTINUATION) {
                self.is_block_open = flags & END_HEADERS == 0;
            }
            each(self.last);
        }
    }

    /// A header that comes in pieces, once it is complete.
    fn gather(&mut self, bytes: &mut &[u8]) -> Option<[u8; FRAME_HEADER_BYTES]> {
        let taken = (FRAME_HEADER_BYTES - self.header_bytes).min(bytes.len());
        self.header[self.header_bytes..self.header_bytes + taken].copy_from_slice(&bytes[..taken]);
        self.header_bytes += taken;
        *bytes = &bytes[taken..];
        if self.header_bytes < FRAME_HEADER_BYTES {
            return None;
        }
        self.header_bytes = 0;
        Some(self.header)
    }

    /// Whether the headers of a request have begun and not ended.
    fn is_in_headers(&self) -> bool {
        self.is_block_open || (self.skip > 0 && matches!(self.last.kind, HEADERS | CONTINUATION))
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
