//! Watchers with the same range and form.

use bytes::Bytes;
use mvcc::{Change, KeyRange};

/// Options that determine the contents of a watcher's events, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Form(u8);

impl Form {
    const PREVIOUS: u8 = 1;
    const NO_PUT: u8 = 2;
    const NO_DELETE: u8 = 4;
    const FRAGMENT: u8 = 8;

    pub fn new(previous: bool, no_put: bool, no_delete: bool, fragment: bool) -> Self {
        let bit = |flag: bool, bit: u8| if flag { bit } else { 0 };
        Form(
            bit(previous, Self::PREVIOUS)
                | bit(no_put, Self::NO_PUT)
                | bit(no_delete, Self::NO_DELETE)
                | bit(fragment, Self::FRAGMENT),
        )
    }

    pub fn has_previous(self) -> bool {
        self.0 & Self::PREVIOUS != 0
    }

    pub fn may_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }

    pub fn accepts(self, change: &Change<'_>) -> bool {
        match change {
            Change::Put { .. } => self.0 & Self::NO_PUT == 0,
            Change::Delete { .. } => self.0 & Self::NO_DELETE == 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RangeExtent {
    One,
    Before,
    Unbounded,
}

/// A group. 64 bytes, plus its keys and its list.
pub(crate) struct InterestGroup {
    /// Start of the range, followed by its end if it has one.
    keys: Box<[u8]>,
    start_bytes: u32,
    extent: RangeExtent,
    form: Form,
    members: Vec<u32>,
    live: u32,
    pub step: u32,
}

impl InterestGroup {
    /// Creates a group. `end` is that of a request: empty for a single key, `\0` for no end.
    pub fn new(start: &[u8], end: &[u8], form: Form) -> Self {
        let (extent, end): (_, &[u8]) = match end {
            b"" => (RangeExtent::One, b""),
            b"\0" => (RangeExtent::Unbounded, b""),
            end => (RangeExtent::Before, end),
        };
        let start_bytes = u32::try_from(start.len()).expect("keys are far below 4 GiB");
        let keys = [start, end].concat().into_boxed_slice();
        InterestGroup { keys, start_bytes, extent, form, members: Vec::new(), live: 0, step: 0 }
    }

    pub fn start(&self) -> &[u8] {
        &self.keys[..self.start_bytes as usize]
    }

    /// Returns the end of a range; `None` for a single key, or without end.
    pub(super) fn end(&self) -> Option<&[u8]> {
        (self.extent == RangeExtent::Before).then(|| &self.keys[self.start_bytes as usize..])
    }

    /// Returns the range in request format: the end is empty for a single key, `\0` for no end.
    pub fn range(&self) -> (&[u8], &[u8]) {
        let end: &[u8] = match self.extent {
            RangeExtent::One => b"",
            RangeExtent::Before => &self.keys[self.start_bytes as usize..],
            RangeExtent::Unbounded => b"\0",
        };
        (self.start(), end)
    }

    pub fn keys(&self) -> KeyRange {
        let (start, end) = self.range();
        KeyRange::new(Bytes::copy_from_slice(start), Bytes::copy_from_slice(end))
    }

    pub fn is_one_key(&self) -> bool {
        self.extent == RangeExtent::One
    }

    pub fn form(&self) -> Form {
        self.form
    }

    pub fn key_bytes(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_same(&self, other: &InterestGroup) -> bool {
        (self.form, self.extent, self.start_bytes) == (other.form, other.extent, other.start_bytes)
            && self.keys == other.keys
    }

    pub(super) fn order(&self, other: &InterestGroup) -> std::cmp::Ordering {
        let key = |group: &InterestGroup| (group.extent, group.form);
        self.start()
            .cmp(other.start())
            .then_with(|| self.end().cmp(&other.end()))
            .then_with(|| key(self).cmp(&key(other)))
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self.extent {
            RangeExtent::One => self.start() == key,
            RangeExtent::Before | RangeExtent::Unbounded => self.start() <= key && self.is_before_end(key),
        }
    }

    pub(super) fn is_before_end(&self, key: &[u8]) -> bool {
        self.end().is_none_or(|end| key < end)
    }

    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Returns the number of live members, which are the first ones.
    pub fn live(&self) -> usize {
        self.live as usize
    }

    /// Adds a watcher that is not live. Returns its index.
    pub fn add(&mut self, watcher: u32) -> u32 {
        self.members.push(watcher);
        self.members.len() as u32 - 1
    }

    /// Swaps two members, and returns the member that is now at `place`.
    fn swap(&mut self, place: u32, other: u32) -> (u32, u32) {
        self.members.swap(place as usize, other as usize);
        (self.members[place as usize], place)
    }

    /// Makes the member at `place` live. Returns its new index, and the member that moved to its
    /// old one.
    pub fn set_live(&mut self, place: u32) -> (u32, (u32, u32)) {
        assert!(place >= self.live, "a live watcher becomes live");
        let moved = self.swap(place, self.live);
        self.live += 1;
        (self.live - 1, moved)
    }

    /// Makes the live member at `place` idle. Returns its new index, and the member that moved to
    /// its old one.
    pub fn set_idle(&mut self, place: u32) -> (u32, (u32, u32)) {
        assert!(place < self.live, "a watcher that is not live becomes idle");
        self.live -= 1;
        let moved = self.swap(place, self.live);
        (self.live, moved)
    }

    /// Removes the member at `place`, which is not live. Returns the member that moved to its
    /// index.
    pub fn remove(&mut self, place: u32) -> Option<u32> {
        assert!(place >= self.live, "a live watcher is made idle before it is removed");
        self.members.swap_remove(place as usize);
        self.members.get(place as usize).copied()
    }
}
