//! Fills an empty store with the history of another one.
//!
//!   begin ─▶ item, change … in revision order ─▶ finish
//!
//! * Changes keep their revisions, versions and leases. Blocks are written when they are full; memory
//!   is limited to a block and some catalogue entries.
//! * The marks are written last. A crash before that leaves a store that cannot be opened and has to be
//!   removed.
//! * Records that a compaction to the compact revision should have removed are accepted: the store
//!   repeats the compaction after it was opened.
//! * Opening the store checks that each change continues its key's history.

use crate::backend::{Backend, Update};
use crate::block::{
    Block, BlockFiles, BlockIdentity, BlockSource, DeadList, OpenBlock, Record, RecordBody, codec,
};
use crate::changes::Change;
use crate::checkpoint::{Digest, Marks, catalogue, crc_of};
use crate::error::{Error, Result};
use crate::store::{ITEM_BYTES_MAX, ITEM_KEY_BYTES_MAX};
use crate::types::{LogPosition, REVISION_MAX, Revision, StoreOptions};

const UPDATE_BYTES: usize = 1 << 20;

/// A store that is being filled.
pub struct Import {
    backend: Box<dyn Backend>,
    files: BlockFiles,
    open: OpenBlock,
    block_bytes: usize,
    last: Option<Revision>,
    blocks: Digest,
    items: Digest,
    last_item: Option<Vec<u8>>,
    update: Update,
    update_bytes: usize,
    frame: Vec<u8>,
}

/// Initial state of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedState {
    /// Position in the log that continues from this store.
    pub applied: LogPosition,
    /// Main revision, at least that of the last change.
    pub revision: i64,
    /// Compact revision; -1: none.
    pub compact_revision: i64,
}

impl Import {
    /// Starts to fill `backend`, which must be empty.
    ///
    /// Errors: `Refused` if it is not empty, or errors of the backend.
    pub fn begin(mut backend: Box<dyn Backend>, options: &StoreOptions) -> Result<Self> {
        if !backend.catalogue()?.is_empty() || !backend.files()?.is_empty() {
            return Err(Error::Refused { attempt: "import a store", reason: "the directory is not empty" });
        }
        Ok(Import {
            backend,
            files: BlockFiles::new(options.block_file_bytes, 0),
            open: OpenBlock::default(),
            block_bytes: options.block_bytes,
            last: None,
            blocks: Digest::default(),
            items: Digest::default(),
            last_item: None,
            update: Update::default(),
            update_bytes: 0,
            frame: Vec::new(),
        })
    }

    /// Sets an item. Items ascend by key.
    ///
    /// Errors: errors of the backend.
    pub fn item(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        assert!(key.len() <= ITEM_KEY_BYTES_MAX && key.len() + value.len() <= ITEM_BYTES_MAX, "its limits");
        assert!(self.last_item.as_deref().is_none_or(|last| last < key), "items ascend");
        self.last_item = Some(key.to_vec());
        let entry = catalogue::item_entry(key, value);
        self.items.add(crc_of(&entry.1));
        self.put(entry)
    }

    /// Adds the next change.
    ///
    /// Errors: `Refused` if a store cannot have this change next, or errors of the backend.
    pub fn change(&mut self, change: Change<'_>) -> Result<()> {
        let record = record_of(&change);
        if let Some(reason) = self.fault_of(&record) {
            return Err(Error::Refused { attempt: "import a change", reason });
        }
        self.last = Some(record.revision);
        self.open.append(&record, self.block_bytes);
        if self.open.raw_bytes() >= self.block_bytes {
            self.write_block()?;
        }
        Ok(())
    }

    fn fault_of(&self, record: &Record<'_>) -> Option<&'static str> {
        let Revision { main, sub } = record.revision;
        if self.last >= Some(record.revision) {
            return Some("revisions do not ascend");
        }
        if !(1..=REVISION_MAX).contains(&main) || u32::try_from(sub).is_err() {
            return Some("a revision is out of range");
        }
        if record.key.is_empty() {
            return Some("an empty key");
        }
        match record.body {
            RecordBody::Put { create, version, .. } if create < 1 || create > main || version < 1 => {
                Some("a put is older than its key")
            }
            // Ensures that the revision overflows before any version.
            RecordBody::Put { version, .. } if version > main => Some("more versions than revisions"),
            RecordBody::Put { .. } | RecordBody::Tombstone => None,
        }
    }

    /// Writes the rest, makes everything durable, and then writes the marks.
    ///
    /// Errors: `Refused` if the revisions are inconsistent, or errors of the backend.
    pub fn finish(mut self, state: ImportedState) -> Result<()> {
        let ImportedState { applied, revision, compact_revision } = state;
        let is_reached = self.last.is_none_or(|last| last.main <= revision);
        if !(1..=REVISION_MAX).contains(&revision) || !is_reached || compact_revision > revision {
            let reason = "its revisions do not fit together";
            return Err(Error::Refused { attempt: "import a store", reason });
        }
        if !self.open.is_empty() {
            self.write_block()?;
        }
        self.files.sync()?;
        self.write_update()?;
        // -1: a compaction examines everything again.
        let marks = Marks {
            applied,
            revision,
            compact_revision,
            compacted: -1,
            blocks: self.blocks,
            items: self.items,
        };
        self.backend.update(Update { puts: vec![marks.entry()], removals: Vec::new() })
    }

    fn write_block(&mut self) -> Result<()> {
        let sealed = std::mem::take(&mut self.open).sealed();
        self.frame.clear();
        codec::store(&sealed, &mut self.frame);
        let location = self.files.append(&mut *self.backend, &self.frame)?;
        let (identity, dead) = (BlockIdentity::of(&sealed), DeadList::default());
        let block = Block { identity, content: BlockSource::Stored(location.clone()), dead };
        let entry = catalogue::block_entry(&block, &location);
        self.blocks.add(crc_of(&entry.1));
        self.put(entry)
    }

    fn put(&mut self, entry: (Vec<u8>, Vec<u8>)) -> Result<()> {
        self.update_bytes += entry.0.len() + entry.1.len();
        self.update.puts.push(entry);
        if self.update_bytes >= UPDATE_BYTES { self.write_update() } else { Ok(()) }
    }

    fn write_update(&mut self) -> Result<()> {
        self.update_bytes = 0;
        self.backend.update(std::mem::take(&mut self.update))
    }
}

fn record_of<'a>(change: &Change<'a>) -> Record<'a> {
    match *change {
        Change::Delete { revision, key } => Record { revision, key, body: RecordBody::Tombstone },
        Change::Put { revision, kv } => {
            let body = RecordBody::Put {
                create: kv.create_revision,
                version: kv.version,
                lease: kv.lease,
                value: kv.value,
            };
            Record { revision, key: kv.key, body }
        }
    }
}
