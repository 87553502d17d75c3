//! Blocks: runs of records that are stored, checked and cached together.
//!
//!   OpenBlock ──seal──▶ Decoded (raw bytes + where each record begins) ──frame::store──▶ bytes of a block file
//!       ▲ records appended by the writer                ▲
//!       └─ each record is a slice of its own            └── frame::load, when a reader meets a cold block
//!
//! * Records of a block ascend in revision, and so do blocks.
//! * A sealed block never changes. Compaction writes new ones.
//!   It may be shared without a lock by the cache, by readers, by a checkpoint that stores it and by an export.
//! * Readers look at the open block under the store's lock and leave with a reference to one finished record: the writer
//!   cuts each record off the front of its buffer as soon as it is written, so sharing needs neither copy nor `unsafe`.

use bytes::{Bytes, BytesMut};

use crate::record::Record;
use crate::revision::Revision;

/// Where one record of a block begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    main: i64,
    /// 32 bits: one request changes fewer than four billion keys.
    sub: u32,
    offset: u32,
}

impl Position {
    /// The two numbers side by side again; they are kept apart to save eight bytes per record.
    fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }
}

/// Records by revision. When every request changed one key, the first guess hits.
#[derive(Clone, Debug, Default)]
struct Table(Vec<Position>);

impl Table {
    /// Number of the record at `revision`. In a store where every request changes one key, main revisions have no gaps, and
    /// the distance from the first one is the answer; everything else is a binary search over 16-byte entries.
    fn find(&self, revision: Revision) -> Option<usize> {
        let first = self.0.first()?;
        let guess = usize::try_from(revision.main.checked_sub(first.main)?).ok()?;
        if self.0.get(guess).is_some_and(|position| position.revision() == revision) {
            return Some(guess);
        }
        self.0.binary_search_by_key(&revision, Position::revision).ok()
    }
}

/// The block that the writer fills.
#[derive(Default)]
pub(crate) struct OpenBlock {
    /// Main revision of the first record.
    base: i64,
    table: Table,
    /// One slice per record; most share one allocation.
    records: Vec<Bytes>,
    buffer: BytesMut,
    raw_bytes: usize,
}

impl OpenBlock {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Encoded bytes so far; what decides when the block is sealed.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Appends a record. `block_bytes` is the size at which the owner means to seal: one allocation of it serves the
    /// whole block, unless records are larger than that.
    pub fn append(&mut self, record: &Record<'_>, block_bytes: usize) {
        let last = self.table.0.last().map(Position::revision);
        assert!(last < Some(record.revision), "records of a block ascend");
        if self.is_empty() {
            self.base = record.revision.main;
        }
        // The upper bound, so that encoding never grows the buffer: growing would copy what readers may share.
        let needed = record.bytes_max();
        if self.buffer.capacity() < needed {
            let left = block_bytes.saturating_sub(self.raw_bytes);
            self.buffer = BytesMut::with_capacity(needed.max(left));
        }
        record.encode(self.base, &mut self.buffer);
        // From here on the record is shared and immutable; the buffer keeps the room behind it.
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

    /// The encoded record at `revision`, to be decoded against `base`.
    pub fn find(&self, revision: Revision) -> Option<(i64, Bytes)> {
        debug_assert_eq!(self.table.0.len(), self.records.len(), "a record without its place");
        let number = self.table.find(revision)?;
        Some((self.base, self.records[number].clone()))
    }

    /// The block as it is now, with its records brought together.
    pub fn sealed(&self) -> Decoded {
        assert!(!self.is_empty(), "an empty block is never sealed");
        // One more copy of the block, at memory speed; in return it lies in one piece, and the buffer can go when the last
        // reader lets go of it.
        let mut raw = Vec::with_capacity(self.raw_bytes);
        for record in &self.records {
            raw.extend_from_slice(record);
        }
        assert_eq!(raw.len(), self.raw_bytes, "records lost on the way to the seal");
        let mut table = self.table.clone();
        table.0.shrink_to_fit();
        Decoded { base: self.base, table, raw: Bytes::from(raw) }
    }
}

/// A sealed block in memory.
#[derive(Debug)]
pub(crate) struct Decoded {
    base: i64,
    table: Table,
    raw: Bytes,
}

impl Decoded {
    /// Finds the records in raw bytes that were just read back. The error says what is wrong with them.
    pub fn parse(raw: Bytes, base: i64, records: usize) -> Result<Self, &'static str> {
        // Every record takes at least four bytes, so a wrong count cannot make this allocate much.
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
        Ok(Decoded { base, table: Table(table), raw })
    }

    /// The revision of the first record, which names the block in the catalogue.
    pub fn first(&self) -> Revision {
        self.table.0[0].revision()
    }

    /// The revision of the newest record. Nothing between `first` and this lies in another block.
    pub fn last(&self) -> Revision {
        self.table.0.last().expect("a block holds at least one record").revision()
    }

    pub fn len(&self) -> usize {
        self.table.0.len()
    }

    /// All records, encoded, end to end. Slices of it are what readers leave with.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Bytes of memory that it holds.
    pub fn weight(&self) -> usize {
        self.raw.len() + self.table.0.capacity() * size_of::<Position>() + size_of::<Self>()
    }

    /// The record at `revision`; `None` if compaction has moved it on, or it never was here.
    pub fn find(&self, revision: Revision) -> Option<Record<'_>> {
        self.table.find(revision).map(|number| self.record(number))
    }

    /// As `find`, with where in `raw` the record begins.
    pub fn find_with_offset(&self, revision: Revision) -> Option<(u32, Record<'_>)> {
        let number = self.table.find(revision)?;
        Some((self.table.0[number].offset, self.record(number)))
    }

    /// The record of this number. Decoding is a walk over seven varints, some twenty nanoseconds, and copies nothing: cheaper
    /// than keeping decoded records, which would double the memory of the cache.
    pub fn record(&self, number: usize) -> Record<'_> {
        let offset = self.table.0[number].offset as usize;
        let (record, _) = Record::decode(self.base, &self.raw[offset..]).expect("decoded once already");
        record
    }

    /// Records in revision order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.len()).map(|number| self.record(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Body;

    fn put(main: i64, sub: i64, value: &[u8]) -> Record<'_> {
        let body = Body::Put { create: main, version: 1, lease: 0, value };
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
            let parsed = Decoded::parse(sealed.raw().clone(), revisions[0].0, revisions.len()).unwrap();
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
        assert!(Decoded::parse(raw.clone(), 2, 2).is_ok());
        assert!(Decoded::parse(raw.clone(), 2, 3).is_err(), "too few records");
        assert!(Decoded::parse(raw.clone(), 9, 2).is_ok(), "a shifted base shifts every record alike");
        assert!(Decoded::parse(raw.slice(..raw.len() - 1), 2, 2).is_err(), "cut");
        let twice = [raw.as_ref(), raw.as_ref()].concat();
        assert!(Decoded::parse(Bytes::from(twice), 2, 4).is_err(), "not ascending");
        assert!(
            Decoded::parse(Bytes::new(), 2, 0).is_err(),
            "a block without a record has no first revision"
        );
    }

    #[test]
    #[should_panic(expected = "ascend")]
    fn appending_out_of_order_is_our_bug() {
        open_block(&[(3, 0), (2, 0)]);
    }
}
