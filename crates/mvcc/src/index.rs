//! All keys in order, each with its history. Values live elsewhere (`directory`).
//!
//!   "" ──▶ leaf [aa … cz]      "d" ──▶ leaf [d … hello]      "help" ──▶ leaf [help … zz]
//!
//! * A leaf is filed under a lower bound of its keys; the first is filed under the empty key, so every key has a leaf.
//! * Leaves do not overlap. A leaf that compaction empties is removed, unless it is the first.
//!
//! Counting keys of the newest state costs one step per leaf, not per key. Older states are counted key by key.
//! A million keys of eight bytes make some 4000 to 8000 leaves and take some 40 MB; finding one takes two binary searches of
//! about a dozen steps each, the first over names that lie in one B-tree.
//! Knows no locks: its owner holds them, and bounds the work per call.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use crate::history::{History, Visible};
use crate::leaf::{KEYS_MAX, Leaf};
use crate::range::KeyRange;
use crate::revision::Revision;

#[derive(Debug)]
pub(crate) struct Index {
    leaves: BTreeMap<Box<[u8]>, Leaf>,
}

/// Where a bounded walk over the keys goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    From(Box<[u8]>),
    End,
}

impl Index {
    /// No keys. The leaf under the empty name is there from the start and never goes, so every key has a leaf to be in.
    pub fn new() -> Self {
        Index { leaves: BTreeMap::from([(Box::from(&b""[..]), Leaf::default())]) }
    }

    /// The history of one key, whether or not it exists now: two binary searches, of leaves and in a leaf.
    pub fn get(&self, key: &[u8]) -> Option<&History> {
        let (_, leaf) = self.leaves.range::<[u8], _>(up_to(key)).next_back()?;
        leaf.search(key).ok().map(|position| leaf.history(position))
    }

    /// Records a put by the writer, and returns the version that it creates.
    pub fn put(&mut self, key: &[u8], revision: Revision) -> Visible {
        let first = Visible { revision, create: revision.main, version: 1 };
        self.change(
            key,
            |history| {
                let put = history.next_put(revision);
                history.push_put(put);
                put
            },
            || (History::with_put(first), first),
        )
    }

    /// Records the delete of a live key by the writer.
    pub fn delete(&mut self, key: &[u8], revision: Revision) {
        self.change(
            key,
            |history| history.push_tombstone(revision),
            || unreachable!("only a key that is there is deleted"),
        )
    }

    /// Puts back what was read from blocks. Changes come sorted by key, and those of one key in their order; `begin` makes the
    /// history of a key that is not there, and `follow` continues that of one which is.
    pub fn restore<'k, C, E>(
        &mut self,
        changes: impl Iterator<Item = (&'k [u8], C)>,
        mut begin: impl FnMut(C) -> History,
        mut follow: impl FnMut(&mut History, C) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut changes = changes.peekable();
        // One search for a leaf, then all that belongs into it, until it is full.
        while let Some((key, _)) = changes.peek() {
            let beyond = self.leaves.range::<[u8], _>((Bound::Excluded(*key), Bound::Unbounded)).next();
            let end = beyond.map(|(name, _)| name.clone());
            let leaf = self.leaf_mut(key);
            let mut upper = None;
            while upper.is_none()
                && let Some((key, change)) =
                    changes.next_if(|(key, _)| end.as_ref().is_none_or(|end| *key < end.as_ref()))
            {
                match leaf.search_from_last(key) {
                    Ok(position) => leaf.update(position, |history| follow(history, change))?,
                    Err(position) => upper = insert(leaf, position, key, begin(change)),
                }
            }
            self.file(upper);
        }
        Ok(())
    }

    /// Visits the keys of `range` whether or not they exist at any one revision.
    pub fn visit_all<B>(
        &self,
        range: &KeyRange,
        mut visitor: impl FnMut(&[u8], &History) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        for (leaf, from) in self.leaves_of(range) {
            for position in from..leaf.len() {
                let key = leaf.key(position);
                if !range.is_before_end(key) {
                    return ControlFlow::Continue(());
                }
                visitor(key, leaf.history(position))?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Live keys of `range` in the newest state: a sum over leaves, and a look into the two at the borders.
    pub fn count_live(&self, range: &KeyRange) -> usize {
        // Inner leaves lie wholly inside and know their count; a look into the first and the last one decides the rest.
        let mut count = 0;
        for (leaf, from) in self.leaves_of(range) {
            let is_whole = from == 0 && !leaf.is_empty() && range.is_before_end(leaf.key(leaf.len() - 1));
            if is_whole {
                count += leaf.live();
                continue;
            }
            let inside = (from..leaf.len()).take_while(|position| range.is_before_end(leaf.key(*position)));
            count += inside.filter(|position| leaf.history(*position).is_live()).count();
        }
        count
    }

    /// Prunes whole leaves, beginning with the one filed under `from` (empty: the first), until `keys_max` keys were visited.
    /// Dropped revisions are appended to `dropped`.
    pub fn prune(&mut self, from: &[u8], at: i64, keys_max: usize, dropped: &mut Vec<Revision>) -> Next {
        assert!(keys_max > 0, "a step that visits nothing never ends");
        let mut visited = 0;
        let (mut merge, mut next) = (Vec::new(), Next::End);
        // How full the leaf to the left is, merges of this very walk included.
        let mut previous_len = None;
        for (name, leaf) in self.leaves.range_mut::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            if visited >= keys_max {
                next = Next::From(name.clone());
                break;
            }
            // Even an empty leaf is paid for, or a walk over many of them would have no bound.
            visited += leaf.len().max(1);
            leaf.retain(|history| history.prune(at, dropped));
            // A leaf that fits easily into its left neighbour moves there; an empty one always fits.
            match previous_len {
                Some(left) if left + leaf.len() <= KEYS_MAX / 2 || leaf.is_empty() => {
                    merge.push(name.clone());
                    previous_len = Some(left + leaf.len());
                }
                _ => previous_len = Some(leaf.len()),
            }
        }
        // After the walk, since it borrows the leaves. Each leaf is merged to the left once, into one that had room for it.
        for name in merge {
            self.merge_left(&name);
        }
        next
    }

    /// Moves the keys of the leaf filed under `name` into its left neighbour.
    fn merge_left(&mut self, name: &[u8]) {
        let leaf = self.leaves.remove(name).expect("leaves to merge were just visited");
        let (_, left) =
            self.leaves.range_mut::<[u8], _>(up_to(name)).next_back().expect("the first leaf never moves");
        left.append(leaf);
    }

    /// Leaves that may hold keys of `range`, each with the first position to look at.
    fn leaves_of<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a Leaf, usize)> + 'a {
        let start = range.start().as_ref();
        // An inverted range must not reach `BTreeMap::range`, which panics on one.
        // Nothing to look at, or the leaf where the range starts and all up to its end.
        let bounds = (!range.is_empty()).then(|| (self.leaf_name(start), range.end_bound()));
        let leaves = bounds.into_iter().flat_map(|(name, end)| {
            self.leaves.range::<[u8], _>((Bound::Included(name), end)).map(|(_, leaf)| leaf)
        });
        leaves.enumerate().map(move |(number, leaf)| {
            let from = if number == 0 { leaf.search(start).unwrap_or_else(|position| position) } else { 0 };
            (leaf, from)
        })
    }

    /// The name under which the leaf of `key` is filed.
    fn leaf_name(&self, key: &[u8]) -> &[u8] {
        let (name, _) =
            self.leaves.range::<[u8], _>(up_to(key)).next_back().expect("the first leaf holds every key");
        name
    }

    /// Changes the history of `key`, or inserts the one that `create` makes.
    fn change<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut History) -> T,
        create: impl FnOnce() -> (History, T),
    ) -> T {
        let leaf = self.leaf_mut(key);
        match leaf.search(key) {
            Ok(position) => leaf.update(position, change),
            Err(position) => {
                let (history, result) = create();
                let upper = insert(leaf, position, key, history);
                self.file(upper);
                result
            }
        }
    }

    fn leaf_mut(&mut self, key: &[u8]) -> &mut Leaf {
        let mut leaves = self.leaves.range_mut::<[u8], _>(up_to(key));
        leaves.next_back().map(|(_, leaf)| leaf).expect("the first leaf holds every key")
    }

    /// Takes in the upper part of a leaf that was split.
    fn file(&mut self, upper: Option<Leaf>) {
        if let Some(upper) = upper {
            self.leaves.insert(Box::from(upper.key(0)), upper);
        }
    }
}

/// Inserts a key, and returns the upper part of a leaf that became too large by it.
fn insert(leaf: &mut Leaf, position: usize, key: &[u8], history: History) -> Option<Leaf> {
    leaf.insert(position, key, history);
    // Keys that arrive in ascending order fill leaves to the brim; others leave both halves room.
    let is_last = position + 1 == leaf.len();
    leaf.must_split().then(|| leaf.split_off(if is_last { position } else { leaf.len() / 2 }))
}

/// Everything up to and including `key`; its greatest element is the leaf of `key`.
fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn key(number: usize) -> Vec<u8> {
        format!("key{number:05}").into_bytes()
    }

    /// Puts keys in an order that is neither ascending nor random: every `step`-th, wrapping around.
    fn index(keys: usize, step: usize) -> Index {
        let mut index = Index::new();
        for number in 0..keys {
            index.put(&key(number * step % keys), Revision::first_of(number as i64 + 2));
        }
        index
    }

    fn range(from: usize, to: usize) -> KeyRange {
        KeyRange::new(Bytes::from(key(from)), Bytes::from(key(to)))
    }

    fn live_keys(index: &Index, range: &KeyRange) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let _ = index.visit_all::<()>(range, |key, history| {
            if history.is_live() {
                keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        });
        keys
    }

    /// What must hold whatever happened: leaves ascend, are filed under a lower bound, and count right.
    fn check(index: &Index) {
        let mut last: Option<Vec<u8>> = None;
        assert!(index.leaves.contains_key(&b""[..]), "the first leaf never goes");
        for (name, leaf) in &index.leaves {
            assert!(
                leaf.len() <= KEYS_MAX && (!leaf.is_empty() || name.is_empty()),
                "an empty leaf was left"
            );
            for position in 0..leaf.len() {
                let key = leaf.key(position);
                assert!(key >= name.as_ref() && last.as_deref() < Some(key));
                last = Some(key.to_vec());
            }
            let live = (0..leaf.len()).filter(|position| leaf.history(*position).is_live()).count();
            assert_eq!(leaf.live(), live);
        }
    }

    #[test]
    fn every_key_is_found_whatever_the_order_of_arrival() {
        for step in [1, 7, 1999] {
            let index = index(2000, step);
            check(&index);
            for number in 0..2000 {
                assert!(index.get(&key(number)).is_some(), "step {step}, key {number}");
            }
            assert!(index.get(b"absent").is_none() && index.get(b"").is_none());
            assert_eq!(live_keys(&index, &KeyRange::all()), (0..2000).map(key).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_that_arrive_in_order_fill_their_leaves() {
        assert_eq!(index(2560, 1).leaves.len(), 10);
    }

    #[test]
    fn sorted_changes_are_restored_into_an_empty_index_and_between_other_keys() {
        let mut index = Index::new();
        for (begin, step, version) in [(1, 3, 1), (0, 1, 2), (0, 7, 3)] {
            let keys: Vec<_> = (begin..3000).step_by(step).map(key).collect();
            let put = |main| Visible { revision: Revision::first_of(main), create: 2, version: 1 };
            let follow = |history: &mut History, main| {
                let newest = history.newest().expect("nothing was deleted");
                let put = Visible { create: 2, version: newest.version + 1, ..put(main) };
                history.push_put(put);
                Ok::<_, ()>(())
            };
            let changes = keys.iter().map(|key| (key.as_slice(), 10 * version));
            index.restore(changes, |main| History::with_put(put(main)), follow).unwrap();
            check(&index);
        }
        for (number, version) in [(0, 2), (1, 2), (2, 1), (7, 3), (14, 2), (2999, 1)] {
            let newest = index.get(&key(number)).unwrap().newest().unwrap();
            assert_eq!(newest.version, version, "{number}");
        }
        assert_eq!(index.count_live(&KeyRange::all()), 3000);
    }

    #[test]
    fn counting_by_leaves_equals_counting_by_keys() {
        let mut index = index(1500, 7);
        for number in (0..1500).step_by(3) {
            index.delete(&key(number), Revision::first_of(5000 + number as i64));
        }
        check(&index);
        for (from, to) in [(0, 1500), (1, 2), (255, 257), (100, 1400), (700, 700), (900, 100), (1499, 9999)] {
            let range = range(from, to);
            assert_eq!(index.count_live(&range), live_keys(&index, &range).len(), "{from} to {to}");
        }
        assert_eq!(index.count_live(&KeyRange::all()), 1000);
        assert_eq!(index.count_live(&KeyRange::one(Bytes::from(key(1)))), 1);
        assert_eq!(index.count_live(&KeyRange::one(Bytes::from(key(3)))), 0);
    }

    #[test]
    fn pruning_in_steps_of_any_size_drops_the_same() {
        let build = || {
            let mut index = index(1000, 3);
            for number in 0..1000 {
                let revision = Revision::first_of(2000 + number as i64);
                if number % 50 == 0 {
                    index.put(&key(number), revision);
                } else {
                    index.delete(&key(number), revision);
                }
            }
            index
        };
        let mut all = Vec::new();
        assert_eq!(build().prune(b"", 4000, usize::MAX, &mut all), Next::End);
        all.sort();
        for keys_max in [1, 100, 300] {
            let (mut index, mut dropped, mut from, mut steps) = (build(), Vec::new(), Box::from(&b""[..]), 0);
            while let Next::From(next) = index.prune(&from, 4000, keys_max, &mut dropped) {
                from = next;
                steps += 1;
                check(&index);
            }
            dropped.sort();
            assert_eq!((dropped, index.count_live(&KeyRange::all())), (all.clone(), 20));
            assert!(steps > 1, "{keys_max} keys at a time took {steps} steps");
            check(&index);
        }
    }

    #[test]
    fn leaves_that_shrink_are_merged() {
        let mut index = index(5000, 1);
        for number in (0..5000).filter(|number| number % 100 != 0) {
            index.delete(&key(number), Revision::first_of(6000 + number as i64));
        }
        index.prune(b"", 20_000, usize::MAX, &mut Vec::new());
        check(&index);
        assert_eq!(live_keys(&index, &KeyRange::all()).len(), 50);
        assert_eq!(index.leaves.len(), 1);
        index.put(b"key00050", Revision::first_of(30_000));
        check(&index);
    }

    #[test]
    #[should_panic(expected = "only a key that is there")]
    fn deleting_an_unknown_key_is_our_bug() {
        Index::new().delete(b"a", Revision::first_of(2));
    }
}
