//! The sweep: drops superseded records from the blocks.
//!
//! * Blocks are swept in revision order, so records are dropped oldest first. A put never outlives the
//!   tombstone or the newer put that supersedes it, also after a crash.
//! * A block is rewritten when less than half of its records are live, or when it is small and has such a
//!   neighbour. Until then the catalogue lists its dead records. So a store never takes much more than twice
//!   its live data.
//! * Dropped records are listed up to a bound, `Options::dropped_max`. Beyond it only their blocks are noted.
//!   The dead records of such a block are those that the index does not contain. So memory is bounded.

use super::of_one_step;
use super::rewrite::{Replacement, apply, rewrite};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::block::{Block, BlockSource, DeadList, Record, live_records};
use crate::checkpoint::DurableState;
use crate::error::Result;
use crate::index::SupersededRecords;
use crate::store::{LockPurpose, StoreShared};
use crate::types::Revision;

/// Records looked up under one hold of the lock: some hundred microseconds.
const RECORDS_PER_HOLD: usize = 1000;

/// The pass over the blocks.
pub(super) struct Sweep {
    /// In ascending order.
    dropped: DroppedRecords,
    /// Number of listed records that are swept.
    swept: usize,
    /// Blocks before this are done.
    from: Revision,
}

impl Sweep {
    /// Sorts the dropped records: the index returns them in key order, and the sweep needs revision order.
    pub fn new(mut dropped: DroppedRecords) -> Self {
        dropped.listed.sort_unstable();
        assert!(dropped.listed.is_sorted_by(|left, right| left < right), "a record is dropped once");
        Sweep { dropped, swept: 0, from: Revision::first_of(0) }
    }

    /// Sweeps a bounded number of blocks; true when all are done, durably.
    pub fn step(&mut self, durable: &mut DurableState, shared: &StoreShared, target: i64) -> Result<bool> {
        // The window stays valid, because only the maintainer replaces stored blocks.
        let (positions, old, is_last) = self.window(shared, target);
        let marked: Vec<Arc<Block>> =
            old.iter().map(|block| self.mark(block, shared)).collect::<Result<_>>()?;
        let new = rewrite(durable, shared, &marked)?;
        durable.dropped_records += live_records(&old) - live_records(&marked);
        assert_eq!(
            live_records(&marked),
            live_records(&new),
            "rewriting loses no live record and keeps no dead one"
        );
        let mut marks = durable.marks;
        if is_last {
            let DroppedRecords { listed, unlisted, .. } = &self.dropped;
            let is_done = self.swept == listed.len() && unlisted.is_empty();
            assert!(is_done, "every dropped record was in a stored block");
            marks.compacted = target;
        }
        // By revision, because positions change when blocks are merged.
        if let Some(last) = old.last() {
            self.from = last.identity.last.next();
        }
        apply(durable, shared, marks, Replacement { positions, old, new })?;
        Ok(is_last)
    }

    /// The next stored blocks that begin at or below `target`, and whether these are the last.
    fn window(&self, shared: &StoreShared, target: i64) -> (Range<usize>, Vec<Arc<Block>>, bool) {
        let state = shared.state.read(LockPurpose::Rewrite);
        let from = state.block_table.position_from(self.from);
        let next = state.block_table.iter_from(from);
        let mut due =
            next.take_while(|block| block.location().is_some() && block.identity.first.main <= target);
        let blocks = of_one_step(&mut due);
        (from..from + blocks.len(), blocks, due.next().is_none())
    }

    /// The block with the dropped records added to its dead list.
    fn mark(&mut self, block: &Arc<Block>, shared: &StoreShared) -> Result<Arc<Block>> {
        let rest = &self.dropped.listed[self.swept..];
        // Blocks and listed records are both in revision order, so the records of this block are a prefix of
        // the rest.
        let here = &rest[..rest.partition_point(|revision| *revision <= block.identity.last)];
        let unlisted = self.dropped.unlisted.remove(&block.identity.first);
        if here.is_empty() && unlisted.is_none() {
            return Ok(block.clone());
        }
        assert!(
            here.first().is_none_or(|first| *first >= block.identity.first),
            "a dropped record was in no stored block"
        );
        let mut dead = block.dead.unpack();
        let expected = dead.len() + here.len() + unlisted.unwrap_or(0) as usize;
        if unlisted.is_some() {
            dead = unreferenced(block, &dead, shared)?;
        } else {
            dead.extend_from_slice(here);
            dead.sort_unstable();
        }
        assert_eq!(dead.len(), expected, "dead are the records that were dropped, now or before");
        self.swept += here.len();
        let location = block.location().expect("only stored blocks are swept").clone();
        let (content, dead) = (BlockSource::Stored(location), DeadList::pack(&dead));
        Ok(Arc::new(Block { identity: block.identity, content, dead }))
    }
}

/// The superseded records that one compaction drops from the index.
pub(super) struct DroppedRecords {
    listed: Vec<Revision>,
    listed_max: usize,
    /// Number of further records, by the first revision of their block.
    unlisted: BTreeMap<Revision, u32>,
}

impl DroppedRecords {
    pub fn new(listed_max: usize) -> Self {
        DroppedRecords { listed: Vec::new(), listed_max, unlisted: BTreeMap::new() }
    }

    /// Their blocks are stored, so only the caller replaces them.
    pub fn add(&mut self, superseded: SupersededRecords, shared: &StoreShared) {
        let mut revisions = superseded.into_revisions();
        self.listed.extend(revisions.by_ref().take(self.listed_max - self.listed.len()));
        loop {
            let some: Vec<Revision> = revisions.by_ref().take(RECORDS_PER_HOLD).collect();
            if some.is_empty() {
                return;
            }
            let state = shared.state.read(LockPurpose::Rewrite);
            for revision in some {
                let block =
                    state.block_table.find(revision).expect("a record that the index named is in a block");
                *self.unlisted.entry(block.identity.first).or_default() += 1;
            }
        }
    }
}

/// The records of a block that the index does not contain, ascending. Those that are `dead` already stay
/// dead.
fn unreferenced(block: &Block, dead: &[Revision], shared: &StoreShared) -> Result<Vec<Revision>> {
    let decoded = block.load()?;
    let records: Vec<Record<'_>> = decoded.records().collect();
    let mut unreferenced = Vec::new();
    for records in records.chunks(RECORDS_PER_HOLD) {
        let state = shared.state.read(LockPurpose::Rewrite);
        let is_named = |record: &Record<'_>| {
            state.index.get(record.key).is_some_and(|history| history.contains(record.revision))
        };
        let is_dead =
            |record: &&Record<'_>| dead.binary_search(&record.revision).is_ok() || !is_named(record);
        unreferenced.extend(records.iter().filter(is_dead).map(|record| record.revision));
    }
    Ok(unreferenced)
}
