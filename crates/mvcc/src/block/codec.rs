//! The stored form of a block: a frame.
//!
//!   magic u32 │ payload u32 │ raw u32 │ records u32 │ first i64 u32 │ last i64 u32 │ codec u32 │ crc u32 │ …
//!   └────────────────────────────── 48 bytes, little endian ────────────────────────────────────────┘
//!
//! * `crc` is the CRC-32C of all other bytes of the frame.
//! * The payload is the raw records, or their LZ4 block if that is smaller by at least a sixteenth.
//! * The header repeats the block's catalogue entry. An intact but unexpected frame is rejected, so a
//!   catalogue and files of different times are never mixed.
//!
//! A cold read of a record takes some tens of microseconds, mostly for decompression (1 to 2 GB/s).

use base::lz4;
use bytes::{BufMut, Bytes};

use super::records::DecodedBlock;
use crate::cursor::Cursor;
use crate::types::Revision;

pub(crate) const HEADER_BYTES: usize = 48;
/// Offset of the checksum, the last field of the header.
const CRC_AT: usize = HEADER_BYTES - 4;
/// Magic number of a frame. It includes the version: another format would be `blk2`.
pub(crate) const MAGIC_BYTES: &[u8; 4] = b"blk1";
const MAGIC: u32 = u32::from_le_bytes(*MAGIC_BYTES);
const CODEC_RAW: u32 = 0;
const CODEC_LZ4: u32 = 1;
/// Maximum raw size of a block, to limit a reader's allocations. Blocks are much smaller.
pub(crate) const RAW_BYTES_MAX: usize = 1 << 30;

/// Properties of a block in both the catalogue and its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockIdentity {
    pub first: Revision,
    pub last: Revision,
    pub records: u32,
    pub raw_bytes: u32,
}

impl BlockIdentity {
    pub fn of(block: &DecodedBlock) -> Self {
        BlockIdentity {
            first: block.first(),
            last: block.last(),
            records: u32::try_from(block.len()).expect("records take bytes, and those fit"),
            raw_bytes: u32::try_from(block.raw().len()).expect("a block is far below 4 GiB"),
        }
    }
}

pub(crate) fn store(block: &DecodedBlock, out: &mut Vec<u8>) {
    assert!(block.raw().len() <= RAW_BYTES_MAX, "a block that could not be read back");
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    let codec = append_payload(block.raw(), out);
    let payload_bytes = out.len() - start - HEADER_BYTES;

    let identity = BlockIdentity::of(block);
    let mut header = &mut out[start..start + HEADER_BYTES];
    header.put_u32_le(MAGIC);
    header.put_u32_le(u32::try_from(payload_bytes).expect("never longer than the raw block"));
    header.put_u32_le(identity.raw_bytes);
    header.put_u32_le(identity.records);
    put_revision(&mut header, identity.first);
    put_revision(&mut header, identity.last);
    header.put_u32_le(codec);
    assert!(header.len() == 4, "the checksum is the header's last field");
    let crc = checksum(&out[start..]);
    out[start + CRC_AT..start + HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes a block. The error is the reason why the bytes are invalid.
pub(crate) fn load(stored: &[u8], expected: BlockIdentity) -> Result<DecodedBlock, &'static str> {
    let Header { identity, codec } = check_as(stored, expected)?;
    let raw = unpack(codec, &stored[HEADER_BYTES..], identity.raw_bytes as usize)?;
    let decoded = DecodedBlock::parse(raw, identity.first.main, identity.records as usize)?;
    if (decoded.first(), decoded.last()) != (identity.first, identity.last) {
        return Err("records differ from the header");
    }
    Ok(decoded)
}

/// Like `load`, for records that were checked before: verifies the checksum, but does not parse.
pub(crate) fn load_raw(stored: &[u8], expected: BlockIdentity) -> Result<Bytes, &'static str> {
    let Header { identity, codec } = check_as(stored, expected)?;
    unpack(codec, &stored[HEADER_BYTES..], identity.raw_bytes as usize)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub identity: BlockIdentity,
    codec: u32,
}

pub(crate) fn check_as(stored: &[u8], expected: BlockIdentity) -> Result<Header, &'static str> {
    let header = check(stored)?;
    if header.identity != expected {
        return Err("not the block that the catalogue names");
    }
    Ok(header)
}

/// Checks that `stored` is one intact frame, by its checksum only; the payload is not decompressed.
pub(crate) fn check(stored: &[u8]) -> Result<Header, &'static str> {
    let (header, payload) = stored.split_at_checked(HEADER_BYTES).ok_or("shorter than a header")?;
    // Must precede the use of any other field. Later mismatches are bugs, or a block from another
    // checkpoint.
    if Cursor::new(&header[CRC_AT..]).u32_le() != Some(checksum(stored)) {
        return Err("the checksum does not match");
    }
    let mut cursor = Cursor::new(header);
    let mut field = || cursor.u32_le().expect("the header is 48 bytes");
    if field() != MAGIC {
        return Err("not a block");
    }
    if field() as usize != payload.len() {
        return Err("the length differs from the catalogue");
    }
    let (raw_bytes, records) = (field(), field());
    let first = take_revision(&mut cursor);
    let last = take_revision(&mut cursor);
    let codec = cursor.u32_le().expect("the header is 48 bytes");
    Ok(Header { identity: BlockIdentity { first, last, records, raw_bytes }, codec })
}

/// Returns the length of the frame that starts with this header, if it has the magic number. Not
/// verified.
pub(crate) fn claimed_bytes(header: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(header);
    let is_frame = cursor.u32_le()? == MAGIC;
    let payload_bytes = cursor.u32_le()?;
    is_frame.then_some(HEADER_BYTES as u64 + u64::from(payload_bytes))
}

/// Appends the payload, compressed if that is small enough, and returns its codec.
fn append_payload(raw: &[u8], out: &mut Vec<u8>) -> u32 {
    if lz4::compress(raw, raw.len() - raw.len() / 16, out) {
        return CODEC_LZ4;
    }
    out.extend_from_slice(raw);
    CODEC_RAW
}

/// Decompresses the raw records. LZ4 must produce exactly the length in the header, which the checksum
/// covers.
fn unpack(codec: u32, payload: &[u8], raw_bytes: usize) -> Result<Bytes, &'static str> {
    match codec {
        CODEC_RAW if payload.len() == raw_bytes => Ok(Bytes::copy_from_slice(payload)),
        CODEC_LZ4 if raw_bytes <= RAW_BYTES_MAX.min(lz4::raw_bytes_max(payload.len())) => {
            let raw = lz4::decompress(payload, raw_bytes).map(Bytes::from);
            raw.ok_or("the payload does not decompress to its length")
        }
        CODEC_RAW | CODEC_LZ4 => Err("the payload has the wrong length"),
        _ => Err("an unknown codec"),
    }
}

/// Decodes a frame with a correct checksum and otherwise arbitrary bytes, for fuzzing.
#[doc(hidden)]
pub fn fuzzed_block(bytes: &[u8]) {
    let mut stored = bytes.to_vec();
    stored.resize(stored.len().max(HEADER_BYTES), 0);
    let payload_bytes = u32::try_from(stored.len() - HEADER_BYTES).expect("inputs are small");
    stored[..4].copy_from_slice(&MAGIC.to_le_bytes());
    stored[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
    let crc = checksum(&stored);
    stored[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    let mut cursor = Cursor::new(&stored[8..]);
    let mut field = || cursor.u32_le().expect("the header is 48 bytes");
    let (raw_bytes, records) = (field(), field());
    let first = take_revision(&mut cursor);
    let expected = BlockIdentity { first, last: take_revision(&mut cursor), records, raw_bytes };
    let Ok(block) = load(&stored, expected) else { return };
    assert_eq!(block.len(), records as usize, "records that were not announced");
    let mut before = None;
    for record in block.records() {
        assert!(before < Some(record.revision), "records that do not ascend");
        assert!(block.find(record.revision).is_some(), "a record that cannot be found");
        before = Some(record.revision);
    }
}

fn checksum(stored: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&stored[..CRC_AT]), &stored[HEADER_BYTES..])
}

pub(crate) fn put_revision(out: &mut impl BufMut, revision: Revision) {
    out.put_i64_le(revision.main);
    out.put_u32_le(u32::try_from(revision.sub).expect("fewer than 2^32 changes in one request"));
}

/// Reads a revision written by `put_revision`. The caller has checked the length.
fn take_revision(cursor: &mut Cursor<'_>) -> Revision {
    let main = cursor.i64_le().expect("the header is 48 bytes");
    Revision { main, sub: i64::from(cursor.u32_le().expect("the header is 48 bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::records::OpenBlock;
    use crate::block::records::{Record, RecordBody};

    fn block(value: &[u8]) -> DecodedBlock {
        let mut block = OpenBlock::default();
        for main in 2..20 {
            let body = RecordBody::Put { create: 2, version: main - 1, lease: 9, value };
            block.append(&Record { revision: Revision::first_of(main), key: b"key", body }, 4096);
        }
        block.sealed()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1u64;
        let step = |state: &mut u64| {
            *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (*state >> 56) as u8
        };
        (0..bytes).map(|_| step(&mut state)).collect()
    }

    #[test]
    fn a_block_reads_back_whether_it_compresses_or_not() {
        let mut whole = noise(4000);
        whole.truncate(200);
        for (value, shrinks) in [(vec![b'a'; 200], true), (whole, true), (noise(1), true)] {
            let block = block(&value);
            let mut stored = Vec::new();
            store(&block, &mut stored);
            assert_eq!(stored.len() < block.raw().len(), shrinks);
            let loaded = load(&stored, BlockIdentity::of(&block)).unwrap();
            assert_eq!(loaded.raw(), block.raw());
        }
        let mut open = OpenBlock::default();
        let value = noise(3000);
        let body = RecordBody::Put { create: 2, version: 1, lease: 0, value: &value };
        open.append(&Record { revision: Revision::first_of(2), key: b"k", body }, 64);
        let block = open.sealed();
        let mut stored = Vec::new();
        store(&block, &mut stored);
        assert_eq!(stored.len(), HEADER_BYTES + block.raw().len(), "stored raw");
        assert_eq!(load(&stored, BlockIdentity::of(&block)).unwrap().raw(), block.raw());
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let block = block(b"some value");
        let mut stored = Vec::new();
        store(&block, &mut stored);
        for position in 0..stored.len() {
            for bit in 0..8 {
                stored[position] ^= 1 << bit;
                assert!(load(&stored, BlockIdentity::of(&block)).is_err(), "byte {position} bit {bit}");
                stored[position] ^= 1 << bit;
            }
            assert!(load(&stored[..position], BlockIdentity::of(&block)).is_err(), "cut at {position}");
        }
    }

    #[test]
    fn an_intact_block_in_the_wrong_place_is_refused() {
        let block = block(b"some value");
        let mut stored = Vec::new();
        store(&block, &mut stored);
        let other = BlockIdentity { last: Revision::first_of(99), ..BlockIdentity::of(&block) };
        assert_eq!(load(&stored, other).unwrap_err(), "not the block that the catalogue names");
    }
}
