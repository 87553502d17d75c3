//! The block table: finds the block of a revision.
//!
//!   revision ──▶ entry (first ≤ revision) ──▶ Block ──▶ Memory (until a checkpoint stores it)
//!                                                  └─▶ Stored ──▶ cache of decoded blocks ──▶ file
//!
//! * Entries ascend and do not overlap. The writer appends, the maintainer replaces.
//! * Records are found by revision, not by location. Compaction can therefore rewrite blocks without
//!   changing the index: a later lookup finds the new block, or no record.
//! * Blocks are immutable. A rewritten block is a new `Block`; readers keep the old one.
//!
//! The index does not store block numbers. A search here costs some fifty nanoseconds per record read.
//! With block numbers, compaction would have to update every key of a rewritten block under the
//! writer's lock.

use std::ops::Range;
use std::sync::Arc;

use super::sealed::Block;
use crate::types::Revision;

/// All sealed blocks in revision order.
#[derive(Default)]
pub(crate) struct BlockTable {
    entries: Vec<TableEntry>,
    stored_bytes: u64,
    live_bytes: u64,
    raw_bytes: u64,
    records: u64,
    dead_bytes: u64,
}

/// Memory of a sealed block without its records: entry, identity, location, and allocations.
const MEMORY_BYTES: u64 = 256;
/// Size of a block's catalogue entry, including key and checksum, without its dead list.
const ENTRY_BYTES: u64 = 65;

/// A block, found by binary search. 24 bytes: an 8 GiB store has 128,000 entries, and a search takes 17
/// steps.
struct TableEntry {
    /// Copy of the block's first revision, so that a search accesses one array.
    first: Revision,
    block: Arc<Block>,
}

impl BlockTable {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the block at a position. Positions change when blocks are replaced.
    pub fn get(&self, position: usize) -> Option<&Arc<Block>> {
        self.entries.get(position).map(|entry| &entry.block)
    }

    pub fn iter_from(&self, position: usize) -> impl Iterator<Item = &Arc<Block>> {
        self.entries.iter().skip(position).map(|entry| &entry.block)
    }

    pub fn push(&mut self, block: Arc<Block>) {
        let newest = self.entries.last().map(|entry| entry.block.identity.last);
        assert!(newest < Some(block.identity.first), "blocks ascend");
        self.add_bytes(&block);
        self.entries.push(TableEntry { first: block.identity.first, block });
    }

    pub fn find(&self, revision: Revision) -> Option<&Arc<Block>> {
        let after = self.entries.partition_point(|entry| entry.first <= revision);
        let block = &self.entries[after.checked_sub(1)?].block;
        (revision <= block.identity.last).then_some(block)
    }

    /// Returns the position of the first block that may contain `revision` or later ones.
    pub fn position_from(&self, revision: Revision) -> usize {
        let after = self.entries.partition_point(|entry| entry.first <= revision);
        match after.checked_sub(1) {
            Some(before) if self.entries[before].block.identity.last >= revision => before,
            _ => after,
        }
    }

    /// Replaces some blocks. The new ones must contain the live records of the old ones.
    pub fn replace(&mut self, positions: Range<usize>, blocks: Vec<Arc<Block>>) {
        assert!(
            positions.start <= positions.end && positions.end <= self.entries.len(),
            "blocks that are not there"
        );
        let position = positions.start;
        for entry in &self.entries[positions.clone()] {
            self.stored_bytes -= entry.block.stored_bytes();
            self.live_bytes -= entry.block.live_bytes();
            self.raw_bytes -= u64::from(entry.block.identity.raw_bytes);
            self.records -= u64::from(entry.block.identity.records);
            self.dead_bytes -= entry.block.dead.packed_bytes();
        }
        let added = blocks.len();
        for block in &blocks {
            self.add_bytes(block);
        }
        self.entries.splice(
            positions,
            blocks.into_iter().map(|block| TableEntry { first: block.identity.first, block }),
        );
        for seam in position.saturating_sub(1)..(position + added).min(self.entries.len().saturating_sub(1)) {
            let (left, right) = (&self.entries[seam], &self.entries[seam + 1]);
            assert!(left.block.identity.last < right.first, "blocks overlap");
        }
    }

    pub fn bytes(&self) -> (u64, u64) {
        (self.stored_bytes, self.live_bytes)
    }

    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    pub fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES * self.entries.len() as u64 + self.dead_bytes
    }

    /// Returns the size of the blocks' catalogue entries, including blocks that are not stored yet.
    pub fn entry_bytes(&self) -> u64 {
        ENTRY_BYTES * self.entries.len() as u64 + self.dead_bytes
    }

    pub fn record_bytes(&self) -> u64 {
        self.raw_bytes / self.records.max(1)
    }

    fn add_bytes(&mut self, block: &Block) {
        self.stored_bytes += block.stored_bytes();
        self.live_bytes += block.live_bytes();
        self.raw_bytes += u64::from(block.identity.raw_bytes);
        self.records += u64::from(block.identity.records);
        self.dead_bytes += block.dead.packed_bytes();
        assert!(self.live_bytes <= self.stored_bytes, "more alive than stored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::dead_list::DeadList;
    use crate::block::records::OpenBlock;
    use crate::block::records::{Record, RecordBody};

    fn block(mains: Range<i64>) -> Arc<Block> {
        let mut open = OpenBlock::default();
        for main in mains {
            let body = RecordBody::Put { create: main, version: 1, lease: 0, value: b"value" };
            open.append(&Record { revision: Revision::first_of(main), key: b"key", body }, 4096);
        }
        Arc::new(Block::in_memory(open.sealed()))
    }

    fn table() -> BlockTable {
        let mut table = BlockTable::default();
        for mains in [2..5, 7..8, 10..20] {
            table.push(block(mains));
        }
        table
    }

    fn found(table: &BlockTable, main: i64) -> Option<i64> {
        table.find(Revision::first_of(main)).map(|block| block.identity.first.main)
    }

    #[test]
    fn a_revision_is_found_in_the_block_that_spans_it() {
        let table = table();
        for (main, first) in
            [(1, None), (2, Some(2)), (4, Some(2)), (5, None), (7, Some(7)), (19, Some(10)), (20, None)]
        {
            assert_eq!(found(&table, main), first, "revision {main}");
        }
    }

    #[test]
    fn a_walk_begins_at_the_first_block_that_is_not_wholly_before() {
        let table = table();
        for (main, position) in [(0, 0), (4, 0), (5, 1), (7, 1), (8, 2), (15, 2), (20, 3)] {
            assert_eq!(table.position_from(Revision::first_of(main)), position, "revision {main}");
        }
    }

    #[test]
    fn replacing_blocks_keeps_the_sums() {
        let mut table = table();
        let whole = table.bytes();
        table.replace(0..2, vec![block(2..8)]);
        assert_eq!((found(&table, 6), table.len()), (Some(2), 2));
        table.replace(0..1, vec![]);
        assert_eq!((found(&table, 6), found(&table, 12)), (None, Some(10)));
        assert_eq!(table.bytes().0, u64::from(block(10..20).identity.raw_bytes));
        assert!(table.bytes() < whole);
        assert_eq!((table.records, table.record_bytes()), (10, table.raw_bytes / 10));
        table.replace(0..1, vec![]);
        assert_eq!((table.bytes(), table.len()), ((0, 0), 0));
        assert_eq!((table.raw_bytes, table.records, table.record_bytes()), (0, 0, 0));
    }

    #[test]
    #[should_panic(expected = "blocks overlap")]
    fn blocks_that_overlap_after_a_replacement_are_our_bug() {
        table().replace(0..1, vec![block(2..9)]);
    }

    #[test]
    #[should_panic(expected = "blocks ascend")]
    fn an_old_block_at_the_end_is_our_bug() {
        table().push(block(3..4));
    }

    #[test]
    fn live_bytes_shrink_with_dead_records() {
        let mut block = Arc::into_inner(block(10..20)).unwrap();
        let all = block.live_bytes();
        assert_eq!(all, block.stored_bytes());
        block.dead = DeadList::pack(&(10..15).map(Revision::first_of).collect::<Vec<_>>());
        assert_eq!((block.live_records(), block.live_bytes()), (5, all / 2));
    }
}
