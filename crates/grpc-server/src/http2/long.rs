//! A message that is made while it is sent: what of it is in memory is one part, and not for long.
//!
//!   begin ─▶ headers ─▶ ┌─▶ the client has room ─▶ its turn, a part ─▶ sent ─┐ ─▶ trailers
//!                       └────────────── what is left, anew ◀─ not in time ───┘
//!
//! * A part is asked for only when the client takes bytes: one that does not read takes no turn.
//! * A part is held until it is sent, or until others want its turn while the client takes less than
//!   [`TURN_BYTES_MIN`] within [`TURN_QUANTUM`]. What is left of it then is dropped and made again later, so
//!   that a slow client costs others no more than that.
//! * A client has to take [`PROGRESS_BYTES_MIN`] within [`PROGRESS_WITHIN`], and [`WANTED_BYTES_MIN`] within
//!   [`WANTED_WITHIN`] if others want what the answer holds between its parts. Otherwise the stream is reset
//!   with CANCEL, and what it pinned is released. Time in which it waits for its turn does not count.
//! * A client that resets its call ends it while it waits.
//! * When the member stops, what is under way is reset with REFUSED_STREAM, which clients read as
//!   UNAVAILABLE.
//! * Once the first byte is out, an error can only break the message off: the stream is reset, and the client
//!   sees no answer. RESOURCE_EXHAUSTED has a code that clients read as such.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ::http2::{EndOfBody, ErrorCode, StreamEnded};
use bytes::{Buf, Bytes};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::grpc::{HEADERS, TRAILERS, send_status};
use super::methods::{LongAnswer, Part};
use super::wire::StreamWriter;
use admission::Pass;

/// A client that others wait for is looked at so often. In this time it takes at least what its windows
/// allow.
const TURN_QUANTUM: Duration = Duration::from_millis(100);
/// The same for a client that was too slow in its last turn, so that a hundred of them delay others by a
/// second.
const TURN_QUANTUM_IF_SLOW: Duration = Duration::from_millis(10);
/// 25 Mbit/s: 32 MiB in ten seconds.
const TURN_BYTES_MIN: u64 = 320 << 10;
/// A client that pauses for longer has given up, or holds block files and memory on purpose.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// One window of a client that never set one: a client that reads takes as much at once.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;
/// Time in which a client has to take [`WANTED_BYTES_MIN`] if others want what its answer holds: 2 Mbit/s.
const WANTED_WITHIN: Duration = Duration::from_secs(10);
const WANTED_BYTES_MIN: u64 = 5 << 19;

/// Sends headers, the message and trailers, or a status alone if there will be no message. `stopped` returns
/// when the member stops.
pub(super) async fn send<L: LongAnswer>(
    mut writer: StreamWriter,
    answer: L,
    stopped: impl Future<Output = ()>,
) -> Result<(), StreamEnded> {
    tokio::select! {
        biased;
        sent = send_whole(&mut writer, answer, PROGRESS_WITHIN) => sent,
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
        progress.forgive(asked.elapsed()); // Others may have had their turns first.
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

/// How a message that has begun is broken off.
fn reset_code(status: &Status) -> ErrorCode {
    match status.code() {
        Code::ResourceExhausted => ErrorCode::ENHANCE_YOUR_CALM,
        _ => ErrorCode::INTERNAL_ERROR,
    }
}

/// What `work` comes to, unless the client gives up first.
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

/// Sends a part no faster than the client takes it, and as long as it does or its turn is not wanted.
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
            // A slice would keep the whole piece in memory until it was written.
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

/// What a client has taken, and how fast.
struct LongProgress {
    bytes: u64,
    sent: u64,
    within: Duration,
    /// Where each period began: bytes sent until then, and when.
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

    /// Takes a wait that the client is not to blame for out of all periods.
    fn forgive(&mut self, waited: Duration) {
        self.any.1 += waited;
        self.wanted.1 += waited;
    }

    fn begin_turn(&mut self) {
        self.turn = (self.sent, Instant::now());
    }

    /// Waits until the client takes something, and says how much. None if it is too slow: for a turn, if it
    /// holds one, or for any answer.
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
                // Thousands may wait without a turn.
                None => {
                    let due = (self.wanted.1 + WANTED_WITHIN).min(self.any.1 + self.within);
                    due.saturating_duration_since(Instant::now())
                }
            };
            if let Ok(granted) = timeout(within, granted).await {
                return Some(granted);
            }
        }
    }

    /// Whether the client has given up, or holds on purpose what others want.
    fn is_too_slow<L: LongAnswer>(&mut self, answer: &L) -> bool {
        let now = Instant::now();
        if self.sent - self.any.0 >= PROGRESS_BYTES_MIN {
            self.any = (self.sent, now);
        }
        let is_due = now >= self.wanted.1 + WANTED_WITHIN;
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
