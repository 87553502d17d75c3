//! Counts of ranges at fixed revisions, for clients that read a range page by page.
//!
//! The response to a page includes the number of keys from its first key to the end of the range.
//! Counting them for each page takes a step per leaf of the index, which is quadratic over all pages.
//! Instead, the count of a page is the count of the previous page minus the keys between their starts.
//!
//! Invariant: the count at a published revision never changes, unless a wrong state is replaced.
//! Entries therefore stay valid, and are removed only for space.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::range::KeyRange;

/// Maximum number of entries, and thus of clients that read page by page concurrently. Beyond it the
/// oldest entry is dropped, and its client's next page is counted in full.
const RECENT: usize = 64;
/// Maximum key size of stored ranges, so that 64 entries take at most 256 KiB.
const KEY_BYTES_MAX: usize = 2 << 10;

#[derive(Default)]
pub(crate) struct CountCache {
    recent: Mutex<VecDeque<RecentCount>>,
}

struct RecentCount {
    range: KeyRange,
    at: i64,
    count: i64,
}

impl CountCache {
    /// Returns the count at `at` of a range with the same end as `range` and the same or an earlier start,
    /// and the part of it before `range`.
    pub fn find(&self, range: &KeyRange, at: i64) -> Option<(i64, KeyRange)> {
        let recent = self.recent.lock();
        let same = recent.iter().rev().filter(|counted| counted.at == at);
        same.filter_map(|counted| Some((counted.count, counted.range.before(range)?)))
            .max_by(|left, right| left.1.start().cmp(right.1.start()))
    }

    pub fn clear(&self) {
        self.recent.lock().clear();
    }

    /// Stores a count. It replaces an earlier one with the same end.
    pub fn insert(&self, range: &KeyRange, at: i64, count: i64) {
        if range.as_one_key().is_some() || range.key_bytes() > KEY_BYTES_MAX {
            return;
        }
        let mut recent = self.recent.lock();
        recent.retain(|counted| counted.at != at || counted.range.before(range).is_none());
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(RecentCount { range: range.clone(), at, count });
    }
}
