//! The oracle of the cluster's level of commands, and of the id of its history.

use std::collections::BTreeMap;

use raft_node::{LogIndex, Membership};
use state_machine::CommandLevel;
use state_machine::command::RaiseLevel;

/// The level from each entry on at which it rose, and the entry that gave the history an id.
#[derive(Debug, Default)]
pub(crate) struct LevelModel(BTreeMap<LogIndex, CommandLevel>, Option<(LogIndex, u64)>);

impl LevelModel {
    /// Only a command that counts all members raises the level.
    pub fn apply(&mut self, index: LogIndex, raise: &RaiseLevel, members: &Membership) {
        let mut listed = members.voters.iter().chain(&members.learners);
        let level = CommandLevel(raise.level);
        if !listed.all(|id| raise.members.contains(id)) {
            return;
        }
        if level > self.at(index) {
            self.0.insert(index, level);
        }
        if level >= CommandLevel::HISTORIES && raise.history != 0 && self.1.is_none() {
            self.1 = Some((index, raise.history));
        }
    }

    /// A member stands at `index`, and its history has the id `found`: the first one that a raise gave it.
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

    /// A member of a version that understands `known` stands at `index`, and has the level `found`.
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
