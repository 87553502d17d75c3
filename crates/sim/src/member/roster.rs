//! Whom a member talks to: the members that it knows, and those that another member vouched for. The first as
//! `member/roster` of the process has it.

use std::collections::BTreeSet;

use mvcc::Store;
use raft_node::Membership;

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Member,
    /// Not on the list here; a member that is on it has this one on its own.
    Vouched,
    Removed,
    Unknown,
}

pub(crate) struct Roster {
    members: Membership,
    vouched: BTreeSet<u64>,
    /// Ids that are being asked for.
    asked: BTreeSet<u64>,
}

impl Roster {
    pub fn new(members: Membership) -> Roster {
        Roster { members, vouched: BTreeSet::new(), asked: BTreeSet::new() }
    }

    /// The members from now on.
    pub fn replace(&mut self, members: Membership) {
        self.members = members;
        let Roster { members, vouched, .. } = self;
        vouched.retain(|id| !is_in(members, *id));
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    pub fn standing(&self, id: u64, store: &Store) -> Standing {
        if is_in(&self.members, id) {
            Standing::Member
        } else if state_machine::is_removed(store, id) {
            Standing::Removed
        } else if self.vouched.contains(&id) {
            Standing::Vouched
        } else {
            Standing::Unknown
        }
    }

    /// Whether to ask the members for this id now: one question at a time.
    pub fn must_ask(&mut self, id: u64) -> bool {
        self.asked.insert(id)
    }

    /// The members were asked for this id.
    pub fn answered(&mut self, id: u64, is_member: bool) {
        self.asked.remove(&id);
        if is_member {
            self.vouched.insert(id);
        }
    }
}

pub(crate) fn is_in(members: &Membership, id: u64) -> bool {
    members.voters.contains(&id) || members.learners.contains(&id)
}
