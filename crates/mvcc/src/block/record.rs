//! The encoding of one change.
//!
//! ```text
//! kind u8 │ main − base │ sub │ key length │ key │ main − create │ version │ [lease] │ value length │ value
//!                                                └──────────────── puts only ─────────────────────────┘
//! ```
//!
//! Numbers without a width are varints (7 bits per byte, low group first); `lease` is an i64. `base` is the
//! main revision of the block's first record. A record adds about ten bytes to its key and value.
//!
//! * A record holds all metadata of its version of the key: the index is rebuilt from records alone.
//! * Records of a block ascend in revision; `base` ≤ every `main`.
//!
//! Example: put of key `a`, value `x`, revision 12.0, created at 10, third version, in a block that begins at
//! 8: `01 04 00 01 61 02 03 01 78`, nine bytes, two of which are key and value.
//!
//! Lengths are checked although the block's checksum was verified before.

use bytes::{BufMut, BytesMut};

use crate::cursor::{Cursor, put_varint};
use crate::types::Revision;

/// The kinds. Puts with a lease have a separate kind, so that the others do not store an empty lease.
const TOMBSTONE: u8 = 0;
const PUT: u8 = 1;
const PUT_WITH_LEASE: u8 = 2;

/// An upper bound for the bytes without key and value: a kind, six varints of up to ten bytes, a lease.
const OVERHEAD_MAX: usize = 1 + 6 * 10 + 8;

/// A change, borrowing its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub revision: Revision,
    pub key: &'a [u8],
    pub body: RecordBody<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordBody<'a> {
    Tombstone,
    Put { create: i64, version: i64, lease: i64, value: &'a [u8] },
}

impl<'a> Record<'a> {
    /// An upper bound for what `encode` appends.
    pub fn bytes_max(&self) -> usize {
        let value_bytes = match self.body {
            RecordBody::Tombstone => 0,
            RecordBody::Put { value, .. } => value.len(),
        };
        OVERHEAD_MAX + self.key.len() + value_bytes
    }

    /// Appends the record to `out`. A put copies its value only here.
    pub fn encode(&self, base: i64, out: &mut BytesMut) {
        assert!(self.revision.main >= base, "a record older than its block");
        let kind = match self.body {
            RecordBody::Tombstone => TOMBSTONE,
            RecordBody::Put { lease: 0, .. } => PUT,
            RecordBody::Put { .. } => PUT_WITH_LEASE,
        };
        out.put_u8(kind);
        put_varint(out, (self.revision.main - base) as u64);
        put_varint(out, self.revision.sub as u64);
        put_varint(out, self.key.len() as u64);
        out.put_slice(self.key);
        if let RecordBody::Put { create, version, lease, value } = self.body {
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

    /// Reads the record at the start of `bytes`, and its length. `None`: the bytes are not a record.
    pub fn decode(base: i64, bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut cursor = Cursor::new(bytes);
        let kind = cursor.take(1)?[0];
        let main = base.checked_add_unsigned(cursor.varint()?)?;
        let sub = i64::try_from(cursor.varint()?).ok()?;
        let key = cursor.take_counted()?;
        let body = match kind {
            TOMBSTONE => RecordBody::Tombstone,
            PUT | PUT_WITH_LEASE => {
                let create = main.checked_sub_unsigned(cursor.varint()?)?;
                let version = i64::try_from(cursor.varint()?).ok()?;
                let lease = if kind == PUT { 0 } else { cursor.i64_le()? };
                RecordBody::Put { create, version, lease, value: cursor.take_counted()? }
            }
            _ => return None,
        };
        Some((Record { revision: Revision { main, sub }, key, body }, cursor.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(main: i64, sub: i64, create: i64, version: i64, lease: i64) -> Record<'static> {
        let body = RecordBody::Put { create, version, lease, value: b"value" };
        Record { revision: Revision { main, sub }, key: b"key", body }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for (base, record) in [
            (2, put(2, 0, 2, 1, 0)),
            (2, put(300, 7, 2, 129, 0)),
            (1, put(i64::MAX, i64::MAX, 1, i64::MAX, -1)),
            (5, put(6, 0, 6, 1, i64::MAX)),
            (5, Record { revision: Revision { main: 5, sub: 1 }, key: b"", body: RecordBody::Tombstone }),
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
    fn an_unknown_kind_is_refused() {
        assert_eq!(Record::decode(1, &[3, 0, 0, 0]), None);
    }

    #[test]
    #[should_panic(expected = "older than its block")]
    fn a_record_before_its_block_is_our_bug() {
        put(3, 0, 3, 1, 0).encode(4, &mut BytesMut::new());
    }
}
