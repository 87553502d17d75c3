//! Files that are mostly holes give their space back.
//!
//!   allocated > live × 4/3 ─▶ the file with the least live bytes for its size ─▶ its live records move ─▶ it is removed
//!
//! * A file goes only as a whole, and what compaction drops or moves leaves holes in it. So after every compaction, files
//!   are emptied, the worst one first, until the store takes at most a third more than its live data needs.
//! * What is moved is paid for by what it frees: while the bound is broken, the worst file is less than three quarters
//!   alive. So a byte is moved at most thrice for every byte that comes back.
//! * Headers of files are no holes: emptying a file makes another one with a header, so counting them it might never end.
//!   As it is, a bound that is broken means a file with a hole; that one is emptied, and what moves has none.
//! * Blocks that are wholly alive move as they are; of others the live records, packed together with their neighbours'.
//! * It goes in the same bounded steps as compaction, with the same order of syncs, and needs no memory of itself: what a
//!   crash interrupts is found again by looking at the files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::compaction::{Change, apply, merge};
use crate::directory::{Block, Content, live_records};
use crate::error::Result;
use crate::maintainer::Durable;
use crate::revision::Revision;
use crate::state::Shared;

/// Blocks moved in one step: some 4 MiB read and written.
const BLOCKS_PER_STEP: usize = 64;
/// Blocks looked at under one hold of the lock: some ten microseconds.
const BLOCKS_PER_HOLD: usize = 1000;

/// How much more than its live data the store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// A third: what compaction keeps by itself.
    Usual,
    /// A twentieth: when somebody asks for the space.
    Tight,
}

impl Bound {
    /// Whether files of `allocated` bytes are too many for `live` bytes. `slack` is always allowed.
    fn is_broken(self, allocated: u64, live: u64, slack: u64) -> bool {
        let allowed = match self {
            Bound::Usual => live + live / 3,
            Bound::Tight => live + live / 20,
        };
        allocated > allowed + slack
    }
}

/// One file being emptied.
pub(crate) struct Tidying {
    victim: u64,
    /// Blocks before this are looked at.
    from: Revision,
}

impl Tidying {
    /// The file to be emptied next, if the store takes more than it may.
    pub fn begin(durable: &mut Durable, shared: &Shared, bound: Bound) -> Result<Option<Self>> {
        let slack = shared.options.block_file_bytes / 64;
        // What files take, holes and dead records included; headers and the catalogue are no part of the bargain.
        let allocated = durable.files.sizes().map(|(_number, bytes)| bytes).sum();
        // The sums are there at any time, so that asking in vain costs nothing.
        let (_, live) = shared.state.read().directory.bytes();
        if !bound.is_broken(allocated, live, slack) {
            return Ok(None);
        }
        // The sums count blocks in memory as well, which lie in no file. Before anything is moved, it is counted exactly.
        let live_in = live_bytes_by_file(shared);
        let live: u64 = live_in.values().sum();
        if !bound.is_broken(allocated, live, slack) {
            return Ok(None);
        }
        let share = |(number, bytes): (u64, u64)| {
            let live = live_in.get(&number).copied().unwrap_or(0);
            // In parts of 2^16, which is exact enough to choose by.
            ((live << 16) / bytes.max(1), number)
        };
        let Some((share, victim)) = durable.files.sizes().map(share).min() else { return Ok(None) };
        assert!(share < 1 << 16, "a file without a hole would be emptied for nothing, and again");
        // Nothing is to be moved from a file to its own end.
        durable.files.close(victim)?;
        Ok(Some(Tidying { victim, from: Revision::first_of(0) }))
    }

    /// Moves a bounded number of blocks; true when the file is empty and gone.
    pub fn step(&mut self, durable: &mut Durable, shared: &Shared) -> Result<bool> {
        let (positions, old, is_last) = self.window(shared);
        let new = self.moved(durable, shared, &old)?;
        assert_eq!(positions.len(), old.len(), "a window is contiguous");
        assert_eq!(live_records(&old), live_records(&new), "moving loses no live record");
        let marks = durable.marks;
        apply(durable, shared, marks, Change { positions, old, new })?;
        if is_last {
            // A file that held no block from the start goes here.
            durable.files.remove_unused(&mut *durable.backend)?;
            assert!(
                durable.files.sizes().all(|(number, _)| number != self.victim),
                "an emptied file is removed"
            );
            shared.state.write().stored_bytes = durable.allocated();
        }
        Ok(is_last)
    }

    /// The next blocks from the first one of the file on, and whether none of it is behind them.
    fn window(&mut self, shared: &Shared) -> (Range<usize>, Vec<Arc<Block>>, bool) {
        loop {
            let state = shared.state.read();
            // By revision and not by position, as in a sweep: the steps before have changed how many blocks there are.
            let from = state.directory.position_from(self.from);
            let next =
                |position: usize| state.directory.get(position).filter(|block| block.place().is_some());
            let looked_at =
                (from..from + BLOCKS_PER_HOLD).map_while(|position| Some((position, next(position)?)));
            let mut last = None;
            for (position, block) in looked_at {
                last = Some(block.identity.last);
                if self.is_in_victim(block) {
                    // From here a whole stretch, blocks of other files included: what is replaced has to be contiguous.
                    let blocks = (position..position + BLOCKS_PER_STEP).map_while(next).cloned();
                    let blocks: Vec<_> = blocks.collect();
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

    /// What comes in the place of `blocks`: those of the file elsewhere, the others as they are.
    fn moved(
        &self,
        durable: &mut Durable,
        shared: &Shared,
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
            // Neither unpacked nor packed again: one read, one checksum, one append.
            if is_worth_copying(first, shared) {
                result.push(copied(durable, first)?);
                rest = after;
                continue;
            }
            let is_of_group =
                |block: &&Arc<Block>| self.is_in_victim(block) && !is_worth_copying(block, shared);
            let (group, after) = rest.split_at(rest.iter().take_while(is_of_group).count());
            merge(durable, shared, group, &mut result)?;
            rest = after;
        }
        Ok(result)
    }

    fn is_in_victim(&self, block: &Block) -> bool {
        block.place().is_some_and(|place| place.number == self.victim)
    }
}

/// Live bytes in each file, as far as any are.
fn live_bytes_by_file(shared: &Shared) -> BTreeMap<u64, u64> {
    let (mut live, mut position) = (BTreeMap::new(), 0);
    loop {
        // Only the maintainer changes stored blocks, and it is here: so the lock may be let go in between.
        let state = shared.state.read();
        for _ in 0..BLOCKS_PER_HOLD {
            let Some(block) = state.directory.get(position) else { return live };
            if let Some(place) = block.place() {
                *live.entry(place.number).or_default() += block.live_bytes();
            }
            position += 1;
        }
    }
}

/// Whole and of the usual size: packing it anew would change nothing.
fn is_worth_copying(block: &Block, shared: &Shared) -> bool {
    block.dead.len() == 0 && block.identity.raw_bytes as usize >= shared.options.block_bytes / 2
}

/// The same block, its frame appended elsewhere as it is.
fn copied(durable: &mut Durable, block: &Block) -> Result<Arc<Block>> {
    // Damage must not be given a new place, where nobody would look for its cause.
    let stored = block.read_frame()?;
    durable.written.compaction += stored.len() as u64;
    let content = Content::Stored(durable.files.append(&mut *durable.backend, &stored)?);
    Ok(Arc::new(Block { identity: block.identity, content, dead: block.dead.clone() }))
}

#[cfg(test)]
#[path = "tidying_tests.rs"]
mod tests;
