//! Encoding of a segment.
//!
//! ```text
//!   magic, 8 bytes │ block │ block │ … │ SHA-256 of the preceding bytes, 32 bytes
//!   block: length u32 LE │ compressed length u32 LE │ records, compressed with LZ4
//!   record: length as a varint │ a protobuf `Record`
//! ```

use api::mvccpb::Event;
use base::lz4;
use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use sha2::{Digest, Sha256};
use state_machine::Lineage;

use crate::live_import::{EVENT_BYTES, REVISION_BYTES_MAX};

const MAGIC: &[u8; 8] = b"kvarch\x00\x01";
const HASH_BYTES: usize = 32;
/// Size at which a block is compressed.
const BLOCK_BYTES: usize = 256 << 10;
/// Maximum size of a block: a revision, and the records before it.
const BLOCK_BYTES_MAX: usize = REVISION_BYTES_MAX + 2 * BLOCK_BYTES;
const LEASE_BYTES: usize = size_of::<Lease>();

/// A revision, or leases.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    #[prost(int64, tag = "1")]
    pub revision: i64,
    /// Time of receipt in milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub time_ms: i64,
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<Event>,
    /// Leases attached by revisions up to here, with their granted TTLs.
    #[prost(message, repeated, tag = "4")]
    pub leases: Vec<Lease>,
    /// Digests of the revisions before the segment, in order. Only in its first record.
    #[prost(fixed64, repeated, tag = "5")]
    pub before: Vec<u64>,
    /// Lineage of the source, as text; empty if it has none. Only in the first record.
    #[prost(string, tag = "6")]
    pub lineage: String,
}

/// A lease and its TTL in seconds.
#[derive(Clone, PartialEq, Message)]
pub struct Lease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(int64, tag = "2")]
    pub ttl: i64,
}

/// Failure to read a segment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    #[error("not an archive segment")]
    Magic,
    #[error("checksum mismatch: the segment is truncated or corrupted")]
    Hash,
    #[error("corrupt at byte {0}")]
    Block(usize),
    #[error("a record of the block at byte {0} takes more than {REVISION_BYTES_MAX} bytes of memory")]
    TooLarge(usize),
    #[error("a record of the block at byte {0} has {1:?} as identity of its history")]
    Lineage(usize, String),
}

/// A segment being written.
#[derive(Debug)]
pub struct SegmentWriter {
    packed: Vec<u8>,
    block: Vec<u8>,
    /// First and last revision, and the time of the last one.
    span: Option<(i64, i64, i64)>,
}

impl SegmentWriter {
    pub fn new() -> SegmentWriter {
        SegmentWriter { packed: MAGIC.to_vec(), block: Vec::new(), span: None }
    }

    /// Appends a record. Revisions must be consecutive.
    pub fn push(&mut self, record: &Record) {
        record.encode_length_delimited(&mut self.block).expect("a vector grows");
        if record.revision > 0 {
            let first = self.span.map_or(record.revision, |(first, _, _)| first);
            self.span = Some((first, record.revision, record.time_ms));
        }
        if self.block.len() >= BLOCK_BYTES {
            self.pack();
        }
    }

    fn pack(&mut self) {
        let mut packed = Vec::new();
        assert!(lz4::compress(&self.block, usize::MAX, &mut packed), "no block is too long");
        for length in [self.block.len(), packed.len()] {
            let length = u32::try_from(length).expect("a revision has less than 4 GiB");
            self.packed.extend_from_slice(&length.to_le_bytes());
        }
        self.packed.extend_from_slice(&packed);
        self.block = Vec::new();
    }

    /// Returns the size, including records that are not compressed yet.
    pub fn bytes(&self) -> usize {
        self.packed.len() + self.block.len()
    }

    /// Returns the first and last revision, and the time of the last one; None if empty.
    pub fn span(&self) -> Option<(i64, i64, i64)> {
        self.span
    }

    /// Completes the segment and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.block.is_empty() {
            self.pack();
        }
        let hash = Sha256::digest(&self.packed);
        self.packed.extend_from_slice(&hash);
        self.packed
    }
}

/// Passes all records to `take` until it returns false.
pub fn read<E: From<SegmentError>>(
    object: &[u8],
    mut take: impl FnMut(Record) -> Result<bool, E>,
) -> Result<(), E> {
    let (body, hash) = object.split_last_chunk::<HASH_BYTES>().ok_or(SegmentError::Magic)?;
    let mut rest = body.strip_prefix(MAGIC).ok_or(SegmentError::Magic)?;
    if Sha256::digest(body)[..] != hash[..] {
        return Err(SegmentError::Hash.into());
    }
    while !rest.is_empty() {
        let at = body.len() - rest.len();
        let (block, left) = unpacked(rest).ok_or(SegmentError::Block(at))?;
        rest = left;
        let mut records = Bytes::from(block);
        while !records.is_empty() {
            let bytes = delimited(&mut records).ok_or(SegmentError::Block(at))?;
            let (events, leases) = counts(bytes.clone()).ok_or(SegmentError::Block(at))?;
            if (events * EVENT_BYTES).max(leases * LEASE_BYTES).max(bytes.len()) > REVISION_BYTES_MAX {
                return Err(SegmentError::TooLarge(at).into());
            }
            let (events, leases) = (Vec::with_capacity(events), Vec::with_capacity(leases));
            let mut record = Record { events, leases, ..Record::default() };
            record.merge(bytes).map_err(|_| SegmentError::Block(at))?;
            if record.lineage.parse::<Lineage>().is_err() {
                return Err(SegmentError::Lineage(at, record.lineage).into());
            }
            if !take(record)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn delimited(records: &mut Bytes) -> Option<Bytes> {
    let length = prost::decode_length_delimiter(&mut *records).ok()?;
    (length <= records.len()).then(|| records.split_to(length))
}

/// Counts the events and leases of a record before decoding it: an empty one has two encoded bytes, and takes
/// a hundred times as much memory.
fn counts(mut record: Bytes) -> Option<(usize, usize)> {
    let (mut events, mut leases) = (0, 0);
    while !record.is_empty() {
        let (tag, wire_type) = decode_key(&mut record).ok()?;
        skip_field(wire_type, tag, &mut record, DecodeContext::default()).ok()?;
        events += usize::from(tag == 3);
        leases += usize::from(tag == 4);
    }
    Some((events, leases))
}

/// Decompresses the first block, and returns it with the remaining bytes.
fn unpacked(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (packed, rest) = rest.split_first_chunk::<4>()?;
    let (length, packed) = (u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*packed) as usize);
    let (packed, rest) = rest.split_at_checked(packed)?;
    if length > BLOCK_BYTES_MAX {
        return None;
    }
    Some((lz4::decompress(packed, length)?, rest))
}

#[cfg(test)]
mod tests {
    use api::mvccpb::KeyValue;

    use super::*;

    fn record(revision: i64, value_bytes: usize) -> Record {
        let kv = KeyValue { key: "k".into(), value: vec![7; value_bytes].into(), ..KeyValue::default() };
        let event = Event { kv: Some(kv), ..Event::default() };
        Record { revision, time_ms: 1000 * revision, events: vec![event], ..Record::default() }
    }

    fn records(object: &[u8]) -> Result<Vec<Record>, SegmentError> {
        let mut found = Vec::new();
        read(object, |record| {
            found.push(record);
            Ok::<bool, SegmentError>(true)
        })?;
        Ok(found)
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut writer = SegmentWriter::new();
        let mut written: Vec<Record> = (5..9).map(|revision| record(revision, 100 << 10)).collect();
        written.push(Record { leases: vec![Lease { id: -3, ttl: 9 }], ..Record::default() });
        written.iter().for_each(|record| writer.push(record));
        assert_eq!(writer.span(), Some((5, 8, 8000)));
        assert_eq!(records(&writer.finish()), Ok(written));
        assert_eq!(records(&SegmentWriter::new().finish()), Ok(Vec::new()));
    }

    /// Encodes a segment with one record that an archiver would not write.
    fn forged(record: &[u8]) -> Vec<u8> {
        let mut writer = SegmentWriter::new();
        prost::encode_length_delimiter(record.len(), &mut writer.block).unwrap();
        writer.block.extend_from_slice(record);
        writer.finish()
    }

    #[test]
    fn a_small_object_that_would_fill_the_memory_is_refused_before_it_does() {
        let pairs = |pair: &[u8; 2], memory: usize| pair.repeat(REVISION_BYTES_MAX / memory + 1);
        for (record, packed_max) in
            [(pairs(b"\x1a\0", EVENT_BYTES), 1 << 16), (pairs(b"\x22\0", 16), 1 << 19)]
        {
            let object = forged(&record);
            assert!(object.len() < packed_max, "{}", object.len());
            assert_eq!(records(&object), Err(SegmentError::TooLarge(MAGIC.len())));
        }
        // An invalid lineage must not be read as an unknown one, which matches any history.
        let foreign = Record { lineage: "a@".to_owned(), ..Record::default() };
        let object = forged(&foreign.encode_to_vec());
        assert_eq!(records(&object), Err(SegmentError::Lineage(MAGIC.len(), foreign.lineage)));
        // A record longer than its block, and one with such a field.
        for record in [&b"\x1a\xff\xff\xff\xff\x0f"[..], b"\x1a\x05\0"] {
            assert_eq!(records(&forged(record)), Err(SegmentError::Block(MAGIC.len())));
        }
    }

    #[test]
    fn damaged_objects_are_refused() {
        let mut writer = SegmentWriter::new();
        writer.push(&record(2, 10));
        let object = writer.finish();
        for at in 0..object.len() {
            let mut damaged = object.clone();
            damaged[at] ^= 1;
            assert!(records(&damaged).is_err(), "byte {at}");
            assert!(records(&object[..at]).is_err(), "cut at {at}");
        }
    }
}
