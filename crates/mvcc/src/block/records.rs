//! Records, the open block that the writer appends to, and sealed blocks in memory.
//!
//! * A complete record is an immutable slice. Readers take a reference to it under the store's lock.
//! * The writer splits each record off its buffer, so sharing needs neither a copy nor `unsafe`.
//! * A sealed block never changes. The cache, readers, a checkpoint and an export share it without a
//!   lock.
//!
//! The encoding of a record:
//!
//! ```text
//! kind u8 │ main − base │ sub │ key length │ key │ main − create │ version │ [lease] │ value length │ value
//!                                                └──────────────── puts only ─────────────────────────┘
//! ```
//!
//! Numbers without a width are varints (7 bits per byte, low group first); `lease` is an i64. `base` is
//! the main revision of the block's first record. A record adds about ten bytes to its key and value,
//! and has all metadata of its version of the key, so the index can be rebuilt from records.
//!
//! Example: put of key `a`, value `x`, revision 12.0, created at 10, third version, in a block with
//! base 8: `01 04 00 01 61 02 03 01 78`, nine bytes, two of which are key and value.
//!
//! Lengths are checked although the block's checksum was verified before.

use bytes::{BufMut, Bytes, BytesMut};

use crate::cursor::{Cursor, put_varint};
use crate::types::Revision;

#[derive(Default)]
pub(crate) struct OpenBlock {
    base: i64,
    table: RecordOffsets,
    /// One slice per record; most share one allocation.
    records: Vec<Bytes>,
    buffer: BytesMut,
    raw_bytes: usize,
}

impl OpenBlock {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the encoded size so far. The writer seals the block at a certain size.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Appends a record. A single allocation of `block_bytes`, the size of a sealed block, usually holds
    /// the whole block.
    pub fn append(&mut self, record: &Record<'_>, block_bytes: usize) {
        let last = self.table.0.last().map(Position::revision);
        assert!(last < Some(record.revision), "records of a block ascend");
        if self.is_empty() {
            self.base = record.revision.main;
        }
        // An upper bound, so that encoding never grows the buffer, which would copy bytes that readers may
        // share.
        let needed = record.bytes_max();
        if self.buffer.capacity() < needed {
            let left = block_bytes.saturating_sub(self.raw_bytes);
            self.buffer = BytesMut::with_capacity(needed.max(left));
        }
        record.encode(self.base, &mut self.buffer);
        // From here on the record is shared and immutable. The buffer keeps the remaining capacity.
        let record_bytes = self.buffer.split().freeze();
        assert!(record_bytes.len() <= needed, "a record larger than its bound");
        self.table.0.push(Position {
            main: record.revision.main,
            sub: u32::try_from(record.revision.sub).expect("fewer than 2^32 changes in one request"),
            offset: u32::try_from(self.raw_bytes).expect("a block is far below 4 GiB"),
        });
        self.raw_bytes += record_bytes.len();
        self.records.push(record_bytes);
    }

    pub fn find(&self, revision: Revision) -> Option<(i64, Bytes)> {
        debug_assert_eq!(self.table.0.len(), self.records.len(), "a record without its place");
        let number = self.table.find(revision)?;
        Some((self.base, self.records[number].clone()))
    }

    /// Corrupts the record at `revision` for `recount/damage`: `damage` receives its bytes and the block's
    /// base. Returns false if there is no such record.
    pub fn damage(&mut self, revision: Revision, damage: impl FnOnce(&mut [u8], i64)) -> bool {
        let Some(number) = self.table.find(revision) else { return false };
        let mut bytes = self.records[number].to_vec();
        damage(&mut bytes, self.base);
        self.records[number] = Bytes::from(bytes);
        true
    }

    /// Returns records from `from` up to main revision `revision`, and the last main revision included.
    /// `last` is the last one that the caller has from earlier blocks. Stops after `bytes_max`, but never
    /// within a revision and not before the first one is complete.
    pub fn records_from(
        &self,
        from: Revision,
        last: i64,
        revision: i64,
        bytes_max: usize,
    ) -> (i64, Vec<Bytes>, i64) {
        let positions = &self.table.0;
        let start = positions.partition_point(|position| position.revision() < from);
        let published = positions.partition_point(|position| position.main <= revision);
        let (mut end, mut bytes, mut last) = (start, 0, last);
        while end < published {
            let main = positions[end].main;
            if bytes >= bytes_max && main > last && last >= from.main {
                return (self.base, self.records[start..end].to_vec(), last);
            }
            (bytes, last, end) = (bytes + self.records[end].len(), main, end + 1);
        }
        (self.base, self.records[start..end].to_vec(), revision)
    }

    pub fn sealed(&self) -> DecodedBlock {
        assert!(!self.is_empty(), "an empty block is never sealed");
        // One more copy, to make the block contiguous and to free the buffer after the last read.
        let mut raw = Vec::with_capacity(self.raw_bytes);
        for record in &self.records {
            raw.extend_from_slice(record);
        }
        assert_eq!(raw.len(), self.raw_bytes, "records lost on the way to the seal");
        let mut table = self.table.clone();
        table.0.shrink_to_fit();
        DecodedBlock { base: self.base, table, raw: Bytes::from(raw) }
    }
}

/// Kinds of records. Puts with a lease have a separate kind, so that other puts need not store it.
const TOMBSTONE: u8 = 0;
const PUT: u8 = 1;
const PUT_WITH_LEASE: u8 = 2;

/// Upper bound of the encoding without key and value: a kind, six varints of up to ten bytes, a lease.
const OVERHEAD_MAX: usize = 1 + 6 * 10 + 8;

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
    pub fn bytes_max(&self) -> usize {
        let value_bytes = match self.body {
            RecordBody::Tombstone => 0,
            RecordBody::Put { value, .. } => value.len(),
        };
        OVERHEAD_MAX + self.key.len() + value_bytes
    }

    /// Appends the encoded record to `out`. A put copies its value only here.
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

    /// Decodes the record at the start of `bytes`, and returns it with its length. `None` if the bytes are
    /// not a record.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub main: i64,
    pub sub: u32,
    pub offset: u32,
}

impl Position {
    /// Returns the revision. `Position` stores its two numbers separately to save eight bytes per record.
    pub fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct RecordOffsets(pub Vec<Position>);

impl RecordOffsets {
    /// Returns the index of the record at `revision`. If every request changed one key, it is the distance
    /// from the first record; otherwise this is a binary search.
    pub fn find(&self, revision: Revision) -> Option<usize> {
        let first = self.0.first()?;
        let guess = usize::try_from(revision.main.checked_sub(first.main)?).ok()?;
        if self.0.get(guess).is_some_and(|position| position.revision() == revision) {
            return Some(guess);
        }
        self.0.binary_search_by_key(&revision, Position::revision).ok()
    }
}

#[derive(Debug)]
pub(crate) struct DecodedBlock {
    pub(super) base: i64,
    pub(super) table: RecordOffsets,
    pub(super) raw: Bytes,
}

impl DecodedBlock {
    /// Parses raw bytes that were read from a file. The error is the reason why they are invalid.
    pub fn parse(raw: Bytes, base: i64, records: usize) -> Result<Self, &'static str> {
        // A record takes at least four bytes, so a wrong count cannot cause a large allocation.
        let mut table = Vec::with_capacity(records.min(raw.len() / 4));
        let mut offset = 0;
        let mut last = None;
        while offset < raw.len() {
            let (record, length) =
                Record::decode(base, &raw[offset..]).ok_or("a record cannot be decoded")?;
            if last >= Some(record.revision) {
                return Err("records do not ascend");
            }
            last = Some(record.revision);
            table.push(Position {
                main: record.revision.main,
                sub: u32::try_from(record.revision.sub).map_err(|_| "a sub revision is out of range")?,
                offset: u32::try_from(offset).map_err(|_| "a block is too large")?,
            });
            offset += length;
        }
        if table.len() != records || table.first().is_none_or(|first| first.main != base) {
            return Err("the number of records or the first revision differs from the header");
        }
        Ok(DecodedBlock { base, table: RecordOffsets(table), raw })
    }

    /// Returns the revision of the first record, which is the block's key in the catalogue.
    pub fn first(&self) -> Revision {
        self.table.0[0].revision()
    }

    /// Returns the revision of the last record. Other blocks have no records between `first` and this.
    pub fn last(&self) -> Revision {
        self.table.0.last().expect("a block holds at least one record").revision()
    }

    pub fn len(&self) -> usize {
        self.table.0.len()
    }

    /// Returns all records, encoded and contiguous. Readers take slices of it.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    pub fn weight(&self) -> usize {
        self.raw.len() + self.table.0.capacity() * size_of::<Position>() + size_of::<Self>()
    }

    pub fn find(&self, revision: Revision) -> Option<Record<'_>> {
        self.table.find(revision).map(|number| self.record(number))
    }

    /// Like `find`, with the record's offset in `raw`.
    pub fn find_with_offset(&self, revision: Revision) -> Option<(u32, Record<'_>)> {
        let number = self.table.find(revision)?;
        Some((self.table.0[number].offset, self.record(number)))
    }

    /// Returns a copy with a corrupt record for `recount/damage`: `damage` receives the record's bytes and
    /// the block's base.
    pub fn damaged(&self, revision: Revision, damage: impl FnOnce(&mut [u8], i64)) -> Option<DecodedBlock> {
        let number = self.table.find(revision)?;
        let offset = |position: &Position| position.offset as usize;
        let end = self.table.0.get(number + 1).map_or(self.raw.len(), offset);
        let mut raw = self.raw.to_vec();
        damage(&mut raw[offset(&self.table.0[number])..end], self.base);
        Some(DecodedBlock { base: self.base, table: self.table.clone(), raw: Bytes::from(raw) })
    }

    /// Decodes a record in some twenty nanoseconds, without copying. Caching decoded records would double
    /// the cache's memory.
    pub fn record(&self, number: usize) -> Record<'_> {
        let offset = self.table.0[number].offset as usize;
        let (record, _) = Record::decode(self.base, &self.raw[offset..]).expect("decoded once already");
        record
    }

    /// Returns records in revision order, starting with the first one at or after `from`.
    pub fn records_from(&self, from: Revision) -> impl Iterator<Item = Record<'_>> {
        let first = self.table.0.partition_point(|position| position.revision() < from);
        (first..self.len()).map(|number| self.record(number))
    }

    /// Returns the records from `from` to `to` of a block that may have become corrupt in memory since it
    /// was parsed. Invalid or unexpected records are `None`.
    pub fn checked_records(&self, from: Revision, to: Revision) -> impl Iterator<Item = Option<Record<'_>>> {
        let first = self.table.0.partition_point(|position| position.revision() < from);
        let wanted = self.table.0[first..].iter().take_while(move |position| position.revision() <= to);
        wanted.map(|position| {
            let (record, _) = Record::decode(self.base, self.raw.get(position.offset as usize..)?)?;
            (record.revision == position.revision()).then_some(record)
        })
    }

    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.len()).map(|number| self.record(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::records::RecordBody;

    fn put(main: i64, sub: i64, value: &[u8]) -> Record<'_> {
        let body = RecordBody::Put { create: main, version: 1, lease: 0, value };
        Record { revision: Revision { main, sub }, key: b"key", body }
    }

    fn open_block(revisions: &[(i64, i64)]) -> OpenBlock {
        let mut block = OpenBlock::default();
        for &(main, sub) in revisions {
            block.append(&put(main, sub, b"some value"), 256);
        }
        block
    }

    #[test]
    fn records_are_found_in_dense_sparse_and_mixed_blocks() {
        for revisions in [
            vec![(2, 0), (3, 0), (4, 0)],
            vec![(7, 0), (90, 0), (1000, 3)],
            vec![(5, 0), (5, 1), (5, 2), (6, 0), (8, 0), (8, 1)],
        ] {
            let open = open_block(&revisions);
            let sealed = open.sealed();
            let parsed = DecodedBlock::parse(sealed.raw().clone(), revisions[0].0, revisions.len()).unwrap();
            for &(main, sub) in &revisions {
                let (revision, expected) = (Revision { main, sub }, put(main, sub, b"some value"));
                let (base, bytes) = open.find(revision).unwrap();
                assert_eq!(Record::decode(base, &bytes).unwrap().0, expected);
                assert_eq!(sealed.find(revision), Some(expected));
                assert_eq!(parsed.find(revision), Some(expected));
            }
            for absent in
                [Revision { main: 1, sub: 0 }, Revision { main: 5, sub: 3 }, Revision { main: 2000, sub: 0 }]
            {
                assert!(open.find(absent).is_none() && sealed.find(absent).is_none());
            }
            assert_eq!((sealed.first(), sealed.len()), (parsed.first(), parsed.len()));
            assert_eq!(sealed.records().count(), revisions.len());
        }
    }

    #[test]
    fn a_slice_of_the_open_block_outlives_appends_and_the_seal() {
        let mut block = open_block(&[(2, 0)]);
        let (base, bytes) = block.find(Revision::first_of(2)).unwrap();
        for main in 3..200 {
            block.append(&put(main, 0, &[main as u8; 40]), 256);
        }
        drop(block.sealed());
        drop(block);
        assert_eq!(Record::decode(base, &bytes).unwrap().0, put(2, 0, b"some value"));
    }

    #[test]
    fn a_record_larger_than_a_block_is_kept_whole() {
        let value = vec![7; 5000];
        let mut block = OpenBlock::default();
        block.append(&put(2, 0, b"small"), 256);
        block.append(&put(3, 0, &value), 256);
        assert_eq!(block.sealed().find(Revision::first_of(3)), Some(put(3, 0, &value)));
    }

    #[test]
    fn bytes_that_are_no_block_are_refused() {
        let sealed = open_block(&[(2, 0), (3, 0)]).sealed();
        let raw = sealed.raw();
        assert!(DecodedBlock::parse(raw.clone(), 2, 2).is_ok());
        assert!(DecodedBlock::parse(raw.clone(), 2, 3).is_err(), "too few records");
        assert!(DecodedBlock::parse(raw.clone(), 9, 2).is_ok(), "a shifted base shifts every record alike");
        assert!(DecodedBlock::parse(raw.slice(..raw.len() - 1), 2, 2).is_err(), "cut");
        let twice = [raw.as_ref(), raw.as_ref()].concat();
        assert!(DecodedBlock::parse(Bytes::from(twice), 2, 4).is_err(), "not ascending");
        assert!(
            DecodedBlock::parse(Bytes::new(), 2, 0).is_err(),
            "a block without a record has no first revision"
        );
    }

    #[test]
    #[should_panic(expected = "ascend")]
    fn appending_out_of_order_is_our_bug() {
        open_block(&[(3, 0), (2, 0)]);
    }

    fn versioned_put(main: i64, sub: i64, create: i64, version: i64, lease: i64) -> Record<'static> {
        let body = RecordBody::Put { create, version, lease, value: b"value" };
        Record { revision: Revision { main, sub }, key: b"key", body }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for (base, record) in [
            (2, versioned_put(2, 0, 2, 1, 0)),
            (2, versioned_put(300, 7, 2, 129, 0)),
            (1, versioned_put(i64::MAX, i64::MAX, 1, i64::MAX, -1)),
            (5, versioned_put(6, 0, 6, 1, i64::MAX)),
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
        versioned_put(300, 1, 4, 200, 77).encode(4, &mut bytes);
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
        versioned_put(3, 0, 3, 1, 0).encode(4, &mut BytesMut::new());
    }
}
