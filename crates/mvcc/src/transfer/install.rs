//! Installs a received store: it replaces the state while readers are active.
//!
//!   check ─▶ swap slots (backend) ─▶ read it back, rebuild the index ─▶ exchange the state (lock)
//!
//! * Handles stay valid. A read in progress continues with its old blocks and the new index: the
//!   history up to its revision is the same in both, or it is compacted and the read fails.
//! * Readers use the old state until the new one is ready. The lock is held for the exchange only.
//! * Applied index, revision and compact revision never decrease, unless the current state is known to
//!   be wrong: then only the applied index does not.
//! * Changes that were not persisted are lost with the old state. The caller stops the writer during
//!   the install, and invalidates everything derived from the old state.

use std::mem;

use super::staging::StagedStore;
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::maintainer::Maintainer;
use crate::store::{LockPurpose, StoreData};
use crate::types::LogPosition;

impl Maintainer {
    /// Replaces this store durably with a received one, and returns its position. From this call on, a
    /// restart may find either store, so the log must no longer be needed for the old one.
    ///
    /// Errors: `Refused` if the received store is older than the current state; the store is then
    /// unchanged. Other errors poison the maintainer, and the process must stop.
    pub fn install(&mut self, staged: StagedStore) -> Result<LogPosition> {
        self.install_over(staged, Present::Right)
    }

    /// Calls [`Maintainer::install`] over a current state that may be wrong.
    pub fn install_over(&mut self, staged: StagedStore, present: Present) -> Result<LogPosition> {
        if is_behind(&staged, &self.checkpoints.shared.state.read(LockPurpose::Transfer), present) {
            let reason = "it is older than the present state";
            return Err(Error::Refused { attempt: "install a received store", reason });
        }
        self.guarded(|maintainer| maintainer.try_install(staged, present))
    }

    fn try_install(&mut self, staged: StagedStore, present: Present) -> Result<LogPosition> {
        let generation = self.checkpoints.shared.state.read(LockPurpose::Transfer).generation + 1;
        self.checkpoints.durable.backend.replace(staged.backend)?;
        // An interrupted compaction belongs to the old store. The new one is resumed from its marks.
        self.compaction = Default::default();
        let loaded = checkpoint::load(
            &mut *self.checkpoints.durable.backend,
            &self.checkpoints.shared.options,
            generation,
        )?;
        self.checkpoints.durable.adopt(loaded.files, loaded.marks, loaded.items);

        let (mut state, new) = (self.checkpoints.shared.state.write(LockPurpose::Transfer), loaded.state);
        assert!(new.applied >= state.applied, "the writer rests while a store is installed");
        if present == Present::Right {
            assert!(new.revision >= state.revision, "no reader sees the revision go back");
            let (before, after) = (state.compact_revision, new.compact_revision);
            assert!(after >= before, "no compacted revision becomes readable again");
        }
        assert_eq!(new.generation, state.generation + 1, "one install at a time");
        let old = mem::replace(&mut *state, new);
        drop(state);
        // They describe states of the old store. etcd drops them as well.
        self.checkpoints.shared.hashes.lock().clear();
        if present == Present::Wrong {
            self.checkpoints.shared.counts.clear();
        }
        self.checkpoints.shared.notify();
        // Dropping an index of a million keys takes time, so release the lock first.
        drop(old);
        Ok(self.checkpoints.durable.marks.applied)
    }
}

/// Validity of the state that an install replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    Right,
    /// Its revisions are meaningless. The caller ensures that it is neither read nor watched.
    Wrong,
}

/// Reports whether the install would revert a state that readers have seen and may rely on.
fn is_behind(staged: &StagedStore, state: &StoreData, present: Present) -> bool {
    let goes_back =
        || staged.revision() < state.revision || staged.compact_revision() < state.compact_revision;
    staged.applied() < state.applied || (present == Present::Right && goes_back())
}
