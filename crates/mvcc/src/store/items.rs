//! Unversioned values by key: members, alarms and the like.

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;

/// Memory of an item without its key and value: in the current state, in the durable one and as a
/// pending change, each in a tree, and two allocations.
const MEMORY_BYTES: u64 = 384;
/// Size of a catalogue entry without key and value: a prefix and a checksum.
const ENTRY_BYTES: u64 = 5;

#[derive(Debug, Default)]
pub(crate) struct Items {
    map: BTreeMap<Bytes, Bytes>,
    bytes: u64,
}

impl Items {
    pub fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        let key_bytes = key.len();
        let old = match value {
            Some(value) => {
                self.bytes += (key_bytes + value.len()) as u64;
                self.map.insert(key, value)
            }
            None => self.map.remove(&key),
        };
        self.bytes -= old.map_or(0, |old| (key_bytes + old.len()) as u64);
    }

    pub fn memory_bytes(&self) -> u64 {
        self.bytes + MEMORY_BYTES * self.map.len() as u64
    }

    pub fn stored_bytes(&self) -> u64 {
        self.bytes + ENTRY_BYTES * self.map.len() as u64
    }
}

impl Deref for Items {
    type Target = BTreeMap<Bytes, Bytes>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl FromIterator<(Bytes, Bytes)> for Items {
    fn from_iter<I: IntoIterator<Item = (Bytes, Bytes)>>(items: I) -> Self {
        let mut all = Items::default();
        items.into_iter().for_each(|(key, value)| all.set(key, Some(value)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_items_that_are_there() {
        let mut items = Items::from_iter([(Bytes::from("ab"), Bytes::from("1")), ("c".into(), "".into())]);
        assert_eq!((items.bytes, items.len()), (4, 2));
        items.set("ab".into(), Some("12345".into()));
        items.set("c".into(), None);
        items.set("absent".into(), None);
        assert_eq!((items.bytes, items.stored_bytes()), (7, 12));
        items.set("ab".into(), None);
        assert_eq!((items.bytes, items.memory_bytes()), (0, 0));
    }
}
