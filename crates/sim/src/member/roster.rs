//! Whom a member talks to: the members that it knows, and those that have introduced themselves, as
//! `member/roster` and `peer/introduction` of the process have it.

use std::collections::BTreeSet;

use mvcc::Store;
use raft_node::Membership;

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberStanding {
    Member,
    /// Not on the list here; its own list has both.
    Vouched,
    Removed,
    Unknown,
}

pub(crate) struct Roster {
    members: Membership,
    /// The newer list was lost with the store, and the log has other members.
    lacks_others: bool,
    vouched: BTreeSet<u64>,
    /// Ids that are being asked for.
    asked: BTreeSet<u64>,
}

impl Roster {
    pub fn new(members: Membership, lacks_others: bool) -> Roster {
        Roster { members, lacks_others, vouched: BTreeSet::new(), asked: BTreeSet::new() }
    }

    /// The members from now on.
    pub fn replace(&mut self, members: Membership) {
        self.members = members;
        self.lacks_others = false;
        let Roster { members, vouched, .. } = self;
        vouched.retain(|id| !is_in(members, *id));
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    pub fn standing(&self, id: u64, store: &Store) -> MemberStanding {
        if is_in(&self.members, id) {
            MemberStanding::Member
        } else if state_machine::is_removed(store, id) {
            MemberStanding::Removed
        } else if self.vouched.contains(&id) {
            MemberStanding::Vouched
        } else {
            MemberStanding::Unknown
        }
    }

    /// Whether to ask for this id now: one question at a time, and none by a member that is alone.
    pub fn must_ask(&mut self, own: u64, id: u64) -> bool {
        let mut listed = self.members.voters.iter().chain(&self.members.learners);
        let is_alone = !self.lacks_others && listed.all(|member| *member == own);
        !is_alone && self.asked.insert(id)
    }

    /// It was asked whether this id is a member.
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
