//! The nine bytes before each payload (section 4.1), and parts of payloads: padding (section 6.1), priority
//! (section 6.3), 32-bit words.

pub(crate) const HEADER_BYTES: usize = 9;

/// Bits of the flags byte. A flag that a frame type does not define is ignored.
pub(crate) mod flags {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Ignored, except inside a header block.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: usize,
    pub(crate) kind: FrameKind,
    flags: u8,
    /// Stream id without the reserved bit.
    pub(crate) stream: u32,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`, if it is complete.
    pub(crate) fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let &[a, b, c, kind, flags, d, e, f, g] = bytes.first_chunk::<HEADER_BYTES>()?;
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::Headers,
            2 => FrameKind::Priority,
            3 => FrameKind::RstStream,
            4 => FrameKind::Settings,
            5 => FrameKind::PushPromise,
            6 => FrameKind::Ping,
            7 => FrameKind::GoAway,
            8 => FrameKind::WindowUpdate,
            9 => FrameKind::Continuation,
            _ => FrameKind::Unknown,
        };
        Some(FrameHeader {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
        })
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(crate) fn write(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    debug_assert!(length < 1 << 24, "a frame length has 24 bits");
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Padding that is at least as long as the payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Padding;

/// Strips the padding of a payload with the PADDED flag.
pub(crate) fn strip_padding(payload: &[u8]) -> Result<&[u8], Padding> {
    let (&padding, rest) = payload.split_first().ok_or(Padding)?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(Padding)?;
    Ok(&rest[..length])
}

/// The priority fields are ignored (section 5.3.2), except that RFC 7540 forbade a stream to depend on
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    pub(crate) dependency: u32,
}

/// Splits the five priority bytes off the start of `payload`.
pub(crate) fn strip_priority(payload: &[u8]) -> Option<(Priority, &[u8])> {
    let (fields, rest) = payload.split_first_chunk::<5>()?;
    Some((Priority { dependency: word(fields)? & 0x7fff_ffff }, rest))
}

/// Returns the first four bytes as a number.
pub(crate) fn word(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
