//! Effective permissions of a user: the union of the permissions of all its roles.

use std::ops::Bound;

use api::Error;
use api::authpb::Permission;
use api::authpb::permission::Type;
use bytes::{BufMut, Bytes, BytesMut};
use mvcc::{KeyRange, Store};

use super::needs::{KeyAccess, Need};

/// Effective permissions of a user.
#[derive(Debug, Default)]
pub struct Grants {
    is_root: bool,
    read: Intervals,
    write: Intervals,
}

impl Grants {
    pub(super) fn root() -> Grants {
        Grants { is_root: true, ..Grants::default() }
    }

    /// Merges permissions. Permissions of an unknown type are ignored.
    pub(super) fn of<'a>(permissions: impl Iterator<Item = &'a Permission>) -> Grants {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for permission in permissions {
            let span = GrantSpan::of(permission);
            match Type::try_from(permission.perm_type) {
                Ok(Type::Read) => read.push(span),
                Ok(Type::Write) => write.push(span),
                Ok(Type::Readwrite) => {
                    read.push(span.clone());
                    write.push(span);
                }
                Err(_) => {}
            }
        }
        Grants { is_root: false, read: Intervals::of(read), write: Intervals::of(write) }
    }

    /// Reports whether the user has the role `root`, which has all permissions.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Reports whether the user has this access to every key of the range. Neither locks nor
    /// allocates.
    pub fn permits(&self, access: KeyAccess, keys: &KeyRange) -> bool {
        self.is_root || self.granted(access).cover(keys)
    }

    fn granted(&self, access: KeyAccess) -> &Intervals {
        match access {
            KeyAccess::Read => &self.read,
            KeyAccess::Write => &self.write,
        }
    }

    /// Reports whether the user has this access to every key attached to a lease. Performs one
    /// lookup in the lease index per granted interval that has such a key, regardless of the number
    /// of keys.
    fn permits_lease(&self, access: KeyAccess, store: &Store, lease: i64) -> bool {
        let mut from = Bytes::new();
        while let Some(key) = store.first_key_of_lease(lease, &from) {
            match self.granted(access).of_key(&key) {
                None => return false,
                Some(GrantSpan { end: None, .. }) => return true,
                Some(GrantSpan { end: Some(end), .. }) => from = end.clone(),
            }
        }
        true
    }

    /// Rejects access without permission. `store` provides the keys attached to leases.
    pub fn check(&self, need: Need, store: &Store) -> Result<(), Error> {
        let is_permitted = match need {
            _ if self.is_root => true,
            Need::Keys(access, keys) => self.permits(access, &keys),
            Need::KeysOfLease(access, lease) => self.permits_lease(access, store, lease),
        };
        if is_permitted { Ok(()) } else { Err(Error::PermissionDenied) }
    }
}

fn leading(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = bytes.len().min(8);
    first[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(first)
}

/// Returns the common prefix of all starts. Spans are sorted, so it is that of the first and the
/// last one.
fn common_prefix(spans: &[GrantSpan]) -> Bytes {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Bytes::new() };
    let common = first.start.iter().zip(&last.start).take_while(|(one, other)| one == other).count();
    first.start.slice(..common)
}

/// Key range of a permission: from `start` to `end` exclusive, or to the end of the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GrantSpan {
    start: Bytes,
    end: Option<Bytes>,
}

impl GrantSpan {
    fn of(permission: &Permission) -> GrantSpan {
        // The permission is a slice of a log entry; copy it so that the entry can be freed.
        let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let keys = KeyRange::new(copy(&permission.key), copy(&permission.range_end));
        let end = match keys.end_bound() {
            Bound::Included(last) => Some(after(last)),
            Bound::Excluded(end) => Some(copy(end)),
            Bound::Unbounded => None,
        };
        GrantSpan { start: keys.start().clone(), end }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// Returns the successor of `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// Sorted spans, neither overlapping nor adjacent.
///
/// A search compares numbers in a single array: eight bytes of each start, after the common prefix
/// of all starts. The starts themselves are separate allocations; with 1000 spans, a search would
/// incur about ten cache misses.
#[derive(Debug, Default)]
struct Intervals {
    spans: Vec<GrantSpan>,
    common: Bytes,
    /// Next eight bytes of each start as a big-endian number, padded with zeros.
    leading: Vec<u64>,
}

impl Intervals {
    fn of(mut spans: Vec<GrantSpan>) -> Intervals {
        spans.retain(|span| !span.is_empty());
        spans.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<GrantSpan> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| span.start <= *end) => {
                    if last.end.is_some() && (span.end.is_none() || span.end > last.end) {
                        last.end = span.end;
                    }
                }
                Some(_) | None => merged.push(span),
            }
        }
        let common = common_prefix(&merged);
        let leading = merged.iter().map(|span| leading(&span.start[common.len()..])).collect();
        Intervals { spans: merged, common, leading }
    }

    fn of_key(&self, key: &[u8]) -> Option<&GrantSpan> {
        let span = self.following(key).checked_sub(1).and_then(|at| self.spans.get(at))?;
        span.end.as_ref().is_none_or(|end| key < end.as_ref()).then_some(span)
    }

    fn following(&self, key: &[u8]) -> usize {
        let Some(rest) = key.strip_prefix(self.common.as_ref()) else {
            return if key < self.common.as_ref() { 0 } else { self.spans.len() };
        };
        let leading = leading(rest);
        let before = self.leading.partition_point(|other| *other < leading);
        let alike = self.leading[before..].partition_point(|other| *other == leading);
        before + self.spans[before..before + alike].partition_point(|span| span.start.as_ref() <= key)
    }

    /// Reports whether each key of the range is in one of the spans. An empty range is treated as
    /// its start key.
    fn cover(&self, keys: &KeyRange) -> bool {
        let Some(span) = self.of_key(keys.start()) else { return false };
        let Some(end) = &span.end else { return true };
        match keys.end_bound() {
            Bound::Included(last) => last < end,
            Bound::Excluded(before) => before <= end.as_ref(),
            Bound::Unbounded => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn permission(perm_type: i32, key: &str, range_end: &str) -> Permission {
        Permission { perm_type, key: key.to_owned().into(), range_end: range_end.to_owned().into() }
    }

    fn keys(key: &str, range_end: &str) -> KeyRange {
        KeyRange::new(key.to_owned().into(), range_end.to_owned().into())
    }

    #[test]
    fn a_range_is_permitted_if_the_union_covers_it() {
        let granted = [
            permission(0, "a", ""),
            permission(0, "b", "d"),
            permission(2, "d", "f"),
            permission(1, "x", "\0"),
        ];
        let grants = Grants::of(granted.iter());
        for (access, key, range_end, is_permitted) in [
            (KeyAccess::Read, "a", "", true),
            (KeyAccess::Read, "a\0", "", false),
            (KeyAccess::Read, "a", "b", false),
            (KeyAccess::Read, "b", "f", true),
            (KeyAccess::Read, "b", "f\0", false),
            (KeyAccess::Read, "b", "\0", false),
            (KeyAccess::Read, "f", "", false),
            (KeyAccess::Read, "c", "e", true),
            (KeyAccess::Read, "x", "", false),
            (KeyAccess::Write, "c", "", false),
            (KeyAccess::Write, "d", "f", true),
            (KeyAccess::Write, "x", "\0", true),
            (KeyAccess::Write, "y", "\0", true),
            (KeyAccess::Write, "z", "", true),
            (KeyAccess::Write, "w", "\0", false),
            // The range is empty.
            (KeyAccess::Write, "e", "a", true),
            (KeyAccess::Write, "g", "a", false),
        ] {
            assert_eq!(
                grants.permits(access, &keys(key, range_end)),
                is_permitted,
                "{access:?} {key} {range_end}"
            );
        }
    }

    #[test]
    fn an_unknown_type_gives_nothing() {
        let grants = Grants::of([permission(7, "a", "\0")].iter());
        assert!(
            ![KeyAccess::Read, KeyAccess::Write].iter().any(|access| grants.permits(*access, &keys("b", "")))
        );
    }

    /// Short keys, and keys that differ after more than eight bytes. Bytes at both ends of the
    /// alphabet cover edge cases: the successor of a key is the key plus a zero byte, and the
    /// search compares eight bytes padded with zeros.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte = || prop::sample::select(vec![0, 1, b'a', b'b', 0xfe, 0xff]);
        let after = |start: &'static [u8]| {
            prop::collection::vec(byte(), 1..4).prop_map(move |rest| [start, &rest].concat())
        };
        prop_oneof![
            after(b""),
            after(b"bbbbbbbbb"),
            after(b"bbbbbb"),
            after(b"\xff\xff\xff\xff\xff\xff"),
            after(&[0; 8])
        ]
    }

    fn end() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![Just(Vec::new()), Just(vec![0]), key()]
    }

    fn range(key: &[u8], end: &[u8]) -> KeyRange {
        KeyRange::new(key.to_vec().into(), end.to_vec().into())
    }

    proptest! {
        /// Model: each key of the range, and a key between any two of them, is in one of the
        /// permissions.
        #[test]
        fn coverage_is_that_of_each_key(
            granted in prop::collection::vec((key(), end()), 0..8), asked in (key(), end())
        ) {
            let permission = |(key, end): &(Vec<u8>, Vec<u8>)| {
                Permission { perm_type: 0, key: key.clone().into(), range_end: end.clone().into() }
            };
            let permissions: Vec<_> = granted.iter().map(permission).collect();
            let grants = Grants::of(permissions.iter());
            let asked_range = range(&asked.0, &asked.1);
            // The borders and their neighbours decide.
            let borders = granted.iter().chain([&asked]).flat_map(|(key, end)| [key.clone(), end.clone()]);
            let next: [&[u8]; 4] = [b"", b"\0", b"a", b"\xff\xff\xff\xff"];
            let points: Vec<_> = borders.flat_map(|key| next.map(|next| [&key[..], next].concat())).collect();
            let inside = |range: &KeyRange, point: &[u8]| {
                range.start().as_ref() <= point && match range.end_bound() {
                    Bound::Included(last) => point <= last,
                    Bound::Excluded(end) => point < end,
                    Bound::Unbounded => true,
                }
            };
            let is_covered = |point: &[u8]| granted.iter().any(|(key, end)| inside(&range(key, end), point));
            for point in &points {
                let one = KeyRange::one(point.clone().into());
                prop_assert_eq!(grants.permits(KeyAccess::Read, &one), is_covered(point), "{:?}", point);
            }
            let wanted = if asked_range.is_empty() {
                is_covered(&asked.0)
            } else {
                let last = vec![0xff; 32];
                points.iter().chain([&last]).filter(|point| inside(&asked_range, point)).all(|point| is_covered(point))
            };
            // An empty range above its end is judged by its start.
            prop_assert_eq!(grants.permits(KeyAccess::Read, &asked_range), wanted);
        }
    }
}
