//! Starts and stops of members.
//!
//! An added member starts with an empty disk. It queries a running member for the membership, and
//! starts once it is listed. A member that learns of its removal from a voter stops for good.

use raft_node::{Event, Membership};

use state_machine::CommandLevel;

use super::super::event::WorldEvent;
use super::super::state::World;
use crate::count::Statistic;
use crate::member::{MemberError, MemberStage, SimMember, StartKnowledge, is_in, membership_in};
use crate::oracle::Breach;
use crate::plan::{MILLISECOND, SECOND};

/// Probability, per thousand ticks, that a removed member's link is rejected by a peer.
const PROBED: u64 = 100;

impl World {
    /// Returns the voters after the last entry applied anywhere.
    pub(crate) fn voters(&self) -> Vec<u64> {
        self.truth.get().model.members.membership().voters
    }

    /// Reports whether a member may lose a disk. False while changes are in flight, since they
    /// affect the size of a minority.
    pub(crate) fn may_lose_data(&self, id: u64) -> bool {
        let is_member = is_in(&self.truth.get().model.members.membership(), id);
        is_member && self.changes_under_way() == 0
    }

    pub(crate) fn may_start(&self, id: u64) -> bool {
        let site = self.see(id);
        site.stage == MemberStage::Present && site.up.is_none() && !self.stays_down(id)
    }

    /// Returns the list of a running member for a starting one, if any responds. None if it cannot
    /// start yet.
    pub(crate) fn prepare_start(&mut self, id: u64) -> Option<Option<Membership>> {
        if !self.changes_members() {
            return Some(None);
        }
        if let StartKnowledge::Joined(None) = self.see(id).origin {
            let (running, cluster) = self.ask_who_is_in(id).unzip();
            let Some(members) = running.filter(|members| is_in(members, id)) else {
                let later = self.chances.changes.within(50 * MILLISECOND, SECOND / 2);
                self.after(later, WorldEvent::Restart { to: id });
                return None;
            };
            if self.joiner_is_too_old(id, cluster.unwrap_or_default()) {
                return None;
            }
            self.site(id).origin = StartKnowledge::Joined(Some(members.clone()));
            self.count(Statistic::Joins);
            self.after(MILLISECOND, WorldEvent::Promote { to: id });
            return Some(Some(members));
        }
        let first = self.see(id).birth().clone();
        let asked: Vec<u64> = first.ids().collect();
        let lists = self.lists_with(id, &asked);
        Some(self.chances.changes.pick_any(&lists).cloned())
    }

    /// Returns the lists of reachable members that include `asker`. As in the process, a joined
    /// member without a state responds with the list of its first start.
    pub(crate) fn lists_with(&self, asker: u64, asked: &[u64]) -> Vec<Membership> {
        let reached = asked.iter().filter(|id| **id != asker && self.both_ways(asker, **id));
        let lists = reached.filter_map(|id| membership_in(&self.see(*id).up.as_ref()?.store).ok());
        lists.filter(|members| is_in(members, asker)).collect()
    }

    /// Returns the list of a reachable running member, and the cluster's level.
    fn ask_who_is_in(&mut self, asker: u64) -> Option<(Membership, CommandLevel)> {
        let mut others = self.ids();
        others.retain(|id| *id != asker && self.see(*id).up.is_some() && self.both_ways(asker, *id));
        if others.is_empty() {
            return None;
        }
        let other = *self.chances.changes.pick(&others);
        let up = self.see(other).up.as_ref()?;
        Some((membership_in(&up.store).ok()?, up.applier.machine().level().get()))
    }

    pub(super) fn both_ways(&self, one: u64, other: u64) -> bool {
        self.network.reaches(one, other) && self.network.reaches(other, one)
    }

    /// Handles an apply that may have changed the members.
    pub(crate) fn note_members(
        &mut self,
        id: u64,
        membership: Option<Membership>,
    ) -> Result<(), MemberError> {
        let Some(membership) = membership else { return Ok(()) };
        let up = self.site(id).up.as_mut().expect("it has applied something");
        up.roster.replace(membership.clone());
        self.follow_addresses(id)?;
        let at = self.see(id).applied();
        self.site(id).handle(Event::Membership { at, membership })?;
        self.place_members()?;
        Ok(())
    }

    /// Starts members that were added since the last call, and counts removed ones.
    fn place_members(&mut self) -> Result<(), Breach> {
        let after = self.truth.get().model.members.membership();
        let before = std::mem::replace(&mut self.changes.placed, after.clone());
        self.count_changes(&before, &after);
        self.check_states(&before, &after)?;
        for id in after.ids().filter(|id| self.see(*id).stage == MemberStage::Unborn).collect::<Vec<_>>() {
            self.site(id).stage = MemberStage::Present;
            let delay = self.chances.changes.within(10 * MILLISECOND, 3 * SECOND);
            self.after(delay, WorldEvent::Restart { to: id });
        }
        for id in before.ids().filter(|id| !is_in(&after, *id)) {
            self.count(Statistic::Removals);
            if self.see(id).leads() {
                self.count(Statistic::LeadersRemoved);
            }
        }
        Ok(())
    }

    pub(super) fn plan_stop(&mut self, id: u64) {
        let delay = self.chances.changes.within(MILLISECOND, 300 * MILLISECOND);
        self.after(delay, WorldEvent::Stop { to: id });
    }

    pub(crate) fn stop(&mut self, id: u64) {
        if self.see(id).stage == MemberStage::Stopped {
            return;
        }
        assert!(self.truth.get().model.members.was_removed(id), "member {id} stops, and was not removed");
        self.count(Statistic::MembersStopped);
        self.tell(|| format!("member {id} stops: it was removed"));
        let site = self.site(id);
        (site.stage, site.up) = (MemberStage::Stopped, None);
        self.forget_requests(id);
    }

    /// Makes a voter reject the links of a removed member, after a random delay.
    pub(crate) fn probe(&mut self, id: u64) {
        if !self.truth.get().model.members.was_removed(id) || !self.chances.changes.per_mille(PROBED) {
            return;
        }
        let Some(up) = self.see(id).up.as_ref() else { return };
        let others = up.roster.members().voters.iter().chain(&up.roster.members().learners);
        let knows = |other: &&u64| {
            let is_reached = **other != id && self.both_ways(id, **other);
            let up = self.see(**other).up.as_ref().filter(|_| is_reached);
            up.is_some_and(|up| {
                up.roster.members().voters.contains(other) && state_machine::is_removed(&up.store, id)
            })
        };
        if others.filter(knows).count() > 0 {
            self.plan_stop(id);
        }
    }

    /// Checks that no removed member is running at the end, unless all other members in its list
    /// are removed as well: then no member can notify it, as in etcd.
    pub(crate) fn check_removed(&self) -> Result<(), Breach> {
        let members = self.truth.get().model.members.membership();
        let is_told = |site: &&SimMember| {
            let listed = site.up.as_ref().map(|up| up.roster.members());
            let knows = |listed: &Membership| listed.ids().any(|other| is_in(&members, other));
            !is_in(&members, site.id) && listed.is_some_and(knows)
        };
        match self.sites.iter().find(is_told) {
            Some(site) => Err(format!("member {} was removed, and still runs in the end", site.id).into()),
            None => Ok(()),
        }
    }
}
