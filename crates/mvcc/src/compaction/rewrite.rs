//! Replaces blocks with rewritten ones.
//!
//! * The new blocks of a step are synced before the catalogue refers to them. The same update removes
//!   the old ones, and their files are removed after it. Readers that hold an old block keep its file
//!   open.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Update;
use crate::block::{Block, BlockIdentity, DeadList, OpenBlock, codec};
use crate::checkpoint::{DurableStore, Marks, block_entry, crc_of};
use crate::error::Result;
use crate::store::{LockPurpose, StoreShared};

pub(super) struct BlockReplacement {
    pub positions: Range<usize>,
    pub old: Vec<Arc<Block>>,
    pub new: Vec<Arc<Block>>,
}

/// Returns each block kept, dropped, or rewritten together with its neighbors.
pub(super) fn rewrite(
    durable: &mut DurableStore,
    shared: &StoreShared,
    blocks: &[Arc<Block>],
) -> Result<Vec<Arc<Block>>> {
    let small = shared.options.block_bytes as u64 / 2;
    let is_candidate = |block: &&Arc<Block>| is_sparse(block) || block_raw_bytes(block) < small;
    let (mut result, mut rest) = (Vec::with_capacity(blocks.len()), blocks);
    while !rest.is_empty() {
        // Merge only adjacent blocks, in order: blocks must not overlap, and records of the same time are
        // read together.
        let together = rest.iter().take_while(is_candidate).count();
        // Keep a single small block: a rewrite would only move it.
        let (group, after) = rest.split_at(together.max(1));
        rest = after;
        let is_rewritten = group.len() > 1 || is_sparse(&group[0]);
        if together > 0 && is_rewritten {
            merge(durable, shared, group, &mut result)?;
        } else {
            result.extend_from_slice(group);
        }
    }
    Ok(result)
}

fn is_sparse(block: &Block) -> bool {
    block.live_records() * 2 < block.identity.records
}

fn block_raw_bytes(block: &Block) -> u64 {
    u64::from(block.identity.raw_bytes)
}

/// Copies the live records of adjacent blocks into as few new ones as needed.
pub(super) fn merge(
    durable: &mut DurableStore,
    shared: &StoreShared,
    group: &[Arc<Block>],
    result: &mut Vec<Arc<Block>>,
) -> Result<()> {
    let block_bytes = shared.options.block_bytes;
    let mut open = OpenBlock::default();
    for block in group.iter().filter(|block| block.live_records() > 0) {
        let decoded = block.load()?;
        let mut dead = block.dead.unpack().into_iter().peekable();
        for record in decoded.records() {
            if dead.next_if_eq(&record.revision).is_some() {
                continue;
            }
            open.append(&record, block_bytes);
            if open.raw_bytes() >= block_bytes {
                result.push(store_rewritten(durable, std::mem::take(&mut open))?);
            }
        }
        assert!(dead.next().is_none(), "a dead record is one of its block's");
    }
    if !open.is_empty() {
        result.push(store_rewritten(durable, open)?);
    }
    Ok(())
}

/// Seals a block of moved records and appends it. It is not cached: old records are rarely read.
fn store_rewritten(durable: &mut DurableStore, open: OpenBlock) -> Result<Arc<Block>> {
    let (decoded, mut bytes) = (open.sealed(), Vec::new());
    codec::store(&decoded, &mut bytes);
    durable.written.compaction += bytes.len() as u64;
    let content = durable.append(&bytes)?;
    Ok(Arc::new(Block { identity: BlockIdentity::of(&decoded), content, dead: DeadList::default() }))
}

/// Makes a step durable, then visible to readers, then releases the space.
pub(super) fn apply(
    durable: &mut DurableStore,
    shared: &StoreShared,
    mut marks: Marks,
    replacement: BlockReplacement,
) -> Result<()> {
    let is_unchanged =
        |block: &&Arc<Block>, others: &[Arc<Block>]| others.iter().any(|other| Arc::ptr_eq(block, other));
    let removed: Vec<_> =
        replacement.old.iter().filter(|block| !is_unchanged(block, &replacement.new)).collect();
    let added: Vec<_> =
        replacement.new.iter().filter(|block| !is_unchanged(block, &replacement.old)).collect();
    if removed.is_empty() && added.is_empty() && marks == durable.marks {
        return Ok(());
    }
    // One update for the whole step: after a crash the catalogue has all of the old blocks, or all of the
    // new ones.
    let mut update = Update::default();
    for block in &removed {
        durable.remove_entry(&mut marks, &mut update, block);
    }
    for block in &added {
        let entry = block_entry(block, block.location().expect("stored by this step"));
        marks.blocks.add(crc_of(&entry.1));
        update.puts.push(entry);
    }
    // A new block with the key of an old one replaces its entry.
    let taken: BTreeSet<Vec<u8>> = update.puts.iter().map(|(key, _)| key.clone()).collect();
    update.removals.retain(|key| !taken.contains(key));
    assert!(update.puts.len() >= added.len(), "every new block is named");
    // Sync before writing the entries, like a checkpoint. Until the update, a restart finds the old blocks
    // unchanged.
    durable.files.sync()?;
    durable.update_marks(marks, update)?;

    // Release old locations only when no durable entry refers to them.
    let locations = |blocks: &[&Arc<Block>]| -> Vec<_> {
        blocks.iter().map(|block| block.location().expect("stored").clone()).collect()
    };
    let kept: BTreeSet<_> =
        locations(&added).iter().map(|location| (location.number, location.offset)).collect();
    for location in
        locations(&removed).iter().filter(|location| !kept.contains(&(location.number, location.offset)))
    {
        durable.files.release(location);
        shared.cache.remove(location);
    }
    // New reads see the new blocks. Reads in progress hold the old ones and their file.
    shared.state.write(LockPurpose::Rewrite).block_table.replace(replacement.positions, replacement.new);
    durable.files.remove_unused(&mut *durable.backend)?;
    let stored_bytes = durable.allocated();
    shared.state.write(LockPurpose::Rewrite).stored_bytes = stored_bytes;
    Ok(())
}
