//! Mixed versions: members with a lower command level are upgraded one by one, and sometimes
//! downgraded.
//!
//! As in the process, the leader raises the cluster's level when every member has announced a
//! higher one. Messages of a member below the cluster's level are ignored; it does not join, and
//! stops before it applies the raise.

use state_machine::{CommandLevel, Lineage, level};

use super::event::WorldEvent;
use super::state::World;
use crate::chance::Chance;
use crate::count::Statistic;
use crate::member::Then;
use crate::oracle::Breach;
use crate::plan::{FaultKind, SECOND};

/// Level of a version that does not announce one.
pub(super) const OLDER: CommandLevel = CommandLevel(0);
/// Probability, per thousand, that a version change is a downgrade.
const BACK: u64 = 250;
/// Number of initial and joining members, per thousand, that start with the older version.
const BEGIN_OLDER: u64 = 700;

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
            self.site(id).be_of_level(to);
        }
    }

    /// Upgrades all older members when the faults stop.
    pub(super) fn upgrade_all(&mut self) {
        for id in self.ids() {
            if self.see(id).level < CommandLevel::OWN {
                self.crash(id);
                self.site(id).be_of_level(CommandLevel::OWN);
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

    /// Proposes to raise the level, in the leader's turn.
    pub(super) fn raise_level(&mut self, id: u64) {
        let site = self.see(id);
        let up = site.up.as_ref().expect("it has a turn");
        let announced =
            |other| if other == id { Some(site.level) } else { up.announced.get(&other).copied() };
        let members = state_machine::members(&up.store).unwrap_or_default();
        let lineage = Lineage::of(&up.store).unwrap_or_default();
        let history = if lineage.id == 0 { up.store.applied().index.0 + 1 } else { 0 };
        let raise = level::raise(up.applier.machine().level().get(), &members, announced, history);
        if let Some(raise) = raise {
            self.propose_for(id, raise, Then::Raised);
        }
    }

    /// Handles a member that is too old for the commands of the cluster.
    pub(super) fn too_old(&mut self, id: u64) -> Result<(), Breach> {
        let site = &mut self.sites[id as usize - 1];
        if !site.went_back {
            return Err(format!("member {id} became too old without a downgrade").into());
        }
        site.stop_failed(&mut self.chances.members);
        site.be_of_level(CommandLevel::OWN);
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
        self.site(id).be_of_level(CommandLevel::OWN);
        let later = self.chances.changes.within(1, SECOND);
        self.after(later, WorldEvent::Restart { to: id });
        true
    }
}
