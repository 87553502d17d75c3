//! What reads need of the store, so that Range and Compare have one implementation.
//!
//! | view | revision 0 means | sees |
//! |---|---|---|
//! | `Metered` | the newest when the read begins | applied commands |
//! | `Pinned` | the revision that it was pinned to | one state in all reads |
//! | `RevisionWriter` | the newest with its own changes | the changes of the running command so far |

use mvcc::{Error, KeyRange, Meter, RangeOptions, RangeResult, RevisionWriter, Store};

/// A source of reads.
pub(super) trait ReadView {
    /// The newest revision of this view, its own changes included.
    fn revision(&self) -> i64;

    /// Reads at `at`; 0 or less means `revision()`.
    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error>;

    /// As `range`, with the count of the returned pairs: keys after the limit are not read.
    fn page(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error>;

    /// Accounts for the memory of these reads.
    fn meter(&self) -> &dyn Meter;
}

/// A store with a meter for its reads.
pub(super) struct MeteredStore<'a> {
    pub store: &'a Store,
    pub meter: &'a dyn Meter,
}

impl ReadView for MeteredStore<'_> {
    fn revision(&self) -> i64 {
        self.store.revision()
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        self.store.range_metered(keys, at, options, self.meter)
    }

    fn meter(&self) -> &dyn Meter {
        self.meter
    }

    fn page(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        self.store.page_metered(keys, at, options, self.meter)
    }
}

impl ReadView for RevisionWriter<'_> {
    fn revision(&self) -> i64 {
        RevisionWriter::revision(self)
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        RevisionWriter::range(self, keys, at, options)
    }

    fn page(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        RevisionWriter::page(self, keys, at, options)
    }

    fn meter(&self) -> &dyn Meter {
        &()
    }
}

/// The store at one revision. Nothing is locked, so a compaction may overtake it.
pub(super) struct PinnedStore<'a> {
    store: &'a Store,
    revision: i64,
    meter: &'a dyn Meter,
}

impl<'a> PinnedStore<'a> {
    pub fn newest(store: &'a Store, meter: &'a dyn Meter) -> Self {
        PinnedStore { store, revision: store.revision(), meter }
    }

    /// The revision that is read for `at`.
    fn resolve(&self, at: i64) -> i64 {
        let at = if at <= 0 { self.revision } else { at };
        assert!(at <= self.revision, "a pinned view was asked for revision {at} beyond {}", self.revision);
        at
    }

    /// The result with the pinned revision in place of newer ones.
    fn as_pinned(&self, mut result: RangeResult) -> RangeResult {
        assert!(result.revision >= self.revision, "the store went back below a pinned revision");
        result.revision = self.revision;
        result
    }

    /// Whether history at the pinned revision is gone. Then reads fail, and a new pin is needed.
    pub fn is_overtaken(&self) -> bool {
        self.store.compact_revision() > self.revision
    }
}

impl ReadView for PinnedStore<'_> {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        let result = self.store.range_metered(keys, self.resolve(at), options, self.meter)?;
        Ok(self.as_pinned(result))
    }

    fn page(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        let result = self.store.page_metered(keys, self.resolve(at), options, self.meter)?;
        Ok(self.as_pinned(result))
    }

    fn meter(&self) -> &dyn Meter {
        self.meter
    }
}
