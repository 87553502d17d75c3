//! Blocks held by long reads: pinned ranges, and exports to other members.
//!
//!   range, export ─add─▶ PinRegistry ◀─refresh─ checkpoint
//!                              ▲──keep_within─ maintainer, which knows the removed files that are still open
//!
//! * Held blocks are on disk: once a checkpoint has stored a block, the stored form replaces the one in
//!   memory. Records of the open block are copies, so that they do not keep the whole block in memory.
//! * A removed file keeps its space until the last holder of one of its blocks has released it and the
//!   maintainer has closed it. If the space of such files exceeds a limit, moved blocks of ranges are
//!   first replaced with their new copies. Then holders lose their blocks, starting with the oldest one
//!   of the caller that holds most. Exports lose their blocks only when no range holds a removed file
//!   any more; then the latest export is aborted first, so that the oldest can complete.
//! * A read in progress keeps its current block.
//!
//! Lock order: a holder's lock, then that of the state. The registry's lock is not held together with
//! either.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::lock::{LockPurpose, StateLock};
use super::state::RecordSource;
use crate::block::{Block, BlockLocation, FileName, RemovedFiles};
use crate::error::{Error, Result};

/// Number of blocks looked up per acquisition of the state's lock.
const BLOCKS_PER_HOLD: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockOwner {
    Peer,
    Caller(u64),
}

pub(crate) struct PinnedBlocks {
    owner: BlockOwner,
    /// `None` after they were released.
    sources: Mutex<Option<Vec<RecordSource>>>,
}

#[derive(Default)]
pub(crate) struct PinRegistry(Mutex<Vec<Weak<PinnedBlocks>>>);

impl PinRegistry {
    pub fn add(&self, owner: BlockOwner, sources: Vec<RecordSource>) -> Arc<PinnedBlocks> {
        let pinned = Arc::new(PinnedBlocks { owner, sources: Mutex::new(Some(sources)) });
        let mut holders = self.0.lock();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(Arc::downgrade(&pinned));
        pinned
    }

    /// Replaces blocks in memory with their stored form. Called after each checkpoint.
    pub fn refresh(&self, state: &StateLock) {
        for holder in self.holders() {
            holder.refresh(state);
        }
    }

    /// Releases blocks until the removed files that holders keep open have at most `bytes_max`. Takes time
    /// linear in the number of all held blocks.
    pub fn keep_within(&self, state: &StateLock, removed: &RemovedFiles, bytes_max: u64) {
        if removed.values().sum::<u64>() <= bytes_max || base::mutant("unbounded-pins") {
            return;
        }
        let mut held = HeldFiles::default();
        for holder in self.holders() {
            // The digests that an export sends cover the locations of its blocks.
            if holder.owner != BlockOwner::Peer {
                let is_removed = |location: &BlockLocation| removed.contains_key(&location.file_name());
                holder.replace(state, |location| location.is_some_and(is_removed));
            }
            held.add(holder, removed);
        }
        while held.bytes > bytes_max
            && let Some(holder) = held.pop(removed)
        {
            *holder.sources.lock() = None;
        }
    }

    fn holders(&self) -> Vec<Arc<PinnedBlocks>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Removed files kept open by each owner. Selecting the next holder to release takes one lookup for
/// each of its files.
#[derive(Default)]
struct HeldFiles {
    bytes: u64,
    holders_of: BTreeMap<FileName, usize>,
    owners: BTreeMap<BlockOwner, OwnedFiles>,
    /// Owners ordered so that the last one is released next: callers before other members, then by bytes.
    order: BTreeSet<(bool, u64, BlockOwner)>,
}

#[derive(Default)]
struct OwnedFiles {
    bytes: u64,
    holders_of: BTreeMap<FileName, usize>,
    holders: VecDeque<(Arc<PinnedBlocks>, BTreeSet<FileName>)>,
}

impl HeldFiles {
    /// Adds a holder. Holders must be added oldest first.
    fn add(&mut self, holder: Arc<PinnedBlocks>, removed: &RemovedFiles) {
        let mut files = holder.files();
        files.retain(|name| removed.contains_key(name));
        if files.is_empty() {
            return;
        }
        let owner = holder.owner;
        let owned = self.owners.entry(owner).or_default();
        self.order.remove(&owned.rank(owner));
        for name in &files {
            self.bytes += hold(&mut self.holders_of, *name, removed);
            owned.bytes += hold(&mut owned.holders_of, *name, removed);
        }
        owned.holders.push_back((holder, files));
        self.order.insert(owned.rank(owner));
    }

    fn pop(&mut self, removed: &RemovedFiles) -> Option<Arc<PinnedBlocks>> {
        let (_, _, owner) = self.order.pop_last()?;
        let owned = self.owners.get_mut(&owner).expect("each owner in order has holders");
        let (holder, files) = match owner {
            BlockOwner::Caller(_) => owned.holders.pop_front(),
            BlockOwner::Peer => owned.holders.pop_back(),
        }?;
        for name in &files {
            self.bytes -= release(&mut self.holders_of, *name, removed);
            owned.bytes -= release(&mut owned.holders_of, *name, removed);
        }
        if !owned.holders.is_empty() {
            self.order.insert(owned.rank(owner));
        }
        Some(holder)
    }
}

impl OwnedFiles {
    fn rank(&self, owner: BlockOwner) -> (bool, u64, BlockOwner) {
        (owner != BlockOwner::Peer, self.bytes, owner)
    }
}

/// Counts a holder of a file. Returns the bytes that are held now and were not before.
fn hold(holders_of: &mut BTreeMap<FileName, usize>, name: FileName, removed: &RemovedFiles) -> u64 {
    let holders = holders_of.entry(name).or_default();
    *holders += 1;
    if *holders == 1 { removed[&name] } else { 0 }
}

/// Removes a holder of a file. Returns the bytes that are no longer held.
fn release(holders_of: &mut BTreeMap<FileName, usize>, name: FileName, removed: &RemovedFiles) -> u64 {
    let holders = holders_of.get_mut(&name).expect("it was counted");
    *holders -= 1;
    if *holders == 0 { removed[&name] } else { 0 }
}

impl PinnedBlocks {
    /// Returns the number of sources; 0 after they were released.
    pub fn len(&self) -> usize {
        self.sources.lock().as_ref().map_or(0, Vec::len)
    }

    /// Returns a source.
    ///
    /// Errors: `Released`.
    pub fn get(&self, number: usize) -> Result<RecordSource> {
        let sources = self.sources.lock();
        Ok(sources.as_ref().ok_or(Error::Released)?[number].clone())
    }

    /// Removes the last source and returns its block.
    ///
    /// Errors: `Released`.
    pub fn pop_block(&self) -> Result<Option<Arc<Block>>> {
        let popped = self.sources.lock().as_mut().ok_or(Error::Released)?.pop();
        Ok(popped.and_then(|source| source.block().cloned()))
    }

    pub fn files(&self) -> BTreeSet<FileName> {
        let sources = self.sources.lock();
        let blocks = sources.iter().flatten().filter_map(|source| source.block()?.location());
        blocks.map(BlockLocation::file_name).collect()
    }

    pub fn refresh(&self, state: &StateLock) {
        self.replace(state, |location| location.is_none());
    }

    /// Replaces blocks at these locations with the store's current ones, if they have the same records.
    fn replace(&self, state: &StateLock, is_left: impl Fn(Option<&BlockLocation>) -> bool) {
        // Dropped last, without a lock: a block in memory has 64 KiB.
        let mut replaced = Vec::new();
        let mut sources = self.sources.lock();
        let blocks = sources.iter_mut().flatten().filter_map(|source| match source {
            RecordSource::Sealed(block) if is_left(block.location()) => Some(block),
            RecordSource::Sealed(_) | RecordSource::Open { .. } => None,
        });
        let mut left: Vec<&mut Arc<Block>> = blocks.collect();
        for part in left.chunks_mut(BLOCKS_PER_HOLD) {
            let state = state.read(LockPurpose::Checkpoint);
            for block in part {
                let present = state.block_table.find(block.identity.first);
                if let Some(present) = present.filter(|present| present.has_records_of(block)) {
                    replaced.push(std::mem::replace(*block, present.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pinned_blocks_tests.rs"]
mod tests;
