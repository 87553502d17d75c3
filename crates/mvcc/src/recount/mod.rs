//! Digest of the current state, recomputed in parts from the index, memory and the disk.
//!
//! ```text
//!   one member:   next_span(pass) ─▶ span: revisions from ..= to, and a compact revision
//!   all members:  recount(span) ─▶ digest ─▶ equal on members whose state is right
//! ```
//!
//! The digest of changes (`digest`) is computed when an entry is applied. This one detects later
//! corruption: a bit in memory or in a decoded block, or a corrupt file.
//!
//! * A span includes each record above its compact revision, and below it the puts that are visible at
//!   it. It therefore has the same records on a member that is ahead, that lags, or that has not
//!   reclaimed space yet. A member that has compacted further, or has not reached the span's revisions
//!   yet, does not compute a digest.
//! * The digest of a record covers key, value, lease, revisions, and the corresponding values in the
//!   index.
//! * A block that is no longer a sequence of records is damaged: reads of it fail as well.
//! * Cached blocks are taken from the cache, which readers use too. Uncached ones are read from the
//!   disk and verified.
//!
//! Not covered: items, records that are only in the index, and tombstones up to the compact revision.
//!
//! A record costs two hardware checksums, one lookup, and eleven multiplications.

mod damage; // bit flips for tests

pub use damage::Flip;

use std::sync::Arc;

use crate::block::{Block, Record, RecordBody};
use crate::digest::{add_bytes, mix};
use crate::error::{Error, Result};
use crate::index::KeyHistory;
use crate::meter::Meter;
use crate::store::{LockPurpose, Store, StoreData};
use crate::types::{LogIndex, Revision};

/// Number of records looked up per lock acquisition: some microseconds.
const RECORDS_PER_HOLD: usize = 250;

/// Part of the history that members recount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecountSpan {
    /// First and last revision.
    pub from: Revision,
    pub to: Revision,
    /// Compact revision: up to here, only puts visible at this revision are included.
    pub compacted: i64,
    /// Required applied entry. A store that has the revisions but has not applied this entry may be an
    /// obsolete one that is replaced soon.
    pub applied: LogIndex,
}

/// Result of a member for a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecountAnswer {
    Digest(u64),
    /// The last revision, the compact revision or the entry is not applied yet.
    NotYet,
    /// The compact revision has moved past that of the span, or another store was installed.
    Compacted,
    /// A block, on disk or in memory, differs from its written form.
    Damaged,
}

/// Maximum size of a span. It has at least one block.
#[derive(Clone, Copy, Debug)]
pub struct RecountBounds {
    pub records: u64,
    pub raw_bytes: u64,
}

/// A walk over the whole state, span by span. It stops at the latest revision at its start, however
/// fast records are added; these belong to the next pass.
#[derive(Clone, Copy, Debug)]
pub struct RecountPass {
    next: Revision,
    last: Revision,
    applied: LogIndex,
}

impl Store {
    pub fn recount_pass(&self) -> RecountPass {
        let last = if base::mutant("endless-pass") { i64::MAX } else { self.revision() };
        let (next, last) = (Revision::first_of(0), Revision { main: last, sub: i64::MAX });
        RecountPass { next, last, applied: self.applied().index }
    }

    /// Returns the next span of a pass; `None` after the last one.
    pub fn next_span(&self, pass: &mut RecountPass, bounds: RecountBounds) -> Option<RecountSpan> {
        let state = self.shared.state.read(LockPurpose::Hash);
        let (from, newest) = (pass.next, pass.last.min(Revision { main: state.revision, sub: i64::MAX }));
        if from > newest {
            return None;
        }
        let (mut records, mut raw_bytes) = (0, 0);
        let ends = state.block_table.iter_from(state.block_table.position_from(from)).find_map(|block| {
            records += u64::from(block.identity.records);
            raw_bytes += u64::from(block.identity.raw_bytes);
            (records >= bounds.records || raw_bytes >= bounds.raw_bytes).then_some(block.identity.last)
        });
        let to = ends.unwrap_or(newest).min(newest);
        pass.next = if to.sub == i64::MAX { Revision::first_of(to.main + 1) } else { to.next() };
        Some(RecountSpan { from, to, compacted: state.compact_revision, applied: pass.applied })
    }

    /// Computes the digest of a span. Reads its blocks with bounded lock holds. Calls the meter for each
    /// block, since a span of another member may have any number of blocks here.
    ///
    /// Errors: a block cannot be read, but is not known to be corrupt. `Interrupted` from the meter.
    pub fn recount(&self, span: &RecountSpan, meter: &dyn Meter) -> Result<RecountAnswer> {
        let generation = {
            let state = self.shared.state.read(LockPurpose::Hash);
            // The visible puts at a compact revision are known once that revision is reached.
            if state.revision < span.to.main.max(span.compacted) || state.applied.index < span.applied {
                return Ok(RecountAnswer::NotYet);
            }
            state.generation
        };
        let (mut digest, mut next) = (0, span.from);
        while let Some(block) = self.block_of(next, span) {
            meter.check()?;
            digest = match self.add_block(digest, &block, next, span) {
                Ok(digest) => digest,
                Err(error) if error.is_damage() => return Ok(RecountAnswer::Damaged),
                Err(error) => return Err(error),
            };
            assert!(block.identity.last >= next, "a recount goes forward");
            next = block.identity.last.next();
        }
        let state = self.shared.state.read(LockPurpose::Hash);
        let moved = state.compact_revision > span.compacted && !base::mutant("recount-any-compaction");
        Ok(if moved || state.generation != generation {
            RecountAnswer::Compacted
        } else {
            RecountAnswer::Digest(digest)
        })
    }

    /// Returns the first block with a record of the span at or after `next`.
    fn block_of(&self, next: Revision, span: &RecountSpan) -> Option<Arc<Block>> {
        if next > span.to {
            return None;
        }
        let state = self.shared.state.read(LockPurpose::Hash);
        let block = match state.block_table.get(state.block_table.position_from(next)) {
            Some(block) => block.clone(),
            None if state.open.is_empty() => return None,
            // The open block is the last. Make a small copy, so that the writer can continue.
            None => Block::in_memory(state.open.sealed()).into(),
        };
        (block.identity.first <= span.to && block.identity.last >= next).then_some(block)
    }

    fn add_block(&self, mut digest: u64, block: &Block, next: Revision, span: &RecountSpan) -> Result<u64> {
        let decoded = self.shared.cache.load_without_caching(block)?;
        let records: Option<Vec<_>> = decoded.checked_records(next, span.to).collect();
        let records = records.ok_or_else(no_record)?;
        for records in records.chunks(RECORDS_PER_HOLD) {
            let found: Vec<_> = {
                let state = self.shared.state.read(LockPurpose::Hash);
                records.iter().map(|record| look_up(&state, record, span.compacted)).collect()
            };
            for (record, found) in records.iter().zip(found) {
                digest = found.map_or(digest, |found| add(digest, record, found));
            }
        }
        Ok(digest)
    }
}

/// Returns the error for a block that has changed after it passed its checksum, or was built here.
fn no_record() -> Error {
    Error::Corrupt { file: "memory".into(), offset: 0, what: "a record cannot be decoded" }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexedAs {
    /// The index refers to the put.
    Put {
        create: i64,
        version: i64,
    },
    Tombstone,
    /// The index refers to the put, and the same request deleted the key again.
    Covered,
    /// The index does not refer to the record, or has another create revision, version or lease for the
    /// key.
    Wrong,
}

/// Looks up a record in the index; `None` if the record does not belong to the span.
fn look_up(state: &StoreData, record: &Record<'_>, compacted: i64) -> Option<IndexedAs> {
    let is_old = record.revision.main <= compacted;
    let history = state.index.get(record.key);
    let visible_at = |at| history.and_then(|history| history.at(at));
    match record.body {
        RecordBody::Tombstone if is_old => None,
        RecordBody::Tombstone => {
            let is_known = history.is_some_and(|history| history.contains(record.revision));
            Some(if is_known { IndexedAs::Tombstone } else { IndexedAs::Wrong })
        }
        RecordBody::Put { lease, create, version, .. } => {
            let visible = visible_at(if is_old { compacted } else { record.revision.main });
            let visible = visible.filter(|visible| visible.revision == record.revision);
            let found = match visible {
                // Reads take these from the record, or from the index if they need no value.
                Some(visible) if (visible.create, visible.version) != (create, version) => IndexedAs::Wrong,
                Some(visible) => IndexedAs::Put { create: visible.create, version: visible.version },
                None if is_old => return None,
                None if history.is_some_and(|history| history.contains(record.revision)) => {
                    IndexedAs::Covered
                }
                None => IndexedAs::Wrong,
            };
            let has_lease = history.is_none_or(|history| has_lease(state, record, history, lease));
            Some(if has_lease { found } else { IndexedAs::Wrong })
        }
    }
}

/// Reports whether the index has the lease of a put that is the latest record of its key.
fn has_lease(state: &StoreData, record: &Record<'_>, history: &KeyHistory, lease: i64) -> bool {
    let is_newest = history.last_revision() == record.revision;
    !is_newest || (history.is_leased() == (lease != 0) && (lease == 0 || state.leased.has(record.key, lease)))
}

/// Adds a record to the digest. Must never change, like [`mix`]: members of different versions compare
/// their digests.
fn add(digest: u64, record: &Record<'_>, found: IndexedAs) -> u64 {
    let (kind, value, lease) = match record.body {
        RecordBody::Tombstone => (1, &b""[..], 0),
        RecordBody::Put { value, lease, .. } => (2, value, lease),
    };
    let (state, create, version) = match found {
        _ if base::mutant("recount-without-index") => (0, 0, 0),
        IndexedAs::Put { create, version } => (1, create, version),
        IndexedAs::Tombstone => (2, 0, 0),
        IndexedAs::Covered => (3, 0, 0),
        IndexedAs::Wrong => (4, 0, 0),
    };
    let digest = add_bytes(digest, kind, record.key, value);
    let numbers = [record.revision.main, record.revision.sub, lease, state, create, version];
    numbers.into_iter().fold(digest, |digest, number| mix(digest, number as u64))
}
