//! A range that is resolved once and then read in parts, however large it is.
//!
//!   index ──under the lock, 1000 keys at a time──▶ revisions ─each block once─▶ locations ─visit─▶ any part
//!           revision, block: 16 bytes per key                  block, offset, size: 12
//!
//! * The result set is fixed when the range is resolved. It references the blocks, so later writes,
//!   compactions and installs cannot change it.
//! * Stored blocks are read on demand, once per visit and in revision order. The cache is used but not
//!   filled, because a large range would evict blocks in use.
//!
//! While it exists, block files emptied by compaction keep their space, up to a limit
//! (`pinned_blocks`). Beyond it a range loses its blocks, and visits fail.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::lock::LockPurpose;
use super::pinned_blocks::{BlockOwner, PinnedBlocks};
use super::range_read::{Counting, RangeRead, missing_record};
use super::reader::Store;
use super::shared::StoreShared;
use super::state::{KEYS_PER_HOLD, RecordSource, resolve_revision};
use crate::block::{Record, RecordBody};
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::range::KeyRange;
use crate::types::{Fetch, KeyValueRef, RangeOptions, Revision};

/// A range at a revision.
pub struct PinnedRange {
    shared: Arc<StoreShared>,
    /// Locations of the pairs, in key order.
    locations: Vec<PairLocation>,
    /// Blocks in revision order, each once, then single records of the open block.
    sources: Arc<PinnedBlocks>,
    record_bytes: u64,
    /// Number of keys of the range, ignoring the limit.
    pub count: i64,
    /// Revision of the store when the range was resolved.
    pub revision: i64,
}

/// Location of a pair, and the size that the caller computed.
#[derive(Clone, Copy, Default)]
struct PairLocation {
    source: u32,
    offset: u32,
    size: u32,
}

impl Store {
    /// Resolves `range` at revision `at` (≤ 0: the current one), with at most `limit` pairs (0: all).
    /// `measure` computes the size of each pair. `meter` is called between steps and may stop the call. The
    /// pinned blocks are accounted to `caller`.
    ///
    /// Errors: see [`Store::range_metered`], and `Released`.
    pub fn pin_range(
        &self,
        range: &KeyRange,
        at: i64,
        limit: usize,
        caller: u64,
        meter: &dyn Meter,
        measure: impl FnMut(&KeyValueRef<'_>) -> u32,
    ) -> Result<PinnedRange> {
        let found = loop {
            match self.find(range, at, limit, meter) {
                // A store was installed in between, see `range`.
                Err(Error::Compacted { .. }) if at <= 0 => {}
                other => break other?,
            }
        };
        found.measured(Arc::clone(&self.shared), caller, meter, measure)
    }

    /// Finds the records of a range in bounded lock holds, without reading blocks.
    fn find(&self, range: &KeyRange, at: i64, limit: usize, meter: &dyn Meter) -> Result<FoundRange> {
        let options = RangeOptions { limit, fetch: Fetch::Full };
        let mut state = self.shared.state.read(LockPurpose::Walk);
        let revision = state.revision;
        let at = resolve_revision(at, revision, state.compact_revision)?;
        let mut read = RangeRead::new(range, at, &options, Counting::First).metered(meter);
        let mut found = FoundRange { revision, ..FoundRange::default() };
        let mut pin = self.shared.pins.pin(at, &state);
        loop {
            read.walk(&state, KEYS_PER_HOLD)?;
            drop(state);
            read.collect()?;
            if let Some(count) = read.counted().filter(|_| found.records.capacity() == 0) {
                // Reserve exactly: a growing vector would temporarily take twice the memory.
                let keys = usize::try_from(count).expect("keys fit in memory");
                found.records.reserve_exact(if limit > 0 { keys.min(limit) } else { keys });
            }
            read.take_found().for_each(|(revision, source)| found.push(revision, source));
            if read.is_done() {
                found.count = read.count;
                found.sort_sources();
                return Ok(found);
            }
            state = self.shared.state.read(LockPurpose::Walk);
            pin.check(&state)?;
        }
    }
}

impl PinnedRange {
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// Returns the memory usage between reads: 12 bytes per pair, 40 per block or record of the open block,
    /// and those records.
    pub fn memory_bytes(&self) -> u64 {
        let tables = size_of_val(&*self.locations) + self.sources.len() * size_of::<RecordSource>();
        self.record_bytes + tables as u64
    }

    /// Returns the sizes of these pairs. Pairs are numbered in key order from 0.
    pub fn sizes(&self, numbers: Range<usize>) -> impl Iterator<Item = u32> {
        self.locations[numbers].iter().map(|location| location.size)
    }

    /// Reads these pairs and calls `visitor` with each and its number, in the order of their blocks.
    ///
    /// Errors: `Corrupt` or `Io` if a cold block cannot be read, `Released` if its blocks were released.
    /// The pairs visited before are correct.
    pub fn visit(
        &self,
        numbers: Range<usize>,
        mut visitor: impl FnMut(usize, &KeyValueRef<'_>),
    ) -> Result<()> {
        assert!(numbers.end <= self.len(), "pairs that were not found");
        let source = |number: &u32| self.locations[*number as usize].source;
        for together in in_order(numbers, source).chunk_by(|left, right| source(left) == source(right)) {
            let source = self.sources.get(source(&together[0]) as usize)?;
            let (base, raw) = self.raw(&source)?;
            for number in together {
                let number = *number as usize;
                let record = Record::decode(base, &raw[self.locations[number].offset as usize..]);
                let (record, _) = record.expect("decoded once already");
                visitor(number, &pair(&record).expect("measured as a pair"));
            }
        }
        Ok(())
    }

    /// Returns the encoded records of a source, and the base to decode them with.
    fn raw(&self, source: &RecordSource) -> Result<(i64, Bytes)> {
        match source {
            RecordSource::Sealed(block) => {
                Ok((block.identity.first.main, self.shared.cache.load_raw_without_caching(block)?))
            }
            RecordSource::Open { base, record } => Ok((*base, record.clone())),
        }
    }
}

fn in_order(numbers: Range<usize>, source: impl Fn(&u32) -> u32) -> Vec<u32> {
    let mut order: Vec<u32> = numbers.map(|number| number as u32).collect();
    order.sort_unstable_by_key(source);
    order
}

/// Converts a put record to a pair; `None` for a tombstone.
fn pair<'r>(record: &Record<'r>) -> Option<KeyValueRef<'r>> {
    let RecordBody::Put { create, version, lease, value } = record.body else { return None };
    let (key, mod_revision) = (record.key, record.revision.main);
    Some(KeyValueRef { key, value, create_revision: create, mod_revision, version, lease })
}

/// Records of a range by revision, before their blocks are read.
#[derive(Default)]
struct FoundRange {
    records: Vec<RecordRef>,
    sources: Vec<RecordSource>,
    /// Numbers of sources by address, which is unique while the block is referenced. The map's order is not
    /// used.
    numbers: HashMap<usize, u32, BuildHasherDefault<DefaultHasher>>,
    record_bytes: u64,
    count: i64,
    revision: i64,
}

/// Revision and source of a record, in 16 bytes. Dropped when the range is resolved.
#[derive(Clone, Copy)]
struct RecordRef {
    main: i64,
    /// 32 bits: a request changes fewer than four billion keys.
    sub: u32,
    source: u32,
}

impl FoundRange {
    fn push(&mut self, revision: Revision, source: RecordSource) {
        let next = u32::try_from(self.sources.len()).expect("fewer sources than keys, fewer than 2^32 keys");
        let (number, source) = match source {
            RecordSource::Sealed(block) => {
                let number = *self.numbers.entry(Arc::as_ptr(&block).addr()).or_insert(next);
                (number, RecordSource::Sealed(block))
            }
            // A slice would keep the whole block in memory.
            RecordSource::Open { base, record } => {
                self.record_bytes += record.len() as u64;
                (next, RecordSource::Open { base, record: Bytes::copy_from_slice(&record) })
            }
        };
        if number == next {
            self.sources.push(source);
        }
        let sub = u32::try_from(revision.sub).expect("fewer than 2^32 changes in one request");
        self.records.push(RecordRef { main: revision.main, sub, source: number });
    }

    /// Renumbers the sources, so that a visit reads files sequentially.
    fn sort_sources(&mut self) {
        let mut sources: Vec<(usize, RecordSource)> = self.sources.drain(..).enumerate().collect();
        sources.sort_by_key(|(_, source)| source.block().map_or(Revision::MAX, |block| block.identity.first));
        let mut renumbered = vec![0; sources.len()];
        for (number, (met, _)) in sources.iter().enumerate() {
            renumbered[*met] = number as u32;
        }
        for record in &mut self.records {
            record.source = renumbered[record.source as usize];
        }
        self.sources = sources.into_iter().map(|(_, source)| source).collect();
    }

    fn measured(
        self,
        shared: Arc<StoreShared>,
        caller: u64,
        meter: &dyn Meter,
        mut measure: impl FnMut(&KeyValueRef<'_>) -> u32,
    ) -> Result<PinnedRange> {
        let FoundRange { records, sources, record_bytes, count, revision, .. } = self;
        let sources = shared.pinned_blocks.add(BlockOwner::Caller(caller), sources);
        // A checkpoint may have completed between the first and the last lock hold.
        sources.refresh(&shared.state);
        assert!(u32::try_from(records.len()).is_ok(), "fewer than 2^32 keys");
        let mut locations = vec![PairLocation::default(); records.len()];
        let source = |number: &u32| records[*number as usize].source;
        let order = in_order(0..records.len(), source);
        for together in order.chunk_by(|left, right| source(left) == source(right)) {
            meter.check()?;
            let source = source(&together[0]);
            let mut location =
                |number: &u32, offset, record: &Record<'_>, missing_record: &dyn Fn() -> Error| {
                    let size = measure(&pair(record).ok_or_else(missing_record)?);
                    locations[*number as usize] = PairLocation { source, offset, size };
                    Ok::<(), Error>(())
                };
            match &sources.get(source as usize)? {
                RecordSource::Sealed(block) => {
                    let decoded = shared.cache.load_without_caching(block)?;
                    for number in together {
                        let RecordRef { main, sub, .. } = records[*number as usize];
                        let found = decoded.find_with_offset(Revision { main, sub: i64::from(sub) });
                        let (offset, record) = found.ok_or_else(|| block.lacks_record())?;
                        location(number, offset, &record, &|| block.lacks_record())?;
                    }
                }
                RecordSource::Open { base, record } => {
                    assert!(together.len() == 1, "a record of the open block is a separate source");
                    let (record, _) = Record::decode(*base, record).expect("encoded by this process");
                    location(&together[0], 0, &record, &missing_record)?;
                }
            }
        }
        Ok(PinnedRange { shared, locations, sources, record_bytes, count, revision })
    }
}
