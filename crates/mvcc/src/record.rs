//! One change, as it lies in a block.
//!
//!   kind u8 │ main − base │ sub │ key length │ key │ main − create │ version │ [lease i64] │ value length │ value
//!                                                  └───────────────── puts only ──────────────────────────────┘
//!
//! Numbers without a width are varints (7 bits per byte, low group first). `base` is the main revision of the block's
//! first record, so that a record costs about ten bytes beside its key and value.
//!
//! * A record says everything about its version of the key: the index is rebuilt from records alone.
//! * Records of a block ascend in revision; `base` ≤ every `main`.
//!
//! An example: put of key `a`, value `x`, revision 12.0, created at 10, third version, in a block that begins at 8:
//! `01 04 00 01 61 02 03 01 78`, nine bytes, two of which are key and value.
//!
//! Knows nothing of blocks' checksums: what it decodes is already proven intact, and still it never trusts a length.

use bytes::{BufMut, BytesMut};

use crate::revision::Revision;

/// The kinds. A lease has a kind of its own because nearly no put has one: it would cost the others a byte.
const TOMBSTONE: u8 = 0;
const PUT: u8 = 1;
const PUT_WITH_LEASE: u8 = 2;

/// Bytes that the fields beside key and value take at most: a kind, six varints of up to ten bytes, a lease.
const OVERHEAD_MAX: usize = 1 + 6 * 10 + 8;

/// A change, borrowing its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub revision: Revision,
    pub key: &'a [u8],
    pub body: Body<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Tombstone,
    Put { create: i64, version: i64, lease: i64, value: &'a [u8] },
}

impl<'a> Record<'a> {
    /// What `encode` appends at most.
    pub fn bytes_max(&self) -> usize {
        let value_bytes = match self.body {
            Body::Tombstone => 0,
            Body::Put { value, .. } => value.len(),
        };
        OVERHEAD_MAX + self.key.len() + value_bytes
    }

    /// Appends the record to `out`. This is the one copy of the value that a put makes.
    pub fn encode(&self, base: i64, out: &mut BytesMut) {
        assert!(self.revision.main >= base, "a record older than its block");
        let kind = match self.body {
            Body::Tombstone => TOMBSTONE,
            Body::Put { lease: 0, .. } => PUT,
            Body::Put { .. } => PUT_WITH_LEASE,
        };
        out.put_u8(kind);
        put_varint(out, (self.revision.main - base) as u64);
        put_varint(out, self.revision.sub as u64);
        put_varint(out, self.key.len() as u64);
        out.put_slice(self.key);
        if let Body::Put { create, version, lease, value } = self.body {
            assert!(create <= self.revision.main && version >= 1, "a put older than its key");
            put_varint(out, (self.revision.main - create) as u64);
            put_varint(out, version as u64);
            if lease != 0 {
                out.put_i64_le(lease);
            }
            put_varint(out, value.len() as u64);
            out.put_slice(value);
        }
    }

    /// Reads the record at the front of `bytes`, and its length. `None`: these bytes are no record.
    pub fn decode(base: i64, bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut cursor = Cursor { bytes, at: 0 };
        let kind = cursor.take(1)?[0];
        let main = base.checked_add_unsigned(cursor.varint()?)?;
        let sub = i64::try_from(cursor.varint()?).ok()?;
        let key = cursor.take_counted()?;
        let body = match kind {
            TOMBSTONE => Body::Tombstone,
            PUT | PUT_WITH_LEASE => {
                let create = main.checked_sub_unsigned(cursor.varint()?)?;
                let version = i64::try_from(cursor.varint()?).ok()?;
                let lease = if kind == PUT { 0 } else { cursor.i64_le()? };
                Body::Put { create, version, lease, value: cursor.take_counted()? }
            }
            _ => return None,
        };
        Some((Record { revision: Revision { main, sub }, key, body }, cursor.at))
    }
}

/// Writes 7 bits per byte, low group first, the top bit set on all but the last.
pub(crate) fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads bytes in order, never beyond their end.
pub(crate) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// At the front.
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// The next `count` bytes; `None` if there are fewer, and then nothing is taken.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    /// As many bytes as the varint before them says.
    fn take_counted(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.varint()?).ok()?;
        self.take(count)
    }

    /// A number of up to ten bytes. A longer form of a small number is accepted: the checksum around it says that it was
    /// written so.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let group = u64::from(byte & 0x7f);
            // The tenth byte holds the one bit that is left.
            if shift == 63 && group > 1 {
                return None;
            }
            value |= group << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub fn u32_le(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    pub fn u64_le(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    pub fn i64_le(&mut self) -> Option<i64> {
        Some(self.u64_le()? as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(main: i64, sub: i64, create: i64, version: i64, lease: i64) -> Record<'static> {
        let body = Body::Put { create, version, lease, value: b"value" };
        Record { revision: Revision { main, sub }, key: b"key", body }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for (base, record) in [
            (2, put(2, 0, 2, 1, 0)),
            (2, put(300, 7, 2, 129, 0)),
            (1, put(i64::MAX, i64::MAX, 1, i64::MAX, -1)),
            (5, put(6, 0, 6, 1, i64::MAX)),
            (5, Record { revision: Revision { main: 5, sub: 1 }, key: b"", body: Body::Tombstone }),
        ] {
            let mut bytes = BytesMut::new();
            record.encode(base, &mut bytes);
            assert!(bytes.len() <= record.bytes_max());
            assert_eq!(Record::decode(base, &bytes), Some((record, bytes.len())), "{record:?}");
        }
    }

    #[test]
    fn a_cut_record_is_no_record() {
        let mut bytes = BytesMut::new();
        put(300, 1, 4, 200, 77).encode(4, &mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(Record::decode(4, &bytes[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn an_unknown_kind_and_an_endless_number_are_refused() {
        assert_eq!(Record::decode(1, &[3, 0, 0, 0]), None);
        assert_eq!(Cursor::new(&[0xff; 20]).varint(), None);
        assert_eq!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).varint(),
            Some(u64::MAX)
        );
        assert_eq!(Cursor::new(&[0x80]).varint(), None);
    }

    #[test]
    #[should_panic(expected = "older than its block")]
    fn a_record_before_its_block_is_our_bug() {
        put(3, 0, 3, 1, 0).encode(4, &mut BytesMut::new());
    }
}
