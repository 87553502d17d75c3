//! Revisions of a key, without values.
//!
//!   generation 1: put put put delete │ generation 2: put put │ …
//!
//! * Revisions ascend within and across generations.
//! * Only the last generation may be live. A tombstone closes a generation and is its last revision.
//! * Compaction removes the oldest revisions first, so the latest part of a history always remains.
//!
//! Most keys of most stores have one record. These take 24 bytes without an allocation (`Single`);
//! other histories are boxed. The n-th revision of a generation has version `first_version + n`, so
//! versions are not stored.
//!
//! Example: put@2 put@4 delete@7 put@9 results in the generations {2 4 7†} and {9}. A read at 5 sees
//! the put at 4 with create revision 2 and version 2. A read at 8 does not find the key. A read at 9
//! sees version 1, created at 9. A compaction at 8 removes the first generation, and the history is a
//! `Single` again.

use std::num::NonZeroU32;

use crate::types::Revision;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyHistory {
    /// A single put. `version` is non-zero so that the enum needs no tag.
    Single {
        modified: i64,
        created: i64,
        sub: SubAndLease,
        version: NonZeroU32,
    },
    Many(Box<Generations>),
}

/// Sub revision of a put in 31 bits, and in the highest bit whether it has a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubAndLease(u32);

impl SubAndLease {
    const LEASED: u32 = 1 << 31;

    /// Packs a sub revision without a lease; `None` if it does not fit.
    fn new(sub: i64) -> Option<Self> {
        u32::try_from(sub).ok().filter(|sub| sub & Self::LEASED == 0).map(SubAndLease)
    }

    fn sub(self) -> i64 {
        i64::from(self.0 & !Self::LEASED)
    }

    fn is_leased(self) -> bool {
        self.0 & Self::LEASED != 0
    }

    fn with_lease(self, is_leased: bool) -> Self {
        SubAndLease(self.0 & !Self::LEASED | if is_leased { Self::LEASED } else { 0 })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visible {
    pub revision: Revision,
    pub create: i64,
    pub version: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generations {
    ended: Vec<Generation>,
    /// Latest generation. It is closed too if the key is deleted.
    last: Generation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Generation {
    created: i64,
    /// Version of `revisions[0]`; more than 1 after compaction removed older puts.
    first_version: i64,
    /// Puts, then a tombstone if `ended`. Never empty.
    revisions: Vec<Revision>,
    ended: bool,
    /// True if the latest put has a lease. False for a closed generation.
    leased: bool,
}

/// Records that a compaction removes from the index. Long lists are moved, to be processed without the
/// store's lock.
#[derive(Default)]
pub(crate) struct SupersededRecords {
    whole: Vec<Vec<Generation>>,
    copied: Vec<Revision>,
    count: usize,
}

/// Minimum length of lists of revisions or generations that are moved instead of copied.
const WHOLE_FROM: usize = 64;

impl SupersededRecords {
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the revisions in removal order: oldest first for each key.
    pub fn into_revisions(mut self) -> impl Iterator<Item = Revision> {
        self.end_copied();
        self.whole.into_iter().flatten().flat_map(|generation| generation.revisions)
    }

    fn take_revisions(&mut self, revisions: &mut Vec<Revision>, count: usize) {
        self.count += count;
        if count < WHOLE_FROM {
            self.copied.extend(revisions.drain(..count));
        } else {
            self.end_copied();
            self.whole.push(vec![Generation::list(split_front(revisions, count))]);
        }
    }

    fn take_generations(&mut self, generations: &mut Vec<Generation>, count: usize) {
        self.count += generations[..count].iter().map(|generation| generation.revisions.len()).sum::<usize>();
        if count < WHOLE_FROM
            && generations[..count].iter().all(|generation| generation.revisions.len() < WHOLE_FROM)
        {
            self.copied.extend(generations.drain(..count).flat_map(|generation| generation.revisions));
        } else {
            self.end_copied();
            self.whole.push(split_front(generations, count));
        }
    }

    fn end_copied(&mut self) {
        if !self.copied.is_empty() {
            self.whole.push(vec![Generation::list(std::mem::take(&mut self.copied))]);
        }
    }
}

/// Removes the first `count` items, and copies the shorter part.
fn split_front<T>(items: &mut Vec<T>, count: usize) -> Vec<T> {
    if count < items.len() / 2 {
        return items.drain(..count).collect();
    }
    let rest = items.split_off(count);
    std::mem::replace(items, rest)
}

impl KeyHistory {
    /// Creates a history that starts with this put. Older puts may have been compacted.
    pub fn with_put(put: Visible) -> Self {
        match (SubAndLease::new(put.revision.sub), narrow(put.version)) {
            (Some(sub), Some(version)) => {
                KeyHistory::Single { modified: put.revision.main, created: put.create, sub, version }
            }
            _ => {
                KeyHistory::Many(Box::new(Generations { ended: Vec::new(), last: Generation::with_put(put) }))
            }
        }
    }

    /// Creates a history that starts with a tombstone, because its puts were compacted.
    pub fn with_tombstone(at: Revision) -> Self {
        let last = Generation {
            created: at.main,
            first_version: 1,
            revisions: vec![at],
            ended: true,
            leased: false,
        };
        KeyHistory::Many(Box::new(Generations { ended: Vec::new(), last }))
    }

    pub fn at(&self, at: i64) -> Option<Visible> {
        match self {
            KeyHistory::Single { modified, created, sub, version } if *modified <= at => Some(Visible {
                revision: Revision { main: *modified, sub: sub.sub() },
                create: *created,
                version: i64::from(version.get()),
            }),
            KeyHistory::Single { .. } => None,
            KeyHistory::Many(generations) => generations.at(at),
        }
    }

    pub fn newest(&self) -> Option<Visible> {
        self.at(i64::MAX)
    }

    pub fn is_deleted_at(&self, at: i64) -> bool {
        match self {
            KeyHistory::Single { .. } => false,
            KeyHistory::Many(generations) => generations.is_deleted_at(at),
        }
    }

    pub fn is_live(&self) -> bool {
        match self {
            KeyHistory::Single { .. } => true,
            KeyHistory::Many(generations) => !generations.last.ended,
        }
    }

    pub fn is_leased(&self) -> bool {
        match self {
            KeyHistory::Single { sub, .. } => sub.is_leased(),
            KeyHistory::Many(generations) => generations.last.leased,
        }
    }

    /// Records whether the latest put has a lease. A new put has none until this is called.
    pub fn set_leased(&mut self, is_leased: bool) {
        assert!(!is_leased || self.is_live(), "a deleted key has no lease");
        match self {
            KeyHistory::Single { sub, .. } => *sub = sub.with_lease(is_leased),
            KeyHistory::Many(generations) => generations.last.leased = is_leased,
        }
    }

    /// Flips a bit of a single put for `recount/damage`. Returns false for other histories.
    pub fn flip(&mut self, is_lease: bool) -> bool {
        let KeyHistory::Single { sub, version, .. } = self else { return false };
        if is_lease {
            *sub = sub.with_lease(!sub.is_leased());
        } else {
            *version = version.checked_add(1).unwrap_or(NonZeroU32::MIN);
        }
        true
    }

    pub fn is_many(&self) -> bool {
        matches!(self, KeyHistory::Many(_))
    }

    pub fn ended(&self) -> usize {
        match self {
            KeyHistory::Single { .. } => 0,
            KeyHistory::Many(generations) => generations.ended.len(),
        }
    }

    #[cfg(test)]
    pub fn records(&self) -> usize {
        match self {
            KeyHistory::Single { .. } => 1,
            KeyHistory::Many(generations) => {
                let all = generations.ended.iter().chain([&generations.last]);
                all.map(|generation| generation.revisions.len()).sum()
            }
        }
    }

    /// Returns the revision of the latest record, including tombstones.
    pub fn last_revision(&self) -> Revision {
        match self {
            KeyHistory::Single { modified, sub, .. } => Revision { main: *modified, sub: sub.sub() },
            KeyHistory::Many(generations) => generations.last.newest(),
        }
    }

    /// Returns the result of a put at `revision`: the next version of a live key, or a new generation.
    pub fn next_put(&self, revision: Revision) -> Visible {
        match self.newest() {
            Some(newest) => Visible { revision, create: newest.create, version: newest.version + 1 },
            None => Visible { revision, create: revision.main, version: 1 },
        }
    }

    /// Appends a put. If the last generation is closed, it starts another one.
    pub fn push_put(&mut self, put: Visible) {
        let generations = self.generations_after(put.revision);
        if generations.last.ended {
            let mut ended = std::mem::replace(&mut generations.last, Generation::with_put(put));
            ended.revisions.shrink_to_fit();
            generations.ended.push(ended);
        } else {
            let newest = generations.last.visible(generations.last.revisions.len() - 1);
            assert_eq!(
                (put.create, put.version),
                (newest.create, newest.version + 1),
                "a put out of sequence"
            );
            generations.last.revisions.push(put.revision);
            generations.last.leased = false;
        }
    }

    pub fn push_tombstone(&mut self, at: Revision) {
        let generations = self.generations_after(at);
        assert!(!generations.last.ended, "a deleted key deleted again");
        generations.last.revisions.push(at);
        generations.last.ended = true;
        generations.last.leased = false;
    }

    /// Removes records that are not visible at any main revision ≥ `at`, except a tombstone at exactly
    /// `at`, which a watch from there must still report. Adds the removed revisions to `superseded`,
    /// ascending. Reports whether any record is left.
    pub fn prune(&mut self, at: i64, superseded: &mut SupersededRecords) -> bool {
        let KeyHistory::Many(generations) = self else { return true };
        // Remove a generation as a whole if the next one starts at or before `at`. A request can delete, put
        // and delete a key again; keeping the first tombstone could leave two tombstones in a row. A watch
        // from exactly `at` may therefore miss all of these changes except the last.
        let has_begun = |generation: &Generation| generation.revisions[0].main <= at;
        let succeeded = match has_begun(&generations.last) {
            true => generations.ended.len(),
            false => generations.ended.partition_point(has_begun).saturating_sub(1),
        };
        superseded.take_generations(&mut generations.ended, succeeded);
        // Only the first remaining generation may have started by `at`.
        if generations.ended.first_mut().is_some_and(|first| !first.prune(at, superseded)) {
            generations.ended.remove(0);
        }
        generations.ended.shrink_to_fit();
        if !generations.last.prune(at, superseded) {
            match generations.ended.pop() {
                Some(newest) => generations.last = newest,
                None => return false,
            }
        }
        if let Some(single) = generations.as_single() {
            *self = single;
        }
        true
    }

    pub fn contains(&self, revision: Revision) -> bool {
        match self {
            KeyHistory::Single { .. } => self.last_revision() == revision,
            KeyHistory::Many(generations) => generations.contains(revision),
        }
    }

    /// Returns the boxed form, to append a record at `next`.
    fn generations_after(&mut self, next: Revision) -> &mut Generations {
        assert!(next > self.last_revision(), "history runs backward");
        if let KeyHistory::Single { .. } = self {
            let only = self.newest().expect("a single put is always visible");
            // Capacity for two, because most keys have two records before the next compaction.
            let mut revisions = Vec::with_capacity(2);
            revisions.push(only.revision);
            let last = Generation {
                created: only.create,
                first_version: only.version,
                revisions,
                ended: false,
                leased: self.is_leased(),
            };
            *self = KeyHistory::Many(Box::new(Generations { ended: Vec::new(), last }));
        }
        match self {
            KeyHistory::Many(generations) => generations,
            KeyHistory::Single { .. } => unreachable!("boxed above"),
        }
    }
}

impl Generations {
    /// Implements `KeyHistory::at`: the latest generation that starts at or before `at` decides.
    fn at(&self, at: i64) -> Option<Visible> {
        if self.last.revisions[0].main <= at {
            return self.last.at(at);
        }
        let begun = self.ended.partition_point(|generation| generation.revisions[0].main <= at);
        self.ended[begun.checked_sub(1)?].at(at)
    }

    /// Implements `KeyHistory::is_deleted_at`. A request may delete a key more than once.
    fn is_deleted_at(&self, at: i64) -> bool {
        let earlier = self.ended.partition_point(|generation| generation.newest().main < at);
        let next = self.ended.get(earlier).unwrap_or(&self.last);
        next.ended && next.newest().main == at
    }

    /// Implements `KeyHistory::contains`: only the latest generation that starts at or before `revision`
    /// can contain it.
    fn contains(&self, revision: Revision) -> bool {
        let begun = self.ended.partition_point(|generation| generation.revisions[0] <= revision);
        let generation = match self.last.revisions[0] <= revision {
            true => Some(&self.last),
            false => begun.checked_sub(1).map(|newest| &self.ended[newest]),
        };
        generation.is_some_and(|generation| generation.revisions.binary_search(&revision).is_ok())
    }

    /// Returns the `Single` form, if a single put is left and its version fits.
    fn as_single(&self) -> Option<KeyHistory> {
        let lone = self.ended.is_empty() && !self.last.ended && self.last.revisions.len() == 1;
        let put = lone.then(|| self.last.visible(0))?;
        let mut history = KeyHistory::with_put(put);
        history.set_leased(self.last.leased);
        Some(history).filter(|history| matches!(history, KeyHistory::Single { .. }))
    }
}

impl Generation {
    fn list(revisions: Vec<Revision>) -> Self {
        Generation { created: 0, first_version: 0, revisions, ended: false, leased: false }
    }

    fn with_put(put: Visible) -> Self {
        Generation {
            created: put.create,
            first_version: put.version,
            revisions: vec![put.revision],
            ended: false,
            leased: false,
        }
    }

    fn newest(&self) -> Revision {
        *self.revisions.last().expect("a generation has at least one revision")
    }

    /// Returns the latest put at or before `at`, unless the generation is closed by then.
    fn at(&self, at: i64) -> Option<Visible> {
        let seen = self.revisions.partition_point(|revision| revision.main <= at);
        let is_tombstone = self.ended && seen == self.revisions.len();
        if seen == 0 || is_tombstone { None } else { Some(self.visible(seen - 1)) }
    }

    /// Returns the put at a position. Its version follows from the distance to the first one.
    fn visible(&self, position: usize) -> Visible {
        debug_assert!(!self.ended || position + 1 < self.revisions.len(), "a tombstone is not visible");
        Visible {
            revision: self.revisions[position],
            create: self.created,
            version: self.first_version + position as i64,
        }
    }

    fn prune(&mut self, at: i64, superseded: &mut SupersededRecords) -> bool {
        if self.ended && self.newest().main < at {
            let all = self.revisions.len();
            superseded.take_revisions(&mut self.revisions, all);
            return false;
        }
        // Keep the latest revision at or below `at`, put or tombstone: it is visible there.
        let count = self.revisions.partition_point(|revision| revision.main <= at).saturating_sub(1);
        if count > 0 {
            superseded.take_revisions(&mut self.revisions, count);
            self.revisions.shrink_to_fit();
            self.first_version += count as i64;
        }
        assert!(!self.revisions.is_empty(), "a generation keeps at least its newest revision");
        true
    }
}

/// Converts a version to four bytes. `None` after four billion puts without a delete; such a key is
/// boxed.
fn narrow(version: i64) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(version).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(main: i64) -> Revision {
        Revision::first_of(main)
    }

    /// Builds a history from puts (positive) and deletes (negative) at main revisions.
    fn history(changes: &[i64]) -> KeyHistory {
        let first = Visible { revision: revision(changes[0]), create: changes[0], version: 1 };
        let mut history = KeyHistory::with_put(first);
        for &change in &changes[1..] {
            if change > 0 {
                let put = history.next_put(revision(change));
                history.push_put(put);
            } else {
                history.push_tombstone(revision(-change));
            }
        }
        history
    }

    /// Prunes a history. Returns whether any record is left, and the removed revisions.
    fn prune(history: &mut KeyHistory, at: i64) -> (bool, Vec<Revision>) {
        let mut superseded = SupersededRecords::default();
        let is_left = history.prune(at, &mut superseded);
        let count = superseded.count();
        let revisions: Vec<_> = superseded.into_revisions().collect();
        assert_eq!(revisions.len(), count);
        (is_left, revisions)
    }

    /// Returns mod revision, create revision and version visible at `at`.
    fn seen(history: &KeyHistory, at: i64) -> Option<(i64, i64, i64)> {
        history.at(at).map(|visible| (visible.revision.main, visible.create, visible.version))
    }

    #[test]
    fn a_single_put_takes_24_bytes() {
        assert_eq!(size_of::<KeyHistory>(), 24);
        assert!(matches!(history(&[2]), KeyHistory::Single { .. }));
    }

    #[test]
    fn every_revision_sees_its_own_version() {
        let history = history(&[2, 4, 5, -7, 9, 10]);
        for (at, expected) in [
            (1, None),
            (2, Some((2, 2, 1))),
            (3, Some((2, 2, 1))),
            (4, Some((4, 2, 2))),
            (6, Some((5, 2, 3))),
            (7, None),
            (8, None),
            (9, Some((9, 9, 1))),
            (100, Some((10, 9, 2))),
        ] {
            assert_eq!(seen(&history, at), expected, "at {at}");
        }
        assert!(history.is_live());
    }

    #[test]
    fn pruning_keeps_what_a_reader_at_the_revision_sees() {
        for (changes, at, dropped_expected) in [
            (vec![2, 4, 5, -7, 9, 10], 4, vec![2]),
            (vec![2, 4, 5, -7, 9, 10], 6, vec![2, 4]),
            (vec![2, 4, 5, -7, 9, 10], 7, vec![2, 4, 5]), // keeps the tombstone exactly there
            (vec![2, 4, 5, -7, 9, 10], 8, vec![2, 4, 5, 7]),
            (vec![2, 4, 5, -7, 9, 10], 10, vec![2, 4, 5, 7, 9]),
            (vec![2], 100, vec![]),
            (vec![2, 3], 1, vec![]),
        ] {
            let before = history(&changes);
            let mut after = before.clone();
            let (is_left, dropped) = prune(&mut after, at);
            assert!(is_left);
            assert_eq!(
                dropped,
                dropped_expected.into_iter().map(revision).collect::<Vec<_>>(),
                "{changes:?} at {at}"
            );
            for change in &changes {
                let revision = revision(change.abs());
                assert!(before.contains(revision) && !before.contains(revision.next()), "{changes:?}");
                assert_eq!(after.contains(revision), !dropped.contains(&revision), "{changes:?} at {at}");
            }
            for reader in at..12 {
                assert_eq!(
                    before.at(reader),
                    after.at(reader),
                    "{changes:?} pruned at {at}, read at {reader}"
                );
            }
        }
    }

    /// A prune of long lists, of puts or of short generations, removes the same as stepwise prunes.
    #[test]
    fn long_lists_are_taken_over_whole_and_in_order() {
        let churn = |number: i64| if number % 3 == 0 { -number } else { number };
        for changes in [(2..300).collect(), (4..300).map(churn).collect::<Vec<i64>>()] {
            let whole = history(&changes);
            let mut stepwise = whole.clone();
            let mut removed = Vec::new();
            for at in 0..310 {
                removed.extend(prune(&mut stepwise, at).1);
                let mut at_once = whole.clone();
                let (is_left, dropped) = prune(&mut at_once, at);
                assert_eq!(dropped, removed, "{at}");
                if !is_left {
                    break;
                }
                assert_eq!(at_once, stepwise, "{at}");
            }
            assert!(removed.len() > 250);
        }
    }

    #[test]
    fn a_key_deleted_before_the_revision_is_gone() {
        let mut history = history(&[2, -3, 4, -6]);
        let (is_left, dropped) = prune(&mut history, 7);
        assert!(!is_left);
        assert_eq!(dropped.len(), 4);
    }

    #[test]
    fn pruning_to_one_put_returns_to_the_small_form_with_its_version() {
        let mut history = history(&[2, 4, 5]);
        assert!(prune(&mut history, 5).0);
        assert!(matches!(history, KeyHistory::Single { .. }));
        assert_eq!(seen(&history, 5), Some((5, 2, 3)));
        let next = history.next_put(revision(8));
        history.push_put(next);
        assert_eq!(seen(&history, 8), Some((8, 2, 4)));
    }

    #[test]
    fn a_version_beyond_32_bits_survives() {
        let version = i64::from(u32::MAX) + 1;
        let mut history = KeyHistory::with_put(Visible { revision: revision(9), create: 2, version });
        assert!(matches!(history, KeyHistory::Many(_)));
        let next = history.next_put(revision(10));
        history.push_put(next);
        assert!(prune(&mut history, 10).0);
        assert_eq!(seen(&history, 10), Some((10, 2, version + 1)));
    }

    #[test]
    fn a_tombstone_alone_hides_the_key_until_it_is_put_again() {
        let mut history = KeyHistory::with_tombstone(revision(5));
        assert!(!history.is_live());
        assert_eq!(seen(&history, 5), None);
        let put = history.next_put(revision(6));
        history.push_put(put);
        assert_eq!(seen(&history, 6), Some((6, 6, 1)));
        assert!(prune(&mut history, 6).0);
        assert!(matches!(history, KeyHistory::Single { .. }));
    }

    #[test]
    fn a_tombstone_is_found_at_its_own_revision_only() {
        let history = history(&[2, 4, -7, 9]);
        let found: Vec<i64> = (0..12).filter(|at| history.is_deleted_at(*at)).collect();
        assert_eq!(found, [7]);
    }

    #[test]
    fn a_delete_and_a_put_of_one_request_are_both_kept_in_order() {
        let mut history = history(&[2]);
        history.push_tombstone(Revision { main: 3, sub: 0 });
        let put = history.next_put(Revision { main: 3, sub: 1 });
        history.push_put(put);
        assert_eq!(seen(&history, 3), Some((3, 3, 1)));
        assert!(prune(&mut history, 3).0);
        assert_eq!(seen(&history, 3), Some((3, 3, 1)));
    }

    #[test]
    fn a_key_deleted_put_and_deleted_by_one_request_keeps_one_tombstone() {
        let mut history = history(&[2]);
        history.push_tombstone(Revision { main: 3, sub: 0 });
        let put = history.next_put(Revision { main: 3, sub: 1 });
        history.push_put(put);
        history.push_tombstone(Revision { main: 3, sub: 2 });
        let (is_left, dropped) = prune(&mut history, 3);
        assert!(is_left);
        assert_eq!(dropped, [revision(2), Revision { main: 3, sub: 0 }, Revision { main: 3, sub: 1 }]);
        assert_eq!((seen(&history, 3), history.last_revision().sub), (None, 2));
    }

    #[test]
    #[should_panic(expected = "history runs backward")]
    fn a_record_older_than_the_newest_is_our_bug() {
        history(&[5, 4]);
    }

    #[test]
    #[should_panic(expected = "deleted again")]
    fn deleting_twice_is_our_bug() {
        history(&[5, -6, -7]);
    }
}
