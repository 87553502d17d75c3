//! A sealed block in memory: its encoded records and where each of them begins.
//!
//! * Records ascend in revision.
//! * A sealed block never changes; compaction writes new ones. The cache, readers, a checkpoint and an export
//!   share one without a lock.

use bytes::Bytes;

use super::record::Record;
use crate::types::Revision;

/// Where one record of a block begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub main: i64,
    /// 32 bits: one request changes fewer than four billion keys.
    pub sub: u32,
    pub offset: u32,
}

impl Position {
    /// The revision. `Position` stores its two numbers separately to save eight bytes per record.
    pub fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }
}

/// The offsets of records, by revision.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordOffsets(pub Vec<Position>);

impl RecordOffsets {
    /// Number of the record at `revision`. If every request changed one key, main revisions have no gaps, and
    /// the distance from the first record is the number. Otherwise it is a binary search over 16-byte
    /// entries.
    pub fn find(&self, revision: Revision) -> Option<usize> {
        let first = self.0.first()?;
        let guess = usize::try_from(revision.main.checked_sub(first.main)?).ok()?;
        if self.0.get(guess).is_some_and(|position| position.revision() == revision) {
            return Some(guess);
        }
        self.0.binary_search_by_key(&revision, Position::revision).ok()
    }
}

/// A sealed block in memory.
#[derive(Debug)]
pub(crate) struct DecodedBlock {
    pub(super) base: i64,
    pub(super) table: RecordOffsets,
    pub(super) raw: Bytes,
}

impl DecodedBlock {
    /// Parses raw bytes that were read from a file. The error says what is wrong with them.
    pub fn parse(raw: Bytes, base: i64, records: usize) -> Result<Self, &'static str> {
        // Every record takes at least four bytes, so a wrong count cannot cause a large allocation.
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

    /// The revision of the first record, which is the block's key in the catalogue.
    pub fn first(&self) -> Revision {
        self.table.0[0].revision()
    }

    /// The revision of the newest record. No other block holds a record between `first` and this.
    pub fn last(&self) -> Revision {
        self.table.0.last().expect("a block holds at least one record").revision()
    }

    pub fn len(&self) -> usize {
        self.table.0.len()
    }

    /// All records, encoded and contiguous. Readers take slices of it.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Bytes of memory that it holds.
    pub fn weight(&self) -> usize {
        self.raw.len() + self.table.0.capacity() * size_of::<Position>() + size_of::<Self>()
    }

    /// The record at `revision`; `None` if there is none here.
    pub fn find(&self, revision: Revision) -> Option<Record<'_>> {
        self.table.find(revision).map(|number| self.record(number))
    }

    /// As `find`, with the record's offset in `raw`.
    pub fn find_with_offset(&self, revision: Revision) -> Option<(u32, Record<'_>)> {
        let number = self.table.find(revision)?;
        Some((self.table.0[number].offset, self.record(number)))
    }

    /// A copy with a damaged record, for `recount/damage`: `damage` gets the record's bytes, and the block's
    /// base.
    pub fn damaged(&self, revision: Revision, damage: impl FnOnce(&mut [u8], i64)) -> Option<DecodedBlock> {
        let number = self.table.find(revision)?;
        let offset = |position: &Position| position.offset as usize;
        let end = self.table.0.get(number + 1).map_or(self.raw.len(), offset);
        let mut raw = self.raw.to_vec();
        damage(&mut raw[offset(&self.table.0[number])..end], self.base);
        Some(DecodedBlock { base: self.base, table: self.table.clone(), raw: Bytes::from(raw) })
    }

    /// The record with this number. Decoding reads seven varints in some twenty nanoseconds and copies
    /// nothing. Keeping decoded records instead would double the memory of the cache.
    pub fn record(&self, number: usize) -> Record<'_> {
        let offset = self.table.0[number].offset as usize;
        let (record, _) = Record::decode(self.base, &self.raw[offset..]).expect("decoded once already");
        record
    }

    /// Records in revision order, beginning with the first one at or after `from`.
    pub fn records_from(&self, from: Revision) -> impl Iterator<Item = Record<'_>> {
        let first = self.table.0.partition_point(|position| position.revision() < from);
        (first..self.len()).map(|number| self.record(number))
    }

    /// Records from `from` to `to`, of a block that may have changed in memory since it was parsed: `None` in
    /// place of what is no record any more, or not the one that belongs there.
    pub fn checked_records(&self, from: Revision, to: Revision) -> impl Iterator<Item = Option<Record<'_>>> {
        let first = self.table.0.partition_point(|position| position.revision() < from);
        let wanted = self.table.0[first..].iter().take_while(move |position| position.revision() <= to);
        wanted.map(|position| {
            let (record, _) = Record::decode(self.base, self.raw.get(position.offset as usize..)?)?;
            (record.revision == position.revision()).then_some(record)
        })
    }

    /// Records in revision order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.len()).map(|number| self.record(number))
    }
}
