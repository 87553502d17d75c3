//! The handle that writes to the disk: checkpoints, physical compaction, reclaiming of space.
//!
//! * After a failed write or sync nothing more is written, because the state of the disk is unknown.
//! * It runs concurrently with the writer and the readers, and holds the lock for bounded steps.

use crate::checkpoint::CheckpointWriter;
use crate::compaction::{Compaction, SpaceLimit};
use crate::error::{Error, Result};
use crate::types::{BytesWritten, CompactProgress, PersistResult};

/// There is one per store, owned by the checkpoint thread. After an error it is poisoned and the member must
/// stop.
pub struct Maintainer {
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) compaction: Compaction,
    is_poisoned: bool,
}

impl Maintainer {
    /// The handle of a store that was just opened.
    pub(crate) fn new(checkpoints: CheckpointWriter) -> Self {
        Maintainer { checkpoints, compaction: Compaction::default(), is_poisoned: false }
    }

    /// Makes the state at the newest end of an entry durable, in one atomic step. If the writer is inside an
    /// entry, that is the last pending checkpoint; the next end of an entry then makes another one.
    ///
    /// Errors: `Io` or `Catalogue` if the disk fails. Every later call returns `Poisoned`.
    pub fn persist(&mut self) -> Result<PersistResult> {
        self.guarded(|maintainer| maintainer.checkpoints.persist())
    }

    /// Bytes written since the store was opened, by purpose.
    pub fn written(&self) -> BytesWritten {
        self.checkpoints.durable.written
    }

    /// One bounded step of physical compaction: visits at most `keys_max` keys under the lock, and reads and
    /// rewrites a few MiB of blocks. First makes the compaction itself durable if it is not. The first call
    /// after a restart resumes an interrupted compaction. After a compaction, further steps empty files with
    /// holes, until the store takes at most a third more than its live data. Then it returns `Idle`.
    ///
    /// Errors: as `persist`, and `Corrupt` if a block to rewrite cannot be read.
    pub fn compact_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| {
            maintainer.compaction.step(&mut maintainer.checkpoints, keys_max, SpaceLimit::Normal)
        })
    }

    /// As `compact_step`, for Defragment: continues until files take at most a twentieth more than live data.
    pub fn reclaim_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| {
            maintainer.compaction.step(&mut maintainer.checkpoints, keys_max, SpaceLimit::Tight)
        })
    }

    /// Runs one operation that writes. If it fails, nothing is retried: a page whose sync failed may look
    /// clean to the kernel although the disk never got it.
    pub(crate) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_poisoned {
            return Err(Error::Poisoned);
        }
        let result = work(self);
        self.is_poisoned = result.is_err();
        result
    }
}
