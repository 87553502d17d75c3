//! All keys in order, each with its history. Values are in blocks.
//!
//!   "" ──▶ leaf [aa … cz]      "d" ──▶ leaf [d … hello]      "help" ──▶ leaf [help … zz]
//!
//! * The tree maps a fence key to each leaf: the shortest string that separates the leaf from its left
//!   neighbor. The first fence key is empty, so every key belongs to a leaf.
//! * A leaf emptied by compaction is removed, unless it is the first.
//!
//! A million keys of eight bytes need some 4000 to 8000 leaves and 45 MB. A lookup takes two binary
//! searches of about a dozen steps each. The first is over the fence keys, in a B-tree.
//!
//! # A leaf
//!
//! A packed run of adjacent keys. The index grows, splits, counts and prunes by leaves.
//!
//!   bytes      │apple│banana│cherry│          keys end to end
//!   ends       │5    │11    │17    │          end offset of each key
//!   histories  │ …   │ …    │ …    │
//!   live         2                           number of keys with a put as latest record
//!
//! * `live` makes counting a whole leaf free.
//! * A key longer than `LONE_KEY_BYTES` has a separate leaf. Such a *lone* leaf stores no key bytes:
//!   its fence key is the key, so a long key is in memory once. Methods that read keys therefore take
//!   the fence key.
//! * `newest` is at least the latest revision of its records.
//!
//! An 8-byte key with one record takes 36 bytes. The capacity of columns exceeds the content by at most
//! an eighth once a leaf holds 32 keys.
//!
//! A leaf splits in the middle, or at its end when keys arrive in ascending order, so that these fill
//! their leaves.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::history::{KeyHistory, SupersededRecords, Visible};
use super::stats::{HistoryShape, IndexStats};
use crate::range::KeyRange;
use crate::types::Revision;

#[derive(Debug)]
pub(crate) struct Index {
    leaves: Leaves,
    stats: IndexStats,
}

type Leaves = BTreeMap<Box<[u8]>, Leaf>;

/// Leaves created by an insert, with their fence keys. Most inserts create none.
type NewLeaves = [Option<(Box<[u8]>, Leaf)>; 2];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextLeaf {
    From(Box<[u8]>),
    End,
}

impl Index {
    /// Creates an empty index. The leaf with the empty fence key always exists.
    pub fn new() -> Self {
        let leaves = BTreeMap::from([(Box::from(&b""[..]), Leaf::default())]);
        Index { leaves, stats: IndexStats::default() }
    }

    pub fn memory_bytes(&self) -> u64 {
        self.stats.memory_bytes()
    }

    /// Flips the version or the lease flag of a key with one record, for `recount/damage`. Returns false if
    /// there is no such key.
    pub fn flip(&mut self, key: &[u8], is_lease: bool) -> bool {
        let (fence, leaf) = leaf_mut(&mut self.leaves, key);
        let Ok(position) = leaf.search(fence, key) else { return false };
        leaf.update(position, |history| history.flip(is_lease))
    }

    /// Returns the history of a key, even if the key is deleted.
    pub fn get(&self, key: &[u8]) -> Option<&KeyHistory> {
        let (fence, leaf) = self.leaves.range::<[u8], _>(up_to(key)).next_back()?;
        leaf.search(fence, key).ok().map(|position| leaf.history(position))
    }

    /// Records a put, with a lease if `is_leased`. Returns the created version, and whether the previous
    /// put had a lease.
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

    /// Adds changes read from blocks, sorted by key and then by revision. `begin` creates the history of a
    /// new key, and `follow` appends to that of a known one.
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

    /// Prunes whole leaves, starting with the one with fence key `from`, until `keys_max` keys were
    /// visited. Adds the removed records to `superseded`. A leaf without superseded records counts as one
    /// key.
    pub fn prune(
        &mut self,
        from: &[u8],
        at: i64,
        keys_max: usize,
        superseded: &mut SupersededRecords,
    ) -> NextLeaf {
        assert!(keys_max > 0, "a step that visits nothing never ends");
        let mut visited = 0;
        let (mut merge, mut next) = (Vec::new(), NextLeaf::End);
        // Fill of the leaf to the left after the merges of this pass.
        let mut left: Option<LeafFill> = None;
        let stats = &mut self.stats;
        for (fence, leaf) in self.leaves.range_mut::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            if visited >= keys_max {
                next = NextLeaf::From(fence.clone());
                break;
            }
            // An empty leaf counts too, to limit a pass over many of them.
            visited += 1;
            if leaf.has_history() {
                visited += leaf.len();
                leaf.retain(fence, |key_bytes, history| {
                    prune_counted(stats, key_bytes, history, at, superseded)
                });
            }
            // Merge a leaf with its left neighbor if it fits easily; an empty one always fits.
            let merged = left.and_then(|left| left.merged_with(leaf.fill()));
            if merged.is_some() || (leaf.is_empty() && !fence.is_empty()) {
                merge.push(fence.clone());
                left = merged.or(left);
            } else {
                left = Some(leaf.fill());
            }
        }
        // Merge after the pass, which borrows the leaves. Each leaf is merged once, and fits into its
        // neighbor.
        for fence in merge {
            self.merge_left(&fence);
        }
        next
    }

    fn merge_left(&mut self, fence: &[u8]) {
        let leaf = self.leaves.remove(fence).expect("leaves to merge were just visited");
        leaf_mut(&mut self.leaves, fence).1.append(leaf);
    }

    /// Returns the leaves that may hold keys of `range`, each with its fence key and the first position to
    /// read.
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

    /// Returns mutable leaves from fence key `fence` to `end`, and the counts to update.
    pub(super) fn leaves_between<'a>(
        &'a mut self,
        fence: &'a [u8],
        end: Bound<&'a [u8]>,
    ) -> (impl Iterator<Item = (&'a [u8], &'a mut Leaf)> + 'a, &'a mut IndexStats) {
        let leaves = self.leaves.range_mut::<[u8], _>((Bound::Included(fence), end));
        (leaves.map(|(fence, leaf)| (fence.as_ref(), leaf)), &mut self.stats)
    }

    pub(super) fn fence_of(&self, key: &[u8]) -> &[u8] {
        let (fence, _) =
            self.leaves.range::<[u8], _>(up_to(key)).next_back().expect("the first leaf holds every key");
        fence
    }

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
    // Keys in ascending order fill their leaves; otherwise both halves keep spare capacity.
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

/// Returns the shortest string `s` with `lower` < `s` ≤ `upper`.
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

fn prune_counted(
    stats: &mut IndexStats,
    key_bytes: usize,
    history: &mut KeyHistory,
    at: i64,
    superseded: &mut SupersededRecords,
) -> bool {
    let (before, removed_before) = (HistoryShape::of(history), superseded.count());
    let is_left = history.prune(at, superseded);
    let after = is_left.then(|| HistoryShape::of(history));
    stats.prune(key_bytes, superseded.count() - removed_before, before, after);
    is_left
}

fn leaf_mut<'a>(leaves: &'a mut Leaves, key: &[u8]) -> (&'a [u8], &'a mut Leaf) {
    let (fence, leaf) =
        leaves.range_mut::<[u8], _>(up_to(key)).next_back().expect("the first leaf holds every key");
    (fence, leaf)
}

/// Returns the range of fence keys up to `key`; the last one belongs to the leaf of `key`.
fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

/// Maximum number of keys per leaf. 256: a split every 128 inserts, a search of eight steps, an insert
/// that moves at most 6 KiB.
const KEYS_MAX: usize = 256;
/// Maximum key bytes per leaf, so that long keys do not make inserts slow.
const KEY_BYTES_MAX: usize = 32 << 10;
/// Maximum length of keys that share a leaf, and of their fence keys. A lone leaf takes some 250 bytes
/// in addition, an eighth of a longer key.
const LONE_KEY_BYTES: usize = 2 << 10;
/// Minimum and maximum growth of a column in entries: small leaves stay small, large ones grow every 32
/// inserts.
const GROWTH: (usize, usize) = (2, 32);

/// Columns instead of a vector of pairs: a search reads only keys and end offsets, and keys need no
/// separate allocations.
#[derive(Default, Debug)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    /// End offsets; empty in a lone leaf.
    ends: Vec<u32>,
    histories: Vec<KeyHistory>,
    live: u32,
    /// Number of histories with more than one record; without any, the leaf needs no pruning.
    many: u32,
    newest: i64,
}

/// Fill of a leaf, or of several that are to be merged. A lone leaf counts as full.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafFill {
    keys: usize,
    key_bytes: usize,
}

impl LeafFill {
    /// Returns the sum, if it is at most half of the capacity of a leaf.
    pub fn merged_with(self, upper: LeafFill) -> Option<LeafFill> {
        let sum = LeafFill { keys: self.keys + upper.keys, key_bytes: self.key_bytes + upper.key_bytes };
        (sum.keys <= KEYS_MAX / 2 && sum.key_bytes <= KEY_BYTES_MAX / 2).then_some(sum)
    }
}

impl Leaf {
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

    /// Reports whether its only key is its fence key.
    pub fn is_lone(&self) -> bool {
        self.ends.len() < self.histories.len()
    }

    /// Returns the number of keys with a put as latest record.
    pub fn live(&self) -> usize {
        self.live as usize
    }

    /// Returns an upper bound of the main revision of its latest record. The leaf has not changed since
    /// that revision.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    pub fn key<'a>(&'a self, fence: &'a [u8], position: usize) -> &'a [u8] {
        if self.is_lone() { fence } else { self.own_key(position) }
    }

    fn own_key(&self, position: usize) -> &[u8] {
        &self.bytes[self.start(position)..self.ends[position] as usize]
    }

    pub fn history(&self, position: usize) -> &KeyHistory {
        &self.histories[position]
    }

    /// Returns the position of `key`, or the position to insert it at.
    pub fn search(&self, fence: &[u8], key: &[u8]) -> Result<usize, usize> {
        if self.is_lone() {
            // Keys of this leaf are at least its fence key.
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

    /// Implements `search` for keys in ascending order: most of them belong at the end.
    pub fn search_from_last(&self, fence: &[u8], key: &[u8]) -> Result<usize, usize> {
        match self.len().checked_sub(1).map(|last| self.key(fence, last).cmp(key)) {
            None | Some(Ordering::Less) => Err(self.len()),
            Some(Ordering::Equal) => Ok(self.len() - 1),
            Some(Ordering::Greater) => self.search(fence, key),
        }
    }

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

    /// Inserts a key at the position that `search` returned. The leaf must have capacity. Moves at most 9
    /// KiB, in less than a microsecond.
    pub fn insert(&mut self, position: usize, key: &[u8], history: KeyHistory) {
        debug_assert!(!self.is_lone() && key.len() <= LONE_KEY_BYTES, "a long key has a leaf to itself");
        debug_assert!(position == 0 || self.own_key(position - 1) < key, "keys of a leaf ascend");
        debug_assert!(position == self.len() || self.own_key(position) > key, "keys of a leaf ascend");
        assert!(self.len() < KEYS_MAX, "a leaf that should have been split");
        let (start, old_bytes) = (self.start(position), self.bytes.len());
        grow(&mut self.bytes, key.len(), key.len());
        self.bytes.resize(old_bytes + key.len(), 0);
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

    pub fn must_split(&self, key_bytes: usize) -> bool {
        self.len() == KEYS_MAX || (self.bytes.len() + key_bytes > KEY_BYTES_MAX && self.len() > 1)
    }

    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.histories.shrink_to_fit();
    }

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
        // Count one half; the other one is the difference.
        upper.count();
        self.live -= upper.live;
        self.many -= upper.many;
        self.shrink();
        upper
    }

    pub fn fill(&self) -> LeafFill {
        if self.is_lone() {
            return LeafFill { keys: KEYS_MAX, key_bytes: KEY_BYTES_MAX };
        }
        LeafFill { keys: self.len(), key_bytes: self.bytes.len() }
    }

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

    pub fn has_history(&self) -> bool {
        self.many > 0
    }

    /// Keeps the histories for which `keep` returns true. `keep` may change them, and also receives the
    /// key's length.
    pub fn retain(&mut self, fence: &[u8], mut keep: impl FnMut(usize, &mut KeyHistory) -> bool) {
        if self.is_lone() {
            self.histories.retain_mut(|history| keep(fence.len(), history));
            return self.count();
        }
        let (mut kept, mut kept_bytes, mut start) = (0, 0, 0);
        for position in 0..self.len() {
            let end = self.ends[position] as usize;
            if keep(end - start, &mut self.histories[position]) {
                // Keys only move left, so unread bytes are not overwritten.
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

    #[cfg(test)]
    pub fn reserved_bytes(&self) -> usize {
        let histories = self.histories.capacity() * size_of::<KeyHistory>();
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>() + histories
    }

    fn count(&mut self) {
        self.live = self.histories.iter().filter(|history| history.is_live()).count() as u32;
        self.many = self.histories.iter().filter(|history| history.is_many()).count() as u32;
    }

    fn start(&self, position: usize) -> usize {
        if position == 0 { 0 } else { self.ends[position - 1] as usize }
    }
}

/// Reserves capacity in a column for `extra` items, `unit` of them per key: an eighth of its length,
/// within limits.
fn grow<T>(column: &mut Vec<T>, extra: usize, unit: usize) {
    if column.capacity() - column.len() < extra {
        let (least, most) = (GROWTH.0 * unit, GROWTH.1 * unit);
        column.reserve_exact((column.len() / 8).clamp(least, most.max(least)).max(extra));
    }
}

#[cfg(test)]
mod tests;
