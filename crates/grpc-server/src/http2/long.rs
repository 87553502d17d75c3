//! A message that is produced while it is sent. At most one part of it is in memory, for a bounded time.
//!
//!   begin ─▶ headers ─▶ ┌─▶ client takes bytes ─▶ permit, part ─▶ sent ─┐ ─▶ trailers
//!                       └─────────── produced again ◀─ timed out ───────┘
//!
//! * A part is requested only when the client takes bytes, so a client that does not read uses no permit.
//! * A part is held until it is sent, or until other calls want its permit while the client takes less than
//!   [`TURN_BYTES_MIN`] within [`TURN_QUANTUM`]. The rest is then dropped and produced again later, so that
//!   a slow client delays other calls by no more than the quantum.
//! * A client has to take [`PROGRESS_BYTES_MIN`] within [`PROGRESS_TIMEOUT`], and [`WANTED_BYTES_MIN`]
//!   within [`WANTED_TIMEOUT`] if other calls want the memory that the response holds between its parts.
//!   Otherwise the stream is reset with CANCEL, and the pinned memory is released. Time spent waiting for a
//!   permit does not count.
//! * A waiting call is dropped when its client resets it.
//! * When the member stops, responses in progress are reset with REFUSED_STREAM, which clients interpret as
//!   UNAVAILABLE.
//! * After the first byte, an error can only abort the message: the stream is reset, and the client gets no
//!   response. RESOURCE_EXHAUSTED is sent as the code that clients interpret as such.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ::http2::{EndOfBody, ErrorCode, StreamEnded};
use bytes::{Buf, Bytes};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::calls::{LongAnswer, Part};
use super::grpc::{HEADERS, TRAILERS, send_status};
use super::wire::StreamWriter;
use admission::Pass;

/// Interval of the speed check while other calls want the client's permit. Within it a client takes at
/// least its window.
const TURN_QUANTUM: Duration = Duration::from_millis(100);
/// The interval for a client that was too slow with its last permit, so that a hundred of them delay other
/// calls by a second.
const TURN_QUANTUM_IF_SLOW: Duration = Duration::from_millis(10);
/// 25 Mbit/s: 32 MiB in ten seconds.
const TURN_BYTES_MIN: u64 = 320 << 10;
/// A client that pauses for longer has given up, or holds block files and memory on purpose.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// The default window: a client that reads takes at least this much in one read.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;
/// Time for a client to take [`WANTED_BYTES_MIN`] if other calls want the memory of its response: 2 Mbit/s.
const WANTED_TIMEOUT: Duration = Duration::from_secs(10);
const WANTED_BYTES_MIN: u64 = 5 << 19;

/// Sends headers, the message and trailers, or only a status if there is no message. `stopped` returns when
/// the member stops.
pub(super) async fn send<L: LongAnswer>(
    writer: &mut StreamWriter,
    answer: L,
    stopped: impl Future<Output = ()>,
) -> Result<(), StreamEnded> {
    tokio::select! {
        biased;
        sent = send_whole(writer, answer, PROGRESS_TIMEOUT) => sent,
        () = stopped => {
            writer.send_reset(ErrorCode::REFUSED_STREAM);
            Ok(())
        }
    }
}

async fn send_whole<L: LongAnswer>(
    writer: &mut StreamWriter,
    mut answer: L,
    progress_within: Duration,
) -> Result<(), StreamEnded> {
    let begun = unless_reset(answer.begin(), writer).await?;
    let bytes = match begun {
        Ok(bytes) => bytes,
        Err(status) => return send_status(writer, status),
    };
    writer.send_head(&HEADERS, EndOfBody::More)?;
    let mut progress = LongProgress::new(bytes, progress_within);
    while progress.sent < bytes {
        let Some(granted) = progress.room(writer, &answer, None).await else {
            answer.unread();
            writer.send_reset(ErrorCode::CANCEL);
            return Ok(());
        };
        granted?;
        let asked = Instant::now();
        let made = unless_reset(answer.part(progress.sent), writer).await?;
        progress.forgive(asked.elapsed()); // Other calls may have held the permits first.
        let part = match made {
            Ok(part) => part,
            Err(status) => {
                writer.send_reset(reset_code(&status));
                return Ok(());
            }
        };
        assert!(!part.is_empty(), "a part that brings the message no further");
        send_part(writer, part, &answer, &mut progress).await?;
    }
    assert!(progress.sent == bytes, "a message of another length than its prefix says");
    writer.send_trailers(&TRAILERS)
}

fn reset_code(status: &Status) -> ErrorCode {
    match status.code() {
        Code::ResourceExhausted => ErrorCode::ENHANCE_YOUR_CALM,
        _ => ErrorCode::INTERNAL_ERROR,
    }
}

/// Returns the result of `work`, unless the client resets the call first.
pub(super) async fn unless_reset<T>(
    work: impl Future<Output = T>,
    writer: &mut StreamWriter,
) -> Result<T, StreamEnded> {
    let mut work = pin!(work);
    poll_fn(|context| match writer.poll_reset(context) {
        Poll::Ready(()) => Poll::Ready(Err(StreamEnded)),
        Poll::Pending => work.as_mut().poll(context).map(Ok),
    })
    .await
}

/// Sends a part at the client's pace, until it is sent, the client is too slow, or the permit is wanted.
async fn send_part<L: LongAnswer>(
    writer: &mut StreamWriter,
    mut part: Part,
    answer: &L,
    progress: &mut LongProgress,
) -> Result<(), StreamEnded> {
    progress.begin_turn();
    while let Some(piece) = part.pieces.front_mut() {
        let wanted = piece.len();
        let Some(granted) = progress.room(writer, answer, part.turn.as_ref()).await else {
            return Ok(());
        };
        let granted = granted?.min(wanted);
        let sent = if granted == wanted {
            part.pieces.pop_front().expect("it was looked at")
        } else {
            // A slice would pin the whole piece until it was written.
            let sent = Bytes::copy_from_slice(&piece[..granted]);
            piece.advance(granted);
            sent
        };
        writer.send_data(answer.counted(sent), EndOfBody::More)?;
        progress.sent += granted as u64;
    }
    progress.turn_quantum = TURN_QUANTUM;
    Ok(())
}

struct LongProgress {
    bytes: u64,
    sent: u64,
    within: Duration,
    /// Start of each period: the bytes sent before it, and the time.
    any: (u64, Instant),
    wanted: (u64, Instant),
    turn: (u64, Instant),
    turn_quantum: Duration,
}

impl LongProgress {
    fn new(bytes: u64, within: Duration) -> LongProgress {
        let begun = (0, Instant::now());
        let turn_quantum = TURN_QUANTUM;
        LongProgress { bytes, sent: 0, within, any: begun, wanted: begun, turn: begun, turn_quantum }
    }

    /// Excludes a wait that the client did not cause from all periods.
    fn forgive(&mut self, waited: Duration) {
        self.any.1 += waited;
        self.wanted.1 += waited;
    }

    fn begin_turn(&mut self) {
        self.turn = (self.sent, Instant::now());
    }

    /// Waits until the client accepts bytes, and returns their number. Returns None if the client is too
    /// slow: to hold a permit, if it has one, or to get a response at all.
    async fn room<L: LongAnswer>(
        &mut self,
        writer: &mut StreamWriter,
        answer: &L,
        turn: Option<&Pass>,
    ) -> Option<Result<usize, StreamEnded>> {
        let left = usize::try_from(self.bytes - self.sent).unwrap_or(usize::MAX);
        loop {
            if self.is_too_slow(answer) || turn.is_some_and(|turn| self.is_too_slow_for(turn)) {
                return None;
            }
            let granted = async {
                unless_reset(answer.room(), writer).await?;
                poll_fn(|context| writer.poll_room(left, context)).await
            };
            let within = match turn {
                Some(_) => self.turn_quantum,
                // No timer: thousands may wait without a permit.
                None => {
                    let due = (self.wanted.1 + WANTED_TIMEOUT).min(self.any.1 + self.within);
                    due.saturating_duration_since(Instant::now())
                }
            };
            if let Ok(granted) = timeout(within, granted).await {
                return Some(granted);
            }
        }
    }

    /// Reports whether the client stopped reading, or is too slow while other calls want its memory.
    fn is_too_slow<L: LongAnswer>(&mut self, answer: &L) -> bool {
        let now = Instant::now();
        if self.sent - self.any.0 >= PROGRESS_BYTES_MIN {
            self.any = (self.sent, now);
        }
        let is_due = now >= self.wanted.1 + WANTED_TIMEOUT;
        let is_slow = is_due && self.sent - self.wanted.0 < WANTED_BYTES_MIN;
        if is_due && !(is_slow && answer.is_wanted()) {
            self.wanted = (self.sent, now);
            return false;
        }
        is_slow || now >= self.any.1 + self.within
    }

    fn is_too_slow_for(&mut self, turn: &Pass) -> bool {
        let now = Instant::now();
        if now < self.turn.1 + self.turn_quantum {
            return false;
        }
        let taken = self.sent - self.turn.0;
        self.turn = (self.sent, now);
        let is_too_slow = taken < TURN_BYTES_MIN && turn.is_wanted();
        if is_too_slow {
            self.turn_quantum = TURN_QUANTUM_IF_SLOW;
        }
        is_too_slow
    }
}

#[cfg(test)]
#[path = "long_tests.rs"]
mod tests;
