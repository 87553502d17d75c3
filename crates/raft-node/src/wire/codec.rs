//! Numbers and byte strings in this crate's encodings.
//!
//! * A number is a LEB128 varint: seven bits per byte, lowest first, at most ten bytes, no padding.
//! * A byte string is its length as a varint, then its bytes. Reading is zero-copy: it shares the buffer.
//! * The encoding is canonical: two members that write the same message write the same bytes, and decoded
//!   values can be compared by their bytes.
//! * Reading is total: any bytes give a value or an error, never a panic, and allocations never exceed the
//!   size of the buffer.

pub(crate) use base::varint::put_varint as put_number;
use bytes::{Buf, Bytes};

/// Error of malformed bytes, with the affected element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed {0}")]
pub struct MalformedBytes(pub &'static str);

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads from the front of a buffer.
pub(crate) struct ByteReader {
    rest: Bytes,
}

impl ByteReader {
    pub fn new(bytes: Bytes) -> Self {
        ByteReader { rest: bytes }
    }

    pub fn byte(&mut self, what: &'static str) -> Result<u8, MalformedBytes> {
        if self.rest.is_empty() {
            return Err(MalformedBytes(what));
        }
        Ok(self.rest.get_u8())
    }

    pub fn number(&mut self, what: &'static str) -> Result<u64, MalformedBytes> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte(what)?;
            // The tenth byte may carry only the top bit; a zero last byte of a longer number is padding.
            if (shift == 63 && byte > 1) || (shift > 0 && byte == 0) {
                return Err(MalformedBytes(what));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MalformedBytes(what))
    }

    /// Reads a count of elements with at least `each` bytes: at most as many as the buffer could contain.
    pub fn count(&mut self, each: usize, what: &'static str) -> Result<usize, MalformedBytes> {
        let count = self.number(what)?;
        if count > (self.rest.len() / each.max(1)) as u64 {
            return Err(MalformedBytes(what));
        }
        Ok(count as usize)
    }

    pub fn bytes(&mut self, bytes_max: usize, what: &'static str) -> Result<Bytes, MalformedBytes> {
        let length = self.number(what)?;
        if length > self.rest.len() as u64 || length > bytes_max as u64 {
            return Err(MalformedBytes(what));
        }
        Ok(self.rest.split_to(length as usize))
    }

    /// Checks that all bytes were read.
    pub fn end(self, what: &'static str) -> Result<(), MalformedBytes> {
        if self.rest.is_empty() { Ok(()) } else { Err(MalformedBytes(what)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_of(bytes: &[u8]) -> Result<u64, MalformedBytes> {
        let mut cursor = ByteReader::new(Bytes::copy_from_slice(bytes));
        let value = cursor.number("number")?;
        cursor.end("tail")?;
        Ok(value)
    }

    #[test]
    fn a_number_is_read_as_it_was_written() {
        for value in [0, 1, 127, 128, 300, 1 << 20, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, value);
            assert_eq!(number_of(&out), Ok(value));
        }
    }

    #[test]
    fn a_number_has_one_spelling_only() {
        let padded: &[&[u8]] = &[&[0x80, 0x00], &[0xff, 0x80, 0x00]];
        let too_long = [0xff; 10];
        let eleven = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        for bytes in padded.iter().copied().chain([&too_long[..], &eleven[..], &[0x80][..], &[][..]]) {
            assert_eq!(number_of(bytes), Err(MalformedBytes("number")), "{bytes:02x?}");
        }
        assert_eq!(number_of(&[1, 1]), Err(MalformedBytes("tail")));
    }

    #[test]
    fn a_length_is_not_believed_beyond_the_buffer() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"abc");
        assert_eq!(ByteReader::new(out.clone().into()).bytes(3, "bytes"), Ok(Bytes::from_static(b"abc")));
        assert_eq!(ByteReader::new(out.clone().into()).bytes(2, "bytes"), Err(MalformedBytes("bytes")));
        out.truncate(3);
        assert_eq!(ByteReader::new(out.into()).bytes(3, "bytes"), Err(MalformedBytes("bytes")));
        assert_eq!(ByteReader::new(vec![9, 0, 0].into()).count(1, "count"), Err(MalformedBytes("count")));
        assert_eq!(ByteReader::new(vec![2, 0, 0].into()).count(1, "count"), Ok(2));
    }
}
