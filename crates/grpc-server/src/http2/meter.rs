//! Read pacing of a connection, based on the frames counted by the state machine, so that a flood takes no
//! processor time from other connections.
//!
//! The state machine bounds the memory of each flood, and pauses a connection with frames that cost more
//! than its responses earn.
//!
//! Invariants:
//! - A poll of the connection's task processes frames of at most [`TURN_TOKENS_MAX`] and one read buffer.
//! - A connection with unread stream requests is read slowly: one buffer per [`WAITING_PAUSE`]. It is not
//!   stopped, because the client's data may include the window update that lets responses leave, after
//!   which the requests are read. It fails when its client disconnects.
//! - A header block must be complete within [`HEADERS_TIMEOUT`], or the connection fails.
//!
//! Cost per request: no lock, no clock, no allocation.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http2::FrameWork;
use futures_util::task::AtomicWaker;
use tokio::time::{Instant, Sleep, sleep};

/// 100 resets, half a millisecond. Then the task yields to other connections.
const TURN_TOKENS_MAX: u32 = 400;
/// Small DATA frames per poll, and per read. Then the streams consume them, and the task yields to other
/// connections.
const TURN_SMALL_MAX: u32 = 64;
/// Size of a read after one with many small DATA frames: 64 to 128 lease renewals. All other reads are of
/// up to 16 KiB.
const LITTLE_BYTES: usize = 2 << 10;
/// Unread request bytes above which their connection is slowed down: about 500 requests.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// Interval between reads of a connection with unread requests: 300 of them send about 2.4 MB per second.
const WAITING_PAUSE: Duration = Duration::from_secs(1);
/// HEADERS and CONTINUATION of a request usually arrive in one packet or a few.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// Tolerated number of early pings. The same as in etcd.
const PING_STRIKES_MAX: u32 = 2;
/// Minimum interval between two pings while no call is open. The same as in etcd.
const IDLE_PING_SPACING: Duration = Duration::from_secs(2 * 60 * 60);

/// State shared between the reader and the connection's task.
#[derive(Debug, Default)]
pub(super) struct ReaderFlags {
    /// Set by the task: no call is open.
    is_idle: AtomicBool,
    /// The client pings more often than its limit.
    pings_too_often: AtomicBool,
    /// Bytes that the socket accepted. Set by the task that writes.
    written: AtomicU64,
    /// Reads that returned data, modulo 2^32. Set by the task that reads.
    reads: AtomicU32,
    /// Bytes of unread stream requests.
    waiting: AtomicUsize,
    /// Woken when they fall below the limit.
    reader: AtomicWaker,
}

impl ReaderFlags {
    /// Returns true once after the client has pinged too often.
    pub(super) fn take_pings_too_often(&self) -> bool {
        self.pings_too_often.load(Relaxed) && self.pings_too_often.swap(false, Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub(super) fn note_read(&self) {
        self.reads.store(self.reads().wrapping_add(1), Relaxed);
    }

    /// Returns a counter that changes when the client sends data.
    pub(super) fn reads(&self) -> u32 {
        self.reads.load(Relaxed)
    }

    /// Updates the number of unread bytes of a stream.
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

/// Read pacing for the driver of a socket.
pub(super) struct Meter {
    pings: Pings,
    turn_tokens: u32,
    /// Small DATA frames in this poll.
    turn_small: u32,
    /// The last read returned many of them.
    reads_little: bool,
    /// Runs while a header block is incomplete.
    headers_deadline: Option<Pin<Box<Sleep>>>,
    /// Runs while requests are unread.
    waiting_pause: Option<Pin<Box<Sleep>>>,
}

impl Meter {
    /// Returns the pacing for etcd's `--grpc-keepalive-min-time`; zero allows any ping.
    pub(super) fn new(ping_spacing_min: Duration) -> Meter {
        Meter {
            pings: Pings::new(ping_spacing_min),
            turn_tokens: 0,
            turn_small: 0,
            reads_little: false,
            headers_deadline: None,
            waiting_pause: None,
        }
    }

    /// Ready when unread requests do not prevent reading the socket.
    pub(super) fn poll_waiting(
        &mut self,
        seen: &ReaderFlags,
        has_ended: impl Fn() -> bool,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if seen.has_waiting() {
            seen.reader.register(context.waker());
            // Checked again: they may have been read before the waker was registered.
            if seen.has_waiting() {
                if has_ended() {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                let pause = self.waiting_pause.get_or_insert_with(|| Box::pin(sleep(WAITING_PAUSE)));
                ready!(pause.as_mut().poll(context));
            }
        }
        self.waiting_pause = None;
        Poll::Ready(Ok(()))
    }

    pub(super) fn read_bytes_max(&self) -> usize {
        if self.reads_little { LITTLE_BYTES } else { usize::MAX }
    }

    /// Counts the frames of a read after they were handled.
    pub(super) fn note_read(&mut self, work: FrameWork, seen: &ReaderFlags) {
        let FrameWork { tokens, small_data, pings, settings } = work;
        self.turn_tokens = self.turn_tokens.saturating_add(tokens);
        self.turn_small = self.turn_small.saturating_add(small_data);
        self.reads_little = small_data > TURN_SMALL_MAX / 2;
        self.pings.owe(pings, settings);
        if (0..pings).fold(false, |too_early, _| self.pings.is_too_early(seen) || too_early) {
            seen.pings_too_often.store(true, Relaxed);
        }
    }

    pub(super) fn note_written(&mut self, bytes: usize, seen: &ReaderFlags) {
        self.pings.note_written(bytes);
        seen.written.store(seen.written() + bytes as u64, Relaxed);
    }

    /// Reports whether the task should yield to other connections before it reads more.
    pub(super) fn is_turn_over(&self) -> bool {
        self.turn_tokens > TURN_TOKENS_MAX || self.turn_small > TURN_SMALL_MAX
    }

    pub(super) fn end_turn(&mut self) {
        (self.turn_tokens, self.turn_small) = (0, 0);
    }

    /// Returns an error if a header block has been incomplete for too long.
    pub(super) fn check_headers(&mut self, is_in_headers: bool, context: &mut Context<'_>) -> io::Result<()> {
        if !is_in_headers {
            self.headers_deadline = None;
            return Ok(());
        }
        let deadline = self.headers_deadline.get_or_insert_with(|| Box::pin(sleep(HEADERS_TIMEOUT)));
        if deadline.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// Ping limit of etcd and gRPC's Go server: HEADERS or DATA sent since the last ping permit it. gRPC's Go
/// client sends a ping per response, to estimate the bandwidth.
struct Pings {
    last: Option<Instant>,
    strikes: u32,
    spacing_min: Duration,
    /// Bytes written since the last ping, without the acknowledgements of PING and SETTINGS.
    written: u32,
    /// Bytes of acknowledgements not written yet. They may be held, and leave together.
    owed: u32,
}

const PING_BYTES: u32 = 17;
const SETTINGS_BYTES: u32 = 9;
/// Two WINDOW_UPDATE frames, or a PING. More than that is a response: the smallest has 58 bytes.
const NO_ANSWER_BYTES: u32 = 2 * 13;

impl Pings {
    fn new(spacing_min: Duration) -> Pings {
        Pings { last: None, strikes: 0, spacing_min, written: 0, owed: 0 }
    }

    /// Records received frames that need an acknowledgement: PING of the same size, SETTINGS without
    /// payload.
    fn owe(&mut self, pings: u32, settings: u32) {
        let bytes = pings.saturating_mul(PING_BYTES).saturating_add(settings.saturating_mul(SETTINGS_BYTES));
        self.owed = self.owed.saturating_add(bytes);
    }

    fn note_written(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let owed = self.owed.min(bytes);
        self.owed -= owed;
        self.written = self.written.saturating_add(bytes - owed);
    }

    /// Counts a ping. Returns true when there were too many.
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
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_requests_wait_is_read_slowly_until_they_are_read() {
        let (mut meter, seen) = (Meter::new(Duration::ZERO), ReaderFlags::default());
        let mut read = async |count: u64| {
            let began = Instant::now();
            for _ in 0..count {
                poll_fn(|context| meter.poll_waiting(&seen, || false, context)).await.unwrap();
            }
            began.elapsed().as_secs()
        };
        assert_eq!(read(10).await, 0);
        seen.change_waiting(0, WAITING_BYTES_MAX);
        assert_eq!(read(10).await, 0, "few");
        seen.change_waiting(0, 1);
        assert_eq!(read(10).await, 10, "not stopped");
        let taking = async {
            sleep(Duration::from_millis(2500)).await;
            seen.change_waiting(1, 0);
        };
        assert_eq!(tokio::join!(read(10), taking).0, 2, "then at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_requests_wait_is_not_read_to_the_end_of_what_a_gone_client_sent() {
        let (mut meter, seen) = (Meter::new(Duration::ZERO), ReaderFlags::default());
        seen.change_waiting(0, WAITING_BYTES_MAX + 1);
        poll_fn(|context| meter.poll_waiting(&seen, || false, context)).await.unwrap();
        let read = poll_fn(|context| meter.poll_waiting(&seen, || true, context)).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn pings_are_judged_as_etcd_judges_them() {
        let seen = ReaderFlags::default();
        let five_seconds = Duration::from_secs(5);
        let smallest_answer = 58;
        // SETTINGS read before each ping, bytes written before it, and whether each ping but the first is a
        // strike. Pongs leave in pairs.
        let cases: [(u32, [usize; 2], bool); 6] = [
            (0, [0, 0], true),
            (0, [17, 17], true),
            (0, [34, 0], true),
            (3, [17 + 27, 17 + 27], true),
            (1, [34 + 18 + smallest_answer, 0], false),
            (0, [17 + smallest_answer, 17 + smallest_answer], false),
        ];
        for (settings, written, is_strike) in cases {
            let mut pings = Pings::new(five_seconds);
            let early: Vec<bool> = (0..6)
                .map(|n| {
                    pings.owe(0, settings);
                    pings.note_written(written[n % 2]);
                    pings.owe(1, 0);
                    pings.is_too_early(&seen)
                })
                .collect();
            let expected = if is_strike { [false, false, false, true, true, true] } else { [false; 6] };
            assert_eq!(early, expected, "{written:?} bytes between pings");
        }
        let mut any = Pings::new(Duration::ZERO);
        assert!((0..20).all(|_| !any.is_too_early(&seen)));
    }
}
