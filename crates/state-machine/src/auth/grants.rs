//! What a user may do: the union of the permissions of all its roles.

use std::ops::Bound;

use api::Error;
use api::authpb::Permission;
use api::authpb::permission::Type;
use bytes::{BufMut, Bytes, BytesMut};
use mvcc::{KeyRange, Store};

use super::needs::{KeyAccess, Need};

/// The permissions of one user.
#[derive(Debug, Default)]
pub struct Grants {
    is_root: bool,
    read: Intervals,
    write: Intervals,
}

impl Grants {
    /// Of a user with the role `root`.
    pub(super) fn root() -> Grants {
        Grants { is_root: true, ..Grants::default() }
    }

    /// The union of permissions. One of an unknown type gives nothing.
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

    /// Whether the user has the role `root`, which may do anything.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Whether every key of the range may be used so. No lock, no allocation.
    pub fn permits(&self, access: KeyAccess, keys: &KeyRange) -> bool {
        self.is_root || self.granted(access).cover(keys)
    }

    fn granted(&self, access: KeyAccess) -> &Intervals {
        match access {
            KeyAccess::Read => &self.read,
            KeyAccess::Write => &self.write,
        }
    }

    /// Whether every key that is attached to a lease may be used so. One look into the index of leases for
    /// each granted interval that has such a key, however many keys there are.
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

    /// Refuses what is not permitted. `store` has the keys that are attached to leases.
    pub fn check(&self, need: Need, store: &Store) -> Result<(), Error> {
        let is_permitted = match need {
            _ if self.is_root => true,
            Need::Keys(access, keys) => self.permits(access, &keys),
            Need::KeysOfLease(access, lease) => self.permits_lease(access, store, lease),
        };
        if is_permitted { Ok(()) } else { Err(Error::PermissionDenied) }
    }
}

/// The first eight bytes, and zeros if there are fewer.
fn leading(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = bytes.len().min(8);
    first[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(first)
}

/// What the starts of all spans begin with. They are in order, so the first and the last one tell.
fn common_prefix(spans: &[GrantSpan]) -> Bytes {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Bytes::new() };
    let common = first.start.iter().zip(&last.start).take_while(|(one, other)| one == other).count();
    first.start.slice(..common)
}

/// The keys of one permission: from `start` to below `end`, or to the end of the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GrantSpan {
    start: Bytes,
    end: Option<Bytes>,
}

impl GrantSpan {
    fn of(permission: &Permission) -> GrantSpan {
        // A copy, since the permission is a slice of a log entry.
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

/// The smallest key above `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// Spans in order; neither overlapping nor adjacent.
///
/// A search compares numbers in one array: eight bytes of each start, after the bytes that all starts begin
/// with. With 1000 spans the starts themselves are a thousand places in memory, and a search would wait for
/// ten of them.
#[derive(Debug, Default)]
struct Intervals {
    spans: Vec<GrantSpan>,
    /// What all starts begin with.
    common: Bytes,
    /// The next eight bytes of each start, as a big-endian number; zeros after its end.
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

    /// The span that a key is in.
    fn of_key(&self, key: &[u8]) -> Option<&GrantSpan> {
        let span = self.following(key).checked_sub(1).and_then(|at| self.spans.get(at))?;
        span.end.as_ref().is_none_or(|end| key < end.as_ref()).then_some(span)
    }

    /// Number of spans that start at a key or before it.
    fn following(&self, key: &[u8]) -> usize {
        let Some(rest) = key.strip_prefix(self.common.as_ref()) else {
            return if key < self.common.as_ref() { 0 } else { self.spans.len() };
        };
        let leading = leading(rest);
        let before = self.leading.partition_point(|other| *other < leading);
        let alike = self.leading[before..].partition_point(|other| *other == leading);
        before + self.spans[before..before + alike].partition_point(|span| span.start.as_ref() <= key)
    }

    /// Whether each key of the range is in one of the spans. A range that no key can be in counts as its
    /// start.
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
            // No key is in it.
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

    /// Short keys, and such that differ after more than eight bytes. Bytes at the ends of the alphabet
    /// matter: a key is followed by itself and a zero, and the search compares eight bytes that are filled up
    /// with zeros.
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
        /// The model: each key of the range, and a key between any two of them, is in one of the permissions.
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
            // Each border and what is next to it decides.
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
            // An empty range above its end is judged by its start alone.
            prop_assert_eq!(grants.permits(KeyAccess::Read, &asked_range), wanted);
        }
    }
}
