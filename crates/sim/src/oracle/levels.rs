//! The oracle of the cluster's level of commands.

use std::collections::BTreeMap;

use raft_node::{LogIndex, Membership};
use state_machine::CommandLevel;
use state_machine::command::RaiseLevel;

/// The level from each entry on at which it rose.
#[derive(Debug, Default)]
pub(crate) struct LevelModel(BTreeMap<LogIndex, CommandLevel>);

impl LevelModel {
    /// Only a command that counts all members raises the level.
    pub fn apply(&mut self, index: LogIndex, raise: &RaiseLevel, members: &Membership) {
        let mut listed = members.voters.iter().chain(&members.learners);
        let level = CommandLevel(raise.level);
        if listed.all(|id| raise.members.contains(id)) && level > self.at(index) {
            self.0.insert(index, level);
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
