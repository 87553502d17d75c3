//! Live keys with a lease, by key and by lease.
//!
//! * A key is present if and only if its latest record is a put with a lease other than 0. A flag in
//!   its history indicates this, so changes to other keys need no lookup here.
//! * The contents are rebuilt from the blocks when a store is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

/// Memory of a leased key without its bytes: entries in two trees that are two thirds full, and the
/// shared key.
const KEY_BYTES: u64 = 128;

#[derive(Debug, Default)]
pub(crate) struct LeasedKeys {
    by_key: BTreeMap<Arc<[u8]>, i64>,
    by_lease: BTreeSet<(i64, Arc<[u8]>)>,
    bytes: u64,
}

impl LeasedKeys {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.bytes + KEY_BYTES * self.by_key.len() as u64
    }

    pub fn has(&self, key: &[u8], lease: i64) -> bool {
        let entry = self.by_key.get_key_value(key).filter(|(_, of)| **of == lease);
        entry.is_some_and(|(key, _)| self.by_lease.contains(&(lease, key.clone())))
    }

    /// Attaches a key to a lease, and detaches it from its previous lease.
    pub fn attach(&mut self, key: &[u8], lease: i64) {
        assert_ne!(lease, 0, "0 means no lease");
        if let Some(present) = self.by_key.get_mut(key) {
            if *present == lease {
                return;
            }
            let shared = self.by_lease.take(&(*present, Arc::from(key))).expect("both trees hold it").1;
            if base::mutant("kept-attachment") {
                self.by_lease.insert((*present, shared.clone()));
            }
            *present = lease;
            self.by_lease.insert((lease, shared));
        } else {
            let shared: Arc<[u8]> = key.into();
            self.bytes += key.len() as u64;
            self.by_lease.insert((lease, shared.clone()));
            self.by_key.insert(shared, lease);
        }
    }

    pub fn detach(&mut self, key: &[u8]) {
        let (key, lease) = self.by_key.remove_entry(key).expect("its history says that it has a lease");
        self.bytes -= key.len() as u64;
        let was_there = self.by_lease.remove(&(lease, key));
        assert!(was_there, "both trees hold it");
    }

    pub fn first_of(&self, lease: i64, from: &[u8]) -> Option<Bytes> {
        let first = self.by_lease.range((lease, Arc::from(from))..).next();
        first.filter(|(of, _)| *of == lease).map(|(_, key)| Bytes::copy_from_slice(key))
    }

    pub fn lease_from(&self, from: i64) -> Option<i64> {
        self.by_lease.range((from, Arc::from(&b""[..]))..).next().map(|(lease, _)| *lease)
    }

    pub fn count_of(&self, lease: i64, max: usize) -> usize {
        let from = self.by_lease.range((lease, Arc::from(&b""[..]))..);
        from.take_while(|(of, _)| *of == lease).take(max).count()
    }

    /// Returns up to `keys_max` keys of `lease` greater than `after`, in key order.
    pub fn keys_of(&self, lease: i64, after: &[u8], keys_max: usize) -> Vec<Bytes> {
        let after = (lease, Arc::from(after));
        let from = self.by_lease.range((Bound::Excluded(after), Bound::Unbounded));
        let own = from.take_while(|(of, _)| *of == lease).take(keys_max);
        own.map(|(_, key)| Bytes::copy_from_slice(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_with_the_lease_that_was_attached_last() {
        let mut leased = LeasedKeys::default();
        for (key, lease) in [("b", 7), ("a", 7), ("c", -1), ("a", 8), ("b", 7), ("d", 7)] {
            leased.attach(key.as_bytes(), lease);
        }
        leased.detach(b"d");
        for (from, first) in [(i64::MIN, Some(-1)), (-1, Some(-1)), (0, Some(7)), (8, Some(8)), (9, None)] {
            assert_eq!(leased.lease_from(from), first, "{from}");
        }
        for (lease, after, keys_max, expected) in [
            (7, "", 9, vec!["b"]),
            (8, "", 9, vec!["a"]),
            (-1, "", 9, vec!["c"]),
            (-1, "c", 9, vec![]),
            (9, "", 9, vec![]),
            (8, "", 0, vec![]),
        ] {
            assert_eq!(leased.keys_of(lease, after.as_bytes(), keys_max), expected, "{lease} after {after}");
        }
        for (lease, from, expected) in [
            (7, "", Some("b")),
            (7, "b", Some("b")),
            (7, "b\0", None),
            (8, "", Some("a")),
            (-1, "a", Some("c")),
            (-2, "", None),
            (9, "", None),
        ] {
            let first = leased.first_of(lease, from.as_bytes());
            assert_eq!(first.as_deref(), expected.map(str::as_bytes), "{lease} from {from}");
        }
        assert_eq!((leased.len(), leased.memory_bytes()), (3, 3 + 3 * KEY_BYTES));
        for key in ["a", "b", "c"] {
            leased.detach(key.as_bytes());
        }
        assert_eq!((leased.len(), leased.memory_bytes(), leased.by_lease.len()), (0, 0, 0));
        for (key, lease) in [("a", 7), ("b", 7), ("c", 8)] {
            leased.attach(key.as_bytes(), lease);
        }
        for (lease, max, count) in [(7, 9, 2), (7, 1, 1), (8, 9, 1), (9, 9, 0)] {
            assert_eq!(leased.count_of(lease, max), count, "{lease}");
        }
    }
}
