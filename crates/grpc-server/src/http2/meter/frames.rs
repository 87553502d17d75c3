//! The frames in what a client sends, and what each costs. Does not judge them: the state machine does.

/// RST_STREAM and PING. A reset costs most: its call was set up for nothing. A pong is written for each PING.
pub(super) const DEAR_TOKENS: u32 = 4;
/// SETTINGS: every stream is looked at when the window changes.
const SETTINGS_TOKENS: u32 = 32;
/// WINDOW_UPDATE, PRIORITY, CONTINUATION, tiny DATA, and frames that HTTP/2 does not know.
const CHEAP_TOKENS: u32 = 1;
/// Payload of a DATA frame that is worth its handling. Smaller ones are whole requests, or a flood.
const TINY_DATA_BYTES: usize = 64;
/// Payload of a DATA frame whose handling costs more than its bytes.
const SMALL_DATA_BYTES: usize = 256;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const CONTINUATION: u8 = 9;
/// Of SETTINGS and PING.
pub(super) const ACK: u8 = 1;
/// Of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
/// Of HEADERS and CONTINUATION.
pub(super) const END_HEADERS: u8 = 4;

pub(super) const FRAME_HEADER_BYTES: usize = 9;
pub(super) const PREFACE_BYTES: usize = 24;

/// One frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) length: usize,
}

impl Frame {
    pub(super) fn tokens(self) -> u32 {
        match self.kind {
            HEADERS => 0,
            DATA if self.length >= TINY_DATA_BYTES || self.flags & END_STREAM != 0 => 0,
            SETTINGS if self.flags & ACK == 0 => SETTINGS_TOKENS,
            RST_STREAM | PING => DEAR_TOKENS,
            _ => CHEAP_TOKENS,
        }
    }

    /// Whether it costs more than its bytes. The last one of a stream is a whole request.
    pub(super) fn is_small_data(self) -> bool {
        self.kind == DATA && self.flags & END_STREAM == 0 && (1..SMALL_DATA_BYTES).contains(&self.length)
    }
}

/// Finds the frame headers in what a client sends. Does not judge them: the state machine does.
pub(super) struct Frames {
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
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Frame)) {
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
    pub(super) fn is_in_headers(&self) -> bool {
        self.is_block_open || (self.skip > 0 && matches!(self.last.kind, HEADERS | CONTINUATION))
    }
}
