//! Reading a range: first the places of the records, under the lock; then the records, without it.
//!
//!   lock ─ up to 1000 keys: index → revision → block ─ unlock ─ load blocks, cut slices ─ lock ─ …
//!
//! * All of one answer is read at one revision, fixed at the start. The writer may go on meanwhile: newer records do not
//!   show at an older revision.
//! * A compaction that overtakes the read removes records under it. That is noticed, and is `Compacted`, never a gap.
//! * Pairs returned are slices of a block: no copy, but they keep that block in memory while they live.
//! * A store that is installed under a read is the same history up to that revision, or has compacted it. The read goes on
//!   in the new index, with the blocks that it found in the old one.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::block::Decoded;
use crate::directory::{Block, BlockCache};
use crate::error::{Error, Result};
use crate::history::Visible;
use crate::range::KeyRange;
use crate::record::{Body, Record};
use crate::revision::Revision;
use crate::state::{Source, State};
use crate::types::{Fetch, KeyValue, RangeOptions};

/// Keys looked at under one hold of the lock: some 100 µs, the longest that a range delays a write.
pub(crate) const KEYS_PER_HOLD: usize = 1000;

/// The revision that a request means: ≤ 0 is `newest`.
pub(crate) fn resolve_revision(at: i64, newest: i64, compacted: i64) -> Result<i64> {
    let resolved = if at <= 0 { newest } else { at };
    if resolved > newest {
        return Err(Error::FutureRevision { requested: at, current: newest });
    }
    check_not_compacted(resolved, compacted)?;
    Ok(resolved)
}

/// Refuses what is below the compact revision. At that revision itself everything can still be read.
pub(crate) fn check_not_compacted(at: i64, compacted: i64) -> Result<()> {
    if at < compacted { Err(Error::Compacted { requested: at, compacted }) } else { Ok(()) }
}

/// A range being read.
pub(crate) struct Reading<'r> {
    range: &'r KeyRange,
    /// What is left to walk; `None` once the walk is over.
    rest: Option<KeyRange>,
    at: i64,
    /// Pairs wanted at most.
    limit: usize,
    fetch: Fetch,
    pub kvs: Vec<KeyValue>,
    pub count: i64,
    /// The count is complete, so the walk may end at the limit.
    is_counted: bool,
    has_begun: bool,
}

/// Places of records, in key order.
pub(crate) type Found = Vec<(Revision, Source)>;

impl<'r> Reading<'r> {
    /// Nothing is read yet. `at` has been resolved and checked by the caller, who knows the newest revision.
    pub fn new(range: &'r KeyRange, at: i64, options: &RangeOptions) -> Self {
        let limit = match (options.fetch, options.limit) {
            (Fetch::CountOnly, _) => 0,
            (Fetch::Full | Fetch::KeysOnly, 0) => usize::MAX,
            (Fetch::Full | Fetch::KeysOnly, limit) => limit,
        };
        let rest = (!range.is_empty()).then(|| range.clone());
        let (kvs, fetch) = (Vec::new(), options.fetch);
        Reading { range, rest, at, limit, fetch, kvs, count: 0, is_counted: false, has_begun: false }
    }

    /// Whether the walk has reached the end of its range, or of what was asked for.
    pub fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// Walks at most `keys_max` keys further. `newest` is the revision that the index stands at.
    ///
    /// Keys without values are complete after this; pairs in full are still to be loaded from what is returned.
    pub fn walk(&mut self, state: &State, newest: i64, keys_max: usize) -> Result<Found> {
        check_not_compacted(self.at, state.compact_revision)?;
        assert!(self.at <= newest, "a revision that does not exist yet is refused before it is read");
        // Counting by leaves is worth it only where not every key is visited anyway.
        self.count_at_once(state, newest);
        let Some(rest) = self.rest.take() else { return Ok(Found::new()) };
        let (mut found, mut keys) = (Found::new(), KeysOnly::default());
        let (mut visited, mut taken) = (0, self.kvs.len());
        let outcome = state.index.visit_all(&rest, |key, history| {
            if visited == keys_max {
                return ControlFlow::Break(Stop::Pause(Bytes::copy_from_slice(key)));
            }
            visited += 1;
            // Keys that do not exist at this revision are paid for as well: they take their time under the lock.
            let Some(visible) = history.at(self.at) else { return ControlFlow::Continue(()) };
            if taken == self.limit && self.is_counted {
                return ControlFlow::Break(Stop::Full);
            }
            // Past the limit the walk goes on only to count, and touches no block.
            self.count += i64::from(!self.is_counted);
            if taken < self.limit {
                taken += 1;
                match self.fetch {
                    Fetch::Full => match state.locate(visible.revision) {
                        Some(source) => found.push((visible.revision, source)),
                        None => return ControlFlow::Break(Stop::Lost),
                    },
                    Fetch::KeysOnly => keys.push(key, visible),
                    Fetch::CountOnly => unreachable!("its limit is 0"),
                }
            }
            ControlFlow::Continue(())
        });
        assert!(taken <= self.limit, "more pairs than were asked for");
        keys.finish(&mut self.kvs);
        match outcome {
            ControlFlow::Break(Stop::Pause(key)) => self.rest = Some(rest.resumed_at(key)),
            ControlFlow::Break(Stop::Lost) => return Err(lost()),
            ControlFlow::Break(Stop::Full) | ControlFlow::Continue(()) => {}
        }
        Ok(found)
    }

    /// Loads what `walk` found, and says whether all of it was still there: a compaction may have overtaken this read.
    pub fn load(&mut self, found: Found, cache: &BlockCache) -> Result<bool> {
        // One allocation per hold of the lock; with a limit that is usually one in all.
        self.kvs.reserve(found.len());
        let mut loader = Loader { cache, last: None };
        for (revision, source) in found {
            match loader.load(revision, &source)? {
                Some(kv) => self.kvs.push(kv),
                None => return Ok(false),
            }
        }
        debug_assert!(self.kvs.is_sorted_by(|left, right| left.key < right.key), "pairs come in key order");
        Ok(true)
    }

    /// When the index stands at the revision that is read, leaves know how many keys they hold.
    fn count_at_once(&mut self, state: &State, newest: i64) {
        let is_first_walk = !std::mem::replace(&mut self.has_begun, true);
        if is_first_walk && self.at == newest && self.limit < usize::MAX {
            self.count = state.index.count_live(self.range) as i64;
            self.is_counted = true;
            if self.limit == 0 {
                self.rest = None;
            }
        }
    }
}

/// Why a walk ended before its range.
enum Stop {
    /// Enough for one hold of the lock; go on at this key.
    Pause(Bytes),
    /// Enough for the answer.
    Full,
    /// The index names a revision that no block holds.
    Lost,
}

/// One key, as it was at `at`.
pub(crate) fn find_one(state: &State, key: &[u8], at: i64) -> Result<Option<(Revision, Source)>> {
    let Some(visible) = state.index.get(key).and_then(|history| history.at(at)) else { return Ok(None) };
    let source = state.locate(visible.revision).ok_or_else(lost)?;
    Ok(Some((visible.revision, source)))
}

/// Loads records, remembering the last block: neighbours in key order are often neighbours in time.
pub(crate) struct Loader<'c> {
    pub cache: &'c BlockCache,
    pub last: Option<(Arc<Block>, Arc<Decoded>)>,
}

impl Loader<'_> {
    /// The pair at `revision`. `None`: the block does not hold it any more.
    pub fn load(&mut self, revision: Revision, source: &Source) -> Result<Option<KeyValue>> {
        match source {
            Source::Open { base, record: bytes } => {
                let (record, _) = Record::decode(*base, bytes).expect("encoded by this process");
                pair(&record, bytes).map(Some).ok_or_else(lost)
            }
            Source::Sealed(block) => {
                let decoded = self.decoded(block)?;
                let Some(record) = decoded.find(revision) else { return Ok(None) };
                assert_eq!(record.revision, revision, "a table that points at another record");
                pair(&record, decoded.raw()).map(Some).ok_or_else(|| block.lacks_record())
            }
        }
    }

    /// The block's records; those of the block before are still at hand.
    fn decoded(&mut self, block: &Arc<Block>) -> Result<&Decoded> {
        let is_last = self.last.as_ref().is_some_and(|(last, _)| Arc::ptr_eq(last, block));
        // Keys that were written together lie together: with this, a range over them loads each block once.
        if !is_last {
            self.last = Some((block.clone(), self.cache.load(block)?));
        }
        let (_, decoded) = self.last.as_ref().expect("set above");
        Ok(decoded)
    }
}

/// A put record as a pair of slices of `bytes`; a tombstone is none.
fn pair(record: &Record<'_>, bytes: &Bytes) -> Option<KeyValue> {
    let Body::Put { create, version, lease, value } = record.body else { return None };
    Some(KeyValue {
        key: bytes.slice_ref(record.key),
        value: bytes.slice_ref(value),
        create_revision: create,
        mod_revision: record.revision.main,
        version,
        lease,
    })
}

/// Keys without values, gathered in one buffer that the pairs then share.
#[derive(Default)]
struct KeysOnly {
    bytes: Vec<u8>,
    keys: Vec<(usize, Visible)>,
}

impl KeysOnly {
    /// Takes a key in: one copy into the shared buffer, no allocation of its own.
    fn push(&mut self, key: &[u8], visible: Visible) {
        self.bytes.extend_from_slice(key);
        self.keys.push((self.bytes.len(), visible));
    }

    /// Appends all pairs. They share the buffer, which lives as long as the last of them.
    fn finish(self, kvs: &mut Vec<KeyValue>) {
        let bytes = Bytes::from(self.bytes);
        let mut start = 0;
        // The buffer becomes the shared one without a copy; each key is a slice of it.
        kvs.extend(self.keys.into_iter().map(|(end, visible)| {
            let key = bytes.slice(start..end);
            start = end;
            KeyValue {
                key,
                value: Bytes::new(),
                create_revision: visible.create,
                mod_revision: visible.revision.main,
                version: visible.version,
                lease: 0,
            }
        }));
    }
}

/// The index and the blocks disagree: memory or a block that passed its checksum is wrong.
pub(crate) fn lost() -> Error {
    Error::Corrupt { file: "index".into(), offset: 0, what: "a revision of the index is in no block" }
}
