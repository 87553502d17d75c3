//! Key ranges as defined by etcd, for reads, deletes, comparisons and permissions.
//!
//! | `key` | `range_end` | selects |
//! |---|---|---|
//! | k | empty | exactly k |
//! | k | `\0` | every key ≥ k |
//! | k | e | k ≤ key < e; no key if e ≤ k |

use std::ops::Bound;

use bytes::Bytes;

/// A set of keys. Keys compare as unsigned bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    start: Bytes,
    end: RangeEnd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RangeEnd {
    OneKey,
    Before(Bytes),
    Unbounded,
}

const TO_THE_END: &[u8] = b"\0";

impl KeyRange {
    /// Returns the range selected by a request's `key` and `range_end`.
    pub fn new(key: Bytes, range_end: Bytes) -> Self {
        let end = match range_end.as_ref() {
            b"" => RangeEnd::OneKey,
            TO_THE_END => RangeEnd::Unbounded,
            _ => RangeEnd::Before(range_end),
        };
        KeyRange { start: key, end }
    }

    /// Returns the range of a single key.
    pub fn one(key: Bytes) -> Self {
        KeyRange { start: key, end: RangeEnd::OneKey }
    }

    /// Returns the range of all keys.
    pub fn all() -> Self {
        KeyRange { start: Bytes::new(), end: RangeEnd::Unbounded }
    }

    /// Returns the key if the range has the form of a single key, existing or not.
    pub fn as_one_key(&self) -> Option<&Bytes> {
        match self.end {
            RangeEnd::OneKey => Some(&self.start),
            RangeEnd::Before(_) | RangeEnd::Unbounded => None,
        }
    }

    /// Returns the lower bound of the range.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// Returns the end of the range, as a bound for ordered collections.
    pub fn end_bound(&self) -> Bound<&[u8]> {
        match &self.end {
            RangeEnd::OneKey => Bound::Included(&self.start),
            RangeEnd::Before(end) => Bound::Excluded(end),
            RangeEnd::Unbounded => Bound::Unbounded,
        }
    }

    /// Reports whether the range cannot contain a key.
    pub fn is_empty(&self) -> bool {
        match &self.end {
            RangeEnd::Before(end) => end <= &self.start,
            RangeEnd::OneKey | RangeEnd::Unbounded => false,
        }
    }

    /// Returns the same range without the keys before `start`.
    pub(crate) fn resumed_at(&self, start: Bytes) -> Self {
        assert!(self.contains(&start), "a walk resumes inside its range");
        KeyRange { start, end: self.end.clone() }
    }

    /// Returns the keys of this range before `later`, if `later` is the rest of this range.
    pub(crate) fn before(&self, later: &KeyRange) -> Option<Self> {
        let is_rest = self.end != RangeEnd::OneKey && self.end == later.end && self.start <= later.start;
        is_rest.then(|| KeyRange { start: self.start.clone(), end: RangeEnd::Before(later.start.clone()) })
    }

    pub fn key_bytes(&self) -> usize {
        match &self.end {
            RangeEnd::Before(end) => self.start.len() + end.len(),
            RangeEnd::OneKey | RangeEnd::Unbounded => self.start.len(),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && self.is_before_end(key)
    }

    /// Reports whether `key` is before the range's end. It may be before its start.
    pub fn is_before_end(&self, key: &[u8]) -> bool {
        match &self.end {
            RangeEnd::OneKey => key <= self.start.as_ref(),
            RangeEnd::Before(end) => key < end.as_ref(),
            RangeEnd::Unbounded => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &str, end: &str) -> KeyRange {
        KeyRange::new(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(end.as_bytes()))
    }

    #[test]
    fn a_range_selects_what_etcd_selects() {
        for (key, end, inside, outside) in [
            ("b", "", vec!["b"], vec!["a", "ba", "c"]),
            ("b", "d", vec!["b", "ba", "c"], vec!["a", "d", "da"]),
            ("b", "\0", vec!["b", "zz"], vec!["a"]),
            ("\0", "\0", vec!["\0", "a", "zz"], vec![""]),
            ("d", "b", vec![], vec!["b", "c", "d"]),
            ("b", "b", vec![], vec!["b"]),
        ] {
            let range = range(key, end);
            for key in inside {
                assert!(range.contains(key.as_bytes()), "{key:?} in {range:?}");
                assert!(!range.is_empty());
            }
            for key in outside {
                assert!(!range.contains(key.as_bytes()), "{key:?} not in {range:?}");
            }
        }
    }

    #[test]
    fn an_inverted_range_is_empty_and_one_key_is_not() {
        assert!(range("b", "a").is_empty());
        assert!(range("b", "b").is_empty());
        assert!(!range("b", "").is_empty());
        assert!(!KeyRange::all().is_empty());
        assert_eq!(range("b", "").as_one_key().unwrap(), "b");
        assert_eq!(range("b", "c").as_one_key(), None);
    }
}
