//! The background half: checkpoints and physical compaction.
//!
//!   persist:  cut (lock) ─▶ compress and append blocks ─▶ sync files ─▶ catalogue, one atomic update ─▶ swap (lock)
//!
//! * The catalogue names only blocks that are synced. A crash before the update leaves bytes that never happened.
//! * Marks, items and blocks of one checkpoint become durable in one step, so the applied index never runs ahead of the
//!   data or behind it.
//! * After a failed write or sync nothing is written any more: what the disk holds is unknown.
//!
//! What it may do beside the writer: `persist` reads sealed blocks, which do not change, and takes the lock twice for a
//! moment, to cut and to swap pointers. Its time is the disk's. A checkpoint that is cut while the one before is being
//! written simply waits its turn, with all that has gathered meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::backend::{Backend, Update};
use crate::block_file::BlockFiles;
use crate::catalogue::{self, Marks, block_entry, crc_of, item_entry, item_key};
use crate::compaction::Compaction;
use crate::directory::{Block, Content};
use crate::error::{Error, Result};
use crate::frame;
use crate::revision::Revision;
use crate::state::{Cut, Shared};
use crate::tidying::Bound;
use crate::types::{CompactProgress, Persisted, Written};

/// Only one exists per store; the checkpoint thread owns it. After an error it is poisoned and the member must stop.
pub struct Maintainer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) durable: Durable,
    pub(crate) compaction: Compaction,
    pub(crate) is_poisoned: bool,
}

/// The durable side, as it stands.
pub(crate) struct Durable {
    pub backend: Box<dyn Backend>,
    pub files: BlockFiles,
    pub marks: Marks,
    /// The items of the durable checkpoint. Shared with exports: a change while one holds them costs a copy.
    pub items: Arc<BTreeMap<Bytes, DurableItem>>,
    pub written: Written,
}

/// An item as the catalogue holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DurableItem {
    pub value: Bytes,
    /// Checksum of its entry, for the digest.
    pub crc: u32,
}

impl Maintainer {
    /// Makes the state at the newest entry border durable, in one atomic step. If the writer is inside an entry, that
    /// is the last checkpoint it offered; the next end of an entry then offers another.
    ///
    /// Errors: `Io` or `Catalogue` when the disk refuses; from then on every call is `Poisoned`.
    pub fn persist(&mut self) -> Result<Persisted> {
        self.guarded(Self::try_persist)
    }

    /// What was written since the store was opened, and on whose behalf.
    pub fn written(&self) -> Written {
        self.durable.written
    }

    /// One bounded step of physical compaction: at most `keys_max` keys are visited under the lock, a few MiB of blocks
    /// read and rewritten. Persists first when the compaction itself is not durable yet. A compaction that a crash
    /// interrupted is resumed by the first call after reopening. After a compaction, further steps empty files that are
    /// mostly holes, until the store takes at most a third more than its live data; only then it is `Idle`.
    ///
    /// Errors: as `persist`, and `Corrupt` when a block that must be rewritten cannot be read.
    pub fn compact_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| Compaction::step(maintainer, keys_max, Bound::Usual))
    }

    /// As `compact_step`, for somebody who asked for the space: goes on until hardly any is left to be had. `Idle` means
    /// that all of it came back.
    pub fn reclaim_step(&mut self, keys_max: usize) -> Result<CompactProgress> {
        self.guarded(|maintainer| Compaction::step(maintainer, keys_max, Bound::Tight))
    }

    /// Runs one piece of work that writes. If it fails, what the disk holds is unknown: a page whose sync failed may look clean
    /// to the kernel and never have arrived. So there is no second attempt, of this or of anything.
    pub(crate) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_poisoned {
            return Err(Error::Poisoned);
        }
        let result = work(self);
        self.is_poisoned = result.is_err();
        result
    }

    /// `persist`, for callers that are guarded already.
    pub(crate) fn try_persist(&mut self) -> Result<Persisted> {
        let Some(cut) = self.take_cut() else { return Ok(self.persisted(0, 0)) };
        let first_new = Revision::first_of(self.durable.marks.revision + 1);
        // Blocks up to the cut's revision, and none beyond: the writer may have sealed more since.
        let (from, sealed) = self.blocks_to_store(first_new, cut.revision);
        let (stored, bytes_written) = self.durable.store(&sealed)?;
        let raw_bytes: usize = sealed.iter().map(|block| block.identity.raw_bytes as usize).sum();
        self.durable.written.records += raw_bytes as u64;
        self.durable.written.checkpoints += bytes_written;
        assert_eq!(stored.len(), sealed.len(), "every block of the checkpoint is stored");
        // This order is the promise: the catalogue must never name what a power cut can still take away.
        self.durable.files.sync()?;
        self.durable.name(&cut, &stored)?;

        for (old, new) in sealed.iter().zip(&stored) {
            if let (Content::Memory(decoded), Content::Stored(place)) = (&old.content, &new.content) {
                self.shared.cache.keep(place, decoded.clone());
            }
        }
        // The lock is taken only now, for a swap of pointers; the writer went on all the while.
        let (blocks, stored_bytes) = (stored.len(), self.durable.allocated());
        let mut state = self.shared.state.write();
        debug_assert!(state.directory.len() >= from + blocks, "the writer only appends");
        state.directory.replace(from..from + blocks, stored);
        state.unpersisted_bytes =
            state.unpersisted_bytes.checked_sub(raw_bytes).expect("sealed blocks were counted");
        state.stored_bytes = stored_bytes;
        drop(state);
        Ok(self.persisted(blocks, bytes_written))
    }

    /// The newest checkpoint that can be had now, if it differs from the durable one.
    fn take_cut(&self) -> Option<Cut> {
        let mut state = self.shared.state.write();
        if state.is_inside_entry {
            state.is_cut_wanted = true;
        } else if self.differs(&state) {
            state.cut();
        }
        state.cut.take()
    }

    /// Whether there is anything that the last checkpoint does not hold.
    fn differs(&self, state: &crate::state::State) -> bool {
        let durable = &self.durable.marks;
        let (applied, revision) = (state.applied, state.revision);
        (applied, revision, state.compact_revision)
            != (durable.applied, durable.revision, durable.compact_revision)
            || !state.items_changed.is_empty()
            || state.cut.is_some()
    }

    /// Sealed blocks of a checkpoint up to `revision`, and the position of the first.
    fn blocks_to_store(&self, first_new: Revision, revision: i64) -> (usize, Vec<Arc<Block>>) {
        let state = self.shared.state.read();
        let from = state.directory.position_from(first_new);
        let newer = (from..state.directory.len()).filter_map(|position| state.directory.get(position));
        (from, newer.take_while(|block| block.identity.last.main <= revision).cloned().collect())
    }

    /// The answer of `persist`: what is durable now.
    fn persisted(&self, blocks: usize, bytes_written: u64) -> Persisted {
        let Marks { applied, revision, .. } = self.durable.marks;
        Persisted { applied, revision, blocks, bytes_written }
    }
}

impl Durable {
    /// Goes on with a store that was installed in the place of this one.
    pub fn adopt(&mut self, files: BlockFiles, marks: Marks, items: BTreeMap<Bytes, DurableItem>) {
        self.written.installed += files.allocated();
        (self.files, self.marks, self.items) = (files, marks, Arc::new(items));
    }

    /// Bytes of block files and catalogue.
    pub fn allocated(&self) -> u64 {
        self.files.allocated() + self.backend.catalogue_bytes()
    }

    /// Appends blocks to the block files; not durable yet.
    fn store(&mut self, sealed: &[Arc<Block>]) -> Result<(Vec<Arc<Block>>, u64)> {
        let (mut stored, mut bytes_written, mut bytes) = (Vec::with_capacity(sealed.len()), 0, Vec::new());
        for block in sealed {
            let Content::Memory(decoded) = &block.content else { unreachable!("blocks are stored once") };
            bytes.clear();
            frame::store(decoded, &mut bytes);
            bytes_written += bytes.len() as u64;
            let content = Content::Stored(self.files.append(&mut *self.backend, &bytes)?);
            stored.push(Arc::new(Block { identity: block.identity, content, dead: block.dead.clone() }));
        }
        Ok((stored, bytes_written))
    }

    /// Names a checkpoint in the catalogue: from here on it is what a restart finds.
    fn name(&mut self, cut: &Cut, stored: &[Arc<Block>]) -> Result<()> {
        let mut update = Update::default();
        assert!(cut.compact_revision >= self.marks.compact_revision, "compactions go forward");
        let mut marks = self.marks;
        (marks.applied, marks.revision) = (cut.applied, cut.revision);
        marks.compact_revision = cut.compact_revision;
        for block in stored {
            let entry = block_entry(block, block.place().expect("stored just now"));
            marks.blocks.add(crc_of(&entry.1));
            update.puts.push(entry);
        }
        // A change of items copies the map only if an export still holds it.
        if !cut.items.is_empty() {
            let items = Arc::make_mut(&mut self.items);
            for (key, value) in &cut.items {
                if let Some(old) = items.remove(key) {
                    marks.items.remove(old.crc);
                }
                match value {
                    Some(value) => {
                        let entry = item_entry(key, value);
                        let crc = crc_of(&entry.1);
                        marks.items.add(crc);
                        items.insert(key.clone(), DurableItem { value: value.clone(), crc });
                        update.puts.push(entry);
                    }
                    None => update.removals.push(item_key(key)),
                }
            }
        }
        self.update_marks(marks, update)
    }

    /// One atomic update that ends in `marks`.
    pub fn update_marks(&mut self, marks: Marks, mut update: Update) -> Result<()> {
        assert!(marks.revision >= self.marks.revision, "the durable revision never goes back");
        assert!(
            marks.compacted <= marks.compact_revision,
            "physical compaction never overtakes the logical one"
        );
        assert!(marks.applied >= self.marks.applied, "the durable applied index never goes back");
        if cfg!(feature = "mutant-applied-apart") {
            let early = Marks { applied: marks.applied, ..self.marks };
            self.backend.update(Update { puts: vec![early.entry()], removals: Vec::new() })?;
        }
        update.puts.push(marks.entry());
        let put_bytes: usize = update.puts.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.written.catalogue += put_bytes as u64;
        self.backend.update(update)?;
        self.marks = marks;
        Ok(())
    }

    /// Removes a block's entry from an update and its digest, unless another block takes its key.
    pub fn unname(&self, marks: &mut Marks, update: &mut Update, block: &Block) {
        let entry = block_entry(block, block.place().expect("only stored blocks have entries"));
        marks.blocks.remove(crc_of(&entry.1));
        update.removals.push(catalogue::block_key(block.identity.first));
    }
}
