//! What reads need of the store, so that one implementation of Range and Compare serves all of them.
//!
//! | view | revision 0 means | sees |
//! |---|---|---|
//! | `Store` | the newest when the read begins | what is applied |
//! | `Pinned` | the revision that it was pinned to | one state, however many reads |
//! | `RevisionWriter` | newest, own changes included | what the running command has done so far |

use mvcc::{Error, KeyRange, RangeOptions, RangeResult, RevisionWriter, Store};

/// A place to read from.
pub(crate) trait View {
    /// The newest revision that this view knows: its own changes count.
    fn revision(&self) -> i64;

    /// Reads at `at`; 0 or less means `revision()`.
    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error>;
}

impl View for Store {
    fn revision(&self) -> i64 {
        Store::revision(self)
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        Store::range(self, keys, at, options)
    }
}

impl View for RevisionWriter<'_> {
    fn revision(&self) -> i64 {
        RevisionWriter::revision(self)
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        RevisionWriter::range(self, keys, at, options)
    }
}

/// The store as it was at one revision, held by number: nothing is locked, and a compaction may overtake it.
pub(crate) struct Pinned<'a> {
    store: &'a Store,
    revision: i64,
}

impl<'a> Pinned<'a> {
    pub fn newest(store: &'a Store) -> Self {
        Pinned { store, revision: store.revision() }
    }

    /// True once history at the pinned revision is gone: reads fail from now on, and a fresh pin would not.
    pub fn is_overtaken(&self) -> bool {
        self.store.compact_revision() > self.revision
    }
}

impl View for Pinned<'_> {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn range(&self, keys: &KeyRange, at: i64, options: &RangeOptions) -> Result<RangeResult, Error> {
        let at = if at <= 0 { self.revision } else { at };
        assert!(at <= self.revision, "a pinned view was asked for revision {at} beyond {}", self.revision);
        let mut result = self.store.range(keys, at, options)?;
        assert!(result.revision >= self.revision, "the store went back below a pinned revision");
        result.revision = self.revision; // Newer writes are none of this view's business.
        Ok(result)
    }
}
