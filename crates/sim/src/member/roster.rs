//! Peers of a member: known members, and members that have introduced themselves, modeled after
//! `member/roster` and `peer/introduction` of the process.

use std::collections::{BTreeMap, BTreeSet};

use base::Addresses;
use mvcc::Store;
use raft_node::Membership;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberStanding {
    Member,
    /// Missing from this member's list, but its own list contains both.
    Vouched,
    Removed,
    Unknown,
}

pub(crate) struct Roster {
    members: Membership,
    /// True if the newer list was lost with the store, and the log has other members.
    lacks_others: bool,
    vouched: BTreeSet<u64>,
    asked: BTreeSet<u64>,
    /// Addresses at which members are dialled, and URLs that they claim.
    links: BTreeMap<u64, (Addresses, Vec<String>)>,
}

impl Roster {
    pub fn new(members: Membership, lacks_others: bool) -> Roster {
        let (vouched, asked, links) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Roster { members, lacks_others, vouched, asked, links }
    }

    pub fn replace(&mut self, members: Membership) {
        self.members = members;
        self.lacks_others = false;
        let Roster { members, vouched, .. } = self;
        vouched.retain(|id| !is_in(members, *id));
    }

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

    pub fn claim(&mut self, id: u64, urls: &[String]) {
        let (addresses, claimed) = self.links.entry(id).or_default();
        *claimed = urls.to_vec();
        addresses.follow(addresses.listed().to_vec(), claimed.clone());
    }

    /// Returns the first address at which a member is reachable.
    pub fn found_at(&self, id: u64, listens_at: &[String]) -> Option<String> {
        let (addresses, _) = self.links.get(&id)?;
        addresses.all().into_iter().find(|url| listens_at.contains(url))
    }

    /// Records that a member responded at an address. Returns true if its listed addresses differ.
    pub fn note_answer(&mut self, id: u64, url: &String) -> bool {
        let Some((addresses, _)) = self.links.get_mut(&id) else { return false };
        addresses.note_answer(url);
        !addresses.listed().contains(url)
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// Returns the peers to dial: listed members, and members that have introduced themselves.
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

    /// Reports whether to query an id now: one query at a time, and none on a single member.
    pub fn must_ask(&mut self, own: u64, id: u64) -> bool {
        let is_alone = !self.lacks_others && self.members.ids().all(|member| member == own);
        !is_alone && self.asked.insert(id)
    }

    /// Records the result of a query: whether this id is a member.
    pub fn answered(&mut self, id: u64, is_member: bool) {
        self.asked.remove(&id);
        if is_member {
            self.vouched.insert(id);
        }
    }
}

/// Returns a URL that is unique per member and `version`.
pub(crate) fn peer_url(id: u64, version: u64) -> String {
    format!("http://member-{id}-{version}:2380")
}

pub(crate) fn is_in(members: &Membership, id: u64) -> bool {
    members.voters.contains(&id) || members.learners.contains(&id)
}
