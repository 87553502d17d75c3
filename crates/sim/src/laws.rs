//! What must never happen, and the truth that it is held against.
//!
//! * One leader per term (election safety).
//! * Whoever applied an index applied the same entry and came to the same revision (state machine safety).
//! * Two logs that agree on an entry agree on all before it (log matching).
//! * What was acknowledged is synced on a quorum (durability).
//! * Revisions seen by clients follow real time, and a linearizable read sees the newest value of its key.

use std::collections::BTreeMap;

use api::etcdserverpb::PutRequest;
use bytes::Bytes;
use raft_node::{Gauges, Position, Role};
use state_machine::command::{self, Kind};

/// A law that was broken, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach(pub String);

impl<T: Into<String>> From<T> for Breach {
    fn from(text: T) -> Breach {
        Breach(text.into())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    term: u64,
    digest: u64,
    revision: i64,
}

/// What the first member to get there did; everybody after it must do the same.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    entries: BTreeMap<u64, Entry>,
    /// Key and value that each revision wrote.
    writes: BTreeMap<i64, (Bytes, Bytes)>,
    /// Revisions that wrote each key.
    keys: BTreeMap<Bytes, Vec<i64>>,
}

impl Truth {
    /// A command took a member from revision `before` to `after`.
    pub fn command(&mut self, bytes: &Bytes, before: i64, after: i64) -> Result<(), String> {
        let Ok(Kind::Put(PutRequest { key, value, .. })) = command::decode(bytes) else {
            return Err("a command that no client sent was applied".into());
        };
        if after != before + 1 {
            return Err(format!("a put took the store from revision {before} to {after}"));
        }
        match self.writes.get(&after) {
            Some(known) if *known == (key.clone(), value.clone()) => Ok(()),
            Some(known) => Err(format!("revision {after} wrote {known:?} on one member, {key:?} on another")),
            None => {
                self.keys.entry(key.clone()).or_default().push(after);
                self.writes.insert(after, (key, value));
                Ok(())
            }
        }
    }

    /// A member finished the entry at `at` and stands at `revision`.
    pub fn entry(&mut self, at: Position, digest: u64, revision: i64) -> Result<(), String> {
        let here = Entry { term: at.term, digest, revision };
        match self.entries.insert(at.index, here) {
            Some(there) if there != here => Err(format!("entry {} is {here:?} and {there:?}", at.index)),
            _ => Ok(()),
        }
    }

    pub fn last_index(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// The revision that a key's newest value had at `revision`, if it had one.
    pub fn newest(&self, key: &Bytes, revision: i64) -> Option<i64> {
        let writes = self.keys.get(key)?;
        writes.iter().rev().find(|written| **written <= revision).copied()
    }

    pub fn write(&self, revision: i64) -> Option<&(Bytes, Bytes)> {
        self.writes.get(&revision)
    }

    /// Where a revision was written: the first entry that reached it.
    pub fn entry_of(&self, revision: i64) -> Option<Position> {
        let at = |(index, entry): (&u64, &Entry)| Position { index: *index, term: entry.term };
        // Newest first: what was just acknowledged lies at the end.
        let reached = self.entries.iter().rev().take_while(|(_, entry)| entry.revision >= revision);
        reached.last().map(at)
    }
}

/// One leader per term.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    leaders: BTreeMap<u64, u64>,
}

impl Elections {
    pub fn observe(&mut self, id: u64, gauges: Gauges) -> Result<(), Breach> {
        if gauges.role != Role::Leader {
            return Ok(());
        }
        match self.leaders.insert(gauges.term, id) {
            Some(other) if other != id => {
                Err(format!("members {other} and {id} both led term {}", gauges.term).into())
            }
            _ => Ok(()),
        }
    }

    pub fn count(&self) -> usize {
        self.leaders.len()
    }
}

/// Entries compared in one check: the newest ones, where logs differ.
const COMPARED_MAX: u64 = 64;

/// Two logs, each given as "term at index": from the newest entry on which they agree, they agree downwards.
pub(crate) fn logs_match(
    last: u64,
    one: impl Fn(u64) -> Option<u64>,
    other: impl Fn(u64) -> Option<u64>,
) -> Result<(), Breach> {
    let mut agreed = false;
    for index in (last.saturating_sub(COMPARED_MAX) + 1..=last).rev() {
        let equal = one(index) == other(index);
        if agreed && !equal {
            return Err(format!("two logs agree on entry {} but not on {index}", index + 1).into());
        }
        agreed |= equal;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, term: u64) -> Position {
        Position { index, term }
    }

    fn put(key: &str, value: &str) -> Bytes {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
        command::encode(Kind::Put(PutRequest { key, value, ..PutRequest::default() }))
    }

    #[test]
    fn members_that_applied_different_entries_are_caught() {
        let mut truth = Truth::default();
        truth.entry(at(1, 1), 7, 1).unwrap();
        truth.entry(at(1, 1), 7, 1).unwrap();
        for different in [(at(1, 2), 7, 1), (at(1, 1), 8, 1), (at(1, 1), 7, 2)] {
            let mut truth = Truth::default();
            truth.entry(at(1, 1), 7, 1).unwrap();
            assert!(truth.entry(different.0, different.1, different.2).is_err(), "{different:?}");
        }
    }

    #[test]
    fn a_revision_that_differs_between_members_is_caught() {
        let mut truth = Truth::default();
        truth.command(&put("a", "1"), 1, 2).unwrap();
        truth.command(&put("a", "1"), 1, 2).unwrap();
        assert!(truth.command(&put("a", "2"), 1, 2).is_err());
        assert!(truth.command(&put("a", "3"), 2, 4).is_err(), "one put is one revision");
    }

    #[test]
    fn the_newest_value_of_a_key_is_known_at_every_revision() {
        let mut truth = Truth::default();
        for (revision, key) in [(2, "a"), (3, "b"), (4, "a")] {
            truth.command(&put(key, "x"), revision - 1, revision).unwrap();
        }
        let newest = |revision| truth.newest(&Bytes::from_static(b"a"), revision);
        assert_eq!([newest(1), newest(2), newest(3), newest(4)], [None, Some(2), Some(2), Some(4)]);
    }

    #[test]
    fn the_entry_of_a_revision_is_the_first_that_reached_it() {
        let mut truth = Truth::default();
        for (index, revision) in [(1, 1), (2, 3), (3, 3), (4, 5)] {
            truth.entry(at(index, 1), index, revision).unwrap();
        }
        let index = |revision| truth.entry_of(revision).map(|at| at.index);
        assert_eq!(
            [index(2), index(3), index(4), index(5), index(6)],
            [Some(2), Some(2), Some(4), Some(4), None]
        );
    }

    #[test]
    fn two_leaders_of_one_term_are_caught() {
        let mut elections = Elections::default();
        let gauges = |term| Gauges { role: Role::Leader, leader: None, term, commit: 0, last_index: 0 };
        elections.observe(1, gauges(5)).unwrap();
        elections.observe(1, gauges(5)).unwrap();
        elections.observe(2, gauges(6)).unwrap();
        assert!(elections.observe(2, gauges(5)).is_err());
    }

    #[test]
    fn logs_that_agree_above_a_difference_are_caught() {
        let log = |terms: &'static [u64]| move |index: u64| terms.get(index as usize - 1).copied();
        assert!(logs_match(3, log(&[1, 1, 2]), log(&[1, 1, 3])).is_ok());
        assert!(logs_match(3, log(&[1, 1, 2]), log(&[1, 2, 2])).is_err());
    }
}
