//! Whom a member talks to: the members that it knows, and those that have introduced themselves, as
//! `member/roster` and `peer/introduction` of the process have it.

use std::collections::{BTreeMap, BTreeSet};

use base::Addresses;
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
    /// Where members are dialled, and where they say that they are.
    links: BTreeMap<u64, (Addresses, Vec<String>)>,
}

impl Roster {
    pub fn new(members: Membership, lacks_others: bool) -> Roster {
        let (vouched, asked, links) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Roster { members, lacks_others, vouched, asked, links }
    }

    /// The members from now on.
    pub fn replace(&mut self, members: Membership) {
        self.members = members;
        self.lacks_others = false;
        let Roster { members, vouched, .. } = self;
        vouched.retain(|id| !is_in(members, *id));
    }

    /// Where the list has the members from now on.
    pub fn follow(&mut self, listed: &BTreeMap<u64, Vec<String>>) {
        self.links.retain(|id, _| listed.contains_key(id) || self.vouched.contains(id));
        for (id, urls) in listed {
            let (addresses, claimed) = self.links.entry(*id).or_default();
            if claimed.iter().all(|url| urls.contains(url)) {
                claimed.clear();
            }
            addresses.follow(urls.clone(), claimed.clone());
        }
    }

    /// A member says where it listens.
    pub fn claim(&mut self, id: u64, urls: &[String]) {
        let (addresses, claimed) = self.links.entry(id).or_default();
        *claimed = urls.to_vec();
        addresses.follow(addresses.listed().to_vec(), claimed.clone());
    }

    /// The first address of a member at which it is found.
    pub fn found_at(&self, id: u64, listens_at: &[String]) -> Option<String> {
        let (addresses, _) = self.links.get(&id)?;
        addresses.all().into_iter().find(|url| listens_at.contains(url))
    }

    /// A member answered there. True if the list has it elsewhere.
    pub fn note_answer(&mut self, id: u64, url: &String) -> bool {
        let Some((addresses, _)) = self.links.get_mut(&id) else { return false };
        addresses.note_answer(url);
        !addresses.listed().contains(url)
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// Those that it dials: members of the list, and those that have introduced themselves.
    pub fn linked(&self) -> Vec<u64> {
        self.members.ids().chain(self.vouched.iter().copied()).collect()
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
        let is_alone = !self.lacks_others && self.members.ids().all(|member| member == own);
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

/// No two members have the same; another `version` is another address of the member.
pub(crate) fn peer_url(id: u64, version: u64) -> String {
    format!("http://member-{id}-{version}:2380")
}

pub(crate) fn is_in(members: &Membership, id: u64) -> bool {
    members.voters.contains(&id) || members.learners.contains(&id)
}
