//! A range that was found once and is read piece by piece, however large it is.
//!
//!   index ──under the lock, 1000 keys at a time──▶ revisions ──each block once──▶ places ──visit──▶ any part, any number of times
//!           revision, block: 16 bytes per key                  block, offset, size: 12
//!
//! * What `visit` gives is the range at one revision, fixed when it was found. It holds the blocks themselves, so neither writes
//!   nor a compaction nor an install can change or take what it will read.
//! * Beside the places it holds no memory of stored blocks: each is read when it is its turn, and let go of before the next one.
//!   The cache is asked and left as it is: what passes by here once would drive out what others use.
//! * A block comes up once per visit, and blocks come in the order in which they were written, wherever their keys lie.
//! * A block that is read again has passed its checksum again, and is the same block; so an offset is still the record's.
//!
//! What it costs others: files of blocks that compaction has emptied take their space until it is dropped.
//!
//! Knows nothing of who reads it, or how fast, or what a pair's size is the size of.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::range::KeyRange;
use crate::record::{Body, Record};
use crate::revision::Revision;
use crate::state::{Shared, Source};
use crate::store::Store;
use crate::types::{Fetch, KeyValueRef, RangeOptions};
use crate::view::{KEYS_PER_HOLD, Reading, lost, resolve_revision};

/// A range at one revision, ready to be read.
pub struct Held {
    shared: Arc<Shared>,
    /// One for each pair, in key order.
    places: Vec<Place>,
    /// Blocks in revision order, each once; records of the open block one by one behind them.
    sources: Vec<Source>,
    /// Keys of the range, whatever the limit.
    pub count: i64,
    /// The store's newest revision when the range was found.
    pub revision: i64,
}

/// Where one pair is, and its size as the finder wanted it measured.
#[derive(Clone, Copy, Default)]
struct Place {
    source: u32,
    /// Of the record in the raw bytes of its source.
    offset: u32,
    size: u32,
}

impl Store {
    /// Finds `range` as it was at revision `at` (≤ 0: the newest), at most `limit` pairs of it (0: all). Each is looked at once,
    /// for `measure` to say its size.
    ///
    /// Errors: as `range`.
    pub fn hold(
        &self,
        range: &KeyRange,
        at: i64,
        limit: usize,
        measure: impl FnMut(&KeyValueRef<'_>) -> u32,
    ) -> Result<Held> {
        let found = match self.find(KEYS_PER_HOLD, range, at, limit) {
            // As in `range`: who asked for the newest named no revision that could be compacted.
            Err(Error::Compacted { .. }) if at <= 0 => self.find(usize::MAX, range, at, limit),
            other => other,
        };
        found?.measured(Arc::clone(&self.shared), measure)
    }

    /// Finds the records of a range, with so many keys under one hold of the lock. No block is touched.
    fn find(&self, keys_per_hold: usize, range: &KeyRange, at: i64, limit: usize) -> Result<Found> {
        let mut state = self.shared.state.read();
        let revision = state.revision;
        let at = resolve_revision(at, revision, state.compact_revision)?;
        let mut reading = Reading::new(range, at, &RangeOptions { limit, fetch: Fetch::Full });
        let mut found = Found { revision, ..Found::default() };
        if at == revision {
            // As many as there will be: a vector that grows would take twice the memory for a moment.
            let keys = state.index.count_live(range);
            found.records.reserve_exact(if limit > 0 { keys.min(limit) } else { keys });
        }
        loop {
            reading.walk(&state, state.revision, keys_per_hold)?;
            drop(state);
            reading.take_found().for_each(|(revision, source)| found.push(revision, source));
            if reading.is_done() {
                found.count = reading.count;
                found.sort_sources();
                return Ok(found);
            }
            state = self.shared.state.read();
        }
    }
}

impl Held {
    /// Pairs in it.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has no pairs.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The sizes of these pairs, which count in key order from 0.
    pub fn sizes(&self, numbers: Range<usize>) -> impl Iterator<Item = u32> {
        self.places[numbers].iter().map(|place| place.size)
    }

    /// Reads these pairs and gives each to `visitor` with its number. They come in the order of their blocks.
    ///
    /// Errors: `Corrupt` or `Io` when a cold block cannot be read back. What came before it was right.
    pub fn visit(
        &self,
        numbers: Range<usize>,
        mut visitor: impl FnMut(usize, &KeyValueRef<'_>),
    ) -> Result<()> {
        assert!(numbers.end <= self.len(), "pairs that were not found");
        let source = |number: &u32| self.places[*number as usize].source;
        for together in in_order(numbers, source).chunk_by(|left, right| source(left) == source(right)) {
            let source = &self.sources[source(&together[0]) as usize];
            let (base, raw) = self.raw(source)?;
            for number in together {
                let number = *number as usize;
                let record = Record::decode(base, &raw[self.places[number].offset as usize..]);
                let (record, _) = record.expect("decoded once already");
                visitor(number, &pair(&record).expect("measured as a pair"));
            }
        }
        Ok(())
    }

    /// The encoded records of a source, and the revision that they count from.
    fn raw(&self, source: &Source) -> Result<(i64, Bytes)> {
        match source {
            Source::Sealed(block) => {
                Ok((block.identity.first.main, self.shared.cache.load_raw_in_passing(block)?))
            }
            Source::Open { base, record } => Ok((*base, record.clone())),
        }
    }
}

/// Numbers by their source. Those of one source stand together, in no order that matters.
fn in_order(numbers: Range<usize>, source: impl Fn(&u32) -> u32) -> Vec<u32> {
    let mut order: Vec<u32> = numbers.map(|number| number as u32).collect();
    order.sort_unstable_by_key(source);
    order
}

/// A put record as a pair; a tombstone is none.
fn pair<'r>(record: &Record<'r>) -> Option<KeyValueRef<'r>> {
    let Body::Put { create, version, lease, value } = record.body else { return None };
    let (key, mod_revision) = (record.key, record.revision.main);
    Some(KeyValueRef { key, value, create_revision: create, mod_revision, version, lease })
}

/// Records of a range by revision, not looked at yet.
#[derive(Default)]
struct Found {
    records: Vec<FoundRecord>,
    sources: Vec<Source>,
    /// Numbers of sources by address, which is unique as long as the block is held. Nothing depends on the order in here.
    numbers: HashMap<usize, u32, BuildHasherDefault<DefaultHasher>>,
    count: i64,
    revision: i64,
}

/// 16 bytes, for as long as a range is being found.
#[derive(Clone, Copy)]
struct FoundRecord {
    main: i64,
    /// 32 bits: one request changes fewer than four billion keys.
    sub: u32,
    source: u32,
}

impl Found {
    /// Takes in the next record in key order.
    fn push(&mut self, revision: Revision, source: Source) {
        let next = u32::try_from(self.sources.len()).expect("fewer sources than keys, fewer than 2^32 keys");
        let number = match source.block().map(|block| Arc::as_ptr(block).addr()) {
            Some(address) => *self.numbers.entry(address).or_insert(next),
            None => next,
        };
        if number == next {
            self.sources.push(source);
        }
        let sub = u32::try_from(revision.sub).expect("fewer than 2^32 changes in one request");
        self.records.push(FoundRecord { main: revision.main, sub, source: number });
    }

    /// Renumbers the sources, so that a visit goes through files from front to back.
    fn sort_sources(&mut self) {
        let mut sources: Vec<(usize, Source)> = self.sources.drain(..).enumerate().collect();
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

    /// Looks at every record: where in its source it is, and what its size is.
    fn measured(self, shared: Arc<Shared>, mut measure: impl FnMut(&KeyValueRef<'_>) -> u32) -> Result<Held> {
        let Found { records, sources, count, revision, .. } = self;
        assert!(u32::try_from(records.len()).is_ok(), "fewer than 2^32 keys");
        let mut places = vec![Place::default(); records.len()];
        let source = |number: &u32| records[*number as usize].source;
        let order = in_order(0..records.len(), source);
        for together in order.chunk_by(|left, right| source(left) == source(right)) {
            let source = source(&together[0]);
            let mut place = |number: &u32, offset, record: &Record<'_>, lost: &dyn Fn() -> Error| {
                let size = measure(&pair(record).ok_or_else(lost)?);
                places[*number as usize] = Place { source, offset, size };
                Ok::<(), Error>(())
            };
            match &sources[source as usize] {
                Source::Sealed(block) => {
                    let decoded = shared.cache.load_in_passing(block)?;
                    for number in together {
                        let FoundRecord { main, sub, .. } = records[*number as usize];
                        let found = decoded.find_with_offset(Revision { main, sub: i64::from(sub) });
                        let (offset, record) = found.ok_or_else(|| block.lacks_record())?;
                        place(number, offset, &record, &|| block.lacks_record())?;
                    }
                }
                Source::Open { base, record } => {
                    assert!(together.len() == 1, "a record of the open block is a source of its own");
                    let (record, _) = Record::decode(*base, record).expect("encoded by this process");
                    place(&together[0], 0, &record, &lost)?;
                }
            }
        }
        Ok(Held { shared, places, sources, count, revision })
    }
}
