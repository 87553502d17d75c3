//! Physical compaction: superseded records leave the index, then the disk, in steps that hold up nobody.
//!
//!   Idle ─▶ Hashing ─▶ Pruning ─▶ Sweeping ─▶ Idle ─▶ Tidying ─▶ Idle
//!           (as etcd)  index      │                   files with holes (`tidying`)
//!                                 └ blocks: listed as dead · rewritten with their neighbours · dropped
//!
//! * It begins once the logical compaction is durable. So it only ever touches stored blocks, and after a crash no
//!   reader can ask for what is gone.
//! * Blocks are swept in revision order: what a crash leaves of a key is always its newest part.
//!   That is what makes a crash harmless: records are dropped oldest first, so a put never outlives the tombstone or
//!   the newer put that supersedes it.
//! * A block is rewritten when less than half of its records live, or when it is small and has such a neighbour. Until
//!   then the catalogue lists its dead records. So a store never takes much more than twice its live data.
//! * A step's new blocks are synced before the catalogue names them; the old ones leave the catalogue in the same update,
//!   and their files only after it. Readers that hold an old block keep its file.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Update;
use crate::block::OpenBlock;
use crate::catalogue::{Marks, block_entry, crc_of};
use crate::dead::DeadList;
use crate::directory::{Block, Content, live_records};
use crate::error::Result;
use crate::frame::{self, Identity};
use crate::hash::{HashPass, REMEMBERED};
use crate::index::Next;
use crate::maintainer::{Durable, Maintainer};
use crate::revision::Revision;
use crate::state::Shared;
use crate::tidying::{Bound, Tidying};
use crate::types::CompactProgress;

/// Blocks hashed or swept in one step: some 4 MiB read, and at most as much written.
const BLOCKS_PER_STEP: usize = 64;

/// Where physical compaction stands.
#[derive(Default)]
pub(crate) enum Compaction {
    #[default]
    Idle,
    /// The hash that etcd takes whenever it compacts, while everything is still there.
    Hashing {
        target: i64,
        pass: HashPass,
    },
    /// `dropped` grows by 16 bytes per superseded record until they are swept.
    Pruning {
        target: i64,
        from: Box<[u8]>,
        dropped: Vec<Revision>,
    },
    Sweeping {
        target: i64,
        sweep: Sweep,
    },
    /// Nothing is left to drop, but files have holes.
    Tidying(Tidying),
}

impl Compaction {
    /// `Maintainer::compact_step`; `bound` says what is left to do when history is dropped.
    pub fn step(maintainer: &mut Maintainer, keys_max: usize, bound: Bound) -> Result<CompactProgress> {
        let shared = maintainer.shared.clone();
        let phase = std::mem::take(&mut maintainer.compaction);
        maintainer.compaction = match phase {
            Compaction::Idle => match Self::begin(maintainer, &shared)? {
                Some(next) => next,
                None => match Tidying::begin(&mut maintainer.durable, &shared, bound)? {
                    Some(tidying) => Compaction::Tidying(tidying),
                    None => return Ok(Self::idle_or_waiting(maintainer, &shared)),
                },
            },
            Compaction::Hashing { target, mut pass } => {
                if pass.step(&shared, BLOCKS_PER_STEP)? {
                    remember(&shared, pass);
                    Self::pruning(target)
                } else {
                    Compaction::Hashing { target, pass }
                }
            }
            Compaction::Pruning { target, from, mut dropped } => {
                let next = shared.state.write().index.prune(&from, target, keys_max, &mut dropped);
                match next {
                    Next::From(from) => Compaction::Pruning { target, from, dropped },
                    Next::End => Compaction::Sweeping { target, sweep: Sweep::new(dropped) },
                }
            }
            Compaction::Sweeping { target, mut sweep } => {
                if sweep.step(&mut maintainer.durable, &shared, target)? {
                    return Ok(CompactProgress::Finished { revision: target });
                }
                Compaction::Sweeping { target, sweep }
            }
            Compaction::Tidying(mut tidying) => match tidying.step(&mut maintainer.durable, &shared)? {
                true => Compaction::Idle,
                false => Compaction::Tidying(tidying),
            },
        };
        Ok(CompactProgress::More)
    }

    /// The first phase of the newest compaction, if there is one and it is durable by now.
    fn begin(maintainer: &mut Maintainer, shared: &Shared) -> Result<Option<Self>> {
        // Both are of one moment: a compaction applied in between belongs to the next round.
        let (target, before) = {
            let state = shared.state.read();
            (state.compact_revision, state.compact_revision_before)
        };
        if target <= maintainer.durable.marks.compacted {
            return Ok(None);
        }
        // What is dropped must never be asked for again. Were the compact revision only in memory, a crash would bring readers
        // back who may ask, and find holes.
        if maintainer.durable.marks.compact_revision < target {
            maintainer.try_persist()?;
        }
        if maintainer.durable.marks.compact_revision < target {
            return Ok(None);
        }
        assert!(
            target <= maintainer.durable.marks.revision,
            "what is compacted is older than the checkpoint"
        );
        // What an interrupted or skipped compaction left behind is no state that etcd would hash.
        Ok(Some(match before {
            Some(before) if before == maintainer.durable.marks.compacted => {
                Compaction::Hashing { target, pass: HashPass::new(target, before) }
            }
            Some(_) | None => Self::pruning(target),
        }))
    }

    /// The index is pruned from its first key on.
    fn pruning(target: i64) -> Self {
        Compaction::Pruning { target, from: Box::default(), dropped: Vec::new() }
    }

    /// Idle means nothing to do; a compaction that cannot be made durable inside an entry is still to do.
    fn idle_or_waiting(maintainer: &Maintainer, shared: &Shared) -> CompactProgress {
        if shared.state.read().compact_revision > maintainer.durable.marks.compacted {
            CompactProgress::More
        } else {
            CompactProgress::Idle
        }
    }
}

/// Keeps the hash for `Store::hash_kv`: members compare what they had when each of them finished, although that state is
/// physically gone by then.
fn remember(shared: &Shared, pass: HashPass) {
    let revision = shared.state.read().revision;
    let mut hashes = shared.hashes.lock();
    hashes.push_back(pass.finish(revision));
    if hashes.len() > REMEMBERED {
        hashes.pop_front();
    }
}

/// The pass over the blocks.
pub(crate) struct Sweep {
    /// Superseded revisions, ascending.
    dropped: Vec<Revision>,
    /// How many of them are swept.
    swept: usize,
    /// Blocks before this are done.
    from: Revision,
}

/// A stretch of neighbouring blocks, and what comes in their place.
pub(crate) struct Change {
    pub positions: Range<usize>,
    pub old: Vec<Arc<Block>>,
    pub new: Vec<Arc<Block>>,
}

impl Sweep {
    /// The index gave them up in key order; blocks are met in revision order. One sort makes the sweep a single pass.
    fn new(mut dropped: Vec<Revision>) -> Self {
        dropped.sort_unstable();
        assert!(dropped.is_sorted_by(|left, right| left < right), "a record is dropped once");
        Sweep { dropped, swept: 0, from: Revision::first_of(0) }
    }

    /// Sweeps a bounded number of blocks; true when all are done and that is durable.
    fn step(&mut self, durable: &mut Durable, shared: &Shared, target: i64) -> Result<bool> {
        // The window is read once and stays valid: nobody but the maintainer replaces stored blocks.
        let (positions, old) = self.window(shared, target);
        let is_last = old.len() < BLOCKS_PER_STEP;
        let marked: Vec<Arc<Block>> = old.iter().map(|block| self.mark(block)).collect();
        let new = rewrite(durable, shared, &marked)?;
        assert_eq!(
            live_records(&marked),
            live_records(&new),
            "rewriting loses no live record and keeps no dead one"
        );
        let mut marks = durable.marks;
        if is_last {
            assert_eq!(self.swept, self.dropped.len(), "every dropped record was in a stored block");
            marks.compacted = target;
        }
        // Where the next window begins, by revision: positions shift when blocks are merged.
        if let Some(last) = old.last() {
            self.from = last.identity.last.next();
        }
        apply(durable, shared, marks, Change { positions, old, new })?;
        Ok(is_last)
    }

    /// The next stored blocks that begin at or below `target`.
    fn window(&self, shared: &Shared, target: i64) -> (Range<usize>, Vec<Arc<Block>>) {
        let state = shared.state.read();
        let from = state.directory.position_from(self.from);
        let next = (from..state.directory.len()).filter_map(|position| state.directory.get(position));
        let due = next.take_while(|block| block.place().is_some() && block.identity.first.main <= target);
        let blocks: Vec<_> = due.take(BLOCKS_PER_STEP).cloned().collect();
        (from..from + blocks.len(), blocks)
    }

    /// The same block with the records listed as dead that were dropped from it.
    fn mark(&mut self, block: &Arc<Block>) -> Arc<Block> {
        let rest = &self.dropped[self.swept..];
        // `dropped` is swept front to back along with the blocks, so what belongs to this block is always a prefix of the rest.
        let here = &rest[..rest.partition_point(|revision| *revision <= block.identity.last)];
        if here.is_empty() {
            return block.clone();
        }
        assert!(here[0] >= block.identity.first, "a dropped record was in no stored block");
        let mut dead = block.dead.unpack();
        dead.extend_from_slice(here);
        dead.sort_unstable();
        self.swept += here.len();
        let place = block.place().expect("only stored blocks are swept").clone();
        let (content, dead) = (Content::Stored(place), DeadList::pack(&dead));
        Arc::new(Block { identity: block.identity, content, dead })
    }
}

/// What the blocks become: kept, dropped, or rewritten together with their neighbours.
fn rewrite(durable: &mut Durable, shared: &Shared, blocks: &[Arc<Block>]) -> Result<Vec<Arc<Block>>> {
    let small = shared.options.block_bytes as u64 / 2;
    let is_candidate = |block: &&Arc<Block>| is_sparse(block) || block_raw_bytes(block) < small;
    let (mut result, mut rest) = (Vec::with_capacity(blocks.len()), blocks);
    while !rest.is_empty() {
        // Neighbours only, and in order: blocks must not overlap, and what is close in time is read together.
        let together = rest.iter().take_while(is_candidate).count();
        // A lone small block is left alone: rewriting it would only move it.
        let (group, after) = rest.split_at(together.max(1));
        rest = after;
        let is_worth_it = group.len() > 1 || is_sparse(&group[0]);
        if together > 0 && is_worth_it {
            merge(durable, shared, group, &mut result)?;
        } else {
            result.extend_from_slice(group);
        }
    }
    Ok(result)
}

/// Less than half of it lives.
fn is_sparse(block: &Block) -> bool {
    block.live_records() * 2 < block.identity.records
}

/// Its size before compression, which is what blocks are cut by.
fn block_raw_bytes(block: &Block) -> u64 {
    u64::from(block.identity.raw_bytes)
}

/// Copies the live records of neighbouring blocks into as few new ones as they need.
pub(crate) fn merge(
    durable: &mut Durable,
    shared: &Shared,
    group: &[Arc<Block>],
    result: &mut Vec<Arc<Block>>,
) -> Result<()> {
    let block_bytes = shared.options.block_bytes;
    let mut open = OpenBlock::default();
    for block in group.iter().filter(|block| block.live_records() > 0) {
        let decoded = block.load()?;
        let mut dead = block.dead.unpack().into_iter().peekable();
        for record in decoded.records() {
            // The dead stay behind; that is the whole point of moving the others.
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

/// Seals a block of moved records and appends it. Not through the cache: whoever reads such old records is rare, and would
/// be paid for by pushing out newer ones.
fn store_rewritten(durable: &mut Durable, open: OpenBlock) -> Result<Arc<Block>> {
    let (decoded, mut bytes) = (open.sealed(), Vec::new());
    frame::store(&decoded, &mut bytes);
    durable.written.compaction += bytes.len() as u64;
    let content = Content::Stored(durable.files.append(&mut *durable.backend, &bytes)?);
    Ok(Arc::new(Block { identity: Identity::of(&decoded), content, dead: DeadList::default() }))
}

/// Makes one step durable, then lets readers see it, then gives the space back.
pub(crate) fn apply(durable: &mut Durable, shared: &Shared, mut marks: Marks, change: Change) -> Result<()> {
    let is_unchanged =
        |block: &&Arc<Block>, others: &[Arc<Block>]| others.iter().any(|other| Arc::ptr_eq(block, other));
    let gone: Vec<_> = change.old.iter().filter(|block| !is_unchanged(block, &change.new)).collect();
    let come: Vec<_> = change.new.iter().filter(|block| !is_unchanged(block, &change.old)).collect();
    if gone.is_empty() && come.is_empty() && marks == durable.marks {
        return Ok(());
    }
    // One update for all of the step: a crash finds either all of the old blocks named, or all of the new ones.
    let mut update = Update::default();
    for block in &gone {
        durable.unname(&mut marks, &mut update, block);
    }
    for block in &come {
        let entry = block_entry(block, block.place().expect("stored by this step"));
        marks.blocks.add(crc_of(&entry.1));
        update.puts.push(entry);
    }
    // A block that takes the key of an old one replaces it.
    let taken: BTreeSet<Vec<u8>> = update.puts.iter().map(|(key, _)| key.clone()).collect();
    update.removals.retain(|key| !taken.contains(key));
    assert!(update.puts.len() >= come.len(), "every new block is named");
    // As in a checkpoint: synced first, then named. Until the update is done a restart finds the old blocks, untouched.
    durable.files.sync()?;
    durable.update_marks(marks, update)?;

    // Only now, when no durable entry names them, may the old places be given up.
    let places = |blocks: &[&Arc<Block>]| -> Vec<_> {
        blocks.iter().map(|block| block.place().expect("stored").clone()).collect()
    };
    let kept: BTreeSet<_> = places(&come).iter().map(|place| (place.number, place.offset)).collect();
    for place in places(&gone).iter().filter(|place| !kept.contains(&(place.number, place.offset))) {
        durable.files.release(place);
        shared.cache.forget(place);
    }
    // From here on new readers look at the new blocks; those under way hold the old ones and their file.
    shared.state.write().directory.replace(change.positions, change.new);
    durable.files.remove_unused(&mut *durable.backend)?;
    let stored_bytes = durable.allocated();
    shared.state.write().stored_bytes = stored_bytes;
    Ok(())
}
