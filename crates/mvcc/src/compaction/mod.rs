//! Physical compaction: removes superseded records from the index and from the disk, in bounded steps.
//!
//!   steps ─▶ hash ─▶ prune the index ─▶ sweep the blocks ─▶ reclaim files with holes

mod steps; // the phases in order

mod reclaim; // empties files with holes
mod rewrite; // replaces blocks with rewritten ones
mod sweep; // drops superseded records from blocks

pub(crate) use reclaim::SpaceLimit;
pub(crate) use steps::Compaction;

use std::sync::Arc;

use crate::block::Block;

/// Maximum number of blocks hashed, swept or moved in a step: some 4 MiB read, and at most as much
/// written.
const BLOCKS_PER_STEP: usize = 64;
/// Size at which a step stops, for larger blocks. Exceeded by at most one block.
const BYTES_PER_STEP: u64 = 4 << 20;

/// Takes as many of the stored blocks as a step may read, at least one if there is any.
fn of_one_step<'a>(blocks: &mut impl Iterator<Item = &'a Arc<Block>>) -> Vec<Arc<Block>> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < BLOCKS_PER_STEP
        && bytes < BYTES_PER_STEP
        && let Some(block) = blocks.next()
    {
        bytes += block.location().map_or(0, |location| u64::from(location.bytes));
        taken.push(block.clone());
    }
    taken
}
