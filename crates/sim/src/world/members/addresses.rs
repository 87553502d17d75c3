//! Addresses of members: where they are dialled, by the rules of the process ([`base::Addresses`]),
//! and where they listen.
//!
//! An operator first changes the list. The member keeps its old address until its next start, and
//! sometimes longer, because its new address was misspelt. At the end all members listen at their
//! listed addresses, too.
//!
//! Invariant: while both members run, a working link stays up, even if the listed addresses change.

use std::collections::BTreeMap;

use raft_node::Fatal;

use super::super::event::FaultPhase;
use super::super::state::World;
use crate::count::Statistic;
use crate::member::MemberError;
use crate::oracle::Breach;

/// Probability, per thousand, that a member starts at its old address although the list has a new
/// one.
const MISPLACED: u64 = 500;

impl World {
    /// Updates the addresses of a starting member, or of a running one when the faults stop.
    pub(crate) fn place_member(&mut self, id: u64) {
        let moved_to = self.truth.get().model.members.moved_to(id).cloned();
        let Some(url) = moved_to.filter(|url| !self.see(id).listens_at.contains(url)) else { return };
        if self.phase != FaultPhase::Faults {
            self.site(id).listens_at.push(url);
        } else if self.chances.changes.per_mille(MISPLACED) {
            self.count(Statistic::Misplaced);
        } else {
            self.site(id).listens_at = vec![url];
        }
    }

    /// Updates the links of a member from the list in its store, or from the cluster's before it
    /// has one.
    pub(crate) fn follow_addresses(&mut self, id: u64) -> Result<(), MemberError> {
        let site = self.see(id);
        let up = site.up.as_ref().expect("a running member has links");
        let of_store =
            state_machine::members(&up.store).map_err(|error| Breach(Fatal::of(error).to_string()))?;
        let mut listed: BTreeMap<u64, Vec<String>> =
            of_store.into_iter().map(|member| (member.id, member.peer_ur_ls)).collect();
        if site.wiped {
            let members = up.roster.members();
            listed = members.ids().map(|id| (id, self.see(id).listens_at.clone())).collect();
        }
        self.site(id).up.as_mut().expect("it was seen just now").roster.follow(&listed);
        Ok(())
    }

    /// Reports whether a member dials another one at an address where it listens.
    pub(crate) fn is_dialled(&self, from: u64, to: u64) -> Result<bool, Breach> {
        let (sender, receiver) = (self.see(from), self.see(to));
        let up = sender.up.as_ref().expect("a running member sends");
        let is_found = up.roster.found_at(to, &receiver.listens_at).is_some();
        if !is_found && self.links.get(&(from, to)) == Some(&(sender.boots, receiver.boots)) {
            let url = &receiver.listens_at;
            return Err(Breach(format!("member {from} gives up its link to {to}, which works, at {url:?}")));
        }
        Ok(is_found)
    }

    /// Records a delivered message: the receiver learns the sender's address, and the sender that
    /// the link works, if responses can be delivered.
    pub(crate) fn note_link(&mut self, from: u64, to: u64) {
        if !self.both_ways(from, to) {
            return;
        }
        let [from_at, to_at] = [from, to].map(|id| self.see(id).listens_at.clone());
        let boots = (self.see(from).boots, self.see(to).boots);
        let Some(up) = self.site(from).up.as_mut() else { return };
        if let Some(url) = up.roster.found_at(to, &to_at) {
            let is_elsewhere = up.roster.note_answer(to, &url);
            self.links.insert((from, to), boots);
            if is_elsewhere {
                self.count(Statistic::FoundElsewhere);
            }
        }
        let roster = &mut self.site(to).up.as_mut().expect("it took a message").roster;
        if roster.found_at(from, &from_at).is_none() {
            roster.claim(from, &from_at);
        }
    }
}
