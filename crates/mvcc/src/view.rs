//! Reading a range: first the places of the records, under the lock; then the records, without it.
//!
//!   lock ─ up to 1000 keys: index → revision → block ─ unlock ─ lock ─ … ─ unlock ─ load 64 Ki keys, block by block ─ lock ─ …
//!
//! * All of one answer is read at one revision, fixed at the start. The writer may go on meanwhile: newer records do not
//!   show at an older revision.
//! * A compaction that overtakes the read removes records under it. That is noticed, and is `Compacted`, never a gap.
//! * Keys lie in blocks by time, not by order: of many keys at once those of one block are loaded together, so that each block
//!   is decoded once, however the keys are scattered.
//! * Pairs are slices of a block, without a copy, where they are most of it. Where they are a small part they are copied out: a
//!   pair that keeps 64 KiB in memory would make an answer a hundred times its size.
//! * A store that is installed under a read is the same history up to that revision, or has compacted it. The read goes on
//!   in the new index, with the blocks that it found in the old one.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

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
/// Pairs loaded together: their places take 4 MiB, and a range over everything decodes each block once for so many keys.
const PAIRS_PER_LOAD: usize = 64 << 10;

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
    /// Pairs found so far.
    taken: usize,
    fetch: Fetch,
    /// Places of records that are found and not loaded yet, in key order; all come behind `kvs`.
    found: Vec<(Revision, Source)>,
    pub kvs: Vec<KeyValue>,
    pub count: i64,
    /// The count is complete, so the walk may end at the limit.
    is_counted: bool,
    has_begun: bool,
}

impl<'r> Reading<'r> {
    /// Nothing is read yet. `at` has been resolved and checked by the caller, who knows the newest revision.
    pub fn new(range: &'r KeyRange, at: i64, options: &RangeOptions) -> Self {
        let limit = match (options.fetch, options.limit) {
            (Fetch::CountOnly, _) => 0,
            (Fetch::Full | Fetch::KeysOnly, 0) => usize::MAX,
            (Fetch::Full | Fetch::KeysOnly, limit) => limit,
        };
        let rest = (!range.is_empty()).then(|| range.clone());
        let (kvs, found, fetch) = (Vec::new(), Vec::new(), options.fetch);
        let (taken, count) = (0, 0);
        Reading {
            range,
            rest,
            at,
            limit,
            taken,
            fetch,
            found,
            kvs,
            count,
            is_counted: false,
            has_begun: false,
        }
    }

    /// Whether the walk has reached the end of its range, or of what was asked for.
    pub fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// Whether what was found should be loaded before more is looked for.
    pub fn must_load(&self) -> bool {
        self.is_done() || self.found.len() >= PAIRS_PER_LOAD
    }

    /// Walks at most `keys_max` keys further. `newest` is the revision that the index stands at.
    ///
    /// Keys without values are complete after this; pairs in full are still to be loaded.
    pub fn walk(&mut self, state: &State, newest: i64, keys_max: usize) -> Result<()> {
        check_not_compacted(self.at, state.compact_revision)?;
        assert!(self.at <= newest, "a revision that does not exist yet is refused before it is read");
        // Counting by leaves is worth it only where not every key is visited anyway.
        self.count_at_once(state, newest);
        let Some(rest) = self.rest.take() else { return Ok(()) };
        let mut keys = KeysOnly::default();
        let mut visited = 0;
        let outcome = state.index.visit_all(&rest, |key, history| {
            if visited == keys_max {
                return ControlFlow::Break(Stop::Pause(Bytes::copy_from_slice(key)));
            }
            visited += 1;
            // Keys that do not exist at this revision are paid for as well: they take their time under the lock.
            let Some(visible) = history.at(self.at) else { return ControlFlow::Continue(()) };
            if self.taken == self.limit && self.is_counted {
                return ControlFlow::Break(Stop::Full);
            }
            // Past the limit the walk goes on only to count, and touches no block.
            self.count += i64::from(!self.is_counted);
            if self.taken < self.limit {
                self.taken += 1;
                match self.fetch {
                    Fetch::Full => match state.locate(visible.revision) {
                        Some(source) => self.found.push((visible.revision, source)),
                        None => return ControlFlow::Break(Stop::Lost),
                    },
                    Fetch::KeysOnly => keys.push(key, visible),
                    Fetch::CountOnly => unreachable!("its limit is 0"),
                }
            }
            ControlFlow::Continue(())
        });
        assert!(self.taken <= self.limit, "more pairs than were asked for");
        keys.finish(&mut self.kvs);
        match outcome {
            ControlFlow::Break(Stop::Pause(key)) => self.rest = Some(rest.resumed_at(key)),
            ControlFlow::Break(Stop::Lost) => return Err(lost()),
            ControlFlow::Break(Stop::Full) | ControlFlow::Continue(()) => {}
        }
        Ok(())
    }

    /// Hands over what was found since the last time, in key order, for somebody who keeps it in a form of their own.
    pub fn take_found(&mut self) -> impl Iterator<Item = (Revision, Source)> {
        self.found.drain(..)
    }

    /// Loads what was found, and says whether all of it was still there: a compaction may have overtaken this read.
    pub fn load(&mut self, cache: &BlockCache) -> Result<bool> {
        let found = std::mem::take(&mut self.found);
        // Block by block; what is still open comes last.
        let block = |number: &usize| found[*number].1.block();
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by_key(|number| block(number).map_or(Revision::MAX, |block| block.identity.first));
        let mut pairs: Vec<Option<KeyValue>> = Vec::new();
        pairs.resize_with(found.len(), || None);
        for numbers in order.chunk_by(|left, right| match (block(left), block(right)) {
            (Some(left), Some(right)) => Arc::ptr_eq(left, right),
            _ => false,
        }) {
            if !load_together(&found, numbers, &mut pairs, cache)? {
                return Ok(false);
            }
        }
        self.kvs.extend(pairs.into_iter().map(|pair| pair.expect("every place belongs to one block")));
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

/// Loads the pairs of one place: a record of the open block, or some of one sealed block. Returns whether all were there.
fn load_together(
    found: &[(Revision, Source)],
    numbers: &[usize],
    pairs: &mut [Option<KeyValue>],
    cache: &BlockCache,
) -> Result<bool> {
    let block = match &found[numbers[0]].1 {
        Source::Open { .. } => {
            let (revision, source) = &found[numbers[0]];
            pairs[numbers[0]] = load(*revision, source, cache)?;
            return Ok(pairs[numbers[0]].is_some());
        }
        Source::Sealed(block) => block,
    };
    let decoded = cache.load(block)?;
    let mut bytes = 0;
    for number in numbers {
        let Some(pair) = sealed_pair(found[*number].0, block, &decoded)? else { return Ok(false) };
        bytes += pair.key.len() + pair.value.len();
        pairs[*number] = Some(pair);
    }
    if bytes < decoded.raw().len() / 2 {
        let mut copy = BytesMut::with_capacity(bytes);
        for number in numbers {
            let pair = pairs[*number].as_mut().expect("set above");
            for part in [&mut pair.key, &mut pair.value] {
                copy.extend_from_slice(part);
                *part = copy.split().freeze();
            }
        }
    }
    Ok(true)
}

/// The pair at `revision`. `None`: its block does not hold it any more.
pub(crate) fn load(revision: Revision, source: &Source, cache: &BlockCache) -> Result<Option<KeyValue>> {
    match source {
        Source::Open { base, record: bytes } => {
            let (record, _) = Record::decode(*base, bytes).expect("encoded by this process");
            pair(&record, bytes).map(Some).ok_or_else(lost)
        }
        Source::Sealed(block) => {
            let decoded = cache.load(block)?;
            sealed_pair(revision, block, &decoded)
        }
    }
}

/// As `load`, from a block that is at hand.
fn sealed_pair(revision: Revision, block: &Block, decoded: &Decoded) -> Result<Option<KeyValue>> {
    let Some(record) = decoded.find(revision) else { return Ok(None) };
    assert_eq!(record.revision, revision, "a table that points at another record");
    pair(&record, decoded.raw()).map(Some).ok_or_else(|| block.lacks_record())
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
