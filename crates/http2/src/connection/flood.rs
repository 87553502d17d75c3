//! The cost of frames that carry no request, and the token budget that slows down floods of them.
//!
//! Such frames cost tokens; written bytes and time earn them, so the budget of a connection grows with the
//! work done for it. A connection without tokens pauses reading until it has some. It is not closed: a
//! client with calls that expired while the process was stalled sends thousands of resets in a burst, and
//! should keep its connection.
//!
//! HEADERS and DATA are free, unless DATA is tiny and not the last of its stream, or the stream is closed.
//! A response earns more than such a frame costs, so requests that get responses are not slowed down.

use crate::frame::{FrameHeader, FrameKind, flags};
use crate::limits::{Limits, Tick};

/// RST_STREAM and PING. A reset costs most, since its call was set up in vain. Each PING needs a pong.
const DEAR_TOKENS: u32 = 4;
/// SETTINGS: a new window size is applied to every stream.
const SETTINGS_TOKENS: u32 = 32;
/// WINDOW_UPDATE, PRIORITY, CONTINUATION, tiny DATA, frames of closed streams, and frames that HTTP/2 does
/// not know.
pub(super) const CHEAP_TOKENS: u32 = 1;
/// Payload of a DATA frame that is worth its handling. Smaller ones are whole requests, or a flood.
const TINY_DATA_BYTES: usize = 64;
/// Payload of a DATA frame below which handling costs more than the bytes.
const SMALL_DATA_BYTES: usize = 256;
/// The smallest response is about 60 bytes on the wire. It pays for a reset, or for four window updates.
const WRITTEN_BYTES_PER_TOKEN: usize = 16;
/// Maximum time that earns tokens while none are needed.
const EARNING_TICKS_MAX: Tick = 60_000;

/// Work requested by the frames handled since the last [`super::Connection::take_work`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameWork {
    /// Cost of the frames without a request.
    pub tokens: u32,
    /// DATA frames that cost more than their bytes. The last one of a stream is a whole request.
    pub small_data: u32,
    /// PING and SETTINGS frames that need an acknowledgement.
    pub pings: u32,
    pub settings: u32,
}

#[derive(Debug)]
pub(super) struct TokenBudget {
    work: FrameWork,
    tokens: i64,
    /// The tick at which time was last converted to tokens, which is when they ran out.
    counted_at: Tick,
    tokens_max: i64,
    per_interval: Tick,
    interval: Tick,
}

impl TokenBudget {
    pub(super) fn new(limits: &Limits, now: Tick) -> TokenBudget {
        TokenBudget {
            work: FrameWork::default(),
            tokens: i64::from(limits.control_tokens_at_start),
            counted_at: now,
            tokens_max: i64::from(limits.control_tokens_max),
            per_interval: Tick::from(limits.control_tokens_per_interval),
            interval: limits.interval_ticks,
        }
    }

    /// Returns the tick at which the budget will be positive again, if it is not now.
    pub(super) fn paused_until(&mut self, now: Tick) -> Option<Tick> {
        if self.tokens >= 0 {
            return None;
        }
        let passed = now.saturating_sub(self.counted_at).min(EARNING_TICKS_MAX);
        self.counted_at = now;
        self.earn(passed * self.per_interval / self.interval);
        (self.tokens < 0).then(|| now + 1 + self.tokens.unsigned_abs() * self.interval / self.per_interval)
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        self.earn((bytes / WRITTEN_BYTES_PER_TOKEN) as u64);
    }

    fn earn(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_add_unsigned(tokens).min(self.tokens_max);
    }

    pub(super) fn take_work(&mut self) -> FrameWork {
        std::mem::take(&mut self.work)
    }

    pub(super) fn charge(&mut self, tokens: u32) {
        self.work.tokens = self.work.tokens.saturating_add(tokens);
        self.tokens -= i64::from(tokens);
    }

    /// Counts a frame before it is handled.
    pub(super) fn count(&mut self, header: FrameHeader) {
        let (is_last, is_ack) = (header.has(flags::END_STREAM), header.has(flags::ACK));
        let tokens = match header.kind {
            FrameKind::Headers => 0,
            FrameKind::Data => {
                let is_small = !is_last && (1..SMALL_DATA_BYTES).contains(&header.length);
                self.work.small_data = self.work.small_data.saturating_add(u32::from(is_small));
                if is_last || header.length >= TINY_DATA_BYTES { 0 } else { CHEAP_TOKENS }
            }
            FrameKind::Settings if !is_ack => {
                self.work.settings = self.work.settings.saturating_add(1);
                SETTINGS_TOKENS
            }
            FrameKind::Ping => {
                self.work.pings = self.work.pings.saturating_add(u32::from(!is_ack));
                DEAR_TOKENS
            }
            FrameKind::RstStream => DEAR_TOKENS,
            FrameKind::Settings
            | FrameKind::Priority
            | FrameKind::PushPromise
            | FrameKind::GoAway
            | FrameKind::WindowUpdate
            | FrameKind::Continuation
            | FrameKind::Unknown => CHEAP_TOKENS,
        };
        if tokens > 0 {
            self.charge(tokens);
        }
    }
}
