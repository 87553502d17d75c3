//! The form in which a checkpoint travels: parts, cut into chunks.
//!
//!   chunk:  "mvx1" │ number u32 │ body bytes u32 │ crc u32 │ body       little endian, 16 bytes before the body
//!   part:   kind u8 │ key bytes u32 │ value bytes u32 │ frame bytes u32 │ key │ value │ frame
//!
//!   order:  marks ─▶ items ─▶ blocks in revision order ─▶ end
//!
//! * Parts are the catalogue's own entries, each sealed with its checksum, and a block's frame behind its entry. The marks
//!   hold the digests of all of them, so the receiver checks the whole with the rules by which a store is opened.
//! * A chunk's `crc` continues that of the chunk before: CRC-32C over those four bytes (0 for the first), the header's
//!   first twelve bytes, the body. A chunk that is damaged, missing, repeated or of another stream is noticed at once.
//! * Chunks cut parts wherever they like, so their size is the transport's choice and no part's.
//!
//! Knows nothing of what entries mean.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::frame::RAW_BYTES_MAX;
use crate::record::Cursor;

/// What every chunk begins with. The version is in it: a member that sends another form is told apart at the first chunk.
const MAGIC: u32 = u32::from_le_bytes(*b"mvx1");
/// Bytes of a chunk before its body.
pub(crate) const CHUNK_HEADER_BYTES: usize = 16;
/// Bytes of a part before its key.
const PART_HEADER_BYTES: usize = 13;
/// A frame at its largest and its entry. It bounds what a receiver gathers before it looks at a part.
const PART_BYTES_MAX: usize = RAW_BYTES_MAX + (1 << 20);

/// What a part carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An entry of the catalogue that stands alone: the marks, an item.
    Entry,
    /// A block's entry and its frame. The place that the entry names is the sender's, and means nothing to others.
    Block,
    /// Nothing follows.
    End,
}

impl Kind {
    /// As it is written.
    fn number(self) -> u8 {
        match self {
            Kind::Entry => 1,
            Kind::Block => 2,
            Kind::End => 3,
        }
    }

    /// As it is read; `None` for a number that means nothing.
    fn of(number: u8) -> Option<Self> {
        [Kind::Entry, Kind::Block, Kind::End].into_iter().find(|kind| kind.number() == number)
    }
}

/// One part, whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub kind: Kind,
    pub key: Bytes,
    pub value: Bytes,
    pub frame: Bytes,
}

/// Gathers parts, gives out chunks.
#[derive(Debug, Default)]
pub(crate) struct ChunkWriter {
    pending: BytesMut,
    number: u32,
    crc: u32,
}

impl ChunkWriter {
    /// Queues a part behind those that wait.
    pub fn push(&mut self, kind: Kind, key: &[u8], value: &[u8], frame: &[u8]) {
        self.pending.put_u8(kind.number());
        for field in [key, value, frame] {
            self.pending.put_u32_le(u32::try_from(field.len()).expect("a part is far below 4 GiB"));
        }
        for field in [key, value, frame] {
            self.pending.put_slice(field);
        }
    }

    /// Bytes of parts that are in no chunk yet.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// The next chunk, of at most `body_bytes_max` pending bytes; `None` when nothing is pending.
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

/// Takes in chunks, gives out parts.
#[derive(Debug, Default)]
pub(crate) struct ChunkReader {
    pending: BytesMut,
    number: u32,
    crc: u32,
    /// Bytes of all chunks so far, headers included: where in the stream a fault lies.
    offset: u64,
}

impl ChunkReader {
    /// Takes in the next chunk.
    ///
    /// Errors: `Corrupt` with the chunk's offset in the stream.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        let body = self.check(chunk).map_err(|what| self.damaged(what))?;
        self.pending.put_slice(body);
        self.number = self.number.wrapping_add(1);
        self.offset += chunk.len() as u64;
        Ok(())
    }

    /// The next part that is here as a whole.
    pub fn part(&mut self) -> Result<Option<Part>> {
        let mut cursor = Cursor::new(&self.pending);
        let Some(&[kind]) = cursor.take(1) else { return Ok(None) };
        let kind = Kind::of(kind).ok_or_else(|| self.damaged("a part of an unknown kind"))?;
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
        Ok(Some(Part { kind, key: take(key), value: take(value), frame: take(frame) }))
    }

    /// Whether every byte taken in was given out again.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The error for what is wrong with the stream here.
    pub fn damaged(&self, what: &'static str) -> Error {
        Error::Corrupt { file: "the stream of a checkpoint".to_owned(), offset: self.offset, what }
    }

    /// Everything that can be wrong with a chunk, in the order in which it helps most to be told.
    fn check<'c>(&mut self, chunk: &'c [u8]) -> Result<&'c [u8], &'static str> {
        let (header, body) = chunk.split_at_checked(CHUNK_HEADER_BYTES).ok_or("a chunk is cut")?;
        let mut cursor = Cursor::new(header);
        let mut field = || cursor.u32_le().expect("the header is 16 bytes");
        let (magic, number, bytes, crc) = (field(), field(), field(), field());
        if magic != MAGIC {
            return Err("not a chunk of a checkpoint");
        }
        if bytes as usize != body.len() {
            return Err("a chunk is cut");
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

/// The checksum of a chunk, seeded with the one before it. So each of them vouches for all that came before, and a chunk of
/// another stream does not fit even if its number does.
fn chained(before: u32, header: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), header);
    crc32c::crc32c_append(crc, body)
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
