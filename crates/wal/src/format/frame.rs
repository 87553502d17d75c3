//! A frame: the encoding of an entry, state or mark in a segment.
//!
//! ```text
//!  0     4      6     7     8       12     16        20     28    36
//!  │ crc │ check│ type│ kind│ length│ group│ previous│ index│ term │ payload, zeros up to a multiple of 4
//! ```
//!
//! * All numbers are little-endian. `crc` covers the rest of the frame, padding included. `check`
//!   covers the header, so that a corrupt length is never used.
//! * Both checksums are seeded per segment ([`Seed`]): bytes of another segment, or of this file's
//!   previous use as another segment, never verify.
//! * Bytes 8 to 35 are stored XORed with the log's salt, which is random and secret; the checksums
//!   cover the stored bytes. A client-chosen value left in a reused file passes for a frame only if it
//!   guesses 64 bits: the checksum seed and a length. Segments of version 1 have no salt, which is
//!   equivalent to a zero salt.
//! * `previous` is the `crc` of the previous frame. Frames form a chain, so a lost or moved frame is
//!   detected. It is stored instead of being folded into `crc`, so that a frame after a corrupt one can
//!   be recognized.
//! * `group` is the offset in the segment of the frame's group. All bytes before that offset were
//!   synced when the frame was written, which distinguishes corruption from a torn tail.
//!
//! The overhead is 36 bytes per payload: 14 % for a value of 256 bytes. `group` and `previous` take 8
//! of them; they guarantee that corruption is never mistaken for a torn tail, or a torn tail for
//! corruption.
//!
//! The order of the checks matters. `check` comes first: without it the length is noise, and a search
//! would read megabytes at each step. Then come the maximum length and the end of the file; only then
//! is the payload read and `crc` computed.

use crate::{LogIndex, LogPosition, PAYLOAD_BYTES_MAX, Term};

pub(crate) const HEADER_BYTES: usize = 36;
/// Alignment of frames, which reduces a search for survivors to a quarter of the offsets.
pub(crate) const ALIGNMENT: usize = 4;
/// Maximum size of a frame, and thus of the window of a [`super::walk::FrameCursor`].
pub(crate) const FRAME_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX.next_multiple_of(ALIGNMENT);

/// Per-segment seed of the checksums, and the mask of the frame headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub crc: u32,
    /// XORed repeatedly with bytes 8 to 35 of every header. Zero in a segment of version 1.
    pub mask: Salt,
}

/// Random bytes that make the frames of a log unpredictable: see [`crate::WalOptions::salt`].
pub(crate) type Salt = [u8; SALT_BYTES];
pub(crate) const SALT_BYTES: usize = 16;
/// Offset of the masked part of the header, which extends to its end.
const MASKED_FROM: usize = 8;

impl Seed {
    fn apply(&self, fixed: &mut [u8; HEADER_BYTES]) {
        for (byte, mask) in fixed[MASKED_FROM..].iter_mut().zip(self.mask.iter().cycle()) {
            *byte ^= mask;
        }
    }
}

/// Type of a frame. The numbers are on disk: never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Entry = 1,
    State = 2,
    /// Proves that all preceding frames were synced; has no content.
    Mark = 3,
}

impl Type {
    fn from_byte(byte: u8) -> Option<Type> {
        match byte {
            1 => Some(Type::Entry),
            2 => Some(Type::State),
            3 => Some(Type::Mark),
            _ => None,
        }
    }
}

/// Reason why bytes are not a valid frame, for error messages.
pub(crate) type Flaw = &'static str;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub type_: Type,
    /// The caller's tag of an entry; 0 in other frames.
    pub kind: u8,
    /// Length of the payload without padding.
    pub length: usize,
    /// Offset of the group in the segment.
    pub group: u32,
    /// Checksum of the previous frame, or of the header page for the first frame.
    pub previous: u32,
    /// Position of an entry; zeros in other frames.
    pub position: LogPosition,
}

impl Header {
    pub fn frame_bytes(&self) -> usize {
        bytes(self.length)
    }
}

pub(crate) fn bytes(length: usize) -> usize {
    HEADER_BYTES + length.next_multiple_of(ALIGNMENT)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub header: Header,
    pub payload: &'a [u8],
    pub crc: u32,
}

/// Appends a frame to `out` and returns its checksum, the `previous` of the next frame.
pub(crate) fn encode(out: &mut Vec<u8>, seed: &Seed, header: &Header, payload: &[u8]) -> u32 {
    assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a payload of {} bytes is too long", payload.len());
    assert_eq!(payload.len(), header.length, "the header speaks of another payload");
    assert_ne!(header.group, 0, "a group begins after the header page");
    let mut fixed = [0; HEADER_BYTES];
    fixed[6] = header.type_ as u8;
    fixed[7] = header.kind;
    let length = u32::try_from(header.length).expect("a payload is at most PAYLOAD_BYTES_MAX");
    fixed[8..12].copy_from_slice(&length.to_le_bytes());
    fixed[12..16].copy_from_slice(&header.group.to_le_bytes());
    fixed[16..20].copy_from_slice(&header.previous.to_le_bytes());
    fixed[20..28].copy_from_slice(&header.position.index.0.to_le_bytes());
    fixed[28..36].copy_from_slice(&header.position.term.0.to_le_bytes());
    seed.apply(&mut fixed);
    let check = check(seed, &fixed);
    fixed[4..6].copy_from_slice(&check.to_le_bytes());

    let begin = out.len();
    out.extend_from_slice(&fixed);
    out.extend_from_slice(payload);
    out.resize(begin + header.frame_bytes(), 0);
    // Checksum everything after this field, padding included, so that any changed byte is detected.
    let crc = crc32c::crc32c_append(seed.crc, &out[begin + 4..]);
    out[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Decodes a header. The fields are only used if `check` matches.
pub(crate) fn decode_header(seed: &Seed, bytes: &[u8]) -> Result<Header, Flaw> {
    let stored: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or("the segment ends within a frame header")?;
    // For a clearer message only: zeros would fail the check below.
    if stored.iter().all(|&byte| byte == 0) {
        return Err("zeros where a frame should be");
    }
    if u16::from_le_bytes(array(stored, 4)) != check(seed, stored) {
        return Err("corrupt frame header");
    }
    let mut fixed = *stored;
    seed.apply(&mut fixed);
    let fixed = &fixed;
    let header = Header {
        type_: Type::from_byte(fixed[6]).ok_or("unknown frame type")?,
        kind: fixed[7],
        length: u32::from_le_bytes(array(fixed, 8)) as usize,
        group: u32::from_le_bytes(array(fixed, 12)),
        previous: u32::from_le_bytes(array(fixed, 16)),
        position: LogPosition {
            index: LogIndex(u64::from_le_bytes(array(fixed, 20))),
            term: Term(u64::from_le_bytes(array(fixed, 28))),
        },
    };
    if header.length > PAYLOAD_BYTES_MAX {
        return Err("frame length above the maximum");
    }
    Ok(header)
}

/// Verifies a frame whose `header` was decoded from the same bytes. The caller verifies the chain.
pub(crate) fn decode<'b>(seed: &Seed, header: Header, bytes: &'b [u8]) -> Result<Frame<'b>, Flaw> {
    let frame = bytes.get(..header.frame_bytes()).ok_or("the segment ends within a frame")?;
    let crc = u32::from_le_bytes(array(frame, 0));
    if crc != crc32c::crc32c_append(seed.crc, &frame[4..]) {
        return Err("frame checksum mismatch");
    }
    Ok(Frame { header, payload: &frame[HEADER_BYTES..][..header.length], crc })
}

/// Returns the low half of a CRC32C over the header after this field.
fn check(seed: &Seed, fixed: &[u8; HEADER_BYTES]) -> u16 {
    (crc32c::crc32c_append(seed.crc, &fixed[6..]) & 0xffff) as u16
}

/// Returns `N` bytes at `offset`. The caller's layout guarantees that they exist.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    *bytes[offset..].first_chunk().expect("the layout ends within the bytes")
}

/// Converts the length of a buffer or an offset in a segment; both fit on 64-bit machines.
pub(crate) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a length in memory fits in a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Seed = Seed { crc: 0x5eed, mask: *b"sixteen salt oct" };

    fn header(length: usize) -> Header {
        let position = LogPosition::new(7, 3);
        Header { type_: Type::Entry, kind: 9, length, group: 4096, previous: 0xabcd, position }
    }

    fn framed(payload: &[u8]) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        let crc = encode(&mut bytes, &SEED, &header(payload.len()), payload);
        (bytes, crc)
    }

    fn read<'b>(seed: &Seed, bytes: &'b [u8]) -> Result<Frame<'b>, Flaw> {
        decode(seed, decode_header(seed, bytes)?, bytes)
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for length in [0, 1, 2, 3, 4, 5, 63, 1000] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let (bytes, crc) = framed(&payload);
            assert_eq!(bytes.len(), super::bytes(payload.len()));
            let frame = read(&SEED, &bytes).unwrap();
            assert_eq!(
                (frame.header, frame.payload, frame.crc),
                (header(payload.len()), payload.as_slice(), crc)
            );
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (bytes, _) = framed(b"seventeen bytes..");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&SEED, &damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_of_another_segment_does_not_verify() {
        let (bytes, _) = framed(b"payload");
        for bit in 0..32 {
            assert!(read(&Seed { crc: SEED.crc ^ 1 << bit, ..SEED }, &bytes).is_err());
        }
    }

    #[test]
    fn a_frame_cut_short_is_told_from_a_damaged_one() {
        let (bytes, _) = framed(b"payload");
        for length in 0..HEADER_BYTES {
            assert_eq!(read(&SEED, &bytes[..length]), Err("the segment ends within a frame header"));
        }
        for length in HEADER_BYTES..bytes.len() {
            assert_eq!(read(&SEED, &bytes[..length]), Err("the segment ends within a frame"));
        }
        assert_eq!(read(&SEED, &[0; 64]), Err("zeros where a frame should be"));
    }

    /// Builds a header with a valid `check` and an out-of-range field.
    fn forged(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> Vec<u8> {
        let (bytes, _) = framed(b"");
        let mut fixed: [u8; HEADER_BYTES] = *bytes.first_chunk().unwrap();
        SEED.apply(&mut fixed);
        change(&mut fixed);
        SEED.apply(&mut fixed);
        let agreed = check(&SEED, &fixed);
        fixed[4..6].copy_from_slice(&agreed.to_le_bytes());
        fixed.to_vec()
    }

    #[test]
    fn an_honest_header_with_a_strange_field_is_refused() {
        let long = (PAYLOAD_BYTES_MAX as u32 + 1).to_le_bytes();
        let long = forged(|fixed| fixed[8..12].copy_from_slice(&long));
        assert_eq!(decode_header(&SEED, &long), Err("frame length above the maximum"));
        for type_ in [0, 4, 255] {
            let strange = forged(|fixed| fixed[6] = type_);
            assert_eq!(decode_header(&SEED, &strange), Err("unknown frame type"));
        }
    }

    #[test]
    #[should_panic(expected = "another payload")]
    fn a_header_for_another_payload_panics() {
        encode(&mut Vec::new(), &SEED, &header(3), b"four");
    }
}
