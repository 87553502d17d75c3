//! Blocks that long reads hold: pinned ranges, and exports to other members.
//!
//!   range, export ─add─▶ PinRegistry ◀─refresh─ checkpoint
//!                              ▲──keep_within─ maintainer, which knows the removed files that are still open
//!
//! * What is held is on disk: once a checkpoint has stored a block, the stored form replaces the one in
//!   memory.
//! * A removed file keeps its space until the last holder of one of its blocks releases it. When the space of
//!   such files exceeds a bound, holders lose their blocks: of the caller that holds most, the oldest first.
//!   An export loses its blocks only when no range is left that holds a removed file; then the newest, so
//!   that the oldest ends.
//! * A read in progress of one block keeps that block to its end.
//!
//! Lock order: a holder's lock, then that of the state. The registry's lock is not held with another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::lock::{LockPurpose, StateLock};
use super::state::RecordSource;
use crate::block::{Block, BlockLocation, RemovedFiles};
use crate::error::{Error, Result};

/// On whose behalf blocks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockOwner {
    /// Another member.
    Peer,
    Caller(u64),
}

/// The blocks of one holder.
pub(crate) struct PinnedBlocks {
    owner: BlockOwner,
    /// `None`: they were taken away.
    sources: Mutex<Option<Vec<RecordSource>>>,
}

/// All holders, the oldest first.
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

    /// Called after each checkpoint.
    pub fn refresh(&self, state: &StateLock) {
        for holder in self.holders() {
            holder.refresh(state);
        }
    }

    /// Takes blocks away until the removed files that remain open have at most `bytes_max`.
    pub fn keep_within(&self, removed: &RemovedFiles, bytes_max: u64) {
        let mut bytes: u64 = removed.values().sum();
        if bytes <= bytes_max || base::mutant("unbounded-pins") {
            return;
        }
        let held = self.holders().into_iter().map(|holder| holder.held(removed));
        let mut held: Vec<HeldFiles> = held.filter(|(_, files)| !files.is_empty()).collect();
        while bytes > bytes_max
            && let Some(victim) = victim(&held, removed)
        {
            let (holder, files) = held.remove(victim);
            drop(holder.sources.lock().take());
            // A file may have other holders.
            let freed = files.iter().filter(|file| held.iter().all(|(_, files)| !files.contains(*file)));
            bytes -= freed.map(|file| removed[file]).sum::<u64>();
        }
    }

    fn holders(&self) -> Vec<Arc<PinnedBlocks>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A holder, and the removed files of which it has blocks.
type HeldFiles = (Arc<PinnedBlocks>, BTreeSet<(u64, u64)>);

/// The next holder to lose its blocks.
fn victim(held: &[HeldFiles], removed: &RemovedFiles) -> Option<usize> {
    let mut owners: BTreeMap<BlockOwner, BTreeSet<_>> = BTreeMap::new();
    for (holder, files) in held {
        owners.entry(holder.owner).or_default().extend(files);
    }
    let rank = |(owner, files): &(BlockOwner, BTreeSet<_>)| {
        let bytes: u64 = files.iter().map(|file| removed[file]).sum();
        (*owner != BlockOwner::Peer, bytes)
    };
    let (owner, _) = owners.into_iter().max_by_key(rank)?;
    let mut holders = held.iter().map(|(holder, _)| holder.owner);
    match owner {
        BlockOwner::Caller(_) => holders.position(|other| other == owner),
        BlockOwner::Peer => holders.rposition(|other| other == owner),
    }
}

impl PinnedBlocks {
    /// Errors: `Released`.
    pub fn get(&self, number: usize) -> Result<RecordSource> {
        let sources = self.sources.lock();
        Ok(sources.as_ref().ok_or(Error::Released)?[number].clone())
    }

    /// Releases the last one and returns its block.
    ///
    /// Errors: `Released`.
    pub fn pop_block(&self) -> Result<Option<Arc<Block>>> {
        let popped = self.sources.lock().as_mut().ok_or(Error::Released)?.pop();
        Ok(popped.and_then(|source| source.block().cloned()))
    }

    /// The files of its blocks.
    pub fn files(&self) -> BTreeSet<(u64, u64)> {
        let sources = self.sources.lock();
        let blocks = sources.iter().flatten().filter_map(|source| source.block()?.location());
        blocks.map(BlockLocation::file_name).collect()
    }

    fn held(self: Arc<Self>, removed: &RemovedFiles) -> HeldFiles {
        let mut files = self.files();
        files.retain(|file| removed.contains_key(file));
        (self, files)
    }

    /// Replaces blocks in memory by those that a checkpoint has stored.
    pub fn refresh(&self, state: &StateLock) {
        let mut sources = self.sources.lock();
        let blocks = sources.iter_mut().flatten().filter_map(|source| match source {
            RecordSource::Sealed(block) if block.location().is_none() => Some(block),
            RecordSource::Sealed(_) | RecordSource::Open { .. } => None,
        });
        let in_memory: Vec<&mut Arc<Block>> = blocks.collect();
        if in_memory.is_empty() {
            return;
        }
        let state = state.read(LockPurpose::Checkpoint);
        for block in in_memory {
            let stored = state.block_table.find(block.identity.first);
            if let Some(stored) = stored.filter(|stored| stored.identity == block.identity) {
                *block = stored.clone();
            }
        }
    }
}

#[cfg(test)]
#[path = "pinned_blocks_tests.rs"]
mod tests;
