//! Model of the membership, the command level and the history id after each entry.

use std::collections::{BTreeMap, BTreeSet};

use raft_node::{LogIndex, Membership};
use state_machine::CommandLevel;
use state_machine::command::{Change, MemberAdd, RaiseLevel};

#[derive(Debug, Default)]
pub(crate) struct MemberModel {
    /// Members; true for learners.
    members: BTreeMap<u64, bool>,
    removed: BTreeSet<u64>,
    moved: BTreeMap<u64, String>,
}

impl MemberModel {
    pub fn begin(&mut self, founders: impl IntoIterator<Item = u64>) {
        assert!(self.members.is_empty(), "a cluster begins once");
        self.members.extend(founders.into_iter().map(|id| (id, false)));
    }

    /// Applies a change. Returns false if it is rejected.
    pub fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Add(add) => self.add(add),
            Change::Remove(id) => self.remove(*id),
            Change::Promote(id) => match self.members.get_mut(id) {
                Some(is_learner) => std::mem::take(is_learner),
                None => false,
            },
            Change::Retain(id) => self.retain(*id),
            // The simulator assigns unique URLs.
            Change::Update(update) => {
                let is_member = self.members.contains_key(&update.id);
                self.moved.extend(
                    update.peer_urls.first().filter(|_| is_member).map(|url| (update.id, url.clone())),
                );
                is_member
            }
        }
    }

    fn add(&mut self, add: &MemberAdd) -> bool {
        let learners = self.members.values().filter(|is_learner| **is_learner).count() as u64;
        let is_new = !self.members.contains_key(&add.id) && !self.removed.contains(&add.id);
        let has_room = !add.is_learner || learners < add.learners_max;
        if is_new && has_room {
            self.members.insert(add.id, add.is_learner);
        }
        is_new && has_room
    }

    fn remove(&mut self, id: u64) -> bool {
        let other_voters = self.members.iter().filter(|(other, is_learner)| **other != id && !**is_learner);
        let is_last_voter = self.members.get(&id) == Some(&false) && other_voters.count() == 0;
        let is_gone = !is_last_voter && self.members.remove(&id).is_some();
        if is_gone {
            self.removed.insert(id);
        }
        is_gone
    }

    fn retain(&mut self, id: u64) -> bool {
        let is_member = self.members.contains_key(&id);
        if is_member {
            self.removed.extend(self.members.keys().filter(|other| **other != id));
            self.members = BTreeMap::from([(id, false)]);
        }
        is_member
    }

    pub fn membership(&self) -> Membership {
        let of_kind = |wanted: bool| {
            let found = self.members.iter().filter(move |(_, is_learner)| **is_learner == wanted);
            found.map(|(id, _)| *id).collect()
        };
        Membership { voters: of_kind(false), learners: of_kind(true) }
    }

    /// Returns all members as numbers: each id, and 1 if it is a learner.
    pub fn summary(&self) -> impl Iterator<Item = i64> {
        self.members.iter().flat_map(|(id, is_learner)| [*id as i64, i64::from(*is_learner)])
    }

    /// Returns the listed address of a member, if it was updated.
    pub fn moved_to(&self, id: u64) -> Option<&String> {
        self.moved.get(&id)
    }

    pub fn was_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }
}

/// Command level by the index at which it was raised, and the entry that gave the history an id.
#[derive(Debug, Default)]
pub(crate) struct LevelModel(BTreeMap<LogIndex, CommandLevel>, Option<(LogIndex, u64)>);

impl LevelModel {
    /// Raises the level, if the command lists all members.
    pub fn apply(&mut self, index: LogIndex, raise: &RaiseLevel, members: &Membership) {
        let level = CommandLevel(raise.level);
        if !members.ids().all(|id| raise.members.contains(&id)) {
            return;
        }
        if level > self.at(index) {
            self.0.insert(index, level);
        }
        if level >= CommandLevel::HISTORIES && raise.history != 0 && self.1.is_none() {
            self.1 = Some((index, raise.history));
        }
    }

    /// Checks the history id of a member at `index`: the first one assigned by a raise.
    pub fn check_history(&self, index: LogIndex, found: u64) -> Result<(), String> {
        let wanted = self.1.filter(|(at, _)| *at <= index).map_or(0, |(_, id)| id);
        match found == wanted {
            true => Ok(()),
            false => Err(format!("at entry {index} a member is of history {found:x}, not {wanted:x}")),
        }
    }

    fn at(&self, index: LogIndex) -> CommandLevel {
        self.0.range(..=index).next_back().map(|(_, level)| *level).unwrap_or_default()
    }

    /// Checks the command level of a member at `index` whose version supports `known`.
    pub fn check(&self, index: LogIndex, found: CommandLevel, known: CommandLevel) -> Result<(), String> {
        if found > known {
            return Err(format!("at entry {index} a version that knows {known:?} has applied {found:?}"));
        }
        let wanted = self.at(index);
        if found == wanted {
            Ok(())
        } else {
            Err(format!("at entry {index} a member has {found:?}, not {wanted:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(id: u64, is_learner: bool) -> Change {
        Change::Add(MemberAdd { id, is_learner, learners_max: 1, ..MemberAdd::default() })
    }

    #[test]
    fn changes_are_taken_and_refused_as_etcd_does() {
        let mut model = MemberModel::default();
        model.begin([1, 2]);
        for (change, is_taken, voters, learners) in [
            (add(2, false), false, vec![1, 2], vec![]),
            (add(3, true), true, vec![1, 2], vec![3]),
            (add(4, true), false, vec![1, 2], vec![3]),
            (Change::Promote(2), false, vec![1, 2], vec![3]),
            (Change::Promote(3), true, vec![1, 2, 3], vec![]),
            (Change::Remove(1), true, vec![2, 3], vec![]),
            (Change::Remove(1), false, vec![2, 3], vec![]),
            (add(1, false), false, vec![2, 3], vec![]),
            (add(4, true), true, vec![2, 3], vec![4]),
            (Change::Remove(2), true, vec![3], vec![4]),
            (Change::Remove(3), false, vec![3], vec![4]),
            (Change::Remove(4), true, vec![3], vec![]),
            (add(5, true), true, vec![3], vec![5]),
            (Change::Retain(4), false, vec![3], vec![5]),
            (Change::Retain(5), true, vec![5], vec![]),
        ] {
            assert_eq!(model.apply(&change), is_taken, "{change:?}");
            assert_eq!(model.membership(), Membership { voters, learners }, "{change:?}");
        }
        assert!(model.was_removed(1) && model.was_removed(3) && !model.was_removed(5));
    }
}
