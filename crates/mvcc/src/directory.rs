//! Which block holds which revision, and the blocks that are in memory.
//!
//!   revision ──▶ slot (first ≤ revision) ──▶ Block ──▶ Memory (pinned until persisted)
//!                                                  └─▶ Stored ──▶ cache of decoded blocks ──▶ file
//!
//! * Slots ascend and do not overlap; the writer appends, the maintainer replaces.
//! * Records are found by revision, not by place. So compaction may rewrite blocks behind the index's back: whoever looks
//!   a revision up afterwards finds it in the new block, or learns that it is gone.
//! * Blocks are immutable. One that changes its place is another `Block`; readers keep the one they have.
//!
//! Why not keep a block's number in the index? A search here costs some fifty nanoseconds per record read. In return
//! compaction never touches the index when it moves records, which would mean to hold the writer's lock and to find every
//! key of a block again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::block::Decoded;
use crate::block_file::Place;
use crate::dead::DeadList;
use crate::error::{Error, Result};
use crate::frame::{self, Identity};
use crate::revision::Revision;

/// A sealed block, wherever its bytes are.
pub(crate) struct Block {
    pub identity: Identity,
    pub content: Content,
    /// Records that compaction found superseded but left in place. Only stored blocks have any.
    pub dead: DeadList,
}

/// Where a block's records are. A block in memory is pinned there until a checkpoint stores it; a stored one is read when
/// somebody asks, and may be in the cache.
pub(crate) enum Content {
    Memory(Arc<Decoded>),
    Stored(Place),
}

impl Block {
    /// A block that the writer has just sealed.
    pub fn in_memory(decoded: Decoded) -> Self {
        let identity = Identity::of(&decoded);
        Block { identity, content: Content::Memory(Arc::new(decoded)), dead: DeadList::default() }
    }

    /// Where it is stored; `None` as long as it is in memory only.
    pub fn place(&self) -> Option<&Place> {
        match &self.content {
            Content::Memory(_) => None,
            Content::Stored(place) => Some(place),
        }
    }

    /// Bytes on disk, or the raw size as an upper estimate of what they will be.
    pub fn stored_bytes(&self) -> u64 {
        u64::from(self.place().map_or(self.identity.raw_bytes, |place| place.bytes))
    }

    /// The part of `stored_bytes` that live records need, taking all records to be alike.
    pub fn live_bytes(&self) -> u64 {
        self.stored_bytes() * u64::from(self.live_records()) / u64::from(self.identity.records)
    }

    /// Records that the index still points at, or may point at: all but those listed as dead.
    pub fn live_records(&self) -> u32 {
        let live = self.identity.records.checked_sub(self.dead.len());
        live.expect("a block has no more dead records than records")
    }

    /// The block's records from memory or disk, leaving no trace in the cache.
    pub fn load(&self) -> Result<Arc<Decoded>> {
        match &self.content {
            Content::Memory(decoded) => Ok(decoded.clone()),
            Content::Stored(place) => {
                let stored = place.read()?;
                let decoded = frame::load(&stored, self.identity).map_err(|what| place.damaged(what))?;
                Ok(Arc::new(decoded))
            }
        }
    }

    /// The block's records as they lie one behind the other, for somebody who knows where to look: nothing is parsed.
    pub fn load_raw(&self) -> Result<Bytes> {
        match &self.content {
            Content::Memory(decoded) => Ok(decoded.raw().clone()),
            Content::Stored(place) => {
                let stored = place.read()?;
                frame::load_raw(&stored, self.identity).map_err(|what| place.damaged(what))
            }
        }
    }

    /// The frame of a stored block, for somebody who passes it on as it is: checked, and not unpacked.
    pub fn read_frame(&self) -> Result<Vec<u8>> {
        let place = self.place().expect("only stored blocks have a frame");
        let stored = place.read()?;
        frame::check_as(&stored, self.identity).map_err(|what| place.damaged(what))?;
        Ok(stored)
    }

    /// The error for a record that must be here and is not.
    pub fn lacks_record(&self) -> Error {
        match &self.content {
            Content::Memory(_) => {
                Error::Corrupt { file: "memory".into(), offset: 0, what: "a record is missing" }
            }
            Content::Stored(place) => place.damaged("a record is missing"),
        }
    }
}

/// Live records of all these blocks.
pub(crate) fn live_records(blocks: &[Arc<Block>]) -> u64 {
    blocks.iter().map(|block| u64::from(block.live_records())).sum()
}

/// All sealed blocks in revision order.
#[derive(Default)]
pub(crate) struct Directory {
    slots: Vec<Slot>,
    stored_bytes: u64,
    live_bytes: u64,
    raw_bytes: u64,
    records: u64,
}

/// One block's place in the order. 24 bytes, found by binary search: 128,000 of them, an 8 GiB store, take 17 steps.
struct Slot {
    /// A copy of the block's first revision, so that a search touches one array.
    first: Revision,
    block: Arc<Block>,
}

impl Directory {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The block at a position. Positions shift when the maintainer replaces blocks; revisions do not.
    pub fn get(&self, position: usize) -> Option<&Arc<Block>> {
        self.slots.get(position).map(|slot| &slot.block)
    }

    /// Appends the newest block.
    pub fn push(&mut self, block: Arc<Block>) {
        let newest = self.slots.last().map(|slot| slot.block.identity.last);
        assert!(newest < Some(block.identity.first), "blocks ascend");
        self.add_bytes(&block);
        self.slots.push(Slot { first: block.identity.first, block });
    }

    /// The block that holds `revision`, if any does.
    pub fn find(&self, revision: Revision) -> Option<&Arc<Block>> {
        let after = self.slots.partition_point(|slot| slot.first <= revision);
        let block = &self.slots[after.checked_sub(1)?].block;
        (revision <= block.identity.last).then_some(block)
    }

    /// Position of the first block that may hold `revision` or later ones.
    pub fn position_from(&self, revision: Revision) -> usize {
        let after = self.slots.partition_point(|slot| slot.first <= revision);
        match after.checked_sub(1) {
            Some(before) if self.slots[before].block.identity.last >= revision => before,
            _ => after,
        }
    }

    /// Puts other blocks in the place of some. What they hold must be what is alive of the old ones.
    pub fn replace(&mut self, positions: Range<usize>, blocks: Vec<Arc<Block>>) {
        assert!(
            positions.start <= positions.end && positions.end <= self.slots.len(),
            "blocks that are not there"
        );
        let position = positions.start;
        for slot in &self.slots[positions.clone()] {
            self.stored_bytes -= slot.block.stored_bytes();
            self.live_bytes -= slot.block.live_bytes();
            self.raw_bytes -= u64::from(slot.block.identity.raw_bytes);
            self.records -= u64::from(slot.block.identity.records);
        }
        let added = blocks.len();
        for block in &blocks {
            self.add_bytes(block);
        }
        self.slots
            .splice(positions, blocks.into_iter().map(|block| Slot { first: block.identity.first, block }));
        // The seams at both ends of what was put in.
        for seam in position.saturating_sub(1)..(position + added).min(self.slots.len().saturating_sub(1)) {
            let (left, right) = (&self.slots[seam], &self.slots[seam + 1]);
            assert!(left.block.identity.last < right.first, "blocks overlap");
        }
    }

    /// Bytes of all sealed blocks as stored, and the part of them that is alive.
    pub fn bytes(&self) -> (u64, u64) {
        (self.stored_bytes, self.live_bytes)
    }

    /// Bytes of all sealed blocks when they are unpacked.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Raw bytes of a record on average; 0 if there are none.
    pub fn record_bytes(&self) -> u64 {
        self.raw_bytes / self.records.max(1)
    }

    /// Keeps the sums that tell at any time, and without a walk, how much of the store is alive.
    fn add_bytes(&mut self, block: &Block) {
        self.stored_bytes += block.stored_bytes();
        self.live_bytes += block.live_bytes();
        self.raw_bytes += u64::from(block.identity.raw_bytes);
        self.records += u64::from(block.identity.records);
        assert!(self.live_bytes <= self.stored_bytes, "more alive than stored");
    }
}

/// Decoded blocks that readers used lately, bounded in bytes.
pub(crate) struct BlockCache {
    blocks: Cache<(u64, u64, u64), Arc<Decoded>, ByWeight>,
}

#[derive(Clone)]
struct ByWeight;

impl Weighter<(u64, u64, u64), Arc<Decoded>> for ByWeight {
    fn weight(&self, _place: &(u64, u64, u64), block: &Arc<Decoded>) -> u64 {
        block.weight() as u64
    }
}

impl BlockCache {
    /// `block_bytes` is the usual size of a block; it sizes the cache's tables, not its limit.
    pub fn new(cache_bytes: u64, block_bytes: usize) -> Self {
        let blocks = cache_bytes as usize / block_bytes.max(1) + 1;
        BlockCache { blocks: Cache::with_weighter(blocks, cache_bytes, ByWeight) }
    }

    /// Whether blocks of `raw_bytes` stay here together, as a rule: each takes a little more than its bytes.
    pub fn holds(&self, raw_bytes: u64) -> bool {
        raw_bytes <= self.blocks.capacity() / 4 * 3
    }

    /// The block's records, from memory if possible.
    pub fn load(&self, block: &Block) -> Result<Arc<Decoded>> {
        let Some(place) = block.place() else { return block.load() };
        assert!(place.bytes > 0, "a stored block takes bytes");
        let name = place.name();
        if let Some(decoded) = self.blocks.get(&name) {
            return Ok(decoded);
        }
        let decoded = block.load()?;
        self.blocks.insert(name, decoded.clone());
        Ok(decoded)
    }

    /// As `load`, for somebody who walks over everything: what others use stays, and what nobody used does not come in.
    pub fn load_in_passing(&self, block: &Block) -> Result<Arc<Decoded>> {
        self.get(block).map_or_else(|| block.load(), Ok)
    }

    /// As `load_in_passing`, without a table of what is where.
    pub fn load_raw_in_passing(&self, block: &Block) -> Result<Bytes> {
        self.get(block).map_or_else(|| block.load_raw(), |decoded| Ok(decoded.raw().clone()))
    }

    /// The block if it is in the cache.
    fn get(&self, block: &Block) -> Option<Arc<Decoded>> {
        block.place().and_then(|place| self.blocks.get(&place.name()))
    }

    /// Keeps a block that was just written: the newest records are the likeliest to be read.
    pub fn keep(&self, place: &Place, decoded: Arc<Decoded>) {
        self.blocks.insert(place.name(), decoded);
    }

    /// Forgets a block that was rewritten elsewhere.
    pub fn forget(&self, place: &Place) {
        self.blocks.remove(&place.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::OpenBlock;
    use crate::record::{Body, Record};

    fn block(mains: Range<i64>) -> Arc<Block> {
        let mut open = OpenBlock::default();
        for main in mains {
            let body = Body::Put { create: main, version: 1, lease: 0, value: b"value" };
            open.append(&Record { revision: Revision::first_of(main), key: b"key", body }, 4096);
        }
        Arc::new(Block::in_memory(open.sealed()))
    }

    fn directory() -> Directory {
        let mut directory = Directory::default();
        for mains in [2..5, 7..8, 10..20] {
            directory.push(block(mains));
        }
        directory
    }

    fn found(directory: &Directory, main: i64) -> Option<i64> {
        directory.find(Revision::first_of(main)).map(|block| block.identity.first.main)
    }

    #[test]
    fn a_revision_is_found_in_the_block_that_spans_it() {
        let directory = directory();
        for (main, first) in
            [(1, None), (2, Some(2)), (4, Some(2)), (5, None), (7, Some(7)), (19, Some(10)), (20, None)]
        {
            assert_eq!(found(&directory, main), first, "revision {main}");
        }
    }

    #[test]
    fn a_walk_begins_at_the_first_block_that_is_not_wholly_before() {
        let directory = directory();
        for (main, position) in [(0, 0), (4, 0), (5, 1), (7, 1), (8, 2), (15, 2), (20, 3)] {
            assert_eq!(directory.position_from(Revision::first_of(main)), position, "revision {main}");
        }
    }

    #[test]
    fn replacing_blocks_keeps_the_sums() {
        let mut directory = directory();
        let whole = directory.bytes();
        directory.replace(0..2, vec![block(2..8)]);
        assert_eq!((found(&directory, 6), directory.len()), (Some(2), 2));
        directory.replace(0..1, vec![]);
        assert_eq!((found(&directory, 6), found(&directory, 12)), (None, Some(10)));
        assert_eq!(directory.bytes().0, u64::from(block(10..20).identity.raw_bytes));
        assert!(directory.bytes() < whole);
        assert_eq!((directory.records, directory.record_bytes()), (10, directory.raw_bytes / 10));
        directory.replace(0..1, vec![]);
        assert_eq!((directory.bytes(), directory.len()), ((0, 0), 0));
        assert_eq!((directory.raw_bytes, directory.records, directory.record_bytes()), (0, 0, 0));
    }

    #[test]
    #[should_panic(expected = "blocks overlap")]
    fn blocks_that_overlap_after_a_replacement_are_our_bug() {
        directory().replace(0..1, vec![block(2..9)]);
    }

    #[test]
    #[should_panic(expected = "blocks ascend")]
    fn an_old_block_at_the_end_is_our_bug() {
        directory().push(block(3..4));
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
