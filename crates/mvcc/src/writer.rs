//! The one writer.

use std::marker::PhantomData;

use bytes::Bytes;

use crate::error::Result;
use crate::range::KeyRange;
use crate::store::Store;
use crate::types::{Applied, Deleted, KeyValue, Pressure, Previous, RangeOptions, RangeResult};

/// Only one exists per store; the apply loop owns it.
pub struct Writer {}

impl Writer {
    pub fn store(&self) -> &Store {
        todo!()
    }

    /// Begins one request. Its changes share one main revision and appear to readers together.
    pub fn begin(&mut self) -> RevisionWriter<'_> {
        todo!()
    }

    /// Logical compaction, effective at once: reads below `revision` fail from now on.
    ///
    /// Errors: `Compacted` when `revision` ≤ the compact revision, `FutureRevision` beyond the newest.
    pub fn compact(&mut self, _revision: i64) -> Result<()> {
        todo!()
    }

    /// Sets or removes an item that is not versioned.
    pub fn set_item(&mut self, _key: &[u8], _value: Option<&[u8]>) {
        todo!()
    }

    /// Ends one entry of the replicated log. Only here can a checkpoint be cut.
    pub fn end_entry(&mut self, _applied: Applied) -> Result<Pressure> {
        todo!()
    }
}

/// The changes of one request. They become visible together, at `finish` or when it is dropped; there is no undo.
pub struct RevisionWriter<'w> {
    writer: PhantomData<&'w mut Writer>,
}

impl RevisionWriter<'_> {
    /// The current main revision; one more after the first change.
    pub fn revision(&self) -> i64 {
        todo!()
    }

    /// As `Store::range`, and sees the changes made so far.
    pub fn range(&self, _range: &KeyRange, _at: i64, _options: &RangeOptions) -> Result<RangeResult> {
        todo!()
    }

    /// The newest value of one key, changes made so far included.
    pub fn get(&self, _key: &[u8]) -> Result<Option<KeyValue>> {
        todo!()
    }

    /// Puts `value`, and returns the main revision of the change.
    pub fn put(&mut self, _key: &[u8], _value: &[u8], _lease: i64) -> i64 {
        todo!()
    }

    /// Deletes every key of `range`. No key, no change.
    pub fn delete_range(&mut self, _range: &KeyRange, _previous: Previous) -> Result<Deleted> {
        todo!()
    }

    /// Publishes the changes, and returns the store's main revision after them.
    pub fn finish(self) -> i64 {
        let _: Option<Bytes> = None;
        todo!()
    }
}
