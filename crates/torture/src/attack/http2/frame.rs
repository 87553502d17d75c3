//! HTTP/2 frames written by hand (RFC 9113), for attacks that an HTTP/2 library prevents.
//!
//! Write-only. Header blocks use HPACK literals without indexing (RFC 7541, 6.2.2), so no dynamic
//! table is needed.

/// RFC 9113, 3.4.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length (3), type (1), flags (1), stream (4).
pub const HEADER_BYTES: usize = 9;
/// Payload of the largest frame that each endpoint takes by default.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const INITIAL_WINDOW_SIZE: u16 = 4;
pub const CANCEL: u32 = 8;

pub fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("payloads are short").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

pub fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let mut payload = Vec::with_capacity(6 * settings.len());
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    put(out, SETTINGS, 0, 0, &payload);
}

/// Gives the other side `bytes` more of a window.
pub fn put_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    put(out, WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
}

/// Splits `bytes` into DATA frames.
pub fn put_data(out: &mut Vec<u8>, stream: u32, bytes: &[u8], flags: u8) {
    let mut chunks = bytes.chunks(PAYLOAD_BYTES_MAX).peekable();
    while let Some(chunk) = chunks.next() {
        put(out, DATA, if chunks.peek().is_none() { flags } else { 0 }, stream, chunk);
    }
}

/// Encodes the header block of a gRPC call.
pub fn call_headers(path: &str) -> Vec<u8> {
    // Static table: 3 `:method POST`, 6 `:scheme http`, 4 `:path`, 1 `:authority`, 31 `content-type`.
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, &[0x04], path);
    put_literal(&mut block, &[0x01], "127.0.0.1");
    put_literal(&mut block, &[0x0f, 0x10], "application/grpc");
    put_field(&mut block, "te", "trailers");
    block
}

/// Appends a header field with a literal name.
pub fn put_field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    put_text(block, name);
    put_text(block, value);
}

fn put_literal(block: &mut Vec<u8>, index: &[u8], value: &str) {
    block.extend_from_slice(index);
    put_text(block, value);
}

/// Appends a string without Huffman coding; its length is an integer with a 7-bit prefix (RFC 7541, 5.1).
fn put_text(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(u8::try_from(length).expect("below 127"));
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push(u8::try_from(length % 128).expect("below 128") | 128);
            length /= 128;
        }
        block.push(u8::try_from(length).expect("below 128"));
    }
    block.extend_from_slice(text.as_bytes());
}

/// Encodes an uncompressed gRPC message with its length prefix.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    let mut out = message_head(bytes.len());
    out.extend_from_slice(bytes);
    out
}

/// Encodes the length prefix of a message of `bytes` bytes.
pub fn message_head(bytes: usize) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(bytes).expect("messages are below 4 GiB").to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_bytes_of_the_rfc() {
        let mut out = Vec::new();
        put(&mut out, PING, ACK, 0, b"12345678");
        assert_eq!(out, b"\x00\x00\x08\x06\x01\x00\x00\x00\x0012345678");
        out.clear();
        put_settings(&mut out, &[(INITIAL_WINDOW_SIZE, 0)]);
        assert_eq!(out, b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00");
    }

    #[test]
    fn only_the_last_data_frame_carries_the_flags() {
        let mut out = Vec::new();
        put_data(&mut out, 1, &[0; PAYLOAD_BYTES_MAX + 1], END_STREAM);
        assert_eq!(out[4], 0);
        assert_eq!(out[HEADER_BYTES + PAYLOAD_BYTES_MAX..], [0, 0, 1, 0, 1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn long_strings_have_the_length_of_the_rfc() {
        let mut block = Vec::new();
        put_text(&mut block, &"a".repeat(1337 + 96));
        // 1433 = 127 + 1306; 1306 = 26 + 128 × 10.
        assert_eq!(block[..3], [127, 154, 10]);
    }
}
