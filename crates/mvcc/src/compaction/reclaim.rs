//! Reclaims the space of files that are mostly holes.
//!
//!   allocated > live × 4/3 ─▶ the file with the least live bytes ─▶ its live records move ─▶ removed
//!
//! * Files are removed only as a whole. After every compaction, files are emptied, starting with the
//!   smallest live share, until the store takes at most a third more than its live data.
//! * While the limit is exceeded, less than three quarters of that file is live, so at most three bytes
//!   are moved for every byte freed.
//! * File headers do not count: emptying a file creates another one with a header, so the loop might
//!   not terminate.
//! * Fully live blocks are copied unchanged. The live records of other blocks are merged with those in
//!   adjacent blocks.
//! * It works in bounded steps with the same order of syncs as the sweep, and has no durable state.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::rewrite::{BlockReplacement, apply, merge};
use super::{BLOCKS_PER_STEP, of_one_step};
use crate::block::{Block, live_records};
use crate::checkpoint::DurableStore;
use crate::error::Result;
use crate::store::{LockPurpose, StoreShared};
use crate::types::Revision;

/// Number of blocks examined per lock acquisition: some ten microseconds.
const BLOCKS_PER_HOLD: usize = 1000;

/// Limit of the space that the store may take beyond its live data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceLimit {
    /// A third: the limit of compaction.
    Normal,
    /// A twentieth: the limit of Defragment.
    Tight,
}

impl SpaceLimit {
    /// Reports whether `allocated` bytes of files are too many for `live` bytes. `slack` is always allowed.
    fn is_exceeded(self, allocated: u64, live: u64, slack: u64) -> bool {
        let allowed = match self {
            SpaceLimit::Normal => live + live / 3,
            SpaceLimit::Tight => live + live / 20,
        };
        allocated > allowed + slack
    }
}

pub(super) struct Reclaim {
    victim: u64,
    /// First revision of the blocks still to be moved.
    from: Revision,
}

impl Reclaim {
    /// Selects the file to empty, if the store exceeds its limit.
    pub fn begin(
        durable: &mut DurableStore,
        shared: &StoreShared,
        bound: SpaceLimit,
    ) -> Result<Option<Self>> {
        // Small stores have much turnover in files, so they are reclaimed only by Defragment.
        let slack = match bound {
            SpaceLimit::Normal => shared.options.block_file_bytes / 64,
            SpaceLimit::Tight => 0,
        };
        // Size of files with holes and dead records, without headers.
        let allocated = durable.files.sizes().map(|(_number, bytes)| bytes).sum();
        let (_, live) = shared.state.read(LockPurpose::Rewrite).block_table.bytes();
        if !bound.is_exceeded(allocated, live, slack) {
            return Ok(None);
        }
        // The sums include blocks in memory, which are not in any file. Compute the exact sizes before moving
        // anything.
        let live_in = live_bytes_by_file(shared);
        let live: u64 = live_in.values().sum();
        if !bound.is_exceeded(allocated, live, slack) {
            return Ok(None);
        }
        let share = |(number, bytes): (u64, u64)| {
            let live = live_in.get(&number).copied().unwrap_or(0);
            // In units of 2^-16.
            ((live << 16) / bytes.max(1), number)
        };
        let Some((share, victim)) = durable.files.sizes().map(share).min() else { return Ok(None) };
        assert!(share < 1 << 16, "a file without a hole would be emptied for nothing, and again");
        // Moved blocks must not be appended to the same file.
        durable.files.close(victim)?;
        Ok(Some(Reclaim { victim, from: Revision::first_of(0) }))
    }

    /// Moves a bounded number of blocks; returns true once the file is removed.
    pub fn step(&mut self, durable: &mut DurableStore, shared: &StoreShared) -> Result<bool> {
        let (positions, old, is_last) = self.window(shared);
        let new = self.moved(durable, shared, &old)?;
        assert_eq!(positions.len(), old.len(), "a window is contiguous");
        assert_eq!(live_records(&old), live_records(&new), "moving loses no live record");
        let marks = durable.marks;
        apply(durable, shared, marks, BlockReplacement { positions, old, new })?;
        if is_last {
            // Also removes a file that had no block.
            durable.files.remove_unused(&mut *durable.backend)?;
            assert!(
                durable.files.sizes().all(|(number, _)| number != self.victim),
                "an emptied file is removed"
            );
            shared.state.write(LockPurpose::Rewrite).stored_bytes = durable.allocated();
        }
        Ok(is_last)
    }

    /// Returns the next window of blocks that starts with a block of the file, and whether there is none
    /// left.
    fn window(&mut self, shared: &StoreShared) -> (Range<usize>, Vec<Arc<Block>>, bool) {
        loop {
            let state = shared.state.read(LockPurpose::Rewrite);
            // By revision, because earlier steps have changed the positions.
            let from = state.block_table.position_from(self.from);
            let next =
                |position: usize| state.block_table.get(position).filter(|block| block.location().is_some());
            let looked_at =
                (from..from + BLOCKS_PER_HOLD).map_while(|position| Some((position, next(position)?)));
            let mut last = None;
            for (position, block) in looked_at {
                last = Some(block.identity.last);
                if self.is_in_victim(block) {
                    // A contiguous window that includes blocks of other files, because positions are replaced
                    // as one range.
                    let blocks = of_one_step(&mut (position..).map_while(next));
                    let last = blocks.last().expect("at least the one that was found").identity.last;
                    self.from = last.next();
                    return (position..position + blocks.len(), blocks, false);
                }
            }
            match last {
                Some(last) => self.from = last.next(),
                None => return (from..from, Vec::new(), true),
            }
        }
    }

    /// Returns the replacement of `blocks`: blocks of the file are moved, other blocks are kept.
    fn moved(
        &self,
        durable: &mut DurableStore,
        shared: &StoreShared,
        blocks: &[Arc<Block>],
    ) -> Result<Vec<Arc<Block>>> {
        assert!(blocks.len() <= BLOCKS_PER_STEP, "a step is bounded");
        let (mut result, mut rest) = (Vec::with_capacity(blocks.len()), blocks);
        while let Some((first, after)) = rest.split_first() {
            if !self.is_in_victim(first) {
                result.push(first.clone());
                rest = after;
                continue;
            }
            // One read, one checksum, one append, without decompression.
            if is_copied_whole(first, shared) {
                result.push(copied(durable, first)?);
                rest = after;
                continue;
            }
            let is_of_group =
                |block: &&Arc<Block>| self.is_in_victim(block) && !is_copied_whole(block, shared);
            let (group, after) = rest.split_at(rest.iter().take_while(is_of_group).count());
            merge(durable, shared, group, &mut result)?;
            rest = after;
        }
        Ok(result)
    }

    fn is_in_victim(&self, block: &Block) -> bool {
        block.location().is_some_and(|location| location.number == self.victim)
    }
}

fn live_bytes_by_file(shared: &StoreShared) -> BTreeMap<u64, u64> {
    let (mut live, mut position) = (BTreeMap::new(), 0);
    loop {
        // Only the maintainer changes stored blocks, so the lock can be released in between.
        let state = shared.state.read(LockPurpose::Rewrite);
        for _ in 0..BLOCKS_PER_HOLD {
            let Some(block) = state.block_table.get(position) else { return live };
            if let Some(location) = block.location() {
                *live.entry(location.number).or_default() += block.live_bytes();
            }
            position += 1;
        }
    }
}

/// Reports whether a rewrite would not change the block: it is fully live and of the usual size.
fn is_copied_whole(block: &Block, shared: &StoreShared) -> bool {
    block.dead.len() == 0 && block.identity.raw_bytes as usize >= shared.options.block_bytes / 2
}

fn copied(durable: &mut DurableStore, block: &Block) -> Result<Arc<Block>> {
    // Verifies the checksum, so that a corrupt block is not moved.
    let stored = block.read_frame()?;
    durable.written.compaction += stored.len() as u64;
    let content = durable.append(&stored)?;
    Ok(Arc::new(Block { identity: block.identity, content, dead: block.dead.clone() }))
}

#[cfg(test)]
#[path = "reclaim_tests.rs"]
mod tests;
