//! Keys as they were before an event.

use crate::error::Result;
use crate::revision::Revision;
use crate::store::{LockPurpose, RecordSource, Store, load_all, missing_record};
use crate::types::KeyValue;

/// Keys looked up under one hold of the lock: some 100 µs in a large index.
const LOOKUPS_PER_HOLD: usize = 250;

impl Store {
    /// For each key and event revision: the key as it was at the main revision before it. `None` if the key
    /// did not exist then, or if that revision is compacted. Records of one block are loaded together.
    ///
    /// The caller bounds the number of keys, and so the memory of the result.
    ///
    /// Errors: `Corrupt` or `Io` if a cold block cannot be read.
    pub fn previous(&self, events: &[(&[u8], i64)]) -> Result<Vec<Option<KeyValue>>> {
        let mut found: Vec<(Revision, RecordSource)> = Vec::new();
        let mut exists = Vec::with_capacity(events.len());
        for events in events.chunks(LOOKUPS_PER_HOLD) {
            let state = self.shared.state.read(LockPurpose::Lookup);
            for (key, revision) in events {
                let before = revision - i64::from(!base::mutant("late-previous"));
                let readable = before >= state.compact_revision && before <= state.revision;
                let history = if readable { state.index.get(key) } else { None };
                let visible = history.and_then(|history| history.at(before));
                exists.push(visible.is_some());
                if let Some(visible) = visible {
                    let source = state.locate(visible.revision).ok_or_else(missing_record)?;
                    found.push((visible.revision, source));
                }
            }
        }
        let mut loaded = load_all(&found, &self.shared.cache, &())?;
        Ok(exists.into_iter().map(|exists| if exists { loaded.next() } else { None }).collect())
    }
}
