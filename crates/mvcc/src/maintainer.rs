//! Opens a store and creates its handles, including the one that writes to the disk: checkpoints,
//! physical compaction, and reclaiming of space.
//!
//! * After a failed write or sync it does not write any more, because the state of the disk is unknown.
//! * It runs concurrently with the writer and the readers, and holds the lock for bounded steps.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::backend::{Backend, Update};
use crate::block::BlockCache;
use crate::checkpoint::{CheckpointWriter, DurableStore, Marks, RecoveredStore, load};
use crate::compaction::{Compaction, SpaceLimit};
use crate::error::{Error, Result};
use crate::store::{CountCache, PinRegistry, Pins, StateLock, Store, StoreShared, Writer};
use crate::types::{BytesWritten, CompactProgress, PersistResult, StoreOptions};

/// The handle that writes to the disk. A store has one, owned by the checkpoint thread. After an error
/// it is poisoned and the member must stop.
pub struct Maintainer {
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) compaction: Compaction,
    is_poisoned: bool,
}

impl Maintainer {
    pub(crate) fn new(checkpoints: CheckpointWriter) -> Self {
        Maintainer { checkpoints, compaction: Compaction::default(), is_poisoned: false }
    }

    /// Makes the state at the end of the latest entry durable, atomically. If the writer is inside an
    /// entry, this is the last pending checkpoint; another one then becomes pending at the end of the
    /// entry.
    ///
    /// Errors: `Io` or `Catalogue` if the disk fails. Every later call returns `Poisoned`.
    pub fn persist(&mut self) -> Result<PersistResult> {
        self.guarded(|maintainer| maintainer.checkpoints.persist())
    }

    /// Returns the bytes written since the store was opened, by purpose.
    pub fn written(&self) -> BytesWritten {
        self.checkpoints.durable.written
    }

    /// Returns the number of records dropped by compactions since the store was opened.
    pub fn dropped_records(&self) -> u64 {
        self.checkpoints.durable.dropped_records
    }

    /// Runs a bounded step of physical compaction: visits at most `keys_max` keys under the lock, and reads
    /// and rewrites a few MiB of blocks. First makes the compaction itself durable if it is not. The first
    /// call after a restart resumes an interrupted compaction. After a compaction, further steps empty
    /// files until the store takes at most a third more than its live data. Then it returns `Idle`.
    ///
    /// Errors: see [`Maintainer::persist`], and `Corrupt` if a block to rewrite cannot be read.
    pub fn compact_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| {
            if base::mutant("compaction-frees-nothing") {
                return Ok(CompactProgress::Idle);
            }
            maintainer.compaction.step(&mut maintainer.checkpoints, keys_max, SpaceLimit::Normal)
        })
    }

    /// Runs a step like [`Maintainer::compact_step`], for Defragment: continues until files take at most a
    /// twentieth more than live data.
    pub fn reclaim_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| {
            maintainer.compaction.step(&mut maintainer.checkpoints, keys_max, SpaceLimit::Tight)
        })
    }

    /// Closes up to two removed files that readers have released; readers never close files themselves.
    /// Reports whether there are more. All other operations do this too; call it after some idle seconds.
    pub fn close_removed_files(&mut self) -> bool {
        self.checkpoints.close_removed_files()
    }

    /// Runs an operation that writes. It is not retried after an error: a page with a failed sync may look
    /// clean to the kernel although it never reached the disk.
    pub(crate) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_poisoned {
            return Err(Error::Poisoned);
        }
        let result = work(self);
        self.is_poisoned = result.is_err();
        self.close_removed_files();
        result
    }
}

/// Opens a store at its last durable checkpoint. An empty backend becomes an empty store at revision 1.
///
/// Errors: `Corrupt` if any durable data is corrupt, `Io` or `Catalogue` if the disk fails.
pub fn open(mut backend: Box<dyn Backend>, options: StoreOptions) -> Result<(Writer, Store, Maintainer)> {
    let RecoveredStore { is_new, files, marks, items, mut state } = load(&mut *backend, &options, 0)?;
    let (items, written) = (Arc::new(items), BytesWritten::default());
    let mut durable = DurableStore { backend, files, marks, items, written, dropped_records: 0 };
    if is_new {
        // An empty store needs a format version and a size as well.
        durable.update_marks(Marks::EMPTY, Update::default())?;
        state.stored_bytes = durable.allocated();
    }
    let shared = Arc::new(StoreShared {
        state: StateLock::new(state, options.lock_clock),
        cache: BlockCache::new(options.cache_bytes, options.block_bytes),
        hashes: Mutex::new(VecDeque::new()),
        counts: CountCache::default(),
        pins: Pins::default(),
        pinned_blocks: PinRegistry::default(),
        removed_bytes: AtomicU64::new(0),
        wake: OnceLock::new(),
        options,
    });
    let store = Store { shared: shared.clone() };
    let maintainer = Maintainer::new(CheckpointWriter { shared, durable });
    Ok((Writer::new(store.clone()), store, maintainer))
}
