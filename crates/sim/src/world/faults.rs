//! Fault injection: partitions, crashes, pauses, network, disk and clock faults, lost stores; and
//! recovery.
//!
//! Faults may overlap: a member may crash inside a partition while another is paused. Any number of
//! members may be down at the same time, even all of them; acknowledged data must survive that.

use raft_node::{Event, Lane, LogIndex, Role};
use wal::testing::Fault;

use super::event::{DownMembers, FaultPhase, WorldEvent};
use super::state::World;
use crate::chance::Chance;
use crate::count::Statistic;
use crate::member::StoreDisk;
use crate::member::{Clock, DiskDelay, MemberError};
use crate::network::{Backlog, DelayTail, Network, NetworkFaults};
use crate::plan::{FaultKind, MILLISECOND, SECOND};

impl World {
    /// Injects a fault, or heals the network, and schedules the next fault of this kind.
    pub(super) fn fault(&mut self, number: usize) -> Result<(), MemberError> {
        if self.phase != FaultPhase::Faults {
            return Ok(());
        }
        let next = self.schedules[number].wait();
        self.after(next, WorldEvent::Fault { schedule: number });
        // Cloned while in use: all details of this fault are drawn from its own stream.
        let kind = self.schedules[number].kind;
        let mut chance = self.schedules[number].chance.clone();
        let went = self.carry_out(kind, &mut chance);
        self.schedules[number].chance = chance;
        went
    }

    fn carry_out(&mut self, kind: FaultKind, chance: &mut Chance) -> Result<(), MemberError> {
        let present = self.ids();
        let victim = *chance.pick(&present);
        // Half of the faults of a single member affect the leader, where most can go wrong.
        let victim = self.leader().filter(|_| chance.per_mille(500)).unwrap_or(victim);
        match kind {
            FaultKind::Partition => self.partition(chance),
            FaultKind::Heal => self.network.heal(),
            FaultKind::Weather => {
                self.network.faults = NetworkFaults::rough(chance);
                self.count(Statistic::Weathers);
            }
            // Half of the crashes wait until the member has data to write.
            FaultKind::Crash if chance.per_mille(500) => self.site(victim).doomed = true,
            FaultKind::Crash => self.crash(victim),
            FaultKind::AllDown => {
                self.count(Statistic::AllDown);
                present.into_iter().for_each(|id| self.crash(id));
            }
            FaultKind::SlowDisk => {
                let sync_max = chance.within(20 * MILLISECOND, 500 * MILLISECOND);
                let until = self.now + chance.within(SECOND, 5 * SECOND);
                self.site(victim).disk_delay = DiskDelay { sync_max, until, stalled_until: 0 };
                self.count(Statistic::SlowDisks);
            }
            FaultKind::StalledDisk => {
                self.site(victim).disk_delay.stalled_until = self.now + chance.within(SECOND / 2, 5 * SECOND);
                self.count(Statistic::StalledDisks);
            }
            FaultKind::StalledStore => {
                self.site(victim).store_stalled_until = self.now + chance.within(SECOND / 2, 5 * SECOND);
                self.count(Statistic::StalledStores);
            }
            FaultKind::FailingDisk => self.failing_disk(victim, chance),
            FaultKind::FullDisk => self.full_disk(victim, chance),
            FaultKind::LostStore => self.lost_store(victim),
            FaultKind::Reseed => return self.reseed(victim),
            FaultKind::LostDisk if chance.per_mille(500) => self.lose_disk_of_majority(chance),
            FaultKind::LostDisk => self.lost_disk(victim, &[]),
            FaultKind::DamagedLog => self.damage_log(victim, chance),
            FaultKind::Pause => {
                self.site(victim).paused_until = self.now + chance.within(50 * MILLISECOND, 4 * SECOND);
                self.count(Statistic::Pauses);
            }
            FaultKind::Clock => self.wrong_clock(victim, chance),
            FaultKind::Transfer => return self.move_leadership(victim),
            FaultKind::Tails => {
                // Up to a dozen election timeouts. This lasts until the next fault of its kind.
                let messages = *chance.pick(&[0, 5, 30]);
                self.network.tail = DelayTail { messages, delay_max: chance.within(SECOND, 12 * SECOND) };
                self.count(Statistic::Tails);
            }
            FaultKind::Lane => self.break_lane(victim, chance),
            FaultKind::Versions => self.change_version(victim, chance),
            FaultKind::Members => return self.change_members(chance),
        }
        Ok(())
    }

    /// Blocks a lane in one direction between the victim and another member.
    fn break_lane(&mut self, victim: u64, chance: &mut Chance) {
        let present = self.ids();
        let other = *chance.pick(&present);
        let (from, to) = if chance.per_mille(500) { (victim, other) } else { (other, victim) };
        let lane = *chance.pick(&[Lane::Urgent, Lane::Bulk]);
        let until = self.now + chance.within(50 * MILLISECOND, 8 * SECOND);
        let backlog = *chance.pick(&[Backlog::Lost, Backlog::Delivered, Backlog::Delivered]);
        if from != to {
            self.network.break_lane(from, to, lane, until, backlog);
            self.count(Statistic::BrokenLanes);
        }
    }

    /// Fills a disk of the member for some time. The member stops and cannot start until then.
    fn full_disk(&mut self, id: u64, chance: &mut Chance) {
        let until = self.now + chance.within(SECOND / 2, 6 * SECOND);
        let is_log = chance.per_mille(500);
        let now = self.now;
        let site = self.site(id);
        *(if is_log { &mut site.log_full_until } else { &mut site.store_full_until }) = until;
        site.fill_disks(now);
        self.count(Statistic::DisksStayFull);
    }

    fn partition(&mut self, chance: &mut Chance) {
        // Mostly a single partition, sometimes combined with previous ones.
        if chance.per_mille(700) {
            self.network.heal();
        }
        let ids = self.ids();
        let leader = self.leader();
        let shape = self.network.partition(&ids, leader, chance);
        self.count(shape);
    }

    /// Crashes the member and schedules its restart. Its clients get no response.
    pub(super) fn crash(&mut self, id: u64) {
        if self.see(id).up.is_none() {
            return;
        }
        let counts = self.sites[id as usize - 1].crash(&mut self.chances.members);
        counts.into_iter().for_each(|count| self.count(count));
        self.comes_back(id);
    }

    /// Makes one of the next calls to one of the member's disks fail, possibly during its next
    /// start.
    fn failing_disk(&mut self, id: u64, chance: &mut Chance) {
        let fault = *chance.pick(&[Fault::InputOutput, Fault::NoSpace]);
        let calls = chance.within(0, 30);
        let site = self.site(id);
        site.armed = true;
        if calls.is_multiple_of(2) {
            site.disk.fail_at(site.disk.calls() + calls, fault);
        } else {
            site.store_disk.fail_after(calls, fault);
        }
        self.tell(|| format!("a disk of member {id} fails after {calls} calls: {fault:?}"));
        if fault == Fault::NoSpace {
            self.report.add(Statistic::DisksFull, 1);
        } else {
            self.report.add(Statistic::DiskErrors, 1);
        }
        if chance.per_mille(300) && self.see(id).up.is_some() {
            // The start encounters the error.
            self.site(id).up = None;
            self.comes_back(id);
        }
    }

    /// Handles a disk failure: the process has exited, and is restarted later.
    pub(super) fn disk_failed(&mut self, id: u64) {
        self.tell(|| format!("member {id} stops: its disk failed"));
        self.sites[id as usize - 1].stop_failed(&mut self.chances.members);
        self.comes_back(id);
    }

    pub(super) fn comes_back(&mut self, id: u64) {
        self.forget_requests(id);
        let down = if self.phase == FaultPhase::Faults { 5 * SECOND } else { SECOND / 2 };
        let down = self.chances.members.within(10 * MILLISECOND, down);
        self.after(down, WorldEvent::Restart { to: id });
    }

    pub(super) fn forget_requests(&mut self, id: u64) {
        for request in self.clients.open_at(id) {
            self.gone(request);
        }
        self.changes.gone_at(id);
        self.lease_tasks.forget(id);
    }

    /// Replaces the store's disk by an empty one, but not the log's.
    ///
    /// Limited to a minority, since a majority's data cannot be restored. On a single member, only
    /// if its log starts at the first entry and has no pending write: that could be a trim, which
    /// the crash may still execute.
    fn lost_store(&mut self, id: u64) {
        let (wiped, voters) = (self.lacking_data(id), self.voters());
        let site = self.see(id);
        let begins = site.synced.as_ref().is_some_and(|log| log.start().index == LogIndex::ZERO);
        let replays = begins && site.up.as_ref().is_some_and(|up| up.jobs.is_empty()) && !site.joins();
        let count = voters.len() as u64;
        let is_lone = replays && voters == [id];
        if !self.may_lose_data(id) || (2 * (wiped + 1) >= count && !is_lone) {
            return;
        }
        self.crash(id);
        if self.see(id).up.is_none() {
            let site = self.site(id);
            (site.store_disk, site.wiped) = (StoreDisk::default(), true);
            self.count(Statistic::LostStores);
        }
    }

    /// Makes a member discard its state. Limited to a minority, like lost stores: the member cannot
    /// lead before it has received the leader's state.
    fn reseed(&mut self, id: u64) -> Result<(), MemberError> {
        let (lacking, count) = (self.lacking_data(id), self.voters().len() as u64);
        let gauges = self.see(id).up.as_ref().map(|up| up.node.gauges());
        let leads = gauges.is_none_or(|gauges| gauges.role == Role::Leader);
        if leads || !self.may_lose_data(id) || 2 * (lacking + 1) >= count {
            return Ok(());
        }
        let up = self.site(id).up.as_mut().expect("it was seen just now");
        up.reseeded_at = Some(up.applier.machine().installs);
        self.count(Statistic::Reseeds);
        self.tell(|| format!("member {id} gives its state up"));
        self.site(id).handle(Event::Reseed)?;
        self.turn(id)
    }

    /// Returns the number of other voters that lack acknowledged data.
    fn lacking_data(&self, id: u64) -> u64 {
        let voters = self.voters();
        let others = voters.into_iter().filter(|other| *other != id);
        others.filter(|other| self.see(*other).lacks_data()).count() as u64
    }

    /// Replaces the disks of log and store by empty ones. Limited to a minority, and to clusters in
    /// which a majority has entries: two empty logs out of three look like a first start to all
    /// reachable members.
    pub(super) fn lost_disk(&mut self, id: u64, unreachable: &[u64]) {
        if !self.may_lose_disk(id) {
            return;
        }
        self.crash(id);
        if self.see(id).up.is_none() {
            self.replace_disks(id);
            self.network.heal();
            self.isolate(unreachable);
        }
    }

    /// Reports whether the member may lose its disks. Always true for a learner, since no majority
    /// depends on it.
    fn may_lose_disk(&self, id: u64) -> bool {
        let voters = self.voters();
        if !voters.contains(&id) {
            return self.may_lose_data(id);
        }
        let others = voters.iter().filter(|other| **other != id);
        let empty = others.filter(|other| !self.see(**other).has_entries()).count() as u64;
        let is_minority = |count: u64| 2 * count < voters.len() as u64;
        self.may_lose_data(id) && is_minority(self.lacking_data(id) + 1) && is_minority(empty + 1)
    }

    fn replace_disks(&mut self, id: u64) {
        if self.changes_members() {
            self.site(id).joins_anew();
        }
        self.site(id).wipe();
        self.drop_messages_of(id);
        self.count(Statistic::LostDisks);
    }

    /// Corrupts synced data of the log. The next start is rejected, and the disks are replaced.
    fn damage_log(&mut self, id: u64, chance: &mut Chance) {
        if !self.may_lose_disk(id) || self.see(id).damaged {
            return;
        }
        self.crash(id);
        if self.see(id).up.is_none()
            && let Some(count) = self.site(id).decay(chance)
        {
            self.count(count);
        }
    }

    /// Handles a start that was rejected because of a corrupt log.
    pub(super) fn damage_found(&mut self, id: u64) {
        self.count(Statistic::DamageFound);
        self.replace_disks(id);
        self.comes_back(id);
    }

    /// Lets a bare majority commit entries for a while. Then one of its members loses its disks,
    /// and starts while only those members are reachable that have missed the entries.
    fn lose_disk_of_majority(&mut self, chance: &mut Chance) {
        let voters = self.voters();
        let is_voter = |leader: &u64| voters.contains(leader);
        let Some(leader) = self.leader().filter(is_voter).filter(|_| voters.len() > 2) else { return };
        let start = chance.within(0, voters.len() as u64) as usize;
        let others = voters.iter().cycle().skip(start).take(voters.len()).copied();
        let others: Vec<u64> = others.filter(|id| *id != leader).collect();
        let (majority, lagging) = others.split_at(voters.len() / 2);
        self.network.heal();
        self.isolate(lagging);
        let mut unreachable = majority.to_vec();
        unreachable[0] = leader;
        let delay = chance.within(200 * MILLISECOND, 2 * SECOND);
        self.after(delay, WorldEvent::LoseDisk { to: majority[0], unreachable });
    }

    /// Partitions these members from the rest, but not from each other.
    fn isolate(&mut self, isolated: &[u64]) {
        for one in isolated {
            for other in self.ids().into_iter().filter(|other| !isolated.contains(other)) {
                self.network.cut(*one, other);
                self.network.cut(other, *one);
            }
        }
    }

    fn wrong_clock(&mut self, id: u64, chance: &mut Chance) {
        let until = self.now + chance.within(SECOND, 8 * SECOND);
        match chance.within(0, 3) {
            0 => {
                self.site(id).clock = Clock { stretch: chance.within(150, 700), until };
                self.count(Statistic::FastClocks);
            }
            1 => {
                self.site(id).clock = Clock { stretch: chance.within(2_000, 40_000), until };
                self.count(Statistic::SlowClocks);
            }
            _ => {
                let (boot, ticks) = (self.see(id).boots, chance.within(5, 60));
                self.after(0, WorldEvent::Burst { to: id, boot, ticks });
                self.count(Statistic::ClockJumps);
            }
        }
    }

    fn move_leadership(&mut self, to: u64) -> Result<(), MemberError> {
        let Some(leader) = self.leader() else { return Ok(()) };
        self.count(Statistic::Transfers);
        self.site(leader).handle(Event::TransferLeader { to })?;
        self.turn(leader)
    }

    /// Stops the faults, except that a minority is missing. The majority has to serve.
    pub(super) fn reduce(&mut self) -> Result<(), MemberError> {
        let mut chance = Chance::stream(self.plan.seed, "absent");
        self.begin(FaultPhase::Reduced);
        let voters = self.voters();
        // A change in flight could turn a minority into a majority.
        let count = match self.changes_under_way() {
            0 if voters.len() > 2 => chance.within(1, (voters.len() as u64 - 1) / 2 + 1),
            _ => 0,
        };
        // First the members that lost data, then possibly the leader.
        let mut order: Vec<u64> = voters.iter().copied().filter(|id| self.see(*id).lacks_data()).collect();
        order.extend(self.leader().filter(|leader| chance.per_mille(500) && voters.contains(leader)));
        let start = chance.within(0, voters.len() as u64) as usize;
        order.extend(voters.iter().cycle().skip(start).take(voters.len()));
        for id in order {
            if (self.absent.len() as u64) < count {
                let absences = [
                    DownMembers::Down,
                    DownMembers::Down,
                    DownMembers::Isolated,
                    DownMembers::Deaf,
                    DownMembers::Mute,
                ];
                self.absent.entry(id).or_insert(*chance.pick(&absences));
            }
        }
        self.count(Statistic::Reductions);
        let absent = self.absent.clone();
        self.tell(|| format!("missing: {absent:?}"));
        for (id, absence) in absent {
            if absence == DownMembers::Down {
                self.crash(id);
            }
            for other in self.ids().into_iter().filter(|other| *other != id) {
                if absence != DownMembers::Mute {
                    self.network.cut(other, id);
                }
                if absence != DownMembers::Deaf {
                    self.network.cut(id, other);
                }
            }
        }
        self.start_all()
    }

    pub(super) fn heal(&mut self) -> Result<(), MemberError> {
        if self.phase == FaultPhase::Reduced {
            self.check_served()?;
        }
        self.absent.clear();
        self.begin(FaultPhase::Calm);
        self.start_all()
    }

    fn begin(&mut self, phase: FaultPhase) {
        (self.phase, self.phase_began, self.served) = (phase, self.now, None);
        self.network = Network::new(self.config.order);
        self.deliver_backlog();
        for id in self.ids() {
            let site = self.site(id);
            site.paused_until = 0;
            site.clock.until = 0;
            site.disk_delay = DiskDelay::default();
            site.doomed = false;
            site.disarm();
            self.place_member(id);
        }
        self.upgrade_all();
    }

    fn start_all(&mut self) -> Result<(), MemberError> {
        for id in self.ids() {
            if self.see(id).up.is_none() && self.absent.get(&id) != Some(&DownMembers::Down) {
                match self.boot(id) {
                    Err(MemberError::Damaged(id)) => self.damage_found(id),
                    booted => booted?,
                }
            }
        }
        Ok(())
    }
}
