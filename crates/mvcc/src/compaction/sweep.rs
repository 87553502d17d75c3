//! The sweep: drops superseded records from the blocks.
//!
//! * Blocks are swept in revision order. A put never outlives the tombstone or the later put that
//!   supersedes it, not even after a crash.
//! * A block is rewritten if less than half of its records are live, or if it is small and adjacent to
//!   another sparse or small block. Until then the catalogue lists its dead records. A store thus never
//!   takes much more than twice its live data.
//! * To limit memory, at most `Options::dropped_max` dropped records are listed; for further ones only
//!   their blocks are recorded, and the dead records are those missing in the index.

use super::of_one_step;
use super::rewrite::{BlockReplacement, apply, rewrite};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::block::{Block, BlockSource, DeadList, Record, live_records};
use crate::checkpoint::DurableStore;
use crate::error::Result;
use crate::index::SupersededRecords;
use crate::store::{LockPurpose, StoreShared};
use crate::types::Revision;

/// Number of records looked up per lock acquisition: some hundred microseconds.
const RECORDS_PER_HOLD: usize = 1000;

pub(super) struct DeadRecordSweep {
    dropped: DroppedRecords,
    swept: usize,
    from: Revision,
}

impl DeadRecordSweep {
    /// Starts a sweep. Sorts the dropped records, which the index returns in key order, by revision.
    pub fn new(mut dropped: DroppedRecords) -> Self {
        dropped.listed.sort_unstable();
        assert!(dropped.listed.is_sorted_by(|left, right| left < right), "a record is dropped once");
        DeadRecordSweep { dropped, swept: 0, from: Revision::first_of(0) }
    }

    /// Sweeps a bounded number of blocks. Returns true once all are durably swept.
    pub fn step(&mut self, durable: &mut DurableStore, shared: &StoreShared, target: i64) -> Result<bool> {
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
        apply(durable, shared, marks, BlockReplacement { positions, old, new })?;
        Ok(is_last)
    }

    /// Returns the next stored blocks that start at or below `target`, and whether these are the last.
    fn window(&self, shared: &StoreShared, target: i64) -> (Range<usize>, Vec<Arc<Block>>, bool) {
        let state = shared.state.read(LockPurpose::Rewrite);
        let from = state.block_table.position_from(self.from);
        let next = state.block_table.iter_from(from);
        let mut due =
            next.take_while(|block| block.location().is_some() && block.identity.first.main <= target);
        let blocks = of_one_step(&mut due);
        (from..from + blocks.len(), blocks, due.next().is_none())
    }

    /// Returns the block with the dropped records added to its dead list.
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

pub(super) struct DroppedRecords {
    listed: Vec<Revision>,
    listed_max: usize,
    /// Number of unlisted records, by the first revision of their block.
    unlisted: BTreeMap<Revision, u32>,
}

impl DroppedRecords {
    pub fn new(listed_max: usize) -> Self {
        DroppedRecords { listed: Vec::new(), listed_max, unlisted: BTreeMap::new() }
    }

    /// Adds dropped records. Their blocks are stored, so only the caller replaces them.
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

/// Returns the records of a block that the index does not contain, ascending. Includes all of `dead`.
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
