//! Decides which senders a member accepts, by the rules of the peer port: an unknown sender is
//! accepted once its own list contains both members, but a removed one never.

use super::super::event::WorldEvent;
use super::super::state::World;
use crate::count::Statistic;
use crate::member::{MemberStanding, is_in, membership_in};
use crate::plan::{MILLISECOND, SECOND};

impl World {
    fn standing(&self, at: u64, of: u64) -> MemberStanding {
        let up = self.see(at).up.as_ref().expect("a running member hears and sends");
        up.roster.standing(of, &up.store)
    }

    /// Reports whether `from` has a link to `to`.
    pub(crate) fn may_send(&self, from: u64, to: u64) -> bool {
        matches!(self.standing(from, to), MemberStanding::Member | MemberStanding::Vouched)
    }

    /// Reports whether the member `to` responds to requests of `from` outside of Raft.
    pub(crate) fn answers(&self, from: u64, to: u64) -> bool {
        self.see(to).up.is_some()
            && self.standing(to, from) == MemberStanding::Member
            && self.understand_each_other(from, to)
    }

    /// Reports whether the member `to` accepts messages of `from`. Notifies a removed sender, and
    /// queries an unknown one for its members.
    pub(crate) fn greets(&mut self, from: u64, to: u64) -> bool {
        match self.standing(to, from) {
            MemberStanding::Member | MemberStanding::Vouched => {
                let level = self.see(from).level;
                let understood = self.understand_each_other(from, to);
                self.site(to).up.as_mut().expect("it runs").announced.insert(from, level);
                return understood;
            }
            MemberStanding::Removed if self.network.reaches(to, from) => self.plan_stop(from),
            MemberStanding::Removed => {}
            MemberStanding::Unknown => {
                let boot = self.see(to).boots;
                let up = self.site(to).up.as_mut().expect("it runs");
                if up.roster.must_ask(to, from) {
                    let delay = self.chances.changes.within(MILLISECOND, SECOND);
                    self.after(delay, WorldEvent::Vouch { to, boot, peer: from });
                }
            }
        }
        false
    }

    /// Handles the list of `peer`, which shows whether both are members.
    pub(crate) fn vouch(&mut self, to: u64, boot: u64, peer: u64) {
        if self.is_away(to, boot) {
            return;
        }
        let list = || {
            let is_reached = self.both_ways(to, peer) && self.pause_left(peer).is_none();
            membership_in(&self.see(peer).up.as_ref().filter(|_| is_reached)?.store).ok()
        };
        let is_member = list().is_some_and(|members| is_in(&members, peer) && is_in(&members, to));
        if is_member {
            self.count(Statistic::Vouched);
        }
        self.site(to).up.as_mut().expect("it runs").roster.answered(peer, is_member);
    }
}
