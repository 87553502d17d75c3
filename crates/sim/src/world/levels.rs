//! Mixed versions: members with a lower command level are upgraded one by one, and sometimes
//! downgraded.
//!
//! As in the process, the leader raises the cluster's level when every member has announced a
//! higher one, and has returned it to a query. Messages of a member below the cluster's level are
//! ignored; it does not join, and stops before it applies the raise.

use state_machine::command::Kind;
use state_machine::level::RaiseInquiry;
use state_machine::{CommandLevel, Lineage};

use super::event::WorldEvent;
use super::state::World;
use crate::chance::Chance;
use crate::count::Statistic;
use crate::member::{MemberError, Then};
use crate::oracle::Breach;
use crate::plan::{FaultKind, SECOND};

/// Level of a version that does not announce one.
pub(super) const OLDER: CommandLevel = CommandLevel(0);
/// Probability, per thousand, that a version change is a downgrade.
const BACK: u64 = 250;
/// Number of initial and joining members, per thousand, that start with the older version.
const BEGIN_OLDER: u64 = 700;
/// Time after which a leader verifies the levels anew, if a member has not responded.
const QUERY_TIMEOUT: u64 = 2 * SECOND;

impl World {
    pub(super) fn first_level(&mut self) -> CommandLevel {
        let kind = self.schedules.iter_mut().find(|schedule| schedule.kind == FaultKind::Versions);
        let is_older = kind.is_some_and(|schedule| schedule.chance.per_mille(BEGIN_OLDER));
        if is_older { OLDER } else { CommandLevel::OWN }
    }

    pub(super) fn change_version(&mut self, id: u64, chance: &mut Chance) {
        let to = if chance.per_mille(BACK) { OLDER } else { CommandLevel::OWN };
        if self.see(id).level != to {
            self.crash(id);
            self.count(if to == OLDER { Statistic::Downgrades } else { Statistic::Upgrades });
            let now = self.now;
            self.site(id).be_of_level(to, now);
        }
    }

    /// Upgrades all older members when the faults stop.
    pub(super) fn upgrade_all(&mut self) {
        for id in self.ids() {
            if self.see(id).level < CommandLevel::OWN {
                self.crash(id);
                let now = self.now;
                self.site(id).be_of_level(CommandLevel::OWN, now);
            }
        }
    }

    /// Reports whether two members are compatible, by the rules of the process's hello.
    pub(super) fn understand_each_other(&self, one: u64, other: u64) -> bool {
        let is_known = |of: u64, by: u64| {
            let up = self.see(of).up.as_ref();
            up.is_none_or(|up| up.applier.machine().level().get() <= self.see(by).level)
        };
        is_known(one, other) && is_known(other, one)
    }

    /// Verifies the announced levels before a raise, in the leader's turn.
    pub(super) fn raise_level(&mut self, id: u64) -> Result<(), Breach> {
        let (site, now) = (self.see(id), self.now);
        let up = site.up.as_ref().expect("it has a turn");
        if up.raising.as_ref().is_some_and(|(_, began)| now < began + QUERY_TIMEOUT) {
            return Ok(());
        }
        let announced =
            |other| if other == id { Some(site.level) } else { up.announced.get(&other).copied() };
        let members = state_machine::members(&up.store).unwrap_or_default();
        let lineage = Lineage::of(&up.store).unwrap_or_default();
        let history = if lineage.id == 0 { up.store.applied().index.0 + 1 } else { 0 };
        let cluster = up.applier.machine().level().get();
        let inquiry = RaiseInquiry::begin(id, cluster, members, announced, history);
        let (boot, began) = (site.boots, now);
        let unasked: Vec<u64> = inquiry.iter().flat_map(RaiseInquiry::unasked).collect();
        self.site(id).up.as_mut().expect("it has a turn").raising = inquiry.map(|inquiry| (inquiry, began));
        for to in unasked {
            if let Some(delay) = self.passes(id, to) {
                self.after(delay, WorldEvent::LevelAsked { to, asker: id, boot, began });
            }
        }
        self.propose_raise(id)
    }

    pub(super) fn level_asked(&mut self, to: u64, asker: u64, boot: u64, began: u64) {
        if self.is_away(asker, boot) || self.pause_left(to).is_some() || !self.answers(asker, to) {
            return;
        }
        let level = self.see(to).level;
        if let Some(delay) = self.passes(to, asker) {
            self.after(delay, WorldEvent::LevelAnswered { to: asker, boot, began, peer: to, level });
        }
    }

    pub(super) fn level_answered(
        &mut self,
        to: u64,
        boot: u64,
        began: u64,
        (peer, level): (u64, CommandLevel),
    ) -> Result<(), MemberError> {
        if self.is_away(to, boot) || self.pause_left(to).is_some() {
            return Ok(());
        }
        let up = self.site(to).up.as_mut().expect("it is up");
        let Some((inquiry, _)) = up.raising.as_mut().filter(|(_, of)| *of == began) else { return Ok(()) };
        inquiry.note(peer, level);
        self.count(Statistic::RaisesChecked);
        self.propose_raise(to)?;
        self.turn(to)
    }

    /// Proposes the raise once all members have returned their levels.
    fn propose_raise(&mut self, id: u64) -> Result<(), Breach> {
        let up = self.site(id).up.as_mut().expect("it is up");
        let complete = up.raising.take_if(|(inquiry, _)| inquiry.unasked().next().is_none());
        let Some((raise, began)) = complete.and_then(|(inquiry, began)| Some((inquiry.raise()?, began)))
        else {
            return Ok(());
        };
        self.check_raise(&raise, began)?;
        self.propose_for(id, raise, Then::Raised);
        Ok(())
    }

    /// Checks that no member had given up the level of a raise before the leader began to verify it.
    fn check_raise(&self, raise: &Kind, began: u64) -> Result<(), Breach> {
        let Kind::RaiseLevel(raise) = raise else { return Ok(()) };
        let is_older = |id: &&u64| {
            let site = self.see(**id);
            site.level < CommandLevel(raise.level) && site.level_since < began
        };
        match raise.members.iter().find(is_older) {
            None => Ok(()),
            Some(id) => {
                Err(format!("a raise to level {} is proposed, which member {id} lacks", raise.level).into())
            }
        }
    }

    /// Handles a member that is too old for the commands of the cluster.
    pub(super) fn too_old(&mut self, id: u64) -> Result<(), Breach> {
        let site = &mut self.sites[id as usize - 1];
        if !site.went_back {
            return Err(format!("member {id} became too old without a downgrade").into());
        }
        site.stop_failed(&mut self.chances.members);
        site.be_of_level(CommandLevel::OWN, self.now);
        self.count(Statistic::TooOld);
        self.comes_back(id);
        Ok(())
    }

    /// Upgrades a joining member that is too old for the cluster.
    pub(super) fn joiner_is_too_old(&mut self, id: u64, cluster: CommandLevel) -> bool {
        if self.see(id).level >= cluster {
            return false;
        }
        self.count(Statistic::TooOld);
        let now = self.now;
        self.site(id).be_of_level(CommandLevel::OWN, now);
        let later = self.chances.changes.within(1, SECOND);
        self.after(later, WorldEvent::Restart { to: id });
        true
    }
}
