//! Builds the index from records when a store is opened.
//!
//!   blocks, in revision order ─▶ pending records ─▶ sorted by key, then revision ─▶ index, leaf by leaf
//!
//! * Consecutive records have keys all over the index. Sorted, adjacent keys are added to the same leaf
//!   consecutively.
//! * Pending records are limited in number and in key bytes; at the limit they are added to the index.
//! * Each record must continue its key's history. Otherwise it is intact but was not written in this
//!   order: the error reports its block.

use std::cell::RefCell;

use crate::block::{Record, RecordBody};
use crate::index::{Index, KeyHistory, LeasedKeys, Visible};
use crate::types::Revision;

/// Maximum number of pending records: 18 MiB, and at most as much for keys.
const RECORDS_MAX: usize = 256 << 10;
const KEY_BYTES_MAX: usize = 16 << 20;

/// Position of a block, and the reason why one of its records does not continue its key's history.
pub(super) type HistoryMismatch = (usize, &'static str);

#[derive(Debug)]
pub(super) struct IndexBuilder {
    index: Index,
    leased: LeasedKeys,
    keys: Vec<u8>,
    records: Vec<PendingRecord>,
    /// First eight bytes of each key as an ordered number, and the index of its record. They usually decide
    /// the sort.
    order: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct PendingRecord {
    start: u32,
    end: u32,
    block: u32,
    revision: Revision,
    /// Create revision, version and lease; `None` for a tombstone.
    put: Option<(i64, i64, i64)>,
}

impl IndexBuilder {
    pub fn new() -> Self {
        IndexBuilder {
            index: Index::new(),
            leased: LeasedKeys::default(),
            keys: Vec::new(),
            records: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Adds a record of the block at position `block`. Records must be added in revision order.
    pub fn add(&mut self, block: usize, record: &Record<'_>) -> Result<(), HistoryMismatch> {
        let is_full = self.keys.len() + record.key.len() > KEY_BYTES_MAX;
        if self.records.len() == RECORDS_MAX || (is_full && !self.records.is_empty()) {
            self.flush()?;
        }
        let start = self.keys.len();
        self.keys.extend_from_slice(record.key);
        let put = match record.body {
            RecordBody::Tombstone => None,
            RecordBody::Put { create, version, lease, .. } => Some((create, version, lease)),
        };
        let (start, end) = (start as u32, self.keys.len() as u32);
        self.order.push((prefix(record.key), self.records.len() as u32));
        self.records.push(PendingRecord { start, end, block: block as u32, revision: record.revision, put });
        Ok(())
    }

    /// Returns the index of all added records, and the keys that have a lease.
    pub fn finish(mut self) -> Result<(Index, LeasedKeys), HistoryMismatch> {
        self.flush()?;
        Ok((self.index, self.leased))
    }

    fn flush(&mut self) -> Result<(), HistoryMismatch> {
        let IndexBuilder { index, leased, keys, records, order } = self;
        let record = |number: u32| &records[number as usize];
        let key = |number: u32| &keys[record(number).start as usize..record(number).end as usize];
        order.sort_unstable_by(|&(prefix, number), &(other_prefix, other)| {
            let by_key = prefix.cmp(&other_prefix).then_with(|| key(number).cmp(key(other)));
            by_key.then(number.cmp(&other))
        });
        let sorted = order.iter().map(|&(_, number)| (key(number), record(number)));
        let leased = RefCell::new(leased);
        let attach = |record: &PendingRecord, was_leased: bool| {
            let key = &keys[record.start as usize..record.end as usize];
            match record.lease() {
                0 if was_leased => leased.borrow_mut().detach(key),
                0 => {}
                lease => leased.borrow_mut().attach(key, lease),
            }
        };
        let begin = |record: &PendingRecord| {
            attach(record, false);
            record.begin()
        };
        index.restore(sorted, begin, |history, record| {
            attach(record, history.is_leased());
            record.follow(history).map_err(|what| (record.block as usize, what))
        })?;
        order.clear();
        records.clear();
        keys.clear();
        Ok(())
    }
}

impl PendingRecord {
    /// Returns the history that starts with this record. Older records may have been compacted.
    fn begin(&self) -> KeyHistory {
        let Some(put) = self.visible() else { return KeyHistory::with_tombstone(self.revision) };
        let mut history = KeyHistory::with_put(put);
        history.set_leased(self.lease() != 0);
        history
    }

    /// Appends the record to its key's history. The error is the reason why it does not fit.
    fn follow(&self, history: &mut KeyHistory) -> Result<(), &'static str> {
        let newest = history.newest();
        match self.visible() {
            // There must be a put between two tombstones, live or dead.
            None if newest.is_none() => return Err("a deleted key is deleted again"),
            None => history.push_tombstone(self.revision),
            Some(put) => {
                let continues =
                    |newest: Visible| (newest.create, newest.version + 1) == (put.create, put.version);
                // After a tombstone any version is possible, because compaction removes earlier records.
                if !newest.is_none_or(continues) {
                    return Err("a put does not continue its key's history");
                }
                history.push_put(put);
                history.set_leased(self.lease() != 0);
            }
        }
        Ok(())
    }

    fn lease(&self) -> i64 {
        self.put.map_or(0, |(_, _, lease)| lease)
    }

    fn visible(&self) -> Option<Visible> {
        self.put.map(|(create, version, _)| Visible { revision: self.revision, create, version })
    }
}

/// Returns the first eight bytes of a key, padded with zeros.
fn prefix(key: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let shared = key.len().min(prefix.len());
    prefix[..shared].copy_from_slice(&key[..shared]);
    u64::from_be_bytes(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<'k>(key: &'k [u8], main: i64, create: i64, version: i64) -> Record<'k> {
        let body = RecordBody::Put { create, version, lease: 0, value: b"" };
        Record { revision: Revision::first_of(main), key, body }
    }

    fn tombstone(key: &[u8], main: i64) -> Record<'_> {
        Record { revision: Revision::first_of(main), key, body: RecordBody::Tombstone }
    }

    fn restored(records: &[Record<'_>]) -> Result<Index, HistoryMismatch> {
        let mut builder = IndexBuilder::new();
        for (block, record) in records.iter().enumerate() {
            builder.add(block, record)?;
        }
        builder.finish().map(|(index, _)| index)
    }

    #[test]
    fn keys_with_the_same_beginning_keep_their_histories_apart() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"12345678", b"12345678\0", b"123456789", b"1234567"];
        // Revisions 2 to 49 cycle through the keys: each key is created in the first round and has eight
        // versions at the end.
        let records: Vec<_> = (0..48)
            .map(|number| put(keys[number as usize % 6], number + 2, number % 6 + 2, number / 6 + 1))
            .collect();
        let index = restored(&records).unwrap();
        for (number, key) in keys.iter().enumerate() {
            let newest = index.get(key).unwrap().newest().unwrap();
            assert_eq!((newest.create, newest.version), (number as i64 + 2, 8), "{key:?}");
        }
    }

    #[test]
    fn a_record_that_cannot_follow_names_its_block() {
        for (records, expected) in [
            (vec![put(b"a", 2, 2, 1), put(b"b", 3, 3, 1), put(b"a", 4, 2, 3)], (2, "continue")),
            (vec![tombstone(b"a", 2), put(b"b", 3, 3, 1), tombstone(b"a", 4)], (2, "deleted again")),
            (vec![put(b"a", 2, 2, 1), tombstone(b"a", 3), tombstone(b"a", 4)], (2, "deleted again")),
        ] {
            let (block, what) = restored(&records).unwrap_err();
            assert!(block == expected.0 && what.contains(expected.1), "{block}: {what}");
        }
        let intact = [put(b"a", 5, 2, 9), tombstone(b"a", 6), put(b"a", 7, 7, 1), tombstone(b"b", 8)];
        assert_eq!(restored(&intact).unwrap().count_live(&crate::range::KeyRange::all()), 1);
    }
}
