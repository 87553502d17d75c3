//! The open block: the writer appends records to it and seals it when it is full.
//!
//! * A finished record is an immutable slice. Readers take a reference to it under the store's lock.
//! * The writer splits each record off its buffer, so sharing needs neither a copy nor `unsafe`.

use bytes::{Bytes, BytesMut};

use super::decoded::{DecodedBlock, Position, RecordOffsets};
use super::record::Record;
use crate::types::Revision;

/// The block that the writer fills.
#[derive(Default)]
pub(crate) struct OpenBlock {
    /// Main revision of the first record.
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

    /// Encoded bytes so far. The writer seals the block at a certain size.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Appends a record. `block_bytes` is the size at which the block will be sealed. One allocation of that
    /// size holds the whole block, unless a record is larger.
    pub fn append(&mut self, record: &Record<'_>, block_bytes: usize) {
        let last = self.table.0.last().map(Position::revision);
        assert!(last < Some(record.revision), "records of a block ascend");
        if self.is_empty() {
            self.base = record.revision.main;
        }
        // An upper bound, so that encoding never grows the buffer. Growing it would copy bytes that readers
        // may share.
        let needed = record.bytes_max();
        if self.buffer.capacity() < needed {
            let left = block_bytes.saturating_sub(self.raw_bytes);
            self.buffer = BytesMut::with_capacity(needed.max(left));
        }
        record.encode(self.base, &mut self.buffer);
        // The record is shared and immutable from here on. The buffer keeps the capacity after it.
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

    /// Damages the record at `revision`, for `recount/damage`: `damage` gets its bytes, and the block's base.
    /// False if there is no such record.
    pub fn damage(&mut self, revision: Revision, damage: impl FnOnce(&mut [u8], i64)) -> bool {
        let Some(number) = self.table.find(revision) else { return false };
        let mut bytes = self.records[number].to_vec();
        damage(&mut bytes, self.base);
        self.records[number] = Bytes::from(bytes);
        true
    }

    /// Records from `from` on up to main revision `revision`, and the last main revision among what the
    /// caller has then. `last` is the last one that the caller has from earlier blocks. Records beyond
    /// `bytes_max` are left out, except those of a revision that has begun, and those of the first one.
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

    /// A sealed copy of the block.
    pub fn sealed(&self) -> DecodedBlock {
        assert!(!self.is_empty(), "an empty block is never sealed");
        // One more copy, at memory speed. It makes the block contiguous, and the buffer can be freed after
        // the last read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::record::RecordBody;

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
}
