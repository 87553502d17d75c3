//! Stream format of a checkpoint: parts, divided into chunks.
//!
//!   chunk:  "mvx1" │ number u32 │ body bytes u32 │ crc u32 │ body     little endian, 16 bytes before it
//!   part:   kind u8 │ key bytes u32 │ value bytes u32 │ frame bytes u32 │ key │ value │ frame
//!
//!   order:  marks ─▶ items ─▶ blocks in revision order ─▶ end
//!
//! * Parts are the catalogue's entries, each with its checksum, and a block's frame after its entry.
//!   The marks have the digests of all of them, so the receiver applies the same checks as a start.
//! * A chunk's `crc` continues that of the previous chunk: CRC-32C over its four bytes (0 for the
//!   first), the header's first twelve bytes, the body. It detects a chunk that is corrupt, missing,
//!   repeated or from another stream.
//! * Chunks may divide parts anywhere. The transport chooses their size.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::block::codec::RAW_BYTES_MAX;
use crate::cursor::Cursor;
use crate::error::{Error, Result};

/// Magic number of a chunk. It includes the version, so another format is detected at the first chunk.
const MAGIC: u32 = u32::from_le_bytes(*b"mvx1");
pub(super) const CHUNK_HEADER_BYTES: usize = 16;
const PART_HEADER_BYTES: usize = 13;
/// Maximum size of a part, a frame with its entry, to limit a receiver's memory.
const PART_BYTES_MAX: usize = RAW_BYTES_MAX + (1 << 20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// A catalogue entry without a frame: the marks or an item.
    Entry,
    /// A block's entry and its frame. The location in the entry is the sender's.
    Block,
    End,
}

impl PartKind {
    fn number(self) -> u8 {
        match self {
            PartKind::Entry => 1,
            PartKind::Block => 2,
            PartKind::End => 3,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [PartKind::Entry, PartKind::Block, PartKind::End].into_iter().find(|kind| kind.number() == number)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamPart {
    pub kind: PartKind,
    pub key: Bytes,
    pub value: Bytes,
    pub frame: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct ChunkWriter {
    pending: BytesMut,
    number: u32,
    crc: u32,
}

impl ChunkWriter {
    pub fn push(&mut self, kind: PartKind, key: &[u8], value: &[u8], frame: &[u8]) {
        self.pending.put_u8(kind.number());
        for field in [key, value, frame] {
            self.pending.put_u32_le(u32::try_from(field.len()).expect("a part is far below 4 GiB"));
        }
        for field in [key, value, frame] {
            self.pending.put_slice(field);
        }
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Returns the next chunk of at most `body_bytes_max` pending bytes; `None` if there are none.
    pub fn cut(&mut self, body_bytes_max: usize) -> Option<Bytes> {
        if self.pending.is_empty() {
            return None;
        }
        assert!(body_bytes_max > 0, "a chunk that carries nothing");
        let body = self.pending.split_to(self.pending.len().min(body_bytes_max.max(1)));
        let mut chunk = BytesMut::with_capacity(CHUNK_HEADER_BYTES + body.len());
        chunk.put_u32_le(MAGIC);
        chunk.put_u32_le(self.number);
        chunk.put_u32_le(u32::try_from(body.len()).expect("a chunk is far below 4 GiB"));
        self.crc = chained(self.crc, &chunk, &body);
        chunk.put_u32_le(self.crc);
        assert_eq!(chunk.len(), CHUNK_HEADER_BYTES, "the header's size is part of the format");
        chunk.put_slice(&body);
        self.number = self.number.checked_add(1).expect("fewer than 2^32 chunks");
        Some(chunk.freeze())
    }
}

#[derive(Debug, Default)]
pub(super) struct ChunkReader {
    pending: BytesMut,
    number: u32,
    crc: u32,
    /// Size of all chunks so far with their headers: the offset in errors.
    offset: u64,
}

impl ChunkReader {
    /// Accepts the next chunk.
    ///
    /// Errors: `Corrupt` with the chunk's offset in the stream.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        let body = self.check(chunk).map_err(|what| self.damaged(what))?;
        self.pending.put_slice(body);
        self.number = self.number.wrapping_add(1);
        self.offset += chunk.len() as u64;
        Ok(())
    }

    pub fn part(&mut self) -> Result<Option<StreamPart>> {
        let mut cursor = Cursor::new(&self.pending);
        let Some(&[kind]) = cursor.take(1) else { return Ok(None) };
        let kind = PartKind::of(kind).ok_or_else(|| self.damaged("a part of an unknown kind"))?;
        let mut field = || cursor.u32_le().map(|bytes| bytes as usize);
        let (Some(key), Some(value), Some(frame)) = (field(), field(), field()) else { return Ok(None) };
        let bytes = key.saturating_add(value).saturating_add(frame);
        if bytes > PART_BYTES_MAX {
            return Err(self.damaged("a part beyond every limit"));
        }
        if self.pending.len() < PART_HEADER_BYTES + bytes {
            return Ok(None);
        }
        assert_eq!(cursor.at, PART_HEADER_BYTES, "a part's header has one size");
        self.pending.advance(PART_HEADER_BYTES);
        let mut take = |count| self.pending.split_to(count).freeze();
        Ok(Some(StreamPart { kind, key: take(key), value: take(value), frame: take(frame) }))
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the error for corruption at this offset of the stream.
    pub fn damaged(&self, what: &'static str) -> Error {
        Error::Corrupt { file: "the stream of a checkpoint".to_owned(), offset: self.offset, what }
    }

    /// Checks a chunk. The most helpful error takes precedence.
    fn check<'c>(&mut self, chunk: &'c [u8]) -> Result<&'c [u8], &'static str> {
        let (header, body) = chunk.split_at_checked(CHUNK_HEADER_BYTES).ok_or("a chunk is truncated")?;
        let mut cursor = Cursor::new(header);
        let mut field = || cursor.u32_le().expect("the header is 16 bytes");
        let (magic, number, bytes, crc) = (field(), field(), field(), field());
        if magic != MAGIC {
            return Err("not a chunk of a checkpoint");
        }
        if bytes as usize != body.len() {
            return Err("a chunk is truncated");
        }
        if number != self.number {
            return Err("a chunk is missing or repeated");
        }
        if crc != chained(self.crc, &header[..12], body) {
            return Err("a chunk's checksum does not match");
        }
        self.crc = crc;
        Ok(body)
    }
}

/// Computes the checksum of a chunk, seeded with the previous one. It thus covers all previous chunks,
/// and a chunk of another stream does not match even if its number does.
fn chained(before: u32, header: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), header);
    crc32c::crc32c_append(crc, body)
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
