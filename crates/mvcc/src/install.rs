//! Installing a received store: it becomes the state, under the hands of everyone who holds the old one.
//!
//!   check ─▶ swap places (backend) ─▶ read it back, rebuild the index ─▶ exchange the state (lock)
//!
//! * Handles stay valid: after the exchange they read the new store. What a reader began before, it ends on the blocks that
//!   it holds, or goes on with the new index: history up to a revision is the same in both, or it is compacted and refused.
//! * Readers are served from the old state until the new one is ready; the lock is held for the exchange only.
//! * Nothing goes back: applied index, revision and compact revision of the new store are not behind those of the old.
//! * What the writer had not persisted is gone with the old state, a half entry included. The caller lets it rest
//!   meanwhile, and tells whoever remembers something of the old state.

use std::mem;

use crate::compaction::Compaction;
use crate::error::{Error, Result};
use crate::maintainer::Maintainer;
use crate::recovery;
use crate::staging::Staged;
use crate::state::State;
use crate::types::Applied;

impl Maintainer {
    /// Puts a received store in the place of this one, durably, and returns how far it reaches.
    ///
    /// The caller has made sure that the log will not be needed for the old state any more: once this has begun, a restart
    /// may find either store.
    ///
    /// Errors: `Refused` if the received store is behind the present state; then nothing was changed. All others poison
    /// the maintainer: the process stops, and the next start finds one of the two stores.
    pub fn install(&mut self, staged: Staged) -> Result<Applied> {
        if is_behind(&staged, &self.shared.state.read()) {
            let reason = "it is behind the present state";
            return Err(Error::Refused { attempt: "install a received store", reason });
        }
        self.guarded(|maintainer| maintainer.try_install(staged))
    }

    fn try_install(&mut self, staged: Staged) -> Result<Applied> {
        let generation = self.shared.state.read().generation + 1;
        self.durable.backend.replace(staged.backend)?;
        // The compaction under way was one of the old store; the new one's own is resumed from its marks.
        self.compaction = Compaction::default();
        let loaded = recovery::load(&mut *self.durable.backend, &self.shared.options, generation)?;
        self.durable.adopt(loaded.files, loaded.marks, loaded.items);

        let (mut state, new) = (self.shared.state.write(), loaded.state);
        assert!(new.applied >= state.applied, "the writer rests while a store is installed");
        assert!(new.revision >= state.revision, "no reader sees the revision go back");
        assert!(
            new.compact_revision >= state.compact_revision,
            "no compacted revision becomes readable again"
        );
        assert_eq!(new.generation, state.generation + 1, "one install at a time");
        let old = mem::replace(&mut *state, new);
        drop(state);
        // Taken at states of the old store; etcd forgets them as well.
        self.shared.hashes.lock().clear();
        // An index of a million keys takes its time to go, and no reader waits for it.
        drop(old);
        Ok(self.durable.marks.applied)
    }
}

/// Whether anything that readers have seen would be undone.
fn is_behind(staged: &Staged, state: &State) -> bool {
    staged.applied() < state.applied
        || staged.revision() < state.revision
        || staged.compact_revision() < state.compact_revision
}
