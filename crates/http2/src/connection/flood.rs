//! What frames that carry no request cost, and the budget that slows floods of them down.
//!
//! Such frames cost tokens; written bytes and time earn them, so that the budget of a connection grows with
//! the work done for it. A connection without tokens reads no further until it has some again. It is not
//! closed: a client whose calls expired while the process stood still sends thousands of resets at once, and
//! keeps its connection.
//!
//! HEADERS and DATA are free, unless DATA is tiny and not the last of its stream, or the stream is closed. An
//! answer earns more than such a frame costs: requests that are answered are not slowed down.

use crate::frame::{FrameHeader, FrameKind, flags};
use crate::limits::{Limits, Tick};

/// RST_STREAM and PING. A reset costs most: its call was set up for nothing. A pong is written for each PING.
const DEAR_TOKENS: u32 = 4;
/// SETTINGS: every stream is looked at when the window changes.
const SETTINGS_TOKENS: u32 = 32;
/// WINDOW_UPDATE, PRIORITY, CONTINUATION, tiny DATA, frames of closed streams, and frames that HTTP/2 does
/// not know.
pub(super) const CHEAP_TOKENS: u32 = 1;
/// Payload of a DATA frame that is worth its handling. Smaller ones are whole requests, or a flood.
const TINY_DATA_BYTES: usize = 64;
/// Payload of a DATA frame whose handling costs more than its bytes.
const SMALL_DATA_BYTES: usize = 256;
/// The smallest answer is some 60 bytes on the wire. It pays for a reset, or for four window updates.
const WRITTEN_BYTES_PER_TOKEN: usize = 16;
/// Time that earns tokens, at most, while none were needed.
const EARNING_TICKS_MAX: Tick = 60_000;

/// What the frames asked for that were handled since it was last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameWork {
    /// What the frames without a request cost.
    pub tokens: u32,
    /// DATA frames that cost more than their bytes. The last one of a stream is a whole request.
    pub small_data: u32,
    /// PING and SETTINGS that have to be answered.
    pub pings: u32,
    pub settings: u32,
}

/// Tokens of one connection.
#[derive(Debug)]
pub(super) struct TokenBudget {
    work: FrameWork,
    tokens: i64,
    /// When the passing of time was last counted: when tokens ran out.
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

    /// The tick at which no token is missing any more, if one is.
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
