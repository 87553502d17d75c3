//! A range that was found once and is read piece by piece, however large it is.
//!
//!   index ──under the lock, 1000 keys at a time──▶ places: 16 bytes per key ──▶ visit: block by block, any part, any number of times
//!
//! * What `visit` gives is the range at one revision, fixed when it was found. It holds the blocks themselves, so neither writes
//!   nor a compaction nor an install can change or take what it will read.
//! * Beside the places it holds no memory of stored blocks: each is read when it is its turn, and let go of before the next one.
//! * A block comes up once per visit, and blocks come in the order in which they were written, wherever their keys lie.
//!
//! What it costs others: files of blocks that compaction has emptied take their space until it is dropped.
//!
//! Knows nothing of who reads it, or how fast.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use crate::block::Decoded;
use crate::directory::Block;
use crate::error::{Error, Result};
use crate::range::KeyRange;
use crate::revision::Revision;
use crate::state::{Shared, Source};
use crate::store::Store;
use crate::types::{Fetch, KeyValue, RangeOptions};
use crate::view::{KEYS_PER_HOLD, Reading, load, lost, resolve_revision, sealed_pair};

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

/// Where one pair is. 16 bytes: all that a range over a million keys keeps for each of them.
#[derive(Clone, Copy)]
struct Place {
    main: i64,
    /// 32 bits: one request changes fewer than four billion keys.
    sub: u32,
    source: u32,
}

impl Place {
    fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }
}

impl Store {
    /// Finds `range` as it was at revision `at` (≤ 0: the newest), at most `limit` pairs of it (0: all), and reads none.
    ///
    /// Errors: as `range`, but no block is touched, so nothing of the disk's.
    pub fn hold(&self, range: &KeyRange, at: i64, limit: usize) -> Result<Held> {
        match self.hold_by(KEYS_PER_HOLD, range, at, limit) {
            // As in `range`: who asked for the newest named no revision that could be compacted.
            Err(Error::Compacted { .. }) if at <= 0 => self.hold_by(usize::MAX, range, at, limit),
            other => other,
        }
    }

    /// As `hold`, with so many keys under one hold of the lock.
    fn hold_by(&self, keys_per_hold: usize, range: &KeyRange, at: i64, limit: usize) -> Result<Held> {
        let mut state = self.shared.state.read();
        let revision = state.revision;
        let at = resolve_revision(at, revision, state.compact_revision)?;
        let mut reading = Reading::new(range, at, &RangeOptions { limit, fetch: Fetch::Full });
        let mut places = Places::default();
        loop {
            reading.walk(&state, state.revision, keys_per_hold)?;
            drop(state);
            reading.take_found().for_each(|(revision, source)| places.push(revision, source));
            if reading.is_done() {
                let (places, sources) = places.in_block_order();
                let shared = Arc::clone(&self.shared);
                return Ok(Held { shared, places, sources, count: reading.count, revision });
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

    /// Whether it has no pairs; keys it may have, if the limit was that low.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Reads the pairs of these numbers, which count in key order from 0, and gives each to `visitor` with its number. They come
    /// in the order of their blocks. A pair is a slice of its block: who keeps one keeps the block.
    ///
    /// Errors: `Corrupt` or `Io` when a cold block cannot be read back. What came before it was right.
    pub fn visit(&self, numbers: Range<usize>, mut visitor: impl FnMut(usize, KeyValue)) -> Result<()> {
        assert!(numbers.end <= self.len(), "pairs that were not found");
        let source = |number: &u32| self.places[*number as usize].source;
        let mut order: Vec<u32> = numbers.map(|number| number as u32).collect();
        order.sort_unstable_by_key(source);
        for together in order.chunk_by(|left, right| source(left) == source(right)) {
            match &self.sources[source(&together[0]) as usize] {
                Source::Sealed(block) => {
                    let decoded = self.decoded(block)?;
                    for number in together {
                        let revision = self.places[*number as usize].revision();
                        let pair = sealed_pair(revision, block, &decoded)?;
                        visitor(*number as usize, pair.ok_or_else(|| block.lacks_record())?);
                    }
                }
                open @ Source::Open { .. } => {
                    assert!(together.len() == 1, "a record of the open block is a source of its own");
                    let number = together[0] as usize;
                    let pair = load(self.places[number].revision(), open, &self.shared.cache)?;
                    visitor(number, pair.ok_or_else(lost)?);
                }
            }
        }
        Ok(())
    }

    /// One of its blocks. A range that is little beside the cache uses it as any read does; another would empty it for nothing.
    fn decoded(&self, block: &Block) -> Result<Arc<Decoded>> {
        let options = &self.shared.options;
        if (self.sources.len() * options.block_bytes) as u64 <= options.cache_bytes / 4 {
            self.shared.cache.load(block)
        } else {
            self.shared.cache.load_in_passing(block)
        }
    }
}

/// Places while they are found: sources have the numbers in which they were met.
#[derive(Default)]
struct Places {
    places: Vec<Place>,
    sources: Vec<Source>,
    /// By address, which is unique as long as the block is held. Nothing depends on the order in here.
    numbers: HashMap<usize, u32, BuildHasherDefault<DefaultHasher>>,
}

impl Places {
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
        self.places.push(Place { main: revision.main, sub, source: number });
    }

    /// Everything found, sources renumbered: a visit then goes through files from front to back.
    fn in_block_order(self) -> (Vec<Place>, Vec<Source>) {
        let Places { mut places, sources, .. } = self;
        assert!(u32::try_from(places.len()).is_ok(), "fewer than 2^32 keys");
        let mut sources: Vec<(usize, Source)> = sources.into_iter().enumerate().collect();
        sources.sort_by_key(|(_, source)| source.block().map_or(Revision::MAX, |block| block.identity.first));
        let mut renumbered = vec![0; sources.len()];
        for (number, (met, _)) in sources.iter().enumerate() {
            renumbered[*met] = number as u32;
        }
        for place in &mut places {
            place.source = renumbered[place.source as usize];
        }
        (places, sources.into_iter().map(|(_, source)| source).collect())
    }
}
