//! A leaf: a packed run of adjacent keys. The index grows, splits, counts and prunes by leaves.
//!
//!   bytes      │apple│banana│cherry│          keys end to end
//!   ends       │5    │11    │17    │          where each key ends
//!   histories  │ …   │ …    │ …    │
//!   live         2                           keys whose newest record is a put
//!
//! * Keys ascend strictly. The three columns have one entry per key.
//! * `live` is the number of live histories, so counting a whole leaf is free.
//! * A key longer than `LONE_KEY_BYTES` has a separate leaf. Such a *lone* leaf stores no key bytes: its
//!   fence key in the tree is the key, so a long key is in memory once. Methods that read keys take the fence
//!   key for that.
//! * No record of its keys is newer than `newest`. Removing keys or records need not lower it.
//!
//! An 8-byte key with one record takes 36 bytes. Columns grow in small steps. Their capacity exceeds the
//! content by at most an eighth once a leaf holds 32 keys.
//!
//! A leaf splits in the middle, or at its end when keys arrive in ascending order. Those keys fill their
//! leaves.

use std::cmp::Ordering;

use super::history::KeyHistory;

/// Keys per leaf at most. 256: a split every 128 inserts, a search of eight steps, an insert that moves 6 KiB
/// at worst.
pub(super) const KEYS_MAX: usize = 256;
/// Key bytes per leaf at most, so that long keys do not make inserts slow.
const KEY_BYTES_MAX: usize = 32 << 10;
/// A longer key has a separate leaf. The leaf, its fence key's allocation and its node in the tree take some
/// 250 bytes, an eighth of such a key. Fence keys of other leaves are at most this long.
pub(super) const LONE_KEY_BYTES: usize = 2 << 10;
/// Entries by which a column grows, at least and at most: small leaves stay small, large ones grow every 32
/// inserts.
const GROWTH: (usize, usize) = (2, 32);

/// Columns instead of a vector of pairs: a search reads only keys and ends, and keys need no allocation of
/// their own.
#[derive(Default, Debug)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    /// Empty in a lone leaf.
    ends: Vec<u32>,
    histories: Vec<KeyHistory>,
    live: u32,
    /// Histories with more than one record. If there are none, there is nothing to prune.
    many: u32,
    newest: i64,
}

/// How full a leaf is, or several that are to be merged. A lone leaf counts as full.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafFill {
    keys: usize,
    key_bytes: usize,
}

impl LeafFill {
    /// The sum, if it is at most half of what a leaf may hold.
    pub fn merged_with(self, upper: LeafFill) -> Option<LeafFill> {
        let sum = LeafFill { keys: self.keys + upper.keys, key_bytes: self.key_bytes + upper.key_bytes };
        (sum.keys <= KEYS_MAX / 2 && sum.key_bytes <= KEY_BYTES_MAX / 2).then_some(sum)
    }
}

impl Leaf {
    /// A leaf for one long key, which is its fence key.
    pub fn lone(history: KeyHistory) -> Self {
        let (live, many) = (u32::from(history.is_live()), u32::from(history.is_many()));
        let newest = history.last_revision().main;
        Leaf { histories: vec![history], live, many, newest, ..Leaf::default() }
    }

    pub fn len(&self) -> usize {
        self.histories.len()
    }

    pub fn is_empty(&self) -> bool {
        self.histories.is_empty()
    }

    /// Whether its only key is its fence key.
    pub fn is_lone(&self) -> bool {
        self.ends.len() < self.histories.len()
    }

    /// Keys whose newest record is a put.
    pub fn live(&self) -> usize {
        self.live as usize
    }

    /// An upper bound for the main revision of its newest record. At that revision and later ones the leaf
    /// has not changed.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    /// The key at a position below `len`.
    pub fn key<'a>(&'a self, fence: &'a [u8], position: usize) -> &'a [u8] {
        if self.is_lone() { fence } else { self.own_key(position) }
    }

    /// As `key`, for a leaf that is not lone.
    fn own_key(&self, position: usize) -> &[u8] {
        &self.bytes[self.start(position)..self.ends[position] as usize]
    }

    pub fn history(&self, position: usize) -> &KeyHistory {
        &self.histories[position]
    }

    /// Position of `key`, or the position to insert it at.
    pub fn search(&self, fence: &[u8], key: &[u8]) -> Result<usize, usize> {
        if self.is_lone() {
            // No key of this leaf is less than its fence key.
            return if fence == key { Ok(0) } else { Err(usize::from(fence < key)) };
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.own_key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// As `search`, for keys in ascending order: most of them belong at the end.
    pub fn search_from_last(&self, fence: &[u8], key: &[u8]) -> Result<usize, usize> {
        match self.len().checked_sub(1).map(|last| self.key(fence, last).cmp(key)) {
            None | Some(Ordering::Less) => Err(self.len()),
            Some(Ordering::Equal) => Ok(self.len() - 1),
            Some(Ordering::Greater) => self.search(fence, key),
        }
    }

    /// Changes one history and updates the counts.
    pub fn update<T>(&mut self, position: usize, change: impl FnOnce(&mut KeyHistory) -> T) -> T {
        debug_assert!(self.live() <= self.len(), "more live keys than keys");
        let history = &mut self.histories[position];
        let (was_live, was_many) = (history.is_live(), history.is_many());
        let result = change(history);
        self.newest = self.newest.max(history.last_revision().main);
        self.live = self.live + u32::from(history.is_live()) - u32::from(was_live);
        self.many = self.many + u32::from(history.is_many()) - u32::from(was_many);
        result
    }

    /// Inserts a key at the position that `search` returned. The leaf must have room. All later keys move: at
    /// most 256 keys of 24 bytes of history, eight of key and four of end, 9 KiB, in less than a microsecond.
    pub fn insert(&mut self, position: usize, key: &[u8], history: KeyHistory) {
        debug_assert!(!self.is_lone() && key.len() <= LONE_KEY_BYTES, "a long key has a leaf to itself");
        debug_assert!(position == 0 || self.own_key(position - 1) < key, "keys of a leaf ascend");
        debug_assert!(position == self.len() || self.own_key(position) > key, "keys of a leaf ascend");
        assert!(self.len() < KEYS_MAX, "a leaf that should have been split");
        let (start, old_bytes) = (self.start(position), self.bytes.len());
        grow(&mut self.bytes, key.len(), key.len());
        self.bytes.resize(old_bytes + key.len(), 0);
        // All later key bytes move up.
        self.bytes.copy_within(start..old_bytes, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        for end in &mut self.ends[position..] {
            *end += key.len() as u32;
        }
        grow(&mut self.ends, 1, 1);
        self.ends.insert(position, (start + key.len()) as u32);
        self.live += u32::from(history.is_live());
        self.many += u32::from(history.is_many());
        self.newest = self.newest.max(history.last_revision().main);
        grow(&mut self.histories, 1, 1);
        self.histories.insert(position, history);
    }

    /// Whether another key of `key_bytes` would make it too large.
    pub fn must_split(&self, key_bytes: usize) -> bool {
        self.len() == KEYS_MAX || (self.bytes.len() + key_bytes > KEY_BYTES_MAX && self.len() > 1)
    }

    /// Releases the unused capacity of the columns.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.histories.shrink_to_fit();
    }

    /// Splits the leaf before `position` and returns the upper part.
    pub fn split_off(&mut self, position: usize) -> Leaf {
        assert!(position < self.len() && !self.is_lone(), "a split leaves an upper leaf that holds keys");
        let cut = self.start(position);
        let mut upper = Leaf {
            bytes: self.bytes.split_off(cut),
            ends: self.ends.split_off(position),
            histories: self.histories.split_off(position),
            live: 0,
            many: 0,
            newest: self.newest,
        };
        for end in &mut upper.ends {
            *end -= cut as u32;
        }
        // Only one half is counted; the other is the difference.
        upper.count();
        self.live -= upper.live;
        self.many -= upper.many;
        self.shrink();
        upper
    }

    /// How full it is.
    pub fn fill(&self) -> LeafFill {
        if self.is_lone() {
            return LeafFill { keys: KEYS_MAX, key_bytes: KEY_BYTES_MAX };
        }
        LeafFill { keys: self.len(), key_bytes: self.bytes.len() }
    }

    /// Appends a leaf whose keys all come after this one's.
    pub fn append(&mut self, mut upper: Leaf) {
        if upper.is_empty() {
            return;
        }
        assert!(!self.is_lone() && !upper.is_lone(), "a long key has a leaf to itself");
        assert!(self.is_empty() || self.own_key(self.len() - 1) < upper.own_key(0), "leaves overlap");
        let base = self.bytes.len() as u32;
        self.bytes.reserve_exact(upper.bytes.len());
        self.bytes.append(&mut upper.bytes);
        self.ends.reserve_exact(upper.ends.len());
        self.ends.extend(upper.ends.iter().map(|end| end + base));
        self.histories.reserve_exact(upper.histories.len());
        self.histories.append(&mut upper.histories);
        self.live += upper.live;
        self.many += upper.many;
        self.newest = self.newest.max(upper.newest);
    }

    /// Whether any of its histories has more than one record.
    pub fn has_history(&self) -> bool {
        self.many > 0
    }

    /// Keeps the histories for which `keep` returns true. `keep` may change them, and also gets the key's
    /// length.
    pub fn retain(&mut self, fence: &[u8], mut keep: impl FnMut(usize, &mut KeyHistory) -> bool) {
        if self.is_lone() {
            self.histories.retain_mut(|history| keep(fence.len(), history));
            return self.count();
        }
        let (mut kept, mut kept_bytes, mut start) = (0, 0, 0);
        for position in 0..self.len() {
            let end = self.ends[position] as usize;
            if keep(end - start, &mut self.histories[position]) {
                // Kept keys only move left, so unread bytes are not overwritten.
                self.bytes.copy_within(start..end, kept_bytes);
                kept_bytes += end - start;
                self.ends[kept] = kept_bytes as u32;
                self.histories.swap(kept, position);
                kept += 1;
            }
            start = end;
        }
        let is_shorter = kept < self.len();
        self.bytes.truncate(kept_bytes);
        self.ends.truncate(kept);
        self.histories.truncate(kept);
        if is_shorter {
            self.shrink();
        }
        self.count();
        assert!(self.ends.len() == self.histories.len(), "columns of a leaf differ");
    }

    /// Bytes that the columns reserve.
    #[cfg(test)]
    pub fn reserved_bytes(&self) -> usize {
        let histories = self.histories.capacity() * size_of::<KeyHistory>();
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>() + histories
    }

    /// Recounts live histories and those with more than one record.
    fn count(&mut self) {
        self.live = self.histories.iter().filter(|history| history.is_live()).count() as u32;
        self.many = self.histories.iter().filter(|history| history.is_many()).count() as u32;
    }

    fn start(&self, position: usize) -> usize {
        if position == 0 { 0 } else { self.ends[position - 1] as usize }
    }
}

/// Reserves room in a column for `extra` items, `unit` of them per key: an eighth of its length, within
/// bounds.
fn grow<T>(column: &mut Vec<T>, extra: usize, unit: usize) {
    if column.capacity() - column.len() < extra {
        let (least, most) = (GROWTH.0 * unit, GROWTH.1 * unit);
        column.reserve_exact((column.len() / 8).clamp(least, most.max(least)).max(extra));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::history::Visible;
    use crate::types::Revision;

    fn put(main: i64) -> KeyHistory {
        KeyHistory::with_put(Visible { revision: Revision::first_of(main), create: main, version: 1 })
    }

    fn leaf(keys: &[&str]) -> Leaf {
        let mut leaf = Leaf::default();
        for (number, key) in keys.iter().enumerate() {
            let position = leaf.search(b"", key.as_bytes()).unwrap_err();
            leaf.insert(position, key.as_bytes(), put(number as i64 + 2));
        }
        leaf
    }

    fn keys(leaf: &Leaf) -> Vec<&str> {
        (0..leaf.len()).map(|position| std::str::from_utf8(leaf.key(b"", position)).unwrap()).collect()
    }

    #[test]
    fn keys_are_found_in_order_however_they_were_inserted() {
        let leaf = leaf(&["m", "", "zz", "a", "mm"]);
        assert_eq!(keys(&leaf), ["", "a", "m", "mm", "zz"]);
        assert_eq!(leaf.search(b"", b"mm"), Ok(3));
        assert_eq!(leaf.search(b"", b"n"), Err(4));
        assert_eq!(leaf.history(leaf.search(b"", b"zz").unwrap()), &put(4));
        assert_eq!(leaf.live(), 5);
    }

    #[test]
    fn splitting_and_appending_are_inverse() {
        let mut lower = leaf(&["a", "bb", "c", "dddd", "e"]);
        lower.update(3, |history| history.push_tombstone(Revision::first_of(99)));
        let upper = lower.split_off(2);
        assert_eq!((keys(&lower), lower.live()), (vec!["a", "bb"], 2));
        assert_eq!((keys(&upper), upper.live()), (vec!["c", "dddd", "e"], 2));
        lower.append(upper);
        assert_eq!((keys(&lower), lower.live()), (vec!["a", "bb", "c", "dddd", "e"], 4));
    }

    #[test]
    fn retaining_moves_keys_and_histories_together() {
        for mask in 0u32..32 {
            let mut leaf = leaf(&["a", "bb", "", "dddd", "e"]);
            let all: Vec<_> = (0..5).map(|n| (leaf.key(b"", n).to_vec(), leaf.history(n).clone())).collect();
            let mut asked = 0;
            leaf.retain(b"", |_, _| {
                asked += 1;
                mask >> (asked - 1) & 1 == 1
            });
            let expected: Vec<_> = (0..5).filter(|n| mask >> n & 1 == 1).map(|n| all[n].clone()).collect();
            let left: Vec<_> =
                (0..leaf.len()).map(|n| (leaf.key(b"", n).to_vec(), leaf.history(n).clone())).collect();
            assert_eq!(left, expected, "mask {mask:05b}");
            assert_eq!(leaf.live(), expected.len());
        }
    }

    #[test]
    fn long_keys_split_a_leaf_early() {
        let mut leaf = leaf(&["a"]);
        for number in 0..16 {
            assert!(!leaf.must_split(LONE_KEY_BYTES - 1), "{number}");
            let key = format!("b{number:0>width$}", width = LONE_KEY_BYTES - 2);
            leaf.insert(leaf.len(), key.as_bytes(), put(9));
        }
        assert!(leaf.must_split(LONE_KEY_BYTES));
    }

    #[test]
    fn columns_reserve_an_eighth_at_most_and_a_split_gives_it_back() {
        let mut leaf = Leaf::default();
        for number in 0..KEYS_MAX {
            leaf.insert(number, format!("{number:020}").as_bytes(), put(2));
            let len = leaf.len();
            assert!(leaf.ends.capacity() <= len + (len / 8).max(2), "{len}");
            assert!(leaf.histories.capacity() <= len + (len / 8).max(2), "{len}");
            assert!(leaf.bytes.capacity() <= 20 * (len + (len / 8).max(2)), "{len}");
        }
        let upper = leaf.split_off(100);
        for (half, len) in [(&leaf, 100), (&upper, 156)] {
            let capacities = (half.bytes.capacity(), half.ends.capacity(), half.histories.capacity());
            assert_eq!(capacities, (20 * len, len, len));
        }
    }

    #[test]
    fn a_lone_leaf_has_its_fence_key_as_its_key() {
        let fence = "long".as_bytes();
        let mut leaf = Leaf::lone(put(7));
        assert_eq!((leaf.len(), leaf.live(), leaf.key(fence, 0)), (1, 1, fence));
        assert_eq!(leaf.search(fence, fence), Ok(0));
        assert_eq!((leaf.search(fence, b"a"), leaf.search(fence, b"z")), (Err(0), Err(1)));
        assert_eq!(
            (leaf.search_from_last(fence, fence), leaf.search_from_last(fence, b"z")),
            (Ok(0), Err(1))
        );
        leaf.update(0, |history| history.push_tombstone(Revision::first_of(9)));
        assert_eq!((leaf.live(), leaf.has_history()), (0, true));
        leaf.retain(fence, |key_bytes, _| key_bytes != 4);
        assert!(leaf.is_empty() && !leaf.is_lone());
    }
}
