//! All keys in order, each with its history. Values are in blocks.
//!
//!   "" ──▶ leaf [aa … cz]      "d" ──▶ leaf [d … hello]      "help" ──▶ leaf [help … zz]
//!
//! * The tree maps a fence key to each leaf: a lower bound of the leaf's keys. The first fence key is empty,
//!   so every key belongs to a leaf.
//! * A fence key is the shortest string that separates the leaf from its left neighbour. The fence key of a
//!   lone leaf, which holds one long key, is that key.
//! * Leaves do not overlap. A leaf that compaction empties is removed, unless it is the first.
//! * `stats` counts the contents of the leaves.
//!
//! A million keys of eight bytes make some 4000 to 8000 leaves and take some 45 MB. A lookup takes two binary
//! searches of about a dozen steps each. The first is over the fence keys, in one B-tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::history::{KeyHistory, Visible};
use super::leaf::{LONE_KEY_BYTES, Leaf, LeafFill};
use super::stats::{HistoryShape, IndexStats};
use crate::range::KeyRange;
use crate::types::Revision;

#[derive(Debug)]
pub(crate) struct Index {
    leaves: Leaves,
    stats: IndexStats,
}

type Leaves = BTreeMap<Box<[u8]>, Leaf>;

/// Leaves that an insert has created, with their fence keys. Most inserts create none.
type NewLeaves = [Option<(Box<[u8]>, Leaf)>; 2];

/// Where a bounded pass over the leaves continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextLeaf {
    From(Box<[u8]>),
    End,
}

impl Index {
    /// An index without keys. The leaf with the empty fence key always exists.
    pub fn new() -> Self {
        let leaves = BTreeMap::from([(Box::from(&b""[..]), Leaf::default())]);
        Index { leaves, stats: IndexStats::default() }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        self.stats.memory_bytes()
    }

    /// Flips the version of a key with one record, or whether it has a lease, for `recount/damage`. False if
    /// there is no such key.
    pub fn flip(&mut self, key: &[u8], is_lease: bool) -> bool {
        let (fence, leaf) = leaf_mut(&mut self.leaves, key);
        let Ok(position) = leaf.search(fence, key) else { return false };
        leaf.update(position, |history| history.flip(is_lease))
    }

    /// The history of one key, also if the key is deleted.
    pub fn get(&self, key: &[u8]) -> Option<&KeyHistory> {
        let (fence, leaf) = self.leaves.range::<[u8], _>(up_to(key)).next_back()?;
        leaf.search(fence, key).ok().map(|position| leaf.history(position))
    }

    /// Records a put, and returns the version that it creates. `is_leased`: it attaches a lease. The second
    /// result is whether the put before it did.
    pub fn put(&mut self, key: &[u8], revision: Revision, is_leased: bool) -> (Visible, bool) {
        let first = Visible { revision, create: revision.main, version: 1 };
        self.change(
            key,
            |history| {
                let (put, was_leased) = (history.next_put(revision), history.is_leased());
                history.push_put(put);
                history.set_leased(is_leased);
                (put, was_leased)
            },
            || {
                let mut history = KeyHistory::with_put(first);
                history.set_leased(is_leased);
                (history, (first, false))
            },
        )
    }

    /// Adds changes that were read from blocks. They are sorted by key, and by revision for each key. `begin`
    /// makes the history of a new key, and `follow` appends to that of a known one.
    pub fn restore<'k, C, E>(
        &mut self,
        changes: impl Iterator<Item = (&'k [u8], C)>,
        mut begin: impl FnMut(C) -> KeyHistory,
        mut follow: impl FnMut(&mut KeyHistory, C) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut changes = changes.peekable();
        // One search for a leaf, then all changes that belong to it, until it is full.
        while let Some((key, _)) = changes.peek() {
            let beyond = self.leaves.range::<[u8], _>((Bound::Excluded(*key), Bound::Unbounded)).next();
            let end = beyond.map(|(fence, _)| fence.clone());
            let (fence, leaf) = leaf_mut(&mut self.leaves, key);
            let mut new_leaves = NewLeaves::default();
            while new_leaves[0].is_none()
                && let Some((key, change)) =
                    changes.next_if(|(key, _)| end.as_ref().is_none_or(|end| *key < end.as_ref()))
            {
                match leaf.search_from_last(fence, key) {
                    Ok(position) => {
                        let stats = &mut self.stats;
                        leaf.update(position, |history| counted(stats, history, |it| follow(it, change)))?;
                    }
                    Err(position) => {
                        let history = begin(change);
                        self.stats.add_key(key.len(), &history);
                        new_leaves = insert(fence, leaf, position, key, history);
                    }
                }
            }
            self.insert_leaves(new_leaves);
        }
        Ok(())
    }

    /// Prunes whole leaves, from the one with fence key `from` on, until `keys_max` keys were visited. Calls
    /// `dropped` with the removed revisions. A leaf without superseded records counts as one key.
    pub fn prune(
        &mut self,
        from: &[u8],
        at: i64,
        keys_max: usize,
        mut dropped: impl FnMut(Revision),
    ) -> NextLeaf {
        assert!(keys_max > 0, "a step that visits nothing never ends");
        let mut visited = 0;
        let (mut merge, mut next) = (Vec::new(), NextLeaf::End);
        // How full the leaf to the left will be after the merges of this pass.
        let mut left: Option<LeafFill> = None;
        let stats = &mut self.stats;
        for (fence, leaf) in self.leaves.range_mut::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            if visited >= keys_max {
                next = NextLeaf::From(fence.clone());
                break;
            }
            // An empty leaf counts too, or a pass over many of them would have no bound.
            visited += 1;
            if leaf.has_history() {
                visited += leaf.len();
                leaf.retain(fence, |key_bytes, history| {
                    prune_counted(stats, key_bytes, history, at, &mut dropped)
                });
            }
            // A leaf that fits easily into its left neighbour is merged with it; an empty one always fits.
            let merged = left.and_then(|left| left.merged_with(leaf.fill()));
            if merged.is_some() || (leaf.is_empty() && !fence.is_empty()) {
                merge.push(fence.clone());
                left = merged.or(left);
            } else {
                left = Some(leaf.fill());
            }
        }
        // After the pass, which borrows the leaves. Each leaf is merged once, into one that has room for it.
        for fence in merge {
            self.merge_left(&fence);
        }
        next
    }

    /// Moves the keys of a leaf into its left neighbour.
    fn merge_left(&mut self, fence: &[u8]) {
        let leaf = self.leaves.remove(fence).expect("leaves to merge were just visited");
        leaf_mut(&mut self.leaves, fence).1.append(leaf);
    }

    /// Leaves that may hold keys of `range`, each with its fence key and the first position to read.
    pub(super) fn leaves_of<'a>(
        &'a self,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = (&'a [u8], &'a Leaf, usize)> + 'a {
        let start = range.start().as_ref();
        // `BTreeMap::range` panics on an inverted range.
        let bounds = (!range.is_empty()).then(|| (self.fence_of(start), range.end_bound()));
        let leaves = bounds
            .into_iter()
            .flat_map(|(fence, end)| self.leaves.range::<[u8], _>((Bound::Included(fence), end)));
        leaves.enumerate().map(move |(number, (fence, leaf))| {
            let from =
                if number == 0 { leaf.search(fence, start).unwrap_or_else(|position| position) } else { 0 };
            (fence.as_ref(), leaf, from)
        })
    }

    /// Mutable leaves from fence key `fence` to `end`, and the counts to update.
    pub(super) fn leaves_between<'a>(
        &'a mut self,
        fence: &'a [u8],
        end: Bound<&'a [u8]>,
    ) -> (impl Iterator<Item = (&'a [u8], &'a mut Leaf)> + 'a, &'a mut IndexStats) {
        let leaves = self.leaves.range_mut::<[u8], _>((Bound::Included(fence), end));
        (leaves.map(|(fence, leaf)| (fence.as_ref(), leaf)), &mut self.stats)
    }

    /// The fence key of the leaf of `key`.
    pub(super) fn fence_of(&self, key: &[u8]) -> &[u8] {
        let (fence, _) =
            self.leaves.range::<[u8], _>(up_to(key)).next_back().expect("the first leaf holds every key");
        fence
    }

    /// Changes the history of `key`, or inserts the one from `create`. Either adds one record.
    fn change<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut KeyHistory) -> T,
        create: impl FnOnce() -> (KeyHistory, T),
    ) -> T {
        let (fence, leaf) = leaf_mut(&mut self.leaves, key);
        let stats = &mut self.stats;
        match leaf.search(fence, key) {
            Ok(position) => leaf.update(position, |history| counted(stats, history, change)),
            Err(position) => {
                let (history, result) = create();
                stats.add_key(key.len(), &history);
                let new_leaves = insert(fence, leaf, position, key, history);
                self.insert_leaves(new_leaves);
                result
            }
        }
    }

    /// Adds leaves that an insert has created.
    fn insert_leaves(&mut self, new_leaves: NewLeaves) {
        for (fence, leaf) in new_leaves.into_iter().flatten() {
            let replaced = self.leaves.insert(fence, leaf);
            assert!(replaced.is_none(), "a name that was taken");
        }
    }
}

/// Inserts a key into its leaf, and returns the leaves that were created for it.
fn insert(fence: &[u8], leaf: &mut Leaf, position: usize, key: &[u8], history: KeyHistory) -> NewLeaves {
    if key.len() > LONE_KEY_BYTES {
        // The leaf splits at the key, which gets a separate leaf in between.
        let upper = (position < leaf.len()).then(|| leaf.split_off(position));
        let upper = upper.map(|upper| (separator(key, upper.key(b"", 0)), upper));
        return [Some((key.into(), Leaf::lone(history))), upper];
    }
    if leaf.is_lone() {
        let mut upper = Leaf::default();
        upper.insert(0, key, history);
        return [Some((separator(fence, key), upper)), None];
    }
    if !leaf.must_split(key.len()) {
        leaf.insert(position, key, history);
        return NewLeaves::default();
    }
    // Keys in ascending order fill their leaves; others leave room in both halves.
    let upper = if position == leaf.len() {
        leaf.shrink();
        let mut upper = Leaf::default();
        upper.insert(0, key, history);
        upper
    } else {
        let middle = leaf.len() / 2;
        let mut upper = leaf.split_off(middle);
        match position.checked_sub(middle).filter(|position| *position > 0) {
            Some(position) => upper.insert(position, key, history),
            None => leaf.insert(position, key, history),
        }
        upper
    };
    let fence = separator(leaf.key(fence, leaf.len() - 1), upper.key(b"", 0));
    [Some((fence, upper)), None]
}

/// The shortest string `s` with `lower` < `s` ≤ `upper`.
fn separator(lower: &[u8], upper: &[u8]) -> Box<[u8]> {
    let shared = lower.iter().zip(upper).take_while(|(lower, upper)| lower == upper).count();
    upper[..=shared].into()
}

/// Makes a change that adds one record to a known key, and counts it.
pub(super) fn counted<T>(
    stats: &mut IndexStats,
    history: &mut KeyHistory,
    change: impl FnOnce(&mut KeyHistory) -> T,
) -> T {
    let before = HistoryShape::of(history);
    let result = change(history);
    stats.add_record(before, HistoryShape::of(history));
    result
}

/// `KeyHistory::prune` with counting.
fn prune_counted(
    stats: &mut IndexStats,
    key_bytes: usize,
    history: &mut KeyHistory,
    at: i64,
    dropped: &mut impl FnMut(Revision),
) -> bool {
    let (before, mut count) = (HistoryShape::of(history), 0);
    let is_left = history.prune(at, &mut |revision| {
        count += 1;
        dropped(revision);
    });
    let after = is_left.then(|| HistoryShape::of(history));
    stats.prune(key_bytes, count, before, after);
    is_left
}

/// The leaf of `key`, and its fence key.
fn leaf_mut<'a>(leaves: &'a mut Leaves, key: &[u8]) -> (&'a [u8], &'a mut Leaf) {
    let (fence, leaf) =
        leaves.range_mut::<[u8], _>(up_to(key)).next_back().expect("the first leaf holds every key");
    (fence, leaf)
}

/// All fence keys up to `key`; the last one is that of the leaf of `key`.
fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    use bytes::Bytes;

    use crate::index::walk::IndexWalk;

    fn key(number: usize) -> Vec<u8> {
        format!("key{number:05}").into_bytes()
    }

    /// Inserts keys in an order that is neither ascending nor random: every `step`-th, wrapping around.
    fn index(keys: usize, step: usize) -> Index {
        let mut index = Index::new();
        for number in 0..keys {
            index.put(&key(number * step % keys), Revision::first_of(number as i64 + 2), false);
        }
        index
    }

    fn range(from: usize, to: usize) -> KeyRange {
        KeyRange::new(Bytes::from(key(from)), Bytes::from(key(to)))
    }

    fn delete(index: &mut Index, number: usize, main: i64) {
        let one = KeyRange::one(Bytes::from(key(number)));
        let mut deleted = 0;
        let walk = index.delete_live(&one, Revision::first_of(main), &mut 1000, |_, _| {
            deleted += 1;
            true
        });
        assert_eq!((walk, deleted), (IndexWalk::Done, 1));
    }

    fn live_keys(index: &Index, range: &KeyRange) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let walk = index.visit_at::<()>(range, i64::MAX, &mut usize::MAX.clone(), |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        });
        assert_eq!(walk, IndexWalk::Done);
        keys
    }

    /// Checks the invariants: leaves ascend, fence keys are lower bounds, and the counts are right.
    fn check(index: &Index) {
        let (mut last, mut stats): (Option<Vec<u8>>, _) = (None, IndexStats::default());
        assert!(index.leaves.contains_key(&b""[..]), "the first leaf never goes");
        for (fence, leaf) in &index.leaves {
            assert!(leaf.is_lone() || fence.len() <= LONE_KEY_BYTES, "a long name");
            assert!(last.as_deref() < Some(fence) || fence.is_empty(), "a name that is no lower bound");
            for position in 0..leaf.len() {
                let key = leaf.key(fence, position);
                assert!(key >= fence.as_ref() && last.as_deref() < Some(key));
                last = Some(key.to_vec());
                let history = leaf.history(position);
                stats.add_key(key.len(), history);
                stats.records += history.records() as u64 - 1;
            }
            let histories = || (0..leaf.len()).map(|position| leaf.history(position));
            assert_eq!(leaf.live(), histories().filter(|history| history.is_live()).count());
            assert_eq!(leaf.has_history(), histories().any(|history| history.is_many()));
        }
        assert_eq!(index.stats, stats, "what was counted is what is there");
    }

    #[test]
    fn every_key_is_found_in_any_order_of_arrival() {
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
            let follow = |history: &mut KeyHistory, main| {
                let newest = history.newest().expect("nothing was deleted");
                let put = Visible { create: 2, version: newest.version + 1, ..put(main) };
                history.push_put(put);
                Ok::<_, ()>(())
            };
            let changes = keys.iter().map(|key| (key.as_slice(), 10 * version));
            index.restore(changes, |main| KeyHistory::with_put(put(main)), follow).unwrap();
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
            delete(&mut index, number, 5000 + number as i64);
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
                    index.put(&key(number), revision, false);
                } else {
                    delete(&mut index, number, revision.main);
                }
            }
            index
        };
        let mut all = Vec::new();
        assert_eq!(build().prune(b"", 4000, usize::MAX, |revision| all.push(revision)), NextLeaf::End);
        all.sort();
        for keys_max in [1, 100, 300] {
            let (mut index, mut dropped, mut from, mut steps) = (build(), Vec::new(), Box::from(&b""[..]), 0);
            while let NextLeaf::From(next) =
                index.prune(&from, 4000, keys_max, |revision| dropped.push(revision))
            {
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
            delete(&mut index, number, 6000 + number as i64);
        }
        index.prune(b"", 20_000, usize::MAX, drop);
        check(&index);
        assert_eq!(live_keys(&index, &KeyRange::all()).len(), 50);
        assert_eq!(index.leaves.len(), 1);
        index.put(b"key00050", Revision::first_of(30_000), false);
        check(&index);
    }

    /// Keys of zeros that differ at their ends, of 100 KiB and of a few bytes, in several orders of arrival.
    #[test]
    fn a_long_key_is_in_memory_once() {
        const LONG: usize = 100 << 10;
        let long = |number: usize| {
            let mut key = vec![0; LONG];
            key[LONG - 8..].copy_from_slice(&number.to_be_bytes());
            key
        };
        for (step, restored) in [(1, false), (7, false), (99, false), (1, true)] {
            let mut index = Index::new();
            let mut keys: Vec<_> = (0..100).map(|number| long(number * step % 100)).collect();
            keys.extend((0..100).map(|number| {
                let mut key = long(number * step % 100);
                key.truncate(LONG - number % 90);
                key
            }));
            keys.extend((0..100).map(|number| vec![0; number * step % 100 + 1]));
            if restored {
                keys.sort();
                keys.dedup();
                let put = Visible { revision: Revision::first_of(2), create: 2, version: 1 };
                let changes = keys.iter().map(|key| (key.as_slice(), ()));
                index.restore(changes, |()| KeyHistory::with_put(put), |_, ()| Err(())).unwrap();
            } else {
                for (number, key) in keys.iter().enumerate() {
                    index.put(key, Revision::first_of(number as i64 + 2), false);
                }
            }
            check(&index);
            let fences: usize = index.leaves.keys().map(|fence| fence.len()).sum();
            let (columns, stats) =
                (index.leaves.values().map(Leaf::reserved_bytes).sum::<usize>(), index.stats);
            // Before lone leaves: twice and more, as fence key, as key, and as reserved room.
            assert!(
                fences + columns < stats.key_bytes as usize * 102 / 100,
                "{fences} + {columns} of {stats:?}"
            );
            for key in &keys {
                assert!(index.get(key).is_some());
            }
            for (number, key) in keys.iter().enumerate() {
                if index.get(key).unwrap().is_live() {
                    index.delete(key, Revision::first_of(1000 + number as i64));
                }
            }
            check(&index);
            index.prune(b"", 5000, 40, drop);
            check(&index);
            index.prune(b"", 5000, usize::MAX, drop);
            check(&index);
            assert_eq!((index.leaves.len(), index.stats), (1, IndexStats::default()));
        }
    }

    #[test]
    #[should_panic(expected = "only a key that is there")]
    fn deleting_an_unknown_key_is_our_bug() {
        Index::new().delete(b"a", Revision::first_of(2));
    }
}
