//! A pinned history of the store, which can be read in order any number of times.
//!
//!   pin_history ─▶ HistoryReader (revision, items) ─▶ HistoryPart ─▶ HistoryPart … ─▶ end
//!
//! * It has the same records as etcd after a compaction: every change above the compact revision, and
//!   the puts visible at it. A delete at exactly the compact revision is included, since a watch from
//!   there reports it.
//! * The compact revision is pinned, so all passes see the same changes.
//! * Writes continue: the lock is held to find a block, and for a bounded number of lookups.
//! * Memory: one block, and references to the items.
//!
//! A history must be read to its end or dropped: until then compactions do not free space.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::{Block, DecodedBlock, Record, RecordBody};
use crate::changes::Change;
use crate::error::{Error, Result};
use crate::store::{LockPurpose, Store, StoreData, StoreShared};
use crate::types::{LogPosition, Revision};

/// Number of records looked up per lock hold: some microseconds.
const RECORDS_PER_HOLD: usize = 250;

/// History at a revision. Can be read by any thread.
pub struct HistoryReader {
    shared: Arc<StoreShared>,
    revision: i64,
    compact_revision: i64,
    applied: LogPosition,
    items: Vec<(Bytes, Bytes)>,
    generation: u64,
}

/// Some changes of a history, in revision order.
pub struct HistoryPart {
    block: Arc<DecodedBlock>,
    records: Vec<u32>,
    next: Revision,
}

impl Store {
    /// Pins the history up to the current revision.
    pub fn pin_history(&self) -> HistoryReader {
        let state = self.shared.state.read(LockPurpose::Transfer);
        self.shared.pins.add(state.compact_revision);
        HistoryReader {
            shared: Arc::clone(&self.shared),
            revision: state.revision,
            compact_revision: state.compact_revision,
            applied: state.applied,
            // References: a thousand items are cloned in some ten microseconds.
            items: state.items.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            generation: state.generation,
        }
    }
}

impl HistoryReader {
    /// Start position for a reader.
    pub const START: Revision = Revision::first_of(0);

    /// Returns the main revision of its last change, or of the store if that is later.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the compact revision; -1 if there is none.
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    /// Returns the last entry of the log that is included completely. Changes of the following entry may be
    /// included.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Returns all items by key.
    pub fn items(&self) -> &[(Bytes, Bytes)] {
        &self.items
    }

    /// Returns the changes of a block, from `next` on; `None` after the last one.
    ///
    /// Errors: `Refused` if another store was installed. `Corrupt` or `Io` if a block cannot be read.
    pub fn part_from(&self, next: Revision) -> Result<Option<HistoryPart>> {
        let Some(block) = self.block_from(next)? else { return Ok(None) };
        // Bypass the cache, which would retain only the latest blocks.
        let decoded = block.load()?;
        let (mut records, mut numbers) = (Vec::new(), 0..decoded.len());
        while !numbers.is_empty() {
            let some = numbers.by_ref().take(RECORDS_PER_HOLD);
            let some = some.map(|number| (number, decoded.record(number)));
            let is_included = |record: &Record<'_>| {
                (next..=Revision { main: self.revision, sub: i64::MAX }).contains(&record.revision)
            };
            let some: Vec<_> = some.filter(|(_, record)| is_included(record)).collect();
            self.add_counted(&some, &mut records)?;
        }
        assert!(block.identity.last >= next, "a reader goes forward");
        Ok(Some(HistoryPart { block: decoded, records, next: block.identity.last.next() }))
    }

    fn block_from(&self, next: Revision) -> Result<Option<Arc<Block>>> {
        let state = self.shared.state.read(LockPurpose::Transfer);
        self.check(&state)?;
        let block = match state.block_table.get(state.block_table.position_from(next)) {
            Some(block) => Some(block.clone()),
            None if state.open.is_empty() => None,
            // The open block is the last. Make a small copy, so that the writer can continue.
            None => Some(Block::in_memory(state.open.sealed()).into()),
        };
        let is_beyond =
            |block: &Arc<Block>| block.identity.first.main > self.revision || block.identity.last < next;
        Ok(block.filter(|block| !is_beyond(block)))
    }

    /// Appends the indexes of records that belong to the history. Most are above the compact revision, and
    /// need no lookup.
    fn add_counted(&self, records: &[(usize, Record<'_>)], counted: &mut Vec<u32>) -> Result<()> {
        let is_old = |record: &Record<'_>| record.revision.main <= self.compact_revision;
        let state = match records.iter().any(|(_, record)| is_old(record)) {
            true => {
                let state = self.shared.state.read(LockPurpose::Transfer);
                self.check(&state)?;
                Some(state)
            }
            false => None,
        };
        for (number, record) in records {
            if state.as_ref().is_none_or(|state| !is_old(record) || self.is_kept(state, record)) {
                counted.push(u32::try_from(*number).expect("records take bytes, and those fit"));
            }
        }
        Ok(())
    }

    /// Reports whether a record at or below the compact revision survives a compaction to it.
    fn is_kept(&self, state: &StoreData, record: &Record<'_>) -> bool {
        let Some(history) = state.index.get(record.key) else { return false };
        match record.body {
            RecordBody::Tombstone => {
                record.revision.main == self.compact_revision && history.contains(record.revision)
            }
            RecordBody::Put { .. } => {
                let visible = history.at(self.compact_revision);
                visible.is_some_and(|visible| visible.revision == record.revision)
            }
        }
    }

    fn check(&self, state: &StoreData) -> Result<()> {
        if state.generation == self.generation {
            return Ok(());
        }
        Err(Error::Refused { attempt: "read history", reason: "another store was installed" })
    }
}

impl Drop for HistoryReader {
    fn drop(&mut self) {
        self.shared.pins.remove(self.compact_revision);
    }
}

impl HistoryPart {
    /// Returns the start of the next part.
    pub fn next(&self) -> Revision {
        self.next
    }

    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.records.iter().map(|number| Change::of(self.block.record(*number as usize)))
    }
}
