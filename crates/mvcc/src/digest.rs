//! Digest of the changes by log entries: members that applied the same entries have the same digest of
//! them.
//!
//! ```text
//!   record, item, compaction ─▶ digest of the entry, in order ─▶ at its end: sum += it, mixed with its index
//!   sums of the last entries ─▶ digest of the entries (after, to] = sum(to) − sum(after)
//! ```
//!
//! * A digest covers only the entries between two indexes, so it can compare members that started from
//!   different states: a checkpoint, a received store, an empty one. It exists only in memory.
//! * It depends on every field that an entry writes: keys, values, leases, revisions, items and their
//!   order.
//! * The sums after the last 1024 entries are available, and those after each 1024th of the last
//!   million.
//!
//! Not covered: items that depend on a restart (`Writer::set_layout_item`), differences that existed
//! before `after`, and corruption in memory or on disk after a change was applied, which `recount`
//! detects.
//!
//! A put costs two hardware checksums (key and value) and nine multiplications.

use std::collections::VecDeque;

use crate::block::{Record, RecordBody};
use crate::types::LogIndex;

/// Number of stored sums of each of the two kinds, 16 bytes each.
const KEPT: usize = 1024;
/// Distance of the entries with long-lived sums.
const STRIDE: u64 = 1024;

/// Digest of a span of entries, if available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanDigest {
    Known(u64),
    /// The last entry has not been applied yet.
    NotYet,
    /// The sum at a boundary is not available: too old, or from before the store was opened or installed.
    NotKept,
}

/// Sum over all entries since the store was opened or installed, and its past values.
#[derive(Debug, Default)]
pub(crate) struct ChangeDigest {
    entry: u64,
    sum: u64,
    /// Index and sum after the last entries, and after each `STRIDE`th entry, ascending.
    recent: VecDeque<(LogIndex, u64)>,
    sparse: VecDeque<(LogIndex, u64)>,
}

impl ChangeDigest {
    pub fn add_record(&mut self, record: &Record<'_>) {
        let Record { revision, key, body } = record;
        let (kind, value, numbers) = match body {
            RecordBody::Tombstone => (1, &b""[..], [0; 3]),
            RecordBody::Put { create, version, lease, value } => (2, *value, [*create, *version, *lease]),
        };
        self.add_bytes(kind, key, value);
        for number in [revision.main, revision.sub].into_iter().chain(numbers) {
            self.entry = mix(self.entry, number as u64);
        }
    }

    pub fn add_item(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.add_bytes(if value.is_some() { 3 } else { 4 }, key, value.unwrap_or_default());
    }

    pub fn add_compaction(&mut self, revision: i64) {
        self.entry = mix(mix(self.entry, 5), revision as u64);
    }

    fn add_bytes(&mut self, kind: u64, key: &[u8], value: &[u8]) {
        self.entry = add_bytes(self.entry, kind, key, value);
    }

    pub fn end_entry(&mut self, index: LogIndex) {
        let entry = std::mem::take(&mut self.entry);
        if entry != 0 && !self.recent.is_empty() {
            self.sum = self.sum.wrapping_add(mix(entry, index.0));
        }
        // Changes before the first entry after an open do not belong to an entry, and are omitted with it.
        push(&mut self.recent, (index, self.sum));
        if index.0.is_multiple_of(STRIDE) {
            push(&mut self.sparse, (index, self.sum));
        }
    }

    /// Returns the first and last index at which a span may start or end.
    pub fn kept(&self) -> Option<(LogIndex, LogIndex)> {
        let (first, last) = (self.recent.front()?.0, self.recent.back()?.0);
        Some((self.sparse.front().map_or(first, |sparse| sparse.0.min(first)), last))
    }

    /// Returns the digest of the entries above `after` and up to `to`.
    pub fn span(&self, after: LogIndex, to: LogIndex) -> SpanDigest {
        if self.recent.back().is_none_or(|last| last.0 < to) {
            return SpanDigest::NotYet;
        }
        match (self.sum_at(after), self.sum_at(to)) {
            (Some(before), Some(sum)) if after <= to => SpanDigest::Known(sum.wrapping_sub(before)),
            _ => SpanDigest::NotKept,
        }
    }

    fn sum_at(&self, index: LogIndex) -> Option<u64> {
        [&self.recent, &self.sparse].into_iter().find_map(|sums| {
            let place = sums.binary_search_by_key(&index, |sum| sum.0).ok()?;
            Some(sums[place].1)
        })
    }
}

fn push(sums: &mut VecDeque<(LogIndex, u64)>, sum: (LogIndex, u64)) {
    assert!(sums.back().is_none_or(|last| last.0 <= sum.0), "entries end in order");
    if sums.back().is_some_and(|last| last.0 == sum.0) {
        sums.pop_back();
    } else if sums.len() == KEPT {
        sums.pop_front();
    }
    sums.push_back(sum);
}

pub(crate) fn add_bytes(digest: u64, kind: u64, key: &[u8], value: &[u8]) -> u64 {
    let checksums = u64::from(crc32c::crc32c(key)) << 32 | u64::from(crc32c::crc32c(value));
    let lengths = (key.len() as u64) << 32 | value.len() as u64;
    mix(mix(mix(digest, kind), checksums), lengths)
}

/// Multiplies and folds, with the constants of MurmurHash3's finalizer. Must never change: members of
/// different versions compare their digests.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let mut mixed = (digest.rotate_left(5) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed ^ mixed >> 33).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Revision;

    const FROZEN: u64 = 0xd1d9_83dc_6c4d_6dbc;
    const BASE: (i64, i64, i64, &[u8], &[u8]) = (5, 4, 7, b"key", b"value");

    fn put((main, version, lease, key, value): (i64, i64, i64, &[u8], &[u8])) -> ChangeDigest {
        let mut digest = ChangeDigest::default();
        digest.end_entry(LogIndex(1));
        let body = RecordBody::Put { create: 2, version, lease, value };
        digest.add_record(&Record { revision: Revision { main, sub: 0 }, key, body });
        digest.end_entry(LogIndex(2));
        digest
    }

    fn span(digest: &ChangeDigest, after: u64, to: u64) -> SpanDigest {
        digest.span(LogIndex(after), LogIndex(to))
    }

    #[test]
    fn each_field_of_a_record_counts_and_the_digest_is_frozen() {
        assert_eq!(span(&put(BASE), 1, 2), SpanDigest::Known(FROZEN));
        let (main, version, lease, key, value) = BASE;
        for other in [
            (main + 1, version, lease, key, value),
            (main, version + 1, lease, key, value),
            (main, version, lease + 1, key, value),
            (main, version, lease, &b"kez"[..], value),
            (main, version, lease, key, &b"valuf"[..]),
            (main, version, lease, &b"keyv"[..], &b"alue"[..]),
        ] {
            assert_ne!(span(&put(other), 1, 2), SpanDigest::Known(FROZEN), "{other:?}");
        }
    }

    #[test]
    fn entries_are_compared_whatever_was_before_them() {
        let mut one = ChangeDigest::default();
        let mut other = ChangeDigest::default();
        one.add_item(b"written at the start", Some(b""));
        for index in 1..=5000_u64 {
            for (digest, first) in [(&mut one, 1), (&mut other, 3001)] {
                if index >= first {
                    digest.add_item(b"item", Some(&index.to_be_bytes()));
                    digest.end_entry(LogIndex(index));
                }
            }
        }
        assert_eq!(
            (one.kept(), other.kept()),
            (Some((LogIndex(1024), LogIndex(5000))), Some((LogIndex(3072), LogIndex(5000))))
        );
        for (after, to, is_known) in [
            (4000, 5000, true),
            (4096, 4999, true),
            (3072, 4096, true),
            (3072, 3500, false),
            (3000, 5000, false),
        ] {
            let (span, known) = (span(&other, after, to), span(&one, after, to));
            assert_eq!(
                (span == known && span != SpanDigest::NotKept, is_known),
                (is_known, is_known),
                "{after} {to}"
            );
        }
        assert_eq!(span(&other, 4000, 5001), SpanDigest::NotYet);
        assert_eq!(span(&other, 5000, 4000), SpanDigest::NotKept);
        let before = span(&one, 4000, 5000);
        one.add_item(b"a", None);
        one.add_item(b"b", None);
        one.end_entry(LogIndex(5001));
        other.add_item(b"b", None);
        other.add_item(b"a", None);
        other.end_entry(LogIndex(5001));
        assert_ne!(span(&one, 4999, 5001), span(&other, 4999, 5001), "the order counts");
        assert_eq!(span(&one, 4000, 5000), before);
    }
}
