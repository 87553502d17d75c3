//! Appends frames to an output buffer.

use super::header::{flags, write};
use crate::error::ErrorCode;

/// The caller must append `length` bytes of payload.
pub(crate) fn data_header(out: &mut Vec<u8>, stream: u32, length: usize, end: bool) {
    write(out, length, 0, if end { flags::END_STREAM } else { 0 }, stream);
}

/// One HEADERS frame, and CONTINUATION frames where the block exceeds `frame_bytes_max`.
pub(crate) fn headers(
    out: &mut Vec<u8>,
    stream: u32,
    update: &[u8],
    block: &[u8],
    end: bool,
    frame_bytes_max: usize,
) {
    let end_stream = if end { flags::END_STREAM } else { 0 };
    if update.len() + block.len() <= frame_bytes_max {
        write(out, update.len() + block.len(), 1, end_stream | flags::END_HEADERS, stream);
        out.extend_from_slice(update);
        out.extend_from_slice(block);
        return;
    }
    let (first, mut rest) = block.split_at(frame_bytes_max - update.len());
    write(out, frame_bytes_max, 1, end_stream, stream);
    out.extend_from_slice(update);
    out.extend_from_slice(first);
    while !rest.is_empty() {
        let (fragment, tail) = rest.split_at(rest.len().min(frame_bytes_max));
        let end_headers = if tail.is_empty() { flags::END_HEADERS } else { 0 };
        write(out, fragment.len(), 9, end_headers, stream);
        out.extend_from_slice(fragment);
        rest = tail;
    }
}

pub(crate) fn rst_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, 4, 3, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(crate) fn settings(out: &mut Vec<u8>, values: &[(u16, u32)]) {
    write(out, 6 * values.len(), 4, 0, 0);
    for (id, value) in values {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn settings_ack(out: &mut Vec<u8>) {
    write(out, 0, 4, flags::ACK, 0);
}

pub(crate) fn ping(out: &mut Vec<u8>, payload: [u8; 8], ack: bool) {
    write(out, 8, 6, if ack { flags::ACK } else { 0 }, 0);
    out.extend_from_slice(&payload);
}

pub(crate) fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, reason: &str) {
    write(out, 8 + reason.len(), 7, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

pub(crate) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    write(out, 4, 8, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}
