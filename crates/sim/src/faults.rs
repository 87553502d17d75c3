//! What goes wrong: partitions, crashes, pauses, bad weather, leadership that moves; and how everything heals.
//!
//! Faults overlap as they come: a member may crash inside a partition while another stands still. Any number of
//! members may be down at once, all of them included; what was acknowledged must survive that.

use raft_node::{Event, Role};

use crate::laws::Breach;
use crate::network::{Network, Weather};
use crate::site::Site;
use crate::world::{Happening, MILLISECOND, SECOND, World};

impl World {
    /// One thing goes wrong, or the network heals, and the next one is planned.
    pub(crate) fn fault(&mut self) -> Result<(), Breach> {
        if self.healed {
            return Ok(());
        }
        let next = self.chance.within(200 * MILLISECOND, 3 * SECOND);
        self.after(next, Happening::Fault);
        let ids = self.ids();
        let victim = *self.chance.pick(&ids);
        match self.chance.within(0, 100) {
            0..25 => {
                self.network.heal();
                self.network.partition(&ids, &mut self.chance);
                self.report.partitions += 1;
            }
            25..45 => self.network.heal(),
            45..65 => self.crash(victim),
            65..70 => ids.into_iter().for_each(|id| self.crash(id)),
            70..82 => {
                let pause = self.chance.within(50 * MILLISECOND, 4 * SECOND);
                self.site(victim).paused_until = self.now + pause;
                self.report.pauses += 1;
            }
            82..92 => self.network.weather = Weather::rough(&mut self.chance),
            _ => self.move_leadership(victim)?,
        }
        Ok(())
    }

    /// The member dies; its clients hear nothing more, and it comes back after a while.
    fn crash(&mut self, id: u64) {
        if self.sites[&id].up.is_none() {
            return;
        }
        let site = self.sites.get_mut(&id).expect("members are never removed");
        site.crash(&mut self.chance);
        site.paused_until = 0;
        self.report.crashes += 1;
        for request in self.clients.open_at(id) {
            self.gone(request);
        }
        let down = self.chance.within(10 * MILLISECOND, 5 * SECOND);
        self.after(down, Happening::Restart { to: id });
    }

    fn move_leadership(&mut self, to: u64) -> Result<(), Breach> {
        let leads = |site: &&Site| site.up.as_ref().is_some_and(|up| up.node.gauges().role == Role::Leader);
        let Some(leader) = self.sites.values().find(leads).map(|site| site.id) else { return Ok(()) };
        self.site(leader).handle(Event::TransferLeader { to })?;
        self.turn(leader)
    }

    /// The end of all faults: whoever is down comes up, and from now on everything works.
    pub(crate) fn heal(&mut self) -> Result<(), Breach> {
        self.healed = true;
        self.network = Network::new();
        self.puts_when_healed = self.clients.puts;
        for id in self.ids() {
            self.site(id).paused_until = 0;
            if self.sites[&id].up.is_none() {
                self.boot(id)?;
            }
        }
        Ok(())
    }
}
