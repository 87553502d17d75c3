//! Phases of a compaction.
//!
//!   Idle ─▶ Hashing ─▶ Pruning ─▶ Sweeping ─▶ Idle ─▶ Reclaim ─▶ Idle
//!           (as etcd)  index      blocks             files with holes
//!
//! A compaction starts once its compact revision is durable. It therefore changes only stored blocks,
//! and reads after a crash do not need dropped records.

use super::reclaim::{Reclaim, SpaceLimit};
use super::sweep::{DeadRecordSweep, DroppedRecords};
use super::{BLOCKS_PER_STEP, BYTES_PER_STEP};

use crate::checkpoint::CheckpointWriter;
use crate::error::Result;
use crate::index::{NextLeaf, SupersededRecords};
use crate::store::{HashPass, LockPurpose, REMEMBERED, StoreShared};
use crate::types::CompactProgress;

#[derive(Default)]
pub(crate) struct Compaction {
    phase: CompactionPhase,
}

#[derive(Default)]
enum CompactionPhase {
    #[default]
    Idle,
    /// Computes etcd's compaction hash, before records are removed.
    Hashing {
        target: i64,
        pass: HashPass,
    },
    Pruning {
        target: i64,
        from: Box<[u8]>,
        dropped: DroppedRecords,
    },
    Sweeping {
        target: i64,
        sweep: DeadRecordSweep,
    },
    /// Empties files with holes, once all superseded records are dropped.
    Reclaim(Reclaim),
}

impl Compaction {
    pub fn step(
        &mut self,
        checkpoints: &mut CheckpointWriter,
        keys_max: usize,
        bound: SpaceLimit,
    ) -> Result<CompactProgress> {
        let shared = checkpoints.shared.clone();
        let phase = std::mem::take(&mut self.phase);
        self.phase = match phase {
            CompactionPhase::Idle => match Self::begin(checkpoints, &shared)? {
                Some(next) => next,
                None => match Reclaim::begin(&mut checkpoints.durable, &shared, bound)? {
                    Some(reclaim) => CompactionPhase::Reclaim(reclaim),
                    None => return Ok(Self::idle_or_waiting(checkpoints, &shared)),
                },
            },
            CompactionPhase::Hashing { target, mut pass } => {
                if pass.step(&shared, BLOCKS_PER_STEP, BYTES_PER_STEP)? {
                    remember(&shared, pass);
                    Self::pruning(target, &shared)
                } else {
                    CompactionPhase::Hashing { target, pass }
                }
            }
            CompactionPhase::Pruning { target, from, mut dropped } => {
                let mut state = shared.state.write(LockPurpose::Prune);
                if shared.pins.any_below(target) && !base::mutant("unpinned-follower") {
                    drop(state);
                    self.phase = CompactionPhase::Pruning { target, from, dropped };
                    return Ok(CompactProgress::Waiting);
                }
                let mut superseded = SupersededRecords::default();
                let next = state.index.prune(&from, target, keys_max, &mut superseded);
                drop(state);
                dropped.add(superseded, &shared);
                match next {
                    NextLeaf::From(from) => CompactionPhase::Pruning { target, from, dropped },
                    NextLeaf::End => {
                        CompactionPhase::Sweeping { target, sweep: DeadRecordSweep::new(dropped) }
                    }
                }
            }
            CompactionPhase::Sweeping { target, mut sweep } => {
                if sweep.step(&mut checkpoints.durable, &shared, target)? {
                    return Ok(CompactProgress::Finished { revision: target });
                }
                CompactionPhase::Sweeping { target, sweep }
            }
            CompactionPhase::Reclaim(mut reclaim) => match reclaim.step(&mut checkpoints.durable, &shared)? {
                true => CompactionPhase::Idle,
                false => CompactionPhase::Reclaim(reclaim),
            },
        };
        Ok(CompactProgress::More)
    }

    /// Returns the first phase of the latest compaction, if that is durable.
    fn begin(checkpoints: &mut CheckpointWriter, shared: &StoreShared) -> Result<Option<CompactionPhase>> {
        // Read together: a compaction applied in between is processed next.
        let (target, before) = {
            let state = shared.state.read(LockPurpose::Rewrite);
            (state.compact_revision, state.compact_revision_before)
        };
        if target <= checkpoints.durable.marks.compacted {
            return Ok(None);
        }
        // A compact revision that is only in memory would be lost in a crash, and later reads could need
        // removed records.
        if checkpoints.durable.marks.compact_revision < target {
            checkpoints.persist()?;
        }
        if checkpoints.durable.marks.compact_revision < target {
            return Ok(None);
        }
        assert!(
            target <= checkpoints.durable.marks.revision,
            "what is compacted is older than the checkpoint"
        );
        // An interrupted or skipped compaction leaves a state that etcd would not hash.
        Ok(Some(match before {
            Some(before) if before == checkpoints.durable.marks.compacted => {
                CompactionPhase::Hashing { target, pass: HashPass::of_compaction(target, before) }
            }
            Some(_) | None => Self::pruning(target, shared),
        }))
    }

    /// Starts to prune the index at its first key.
    fn pruning(target: i64, shared: &StoreShared) -> CompactionPhase {
        let dropped = DroppedRecords::new(shared.options.dropped_max);
        CompactionPhase::Pruning { target, from: Box::default(), dropped }
    }

    /// Returns `Waiting` if there is another compaction, which cannot become durable inside an entry.
    fn idle_or_waiting(checkpoints: &CheckpointWriter, shared: &StoreShared) -> CompactProgress {
        if shared.state.published().compact_revision() > checkpoints.durable.marks.compacted {
            CompactProgress::Waiting
        } else {
            CompactProgress::Idle
        }
    }
}

/// Stores the hash for `Store::hash_kv`. Members compare the states at the end of a compaction, which
/// later become unreadable.
fn remember(shared: &StoreShared, pass: HashPass) {
    let revision = shared.state.published().revision();
    let mut hashes = shared.hashes.lock();
    hashes.push_back(pass.finish(revision));
    if hashes.len() > REMEMBERED {
        hashes.pop_front();
    }
}
