//! A run of neighbouring keys, packed: the unit in which the index grows, splits, counts and is pruned.
//!
//!   bytes      │apple│banana│cherry│          keys end to end
//!   ends       │5    │11    │17    │          where each key ends
//!   histories  │ …   │ …    │ …    │
//!   live         2                           keys whose newest record is a put
//!
//! * Keys ascend strictly; the three columns have one entry per key.
//! * `live` always equals the number of live histories: counting a full leaf costs nothing.
//!
//! An 8-byte key with one record costs 36 bytes here and no allocation of its own.
//!
//! A leaf splits in the middle, or at its end when keys come in ascending order: those fill their leaves to the brim.

use std::cmp::Ordering;

use crate::history::History;

/// Keys per leaf at most. 256: a split every 128 inserts, a search of eight steps, an insert that moves 6 KiB at worst.
pub(crate) const KEYS_MAX: usize = 256;
/// Key bytes per leaf at most, so that long keys do not make inserts slow.
const KEY_BYTES_MAX: usize = 32 << 10;

/// Columns instead of a vector of pairs: a search touches keys and ends only, and neither costs an allocation per key.
#[derive(Default, Debug)]
pub(crate) struct Leaf {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    histories: Vec<History>,
    live: usize,
}

impl Leaf {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Keys whose newest record is a put.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The key at a position, which must be less than `len`.
    pub fn key(&self, position: usize) -> &[u8] {
        &self.bytes[self.start(position)..self.ends[position] as usize]
    }

    pub fn history(&self, position: usize) -> &History {
        &self.histories[position]
    }

    /// Position of `key`, or the position where it belongs.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// As `search`, for keys that come in ascending order: most of them belong behind all others.
    pub fn search_from_last(&self, key: &[u8]) -> Result<usize, usize> {
        match self.len().checked_sub(1).map(|last| self.key(last).cmp(key)) {
            None | Some(Ordering::Less) => Err(self.len()),
            Some(Ordering::Equal) => Ok(self.len() - 1),
            Some(Ordering::Greater) => self.search(key),
        }
    }

    /// Changes one history and keeps the count of live keys right.
    pub fn update<T>(&mut self, position: usize, change: impl FnOnce(&mut History) -> T) -> T {
        debug_assert!(self.live <= self.len(), "more live keys than keys");
        let history = &mut self.histories[position];
        let was_live = history.is_live();
        let result = change(history);
        self.live = self.live + usize::from(history.is_live()) - usize::from(was_live);
        result
    }

    /// Inserts a key where `search` said it belongs. Everything behind it moves: 256 keys of 24 bytes of history, eight of
    /// key and four of end are 9 KiB at worst, less than a microsecond.
    pub fn insert(&mut self, position: usize, key: &[u8], history: History) {
        debug_assert!(position == 0 || self.key(position - 1) < key, "keys of a leaf ascend");
        debug_assert!(position == self.len() || self.key(position) > key, "keys of a leaf ascend");
        assert!(self.len() <= KEYS_MAX, "a leaf that should have been split");
        let (start, old_bytes) = (self.start(position), self.bytes.len());
        self.bytes.resize(old_bytes + key.len(), 0);
        // Room for the key where it belongs: all key bytes behind it move up.
        self.bytes.copy_within(start..old_bytes, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        for end in &mut self.ends[position..] {
            *end += key.len() as u32;
        }
        self.ends.insert(position, (start + key.len()) as u32);
        self.live += usize::from(history.is_live());
        self.histories.insert(position, history);
    }

    /// Whether the last insert made it too large. A single key longer than the limit has a leaf to itself.
    pub fn must_split(&self) -> bool {
        self.len() > KEYS_MAX || (self.bytes.len() > KEY_BYTES_MAX && self.len() > 1)
    }

    /// Cuts the leaf before `position` and returns the upper part.
    pub fn split_off(&mut self, position: usize) -> Leaf {
        assert!(0 < position && position < self.len(), "a split leaves two leaves that hold keys");
        let cut = self.start(position);
        let mut upper = Leaf {
            bytes: self.bytes.split_off(cut),
            ends: self.ends.split_off(position),
            histories: self.histories.split_off(position),
            live: 0,
        };
        for end in &mut upper.ends {
            *end -= cut as u32;
        }
        // Counted anew for one half only; the other is what is left of the sum.
        upper.live = upper.histories.iter().filter(|history| history.is_live()).count();
        self.live -= upper.live;
        assert!(!self.must_split() || self.len() > 1, "a leaf of one key never splits");
        upper
    }

    /// Appends a leaf whose keys all come after this one's.
    pub fn append(&mut self, mut upper: Leaf) {
        assert!(
            self.is_empty() || upper.is_empty() || self.key(self.len() - 1) < upper.key(0),
            "leaves overlap"
        );
        let base = self.bytes.len() as u32;
        self.bytes.append(&mut upper.bytes);
        self.ends.extend(upper.ends.iter().map(|end| end + base));
        self.histories.append(&mut upper.histories);
        self.live += upper.live;
    }

    /// Keeps only the histories that `keep`, which may change them, says to keep.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut History) -> bool) {
        let (mut kept, mut kept_bytes, mut start) = (0, 0, 0);
        for position in 0..self.len() {
            let end = self.ends[position] as usize;
            if keep(&mut self.histories[position]) {
                // What is kept moves left only, so nothing unread is overwritten.
                self.bytes.copy_within(start..end, kept_bytes);
                kept_bytes += end - start;
                self.ends[kept] = kept_bytes as u32;
                self.histories.swap(kept, position);
                kept += 1;
            }
            start = end;
        }
        self.bytes.truncate(kept_bytes);
        self.ends.truncate(kept);
        self.histories.truncate(kept);
        self.live = self.histories.iter().filter(|history| history.is_live()).count();
        assert!(
            self.live <= self.len() && self.ends.len() == self.histories.len(),
            "columns of a leaf differ"
        );
    }

    fn start(&self, position: usize) -> usize {
        if position == 0 { 0 } else { self.ends[position - 1] as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Visible;
    use crate::revision::Revision;

    fn put(main: i64) -> History {
        History::with_put(Visible { revision: Revision::first_of(main), create: main, version: 1 })
    }

    fn leaf(keys: &[&str]) -> Leaf {
        let mut leaf = Leaf::default();
        for (number, key) in keys.iter().enumerate() {
            let position = leaf.search(key.as_bytes()).unwrap_err();
            leaf.insert(position, key.as_bytes(), put(number as i64 + 2));
        }
        leaf
    }

    fn keys(leaf: &Leaf) -> Vec<&str> {
        (0..leaf.len()).map(|position| std::str::from_utf8(leaf.key(position)).unwrap()).collect()
    }

    #[test]
    fn keys_are_found_in_order_however_they_were_inserted() {
        let leaf = leaf(&["m", "", "zz", "a", "mm"]);
        assert_eq!(keys(&leaf), ["", "a", "m", "mm", "zz"]);
        assert_eq!(leaf.search(b"mm"), Ok(3));
        assert_eq!(leaf.search(b"n"), Err(4));
        assert_eq!(leaf.history(leaf.search(b"zz").unwrap()), &put(4));
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
            let all: Vec<_> = (0..5).map(|n| (leaf.key(n).to_vec(), leaf.history(n).clone())).collect();
            let mut asked = 0;
            leaf.retain(|_| {
                asked += 1;
                mask >> (asked - 1) & 1 == 1
            });
            let expected: Vec<_> = (0..5).filter(|n| mask >> n & 1 == 1).map(|n| all[n].clone()).collect();
            let left: Vec<_> =
                (0..leaf.len()).map(|n| (leaf.key(n).to_vec(), leaf.history(n).clone())).collect();
            assert_eq!(left, expected, "mask {mask:05b}");
            assert_eq!(leaf.live(), expected.len());
        }
    }

    #[test]
    fn long_keys_split_a_leaf_early() {
        let long = "x".repeat(KEY_BYTES_MAX / 2);
        let mut leaf = leaf(&["a"]);
        for number in 0..2 {
            assert!(!leaf.must_split());
            leaf.insert(number + 1, format!("{long}{number}").as_bytes(), put(9));
        }
        assert!(leaf.must_split());
    }
}
