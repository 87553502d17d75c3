//! Read interface of the store, so that Range and Compare have a single implementation.
//!
//! | view | revision 0 means | sees |
//! |---|---|---|
//! | `Metered` | the latest when the read starts | applied commands |
//! | `Pinned` | the revision that it was pinned to | the same state in all reads |
//! | `RevisionWriter` | the latest, including its own changes | the changes of the running command so far |

use mvcc::{Error, KeyRange, Meter, RangeOptions, RangeResult, RevisionWriter, Store};

pub(super) trait ReadView {
    /// Returns the latest revision of this view, including its own changes.
    fn revision(&self) -> i64;

    /// Reads at `at`; 0 or less means `revision()`.
    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error>;

    /// Reads a page, with the count of the returned pairs: keys after the limit are not read.
    fn page(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error>;

    /// Returns the meter that accounts for the memory of these reads.
    fn meter(&self) -> &dyn Meter;
}

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

/// The store at a fixed revision. Holds no lock, so a compaction may overtake it.
pub(super) struct PinnedStore<'a> {
    store: &'a Store,
    revision: i64,
    meter: &'a dyn Meter,
}

impl<'a> PinnedStore<'a> {
    pub fn newest(store: &'a Store, meter: &'a dyn Meter) -> Self {
        PinnedStore { store, revision: store.revision(), meter }
    }

    fn resolve(&self, at: i64) -> i64 {
        let at = if at <= 0 { self.revision } else { at };
        assert!(at <= self.revision, "a pinned view was asked for revision {at} beyond {}", self.revision);
        at
    }

    /// Replaces a later revision in the result with the pinned one.
    fn as_pinned(&self, mut result: RangeResult) -> RangeResult {
        assert!(result.revision >= self.revision, "the store went back below a pinned revision");
        result.revision = self.revision;
        result
    }

    /// Reports whether history at the pinned revision was compacted. Reads fail then, and a new pin
    /// is needed.
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
