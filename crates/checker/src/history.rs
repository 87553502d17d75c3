//! History that watchers have reported: the key changes per revision and the states of each key.
//!
//! * Complete up to [`History::covered`].
//! * States before [`History::forgotten`] have been discarded.
//!
//! Must not depend on operations or watchers.

use crate::operation::{KeyChange, KeyRecord, Revision};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Included};

/// Minimum number of revisions to retain for reads from lagging members: a few megabytes.
const KEPT_MIN: i64 = 10_000;
/// Maximum number of revisions to retain, even if a watcher is stalled: a few hundred megabytes.
/// Older revisions are not compared with events that the watcher receives later.
const KEPT_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct History {
    revisions: BTreeMap<Revision, Vec<KeyChange>>,
    states: HashMap<u32, VecDeque<(Revision, Option<KeyRecord>)>>,
    covered: Revision,
    forgotten: Revision,
}

impl History {
    /// Creates a history that starts at a revision at which no key exists.
    pub fn new(start: Revision) -> Self {
        Self { revisions: BTreeMap::new(), states: HashMap::new(), covered: start, forgotten: start }
    }

    pub fn covered(&self) -> Revision {
        self.covered
    }

    pub fn forgotten(&self) -> Revision {
        self.forgotten
    }

    pub fn cover(&mut self, revision: Revision) {
        self.covered = self.covered.max(revision);
    }

    /// Appends the changes of the next revision. On a contradiction, returns the change and the
    /// previous record of its key.
    pub fn append(
        &mut self,
        revision: Revision,
        changes: &[KeyChange],
    ) -> Result<(), Box<(KeyChange, Option<KeyRecord>)>> {
        assert!(revision > self.covered, "revisions come in order");
        for change in changes {
            let before = self.state(change.key, revision);
            let follows = match (&change.record, &before) {
                (Some(record), Some(before)) => {
                    record.created == before.created && record.version == before.version + 1
                }
                (Some(record), None) => record.created == revision && record.version == 1,
                (None, before) => before.is_some(),
            };
            if !follows || change.record.is_some_and(|record| record.modified != revision) {
                return Err(Box::new((*change, before)));
            }
            self.states.entry(change.key).or_default().push_back((revision, change.record));
        }
        self.revisions.insert(revision, changes.to_vec());
        self.covered = revision;
        if self.revisions.len() > KEPT_MAX {
            self.forget_first();
        }
        Ok(())
    }

    /// Returns the changes made at a revision; `None` if it changed no key.
    pub fn at(&self, revision: Revision) -> Option<&[KeyChange]> {
        self.revisions.get(&revision).map(Vec::as_slice)
    }

    pub fn first_between(&self, after: Revision, to: Revision) -> Option<&KeyChange> {
        self.between(after, to).next()
    }

    pub fn between(&self, after: Revision, to: Revision) -> impl Iterator<Item = &KeyChange> {
        let range = (after < to).then(|| self.revisions.range((Excluded(after), Included(to))));
        range.into_iter().flatten().flat_map(|(_, changes)| changes)
    }

    /// Returns the state of a key at a revision, which must be retained and covered.
    pub fn state(&self, key: u32, revision: Revision) -> Option<KeyRecord> {
        let states = self.states.get(&key)?;
        let later = states.partition_point(|(at, _)| *at <= revision);
        later.checked_sub(1).and_then(|place| states[place].1)
    }

    /// Discards history before a revision, but retains the last `KEPT_MIN` revisions.
    pub fn forget(&mut self, before: Revision) {
        let before = before.min(self.covered - KEPT_MIN);
        if before <= self.forgotten {
            return;
        }
        while self.revisions.first_key_value().is_some_and(|(&revision, _)| revision <= before) {
            self.forget_first();
        }
        self.forgotten = before;
    }

    fn forget_first(&mut self) {
        let Some((revision, changes)) = self.revisions.pop_first() else { return };
        self.forgotten = revision;
        changes.iter().for_each(|change| self.drop_states(change.key, revision));
    }

    /// Drops the states of a key that were replaced before a revision.
    fn drop_states(&mut self, key: u32, before: Revision) {
        let Some(states) = self.states.get_mut(&key) else { return };
        while states.get(1).is_some_and(|(next, _)| *next <= before) {
            states.pop_front();
        }
        if let [(at, None)] = states.make_contiguous()
            && *at <= before
        {
            self.states.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: Revision, version: i64, created: Revision) -> KeyChange {
        let record =
            KeyRecord { key: 1, value: revision as u64, created, modified: revision, version, lease: 0 };
        KeyChange { revision, key: 1, record: Some(record) }
    }

    #[test]
    fn states_are_those_of_their_revisions() {
        let mut history = History::new(5);
        history.append(7, &[put(7, 1, 7)]).unwrap();
        history.append(9, &[put(9, 2, 7)]).unwrap();
        history.append(12, &[KeyChange { revision: 12, key: 1, record: None }]).unwrap();
        let values = [6, 7, 8, 9, 11, 12].map(|at| history.state(1, at).map(|record| record.value));
        assert_eq!(values, [None, Some(7), Some(7), Some(9), Some(9), None]);
        assert_eq!((history.covered(), history.at(8)), (12, None));
        assert_eq!(history.first_between(7, 9), Some(&put(9, 2, 7)));
        assert_eq!((history.first_between(9, 11), history.first_between(12, 12)), (None, None));
    }

    #[test]
    fn changes_that_do_not_follow_on_each_other_are_refused() {
        for (first, second) in [
            (put(7, 2, 7), None),
            (put(7, 1, 6), None),
            (KeyChange { revision: 7, key: 1, record: None }, None),
            (put(7, 1, 7), Some(put(8, 3, 7))),
            (put(7, 1, 7), Some(put(8, 2, 8))),
        ] {
            let mut history = History::new(0);
            let appended = history.append(7, &[first]);
            let appended = second.map_or(appended, |second| history.append(8, &[second]));
            assert!(appended.is_err(), "{first} {second:?}");
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_run() {
        let mut history = History::new(0);
        for revision in 1..=3 * KEPT_MIN {
            history.append(revision, &[put(revision, revision, 1)]).unwrap();
            history.forget(revision);
        }
        assert_eq!(history.revisions.len() as i64, KEPT_MIN);
        assert_eq!(history.states[&1].len() as i64, KEPT_MIN + 1);
        assert_eq!(history.state(1, history.forgotten()).unwrap().modified, history.forgotten());
    }
}
