//! Range reads: records are found under the lock, and loaded without it.
//!
//!   lock ─ up to 1000 keys: index → revision → block ─ unlock ─ lock ─ … ─ unlock ─ load 64 Ki keys ─ lock …
//!
//! * A range is read at a revision that is fixed at the start, and pinned (`pins`) if the read takes
//!   several lock holds.
//! * Each hold sees a consistent state: a record in the index is in the block that the block table
//!   returns for it. Blocks do not change, so the record can be loaded later.
//! * Blocks are ordered by revision, not by key. The keys in a block are loaded together, so that each
//!   block is decoded once.
//! * Pairs are slices of a block if they make up most of it. Otherwise they are copied: a pair that
//!   keeps 64 KiB in memory would make a response a hundred times its size.
//! * If another store is installed, the read continues in the new index, with the blocks that it found
//!   in the old one.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::counts::CountCache;
use super::state::{BYTES_PER_HOLD, KEYS_PER_HOLD, RecordSource, StoreData};
use crate::block::{Block, BlockCache, DecodedBlock, Record, RecordBody};
use crate::error::{Error, Result};
use crate::index::{IndexWalk, Visible};
use crate::meter::Meter;
use crate::range::KeyRange;
use crate::types::{Fetch, KeyValue, RangeOptions, Revision};

/// Number of pairs loaded together: their locations take 4 MiB, and a range over all keys decodes each
/// block once per that many pairs.
const PAIRS_PER_LOAD: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// No count of the range; the result has the number of pairs.
    Skip,
    /// Count before the walk if a limit may stop the walk early. Otherwise the walk counts.
    Limited,
    /// Count before the walk, for a caller that reserves memory.
    First,
}

#[derive(Clone, Copy)]
pub(super) struct RangeQuery<'a> {
    pub range: &'a KeyRange,
    /// Revision to read; ≤ 0: the current one.
    pub at: i64,
    pub options: &'a RangeOptions,
    pub counting: Counting,
    /// Revision of a request in progress that reads its own changes. Other reads see the published
    /// revision.
    pub own: Option<i64>,
    /// May stop the read between two steps.
    pub meter: &'a dyn Meter,
}

pub(super) struct RangeRead<'m> {
    to_count: Option<KeyRange>,
    /// Known count of a larger range. `to_count` is then the difference, and is subtracted.
    known: Option<(i64, KeyRange)>,
    /// Part that is not walked yet; `None` at the end.
    rest: Option<KeyRange>,
    at: i64,
    limit: usize,
    taken: usize,
    fetch: Fetch,
    /// Records that are found but not loaded yet, in key order, all after those in `kvs`.
    found: Vec<(Revision, RecordSource)>,
    /// Keys without values from the last walk, all after those in `kvs`.
    keys: KeysOnly,
    pub kvs: Vec<KeyValue>,
    pub count: i64,
    counting: Counting,
    meter: &'m dyn Meter,
}

impl<'m> RangeRead<'m> {
    /// Creates a read. The caller has resolved and checked `at`.
    pub fn new(range: &KeyRange, at: i64, options: &RangeOptions, counting: Counting) -> Self {
        let limit = match (options.fetch, options.limit) {
            (Fetch::CountOnly, _) => 0,
            (Fetch::Full | Fetch::KeysOnly, 0) => usize::MAX,
            (Fetch::Full | Fetch::KeysOnly, limit) => limit,
        };
        let is_counted_first = match counting {
            Counting::Skip => false,
            Counting::Limited => limit < usize::MAX,
            Counting::First => true,
        };
        let range = (!range.is_empty()).then_some(range);
        RangeRead {
            to_count: range.filter(|_| is_counted_first).cloned(),
            known: None,
            rest: range.filter(|_| limit > 0).cloned(),
            at,
            limit,
            taken: 0,
            fetch: options.fetch,
            found: Vec::new(),
            keys: KeysOnly::default(),
            kvs: Vec::new(),
            count: 0,
            counting: if is_counted_first { Counting::First } else { counting },
            meter: &(),
        }
    }

    /// Sets the meter, which is called between steps and may stop the read.
    pub fn metered(mut self, meter: &'m dyn Meter) -> Self {
        self.meter = meter;
        self
    }

    /// Uses a known count, if available. Not for a request that reads its own changes.
    pub fn use_known_count(&mut self, counts: &CountCache) {
        let Some(range) = &self.to_count else { return };
        if let Some((count, before)) = counts.find(range, self.at) {
            let range = self.to_count.replace(before).expect("present");
            self.known = Some((count, range));
        }
    }

    pub fn is_done(&self) -> bool {
        self.rest.is_none() && self.to_count.is_none()
    }

    /// Returns the number of keys in the range, once it is counted before the walk.
    pub fn counted(&self) -> Option<i64> {
        (self.counting == Counting::First && self.to_count.is_none()).then_some(self.count)
    }

    /// Reports whether the found records should be loaded before the walk continues.
    pub fn must_load(&self) -> bool {
        self.is_done() || self.found.len() >= PAIRS_PER_LOAD
    }

    /// Counts, then walks, in about `steps` steps. The caller ensures that the revision is still in the
    /// index, and then calls `collect` without the lock.
    pub fn walk(&mut self, state: &StoreData, mut steps: usize) -> Result<()> {
        self.meter.check()?;
        if !self.is_counted_after(state, &mut steps) {
            return Ok(());
        }
        let Some(rest) = self.rest.take() else { return Ok(()) };
        let is_counted = self.counting == Counting::First;
        let outcome = state.index.visit_at(&rest, self.at, &mut steps, |key, visible| {
            self.taken += 1;
            self.count += i64::from(!is_counted);
            match self.fetch {
                Fetch::Full => match state.locate(visible.revision) {
                    Some(source) => self.found.push((visible.revision, source)),
                    None => return ControlFlow::Break(WalkEnd::MissingRecord),
                },
                Fetch::KeysOnly => self.keys.push(key, visible),
                Fetch::CountOnly => unreachable!("its limit is 0"),
            }
            // Checked here, because the next key may be far away.
            if self.taken == self.limit {
                ControlFlow::Break(WalkEnd::Full)
            } else if self.keys.bytes.len() >= BYTES_PER_HOLD {
                ControlFlow::Break(WalkEnd::BytesFull([key, &[0]].concat().into()))
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(self.taken <= self.limit, "more pairs than were asked for");
        match outcome {
            IndexWalk::Paused(key) => self.rest = Some(rest.resumed_at(key)),
            // The smallest key after the last one. It may be beyond the range.
            IndexWalk::Stopped(WalkEnd::BytesFull(key)) => {
                self.rest = rest.is_before_end(&key).then(|| rest.resumed_at(key))
            }
            IndexWalk::Stopped(WalkEnd::MissingRecord) => return Err(missing_record()),
            IndexWalk::Stopped(WalkEnd::Full) | IndexWalk::Done => {}
        }
        Ok(())
    }

    /// Collects the results of a walk, without the lock: growing a large vector takes milliseconds.
    pub fn collect(&mut self) -> Result<()> {
        let keys = std::mem::take(&mut self.keys);
        let (pairs, bytes) = keys.memory();
        keys.finish(&mut self.kvs);
        if !self.is_done() && self.fetch == Fetch::Full {
            self.found.reserve(KEYS_PER_HOLD);
        }
        self.meter.hold(pairs, bytes)
    }

    fn is_counted_after(&mut self, state: &StoreData, steps: &mut usize) -> bool {
        let Some(range) = self.to_count.take() else { return true };
        let mut count = 0;
        let counted = state.index.count_at(&range, self.at, steps, &mut count);
        match (counted, self.known.take()) {
            (IndexWalk::Paused(key), None) => {
                self.count += count as i64;
                self.to_count = Some(range.resumed_at(key));
                false
            }
            // The start of the range with a known count is too far away to be useful.
            (IndexWalk::Paused(_), Some((_, range))) => {
                self.to_count = Some(range);
                false
            }
            (IndexWalk::Done | IndexWalk::Stopped(()), None) => {
                self.count += count as i64;
                true
            }
            (IndexWalk::Done | IndexWalk::Stopped(()), Some((known, _))) => {
                self.count = known - count as i64;
                true
            }
        }
    }

    /// Takes the records found since the last call, in key order, for a caller that stores them in another
    /// form.
    pub fn take_found(&mut self) -> impl Iterator<Item = (Revision, RecordSource)> {
        self.found.drain(..)
    }

    pub fn load(&mut self, cache: &BlockCache) -> Result<()> {
        let found = std::mem::take(&mut self.found);
        self.kvs.extend(load_all(&found, cache, self.meter)?);
        debug_assert!(self.kvs.is_sorted_by(|left, right| left.key < right.key), "pairs come in key order");
        Ok(())
    }
}

/// Loads records block by block, and returns them in the order of `found`.
pub(crate) fn load_all(
    found: &[(Revision, RecordSource)],
    cache: &BlockCache,
    meter: &dyn Meter,
) -> Result<impl Iterator<Item = KeyValue> + use<>> {
    // Records of the open block are last.
    let block = |number: &usize| found[*number].1.block();
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by_key(|number| block(number).map_or(Revision::MAX, |block| block.identity.first));
    let mut pairs: Vec<Option<KeyValue>> = Vec::new();
    pairs.resize_with(found.len(), || None);
    for numbers in order.chunk_by(|left, right| match (block(left), block(right)) {
        (Some(left), Some(right)) => Arc::ptr_eq(left, right),
        _ => false,
    }) {
        let bytes = load_together(found, numbers, &mut pairs, cache)?;
        meter.hold(numbers.len() as u64, bytes)?;
    }
    Ok(pairs.into_iter().map(|pair| pair.expect("every place belongs to one block")))
}

/// Reason for stopping a walk before the end of its range.
enum WalkEnd {
    Full,
    BytesFull(Bytes),
    /// A revision in the index is not in any block.
    MissingRecord,
}

pub(super) fn find_one(state: &StoreData, key: &[u8], at: i64) -> Result<Option<(Revision, RecordSource)>> {
    let Some(visible) = state.index.get(key).and_then(|history| history.at(at)) else { return Ok(None) };
    let source = state.locate(visible.revision).ok_or_else(missing_record)?;
    Ok(Some((visible.revision, source)))
}

/// Loads the pairs of one source: a record of the open block, or records of a sealed block. Returns
/// their size in memory plus their encoded size.
fn load_together(
    found: &[(Revision, RecordSource)],
    numbers: &[usize],
    pairs: &mut [Option<KeyValue>],
    cache: &BlockCache,
) -> Result<u64> {
    let block = match &found[numbers[0]].1 {
        RecordSource::Open { .. } => {
            let (revision, source) = &found[numbers[0]];
            pairs[numbers[0]] = load(*revision, source, cache)?;
            return pairs[numbers[0]].as_ref().map(|pair| 2 * pair_bytes(pair)).ok_or_else(missing_record);
        }
        RecordSource::Sealed(block) => block,
    };
    let decoded = cache.load(block)?;
    let mut bytes = 0;
    for number in numbers {
        let Some(pair) = sealed_pair(found[*number].0, block, &decoded)? else {
            return Err(missing_record());
        };
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
        return Ok(2 * bytes as u64);
    }
    Ok((bytes + decoded.raw().len()) as u64) // Slices keep the whole block.
}

pub(super) fn pair_bytes(pair: &KeyValue) -> u64 {
    (pair.key.len() + pair.value.len()) as u64
}

/// Returns the pair at `revision`; `None` if its block does not have it.
pub(super) fn load(
    revision: Revision,
    source: &RecordSource,
    cache: &BlockCache,
) -> Result<Option<KeyValue>> {
    match source {
        RecordSource::Open { base, record: bytes } => {
            let (record, _) = Record::decode(*base, bytes).expect("encoded by this process");
            pair(&record, bytes).map(Some).ok_or_else(missing_record)
        }
        RecordSource::Sealed(block) => {
            let decoded = cache.load(block)?;
            sealed_pair(revision, block, &decoded)
        }
    }
}

fn sealed_pair(revision: Revision, block: &Block, decoded: &DecodedBlock) -> Result<Option<KeyValue>> {
    let Some(record) = decoded.find(revision) else { return Ok(None) };
    assert_eq!(record.revision, revision, "a table that points at another record");
    pair(&record, decoded.raw()).map(Some).ok_or_else(|| block.lacks_record())
}

/// Returns a put record as slices of `bytes`; `None` for a tombstone.
fn pair(record: &Record<'_>, bytes: &Bytes) -> Option<KeyValue> {
    let RecordBody::Put { create, version, lease, value } = record.body else { return None };
    Some(KeyValue {
        key: bytes.slice_ref(record.key),
        value: bytes.slice_ref(value),
        create_revision: create,
        mod_revision: record.revision.main,
        version,
        lease,
    })
}

#[derive(Default)]
struct KeysOnly {
    bytes: Vec<u8>,
    keys: Vec<(usize, Visible)>,
}

impl KeysOnly {
    /// Adds a key: one copy into the shared buffer, no allocation.
    fn push(&mut self, key: &[u8], visible: Visible) {
        self.bytes.extend_from_slice(key);
        self.keys.push((self.bytes.len(), visible));
    }

    /// Returns the number of keys, and their size here plus their encoded size.
    fn memory(&self) -> (u64, u64) {
        (self.keys.len() as u64, 2 * self.bytes.len() as u64)
    }

    /// Appends all pairs. The last of them frees the shared buffer.
    fn finish(self, kvs: &mut Vec<KeyValue>) {
        let bytes = Bytes::from(self.bytes);
        let mut start = 0;
        // The buffer becomes shared without a copy. Each key is a slice of it.
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

/// Returns the error for an index that differs from the blocks: memory is corrupt, or a block that
/// passed its checksum.
pub(crate) fn missing_record() -> Error {
    Error::Corrupt { file: "index".into(), offset: 0, what: "a revision of the index is in no block" }
}
