//! Every limit of a connection, with its reason and its effect.

/// Time as the owner counts it. Only differences matter; a tick of a millisecond suits the defaults.
pub type Tick = u64;

/// The limits of a connection. All of them hold from its first byte.
#[derive(Clone, Debug)]
pub struct Limits {
    /// SETTINGS_MAX_CONCURRENT_STREAMS. A stream counts until its request is complete and its response is
    /// in the output buffer. Further streams are rejected with REFUSED_STREAM, which clients may retry.
    pub streams_max: u32,
    /// SETTINGS_MAX_HEADER_LIST_SIZE: names, values and 32 bytes for each field. A larger list gets status
    /// 431; in trailers it resets the stream. Bounds the memory of a decoded head, since one byte of a
    /// block can refer to a field as large as the dynamic table.
    pub header_list_bytes_max: usize,
    /// Compressed bytes of one header block, all fragments together. A block must be decoded even if the
    /// request is rejected, so a larger one closes the connection with ENHANCE_YOUR_CALM.
    pub header_block_bytes_max: usize,
    /// CONTINUATION frames of one header block. Empty ones cost work without adding bytes. More of them
    /// close the connection with ENHANCE_YOUR_CALM.
    pub continuation_frames_max: u32,
    /// SETTINGS_MAX_FRAME_SIZE, 16,384 to 16,777,215. A frame is handled once it is complete, so this
    /// bounds the receive buffer. A larger frame closes the connection with FRAME_SIZE_ERROR.
    pub frame_bytes_max: u32,
    /// SETTINGS_HEADER_TABLE_SIZE: the decoder's dynamic table. The memory is the peer's to fill.
    pub header_table_bytes_max: u32,
    /// Body bytes of one stream that the owner has not released: SETTINGS_INITIAL_WINDOW_SIZE, at most
    /// 2^31-1. A peer that exceeds it gets its stream reset with FLOW_CONTROL_ERROR.
    pub stream_window_bytes: u32,
    /// Body bytes of all streams that the owner has not released, at least 65,535 and at most 2^31-1. A
    /// peer that exceeds it loses the connection with FLOW_CONTROL_ERROR.
    pub connection_window_bytes: u32,
    /// Body bytes of one stream accepted from the owner but not yet written to the output buffer, because
    /// the peer's window or the output buffer is full. The owner retains the rest until
    /// [`crate::Event::Writable`].
    pub stream_unsent_bytes_max: usize,
    /// The same for all streams of the connection together.
    pub connection_unsent_bytes_max: usize,
    /// Bytes in the output buffer above which no frame is handled and no body is moved there; large bodies
    /// stop at half of them. A peer that does not read its responses is therefore not read from either.
    /// Single frames and header blocks may exceed it.
    pub output_bytes_max: usize,
    /// Buffer capacity for one read of a busy connection. A round handles at most this plus the rest of the
    /// previous frame.
    pub read_bytes: usize,
    /// Work of one call of `process`: frame bytes plus header list bytes. Header lists count because a
    /// small block may expand to a large list. Beyond it the call returns, so that the owner can serve
    /// other connections.
    pub round_bytes_max: usize,
    /// Tokens for frames that carry no request: 4 for PING and RST_STREAM, 32 for SETTINGS, 1 for all other
    /// kinds, frames of closed streams, and DATA below 64 bytes without END_STREAM. 16 written bytes earn a
    /// token. A connection without tokens pauses until it has some. The initial value allows 2,000 resets
    /// before the first response.
    pub control_tokens_at_start: u32,
    /// Upper bound of the tokens: 20,000 resets, which are 2,000 callers with deadlines of 200 ms while the
    /// process is stalled for 2 s.
    pub control_tokens_max: u32,
    /// Length of the interval that the next three limits refer to.
    pub interval_ticks: Tick,
    /// Tokens earned per interval: 1,000 resets or pings, about 1 % of a core.
    pub control_tokens_per_interval: u32,
    /// Streams per interval that the peer reset, or that were reset because of a violation. Each may have
    /// cost the work of a call. Above the limit the connection pauses.
    pub resets_max: u32,
    /// Streams per interval for which SETTINGS changes the window. INITIAL_WINDOW_SIZE applies to every
    /// live stream (RFC 9113, 6.9.2), so the cost of a 15-byte frame grows with the number of streams.
    /// Above the limit the connection pauses. Real clients enlarge the window a few times.
    pub window_changes_max: u32,
    /// Remembered ids of streams reset by this side, for which frames in flight are ignored. For older
    /// streams DATA gets RST_STREAM, and a header block closes the connection.
    pub reset_streams_remembered: usize,
    /// Name of a field that differs from request to request, such as a deadline; empty for none. Heads are
    /// cached without it, and a short value is reported in [`crate::Event::Request`].
    pub varying_field: &'static str,
    /// Header blocks cached with their decoded heads, and as many blocks that differ only in the varying
    /// field. Clients repeat a few blocks: one per method they call.
    pub cached_blocks_max: usize,
    /// Largest header block in the cache, in bytes. Larger ones are decoded each time.
    pub cached_block_bytes_max: usize,
    /// Header list bytes of a cached head; with the two limits above it bounds the memory of the cache.
    pub cached_list_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            streams_max: 1000,
            header_list_bytes_max: 16 << 10,
            header_block_bytes_max: 64 << 10,
            continuation_frames_max: 16,
            frame_bytes_max: 16 << 10,
            header_table_bytes_max: 4096,
            stream_window_bytes: 256 << 10,
            connection_window_bytes: 1 << 20,
            stream_unsent_bytes_max: 1 << 20,
            connection_unsent_bytes_max: 16 << 20,
            output_bytes_max: 256 << 10,
            read_bytes: 64 << 10,
            round_bytes_max: 512 << 10,
            control_tokens_at_start: 8_000,
            control_tokens_max: 80_000,
            interval_ticks: 1000,
            control_tokens_per_interval: 4_000,
            resets_max: 2_000,
            window_changes_max: 100_000,
            reset_streams_remembered: 1024,
            varying_field: "",
            cached_blocks_max: 16,
            cached_block_bytes_max: 512,
            cached_list_bytes_max: 2048,
        }
    }
}

impl Limits {
    /// Clamps every value to the range that the RFC allows.
    pub(crate) fn in_range(mut self) -> Limits {
        let window_max = crate::flow::WINDOW_MAX as u32;
        self.frame_bytes_max = self.frame_bytes_max.clamp(1 << 14, (1 << 24) - 1);
        self.stream_window_bytes = self.stream_window_bytes.min(window_max);
        self.connection_window_bytes = self.connection_window_bytes.clamp(65_535, window_max);
        self.interval_ticks = self.interval_ticks.max(1);
        self.read_bytes = self.read_bytes.max(1024);
        self.control_tokens_per_interval = self.control_tokens_per_interval.max(1);
        self.resets_max = self.resets_max.max(1);
        self.window_changes_max = self.window_changes_max.max(1);
        self.stream_unsent_bytes_max = self.stream_unsent_bytes_max.max(1);
        self.connection_unsent_bytes_max = self.connection_unsent_bytes_max.max(1);
        self.output_bytes_max = self.output_bytes_max.max(1024);
        self.round_bytes_max = self.round_bytes_max.max(1);
        self
    }
}

/// Rate limit for one kind of frame.
///
/// Counts over a fixed interval that starts with its first frame. When the count is used up, the connection
/// pauses until the interval is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    count_max: u32,
    interval: Tick,
    count: u32,
    since: Tick,
}

impl Rate {
    pub(crate) fn new(count_max: u32, interval: Tick) -> Rate {
        Rate { count_max, interval, count: 0, since: 0 }
    }

    pub(crate) fn count(&mut self, now: Tick) {
        self.count_many(1, now);
    }

    pub(crate) fn count_many(&mut self, added: usize, now: Tick) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(u32::try_from(added).unwrap_or(u32::MAX));
    }

    /// Returns the tick at which the interval is over, if its count is used up. Starts a new interval if it
    /// has passed.
    pub(crate) fn paused_until(&mut self, now: Tick) -> Option<Tick> {
        let end = self.since.saturating_add(self.interval);
        if now >= end {
            self.count = 0;
        }
        (self.count >= self.count_max).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_up_count_pauses_until_the_interval_ends() {
        let mut rate = Rate::new(2, 10);
        rate.count(5);
        assert_eq!(rate.paused_until(5), None);
        rate.count(14);
        assert_eq!(rate.paused_until(14), Some(15));
        assert_eq!(rate.paused_until(15), None);
        rate.count(20);
        assert_eq!(rate.paused_until(29), None);
    }
}
