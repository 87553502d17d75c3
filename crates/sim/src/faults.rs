//! What goes wrong: partitions, crashes, pauses, bad weather, bad disks, bad clocks, lost stores; and how everything heals.
//!
//! Faults overlap as they come: a member may crash inside a partition while another stands still. Any number of members
//! may be down at once, all of them included; what was acknowledged must survive that.

use raft_node::Event;
use wal::testing::Fault;

use crate::count::Count;
use crate::network::{Network, Weather};
use crate::plan::{MILLISECOND, SECOND, Vice};
use crate::site::{Clock, Sloth, Trouble};
use crate::store_disk::StoreDisk;
use crate::world::{Happening, World};

impl World {
    /// One thing goes wrong, or the network heals, and the next one is planned.
    pub(crate) fn fault(&mut self) -> Result<(), Trouble> {
        if self.healed {
            return Ok(());
        }
        let next = self.chance.within(50 * MILLISECOND, self.temper.fault_wait_max);
        self.after(next, Happening::Fault);
        let victim = self.chance.within(1, self.plan.members + 1);
        // Half of what hits one member hits the leader: that is where most can go wrong.
        let victim = self.leader().filter(|_| self.chance.per_mille(500)).unwrap_or(victim);
        match self.temper.vice(&mut self.chance) {
            Vice::Partition => self.partition(),
            Vice::Heal => self.network.heal(),
            Vice::Weather => {
                self.network.weather = Weather::rough(&mut self.chance);
                self.count(Count::Weathers);
            }
            // Half of the crashes wait until the member has something to write, and meet it there.
            Vice::Crash if self.chance.per_mille(500) => self.site(victim).doomed = true,
            Vice::Crash => self.crash(victim),
            Vice::AllDown => {
                self.count(Count::AllDown);
                self.ids().for_each(|id| self.crash(id));
            }
            Vice::SlowDisk => {
                let sync_max = self.chance.within(20 * MILLISECOND, 500 * MILLISECOND);
                let until = self.now + self.chance.within(SECOND, 5 * SECOND);
                self.site(victim).sloth = Sloth { sync_max, until, stalled_until: 0 };
                self.count(Count::SlowDisks);
            }
            Vice::StalledDisk => {
                self.site(victim).sloth.stalled_until = self.now + self.chance.within(SECOND / 2, 5 * SECOND);
                self.count(Count::StalledDisks);
            }
            Vice::FailingDisk => self.failing_disk(victim),
            Vice::LostStore => self.lost_store(victim),
            Vice::Pause => {
                self.site(victim).paused_until = self.now + self.chance.within(50 * MILLISECOND, 4 * SECOND);
                self.count(Count::Pauses);
            }
            Vice::Clock => self.wrong_clock(victim),
            Vice::Transfer => return self.move_leadership(victim),
        }
        Ok(())
    }

    fn partition(&mut self) {
        // Mostly a shape of its own, sometimes one upon another.
        if self.chance.per_mille(700) {
            self.network.heal();
        }
        let ids: Vec<u64> = self.ids().collect();
        let leader = self.leader();
        let shape = self.network.partition(&ids, leader, &mut self.chance);
        self.count(shape);
    }

    /// The member dies; its clients hear nothing more, and it comes back after a while.
    pub(crate) fn crash(&mut self, id: u64) {
        if self.see(id).up.is_none() {
            return;
        }
        let counts = self.sites[id as usize - 1].crash(&mut self.chance);
        counts.into_iter().for_each(|count| self.count(count));
        self.comes_back(id);
    }

    /// One of the next calls to one of the member's disks fails, perhaps one of its next start.
    fn failing_disk(&mut self, id: u64) {
        let fault = *self.chance.pick(&[Fault::InputOutput, Fault::NoSpace]);
        let calls = self.chance.within(0, 30);
        let site = self.site(id);
        site.armed = true;
        if calls.is_multiple_of(2) {
            site.disk.fail_at(site.disk.calls() + calls, fault);
        } else {
            site.store_disk.fail_after(calls, fault);
        }
        self.tell(|| format!("a disk of member {id} fails after {calls} calls: {fault:?}"));
        if fault == Fault::NoSpace {
            self.report.add(Count::DisksFull, 1);
        } else {
            self.report.add(Count::DiskErrors, 1);
        }
        if self.chance.per_mille(300) && self.see(id).up.is_some() {
            // It is the start that meets the error.
            self.site(id).up = None;
            self.comes_back(id);
        }
    }

    /// A disk failed: the process has ended, and somebody will start it again.
    pub(crate) fn disk_failed(&mut self, id: u64) {
        self.tell(|| format!("member {id} stops: its disk failed"));
        self.sites[id as usize - 1].stop_failed(&mut self.chance);
        self.comes_back(id);
    }

    fn comes_back(&mut self, id: u64) {
        for request in self.clients.open_at(id) {
            self.gone(request);
        }
        let down = if self.healed { SECOND / 2 } else { 5 * SECOND };
        let down = self.chance.within(10 * MILLISECOND, down);
        self.after(down, Happening::Restart { to: id });
    }

    /// The store's disk is replaced by an empty one; the log's stays.
    ///
    /// Of a minority only: what most members have lost nobody can bring back. And of a lone member only while its log begins at the
    /// beginning, and nothing waits for its disk: that could be a trim, which the crash may still carry out.
    fn lost_store(&mut self, id: u64) {
        let wiped = self.sites.iter().filter(|site| site.wiped && site.id != id).count() as u64;
        let site = self.see(id);
        let begins = site.synced.as_ref().is_some_and(|log| log.start().index.0 == 0);
        let replays = begins && site.up.as_ref().is_some_and(|up| up.jobs.is_empty());
        if 2 * (wiped + 1) >= self.plan.members && !(replays && self.plan.members == 1) {
            return;
        }
        self.crash(id);
        if self.see(id).up.is_none() {
            let site = self.site(id);
            (site.store_disk, site.wiped) = (StoreDisk::default(), true);
            self.count(Count::LostStores);
        }
    }

    fn wrong_clock(&mut self, id: u64) {
        let until = self.now + self.chance.within(SECOND, 8 * SECOND);
        match self.chance.within(0, 3) {
            0 => {
                self.site(id).clock = Clock { stretch: self.chance.within(150, 700), until };
                self.count(Count::FastClocks);
            }
            1 => {
                self.site(id).clock = Clock { stretch: self.chance.within(2_000, 40_000), until };
                self.count(Count::SlowClocks);
            }
            _ => {
                let (boot, ticks) = (self.see(id).boots, self.chance.within(5, 60));
                self.after(0, Happening::Burst { to: id, boot, ticks });
                self.count(Count::ClockJumps);
            }
        }
    }

    fn move_leadership(&mut self, to: u64) -> Result<(), Trouble> {
        let Some(leader) = self.leader() else { return Ok(()) };
        self.count(Count::Transfers);
        self.site(leader).handle(Event::TransferLeader { to })?;
        self.turn(leader)
    }

    /// The end of all faults: whoever is down comes up, and from now on everything works.
    pub(crate) fn heal(&mut self) -> Result<(), Trouble> {
        self.healed = true;
        self.network = Network::new();
        for id in self.ids() {
            let site = self.site(id);
            site.paused_until = 0;
            site.clock.until = 0;
            site.sloth = Sloth::default();
            site.disarm();
            if site.up.is_none() {
                self.boot(id)?;
            }
        }
        Ok(())
    }
}
