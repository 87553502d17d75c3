//! Bounded walks over the keys of the index at a revision.
//!
//! A walk takes one step for each key that it reads, and one for each leaf that it passes as a whole.
//! The caller limits the steps, so that it can release the lock and continue from the key that the walk
//! returned.
//!
//! Invariant: a leaf without a record later than a revision has not changed since that revision. Its
//! number of live keys is then valid there, even while a request is in progress.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::history::{KeyHistory, Visible};
use super::tree::{Index, Leaf, counted};
use crate::range::KeyRange;
use crate::types::Revision;

/// Result of a bounded walk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IndexWalk<B = ()> {
    Done,
    /// Ran out of steps before this key.
    Paused(Bytes),
    Stopped(B),
}

impl Leaf {
    /// Returns the number of live keys at `at`, if the leaf has not changed since.
    fn live_at(&self, at: i64) -> Option<usize> {
        (self.newest() <= at).then_some(self.live())
    }
}

impl Index {
    /// Visits the keys of `range` that exist at revision `at`, in order, with at most `steps` steps.
    pub fn visit_at<B>(
        &self,
        range: &KeyRange,
        at: i64,
        steps: &mut usize,
        mut visitor: impl FnMut(&[u8], Visible) -> ControlFlow<B>,
    ) -> IndexWalk<B> {
        for (number, (fence, leaf, from)) in self.leaves_of(range).enumerate() {
            if leaf.live_at(at) == Some(0) {
                if *steps == 0 {
                    return IndexWalk::Paused(paused_before(range, number, fence));
                }
                *steps -= 1;
                continue;
            }
            for position in from..leaf.len() {
                let key = leaf.key(fence, position);
                if !range.is_before_end(key) {
                    return IndexWalk::Done;
                }
                if *steps == 0 {
                    return IndexWalk::Paused(Bytes::copy_from_slice(key));
                }
                *steps -= 1;
                if let Some(visible) = leaf.history(position).at(at)
                    && let ControlFlow::Break(stopped) = visitor(key, visible)
                {
                    return IndexWalk::Stopped(stopped);
                }
            }
        }
        IndexWalk::Done
    }

    /// Visits the histories of all keys of `range`, with at most `steps` steps.
    pub fn visit_all<B>(
        &self,
        range: &KeyRange,
        steps: &mut usize,
        mut visitor: impl FnMut(&KeyHistory) -> ControlFlow<B>,
    ) -> IndexWalk<B> {
        for (fence, leaf, from) in self.leaves_of(range) {
            for position in from..leaf.len() {
                let key = leaf.key(fence, position);
                if !range.is_before_end(key) {
                    return IndexWalk::Done;
                }
                if *steps == 0 {
                    return IndexWalk::Paused(Bytes::copy_from_slice(key));
                }
                *steps -= 1;
                if let ControlFlow::Break(stopped) = visitor(leaf.history(position)) {
                    return IndexWalk::Stopped(stopped);
                }
            }
        }
        IndexWalk::Done
    }

    /// Adds the number of keys of `range` that exist at revision `at` to `count`. Exceeds `steps` by at most
    /// one leaf.
    pub fn count_at(&self, range: &KeyRange, at: i64, steps: &mut usize, count: &mut usize) -> IndexWalk {
        for (number, (fence, leaf, from)) in self.leaves_of(range).enumerate() {
            if *steps == 0 {
                return IndexWalk::Paused(paused_before(range, number, fence));
            }
            let last = leaf.len().checked_sub(1);
            let is_inside = from == 0 && last.is_some_and(|last| range.is_before_end(leaf.key(fence, last)));
            match leaf.live_at(at) {
                Some(live) if is_inside || live == 0 => {
                    *count += live;
                    *steps -= 1;
                }
                Some(_) | None => {
                    let inside = (from..leaf.len())
                        .take_while(|position| range.is_before_end(leaf.key(fence, *position)));
                    *count += inside.filter(|position| leaf.history(*position).at(at).is_some()).count();
                    *steps = steps.saturating_sub(leaf.len().max(1));
                }
            }
        }
        IndexWalk::Done
    }

    #[cfg(test)]
    pub fn count_live(&self, range: &KeyRange) -> usize {
        let (mut count, mut steps) = (0, usize::MAX);
        assert_eq!(self.count_at(range, i64::MAX, &mut steps, &mut count), IndexWalk::Done);
        count
    }

    #[cfg(test)]
    pub fn delete(&mut self, key: &[u8], revision: Revision) {
        let (range, mut count) = (KeyRange::one(Bytes::copy_from_slice(key)), 0);
        let mut deleted = |_: &[u8], _: bool| {
            count += 1;
            true
        };
        assert_eq!(self.delete_live(&range, revision, &mut 1000, &mut deleted), IndexWalk::Done);
        assert_eq!(count, 1, "only a key that is there is deleted");
    }

    /// Deletes live keys of `range` in key order, as the changes from `first` on. `deleted` receives each
    /// key and whether it has a lease, and returns whether to continue.
    pub fn delete_live(
        &mut self,
        range: &KeyRange,
        first: Revision,
        steps: &mut usize,
        mut deleted: impl FnMut(&[u8], bool) -> bool,
    ) -> IndexWalk {
        if range.is_empty() {
            return IndexWalk::Done;
        }
        let start: Box<[u8]> = self.fence_of(range.start()).into();
        let mut revision = first;
        let mut has_room = true;
        let (leaves, stats) = self.leaves_between(&start, range.end_bound());
        for (number, (fence, leaf)) in leaves.enumerate() {
            if leaf.live() == 0 {
                if *steps == 0 {
                    return IndexWalk::Paused(paused_before(range, number, fence));
                }
                *steps -= 1;
                continue;
            }
            let from = match number {
                0 => leaf.search(fence, range.start()).unwrap_or_else(|position| position),
                _ => 0,
            };
            for position in from..leaf.len() {
                let key = leaf.key(fence, position);
                if !range.is_before_end(key) {
                    return IndexWalk::Done;
                }
                if *steps == 0 || !has_room {
                    return IndexWalk::Paused(Bytes::copy_from_slice(key));
                }
                *steps -= 1;
                if leaf.history(position).is_live() {
                    has_room = deleted(key, leaf.history(position).is_leased());
                    leaf.update(position, |history| {
                        counted(stats, history, |it| it.push_tombstone(revision))
                    });
                    revision = revision.next();
                }
            }
        }
        IndexWalk::Done
    }
}

/// Returns the key at which a walk that paused before a leaf continues. The first leaf may start before
/// the range.
fn paused_before(range: &KeyRange, number: usize, fence: &[u8]) -> Bytes {
    if number == 0 { range.start().clone() } else { Bytes::copy_from_slice(fence) }
}
