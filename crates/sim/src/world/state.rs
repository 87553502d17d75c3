//! State of a run: members, network, clients, and scheduled events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use mvcc::{Export, RecountPass};
use raft_node::Membership;

use super::event::{DownMembers, FaultPhase, ScheduledEvent, WorldEvent};
use crate::chance::{Chance, fold, fold_number};
use crate::count::{RunReport, Statistic};
use crate::member::{BootClock, LeaseTasks, MemberStage, SharedTruth, SimMember, StartKnowledge};
use crate::network::Network;
use crate::oracle::Elections;
use crate::plan::{CALM, FaultSchedule, MILLISECOND, REDUCED, RunConfig, RunPlan, SECOND, schedules};
use crate::requests::{Clients, ProposedChanges, WatchClient};

/// Number of watch clients. Fewer than writing clients, since each has several watchers.
const WATCH_CLIENTS: u64 = 3;
/// Number of clients that only request leases. Numbered after the key clients.
pub(super) const LEASE_CLIENTS: u64 = 2;
/// Number of clients that send requests as users and change users, in some seeds. Numbered after
/// the lease clients.
const USER_CLIENTS: u64 = 2;
/// Number of seeds per thousand with user clients. Not all, because auth causes more requests of
/// other clients to be rejected.
const USER_SEEDS: u64 = 400;

/// Random streams of regular events. Each fault has a separate stream, see [`FaultSchedule`].
pub(super) struct EventChances {
    pub members: Chance,
    pub network: Chance,
    pub clients: Chance,
    pub streams: Chance,
    pub inquiries: Chance,
    pub watches: Chance,
    pub leases: Chance,
    pub users: Chance,
    pub changes: Chance,
}

pub(super) struct SnapshotTransfer {
    pub from: (u64, u64),
    pub to: u64,
    /// Run of the receiver, once it has started to receive.
    pub receiver: Option<u64>,
    pub export: Export,
    pub message: Bytes,
}

pub type Trace = Box<dyn FnMut(&str)>;

pub(super) struct World {
    pub plan: RunPlan,
    pub config: RunConfig,
    pub now: u64,
    planned: u64,
    pub(super) queue: BinaryHeap<Reverse<ScheduledEvent>>,
    pub chances: EventChances,
    pub schedules: Vec<FaultSchedule>,
    pub sites: Vec<SimMember>,
    pub network: Network,
    /// Working links: sender and receiver, and the runs of both.
    pub links: BTreeMap<(u64, u64), (u64, u64)>,
    pub streams: BTreeMap<u64, SnapshotTransfer>,
    pub streams_begun: u64,
    pub clients: Clients,
    pub watches: Vec<WatchClient>,
    pub lease_tasks: LeaseTasks,
    /// Boot clocks of the members' machines, by id.
    pub boot_clocks: Vec<BootClock>,
    pub truth: SharedTruth,
    pub changes: ProposedChanges,
    pub elections: Elections,
    /// Cursor of the incremental comparison of the members' states.
    pub recount: Option<RecountPass>,
    pub report: RunReport,
    pub phase: FaultPhase,
    pub phase_began: u64,
    /// Time of the first acknowledged write in this phase.
    pub served: Option<u64>,
    pub end: u64,
    /// Missing members in the second phase.
    pub absent: BTreeMap<u64, DownMembers>,
    trace: Option<Trace>,
}

/// Creates a random stream per kind of event, so that an additional event of one kind does not
/// affect other kinds.
fn event_chances(seed: u64) -> EventChances {
    let stream = |name| Chance::stream(seed, name);
    EventChances {
        members: stream("members"),
        network: stream("network"),
        clients: stream("clients"),
        streams: stream("streams"),
        inquiries: stream("inquiries"),
        watches: stream("watches"),
        leases: stream("leases"),
        users: stream("users"),
        changes: stream("changes"),
    }
}

impl World {
    pub(super) fn new(plan: RunPlan, trace: Option<Trace>) -> World {
        let config = RunConfig::new(plan.seed, plan.members);
        let stream = |name: &str| Chance::stream(plan.seed, name);
        let boot_clock = |id| BootClock::new(&mut stream(&format!("boot clock {id}")));
        let founders = Membership { voters: (1..=plan.members).collect(), learners: Vec::new() };
        let known = StartKnowledge::Founder(founders.clone());
        let member = |id| SimMember::new(id, plan.known_bug, &config, known.clone());
        let healed = plan.seconds * SECOND + if config.reduced { REDUCED } else { 0 };
        let mut world = World {
            plan,
            now: 0,
            planned: 0,
            queue: BinaryHeap::new(),
            chances: event_chances(plan.seed),
            schedules: schedules(plan.seed),
            sites: (1..=plan.members).map(member).collect(),
            network: Network::new(config.order),
            links: BTreeMap::new(),
            config,
            streams: BTreeMap::new(),
            streams_begun: 0,
            clients: Clients::default(),
            watches: (0..WATCH_CLIENTS).map(|_| WatchClient::default()).collect(),
            lease_tasks: LeaseTasks::default(),
            boot_clocks: (1..=plan.members).map(boot_clock).collect(),
            truth: SharedTruth::default(),
            changes: ProposedChanges::default(),
            elections: Elections::default(),
            recount: None,
            report: RunReport::new(plan.seed),
            phase: FaultPhase::Faults,
            phase_began: 0,
            served: None,
            end: healed + CALM,
            absent: BTreeMap::new(),
            trace,
        };
        for id in 1..=plan.members {
            let level = world.first_level();
            world.site(id).be_of_level(level, 0);
        }
        world.truth.get().begin(1..=plan.members);
        world.changes.begin(founders);
        world.report.runs = 1;
        world.report.simulated_seconds = world.end / SECOND;
        let user_clients = if stream("has users").per_mille(USER_SEEDS) { USER_CLIENTS } else { 0 };
        for client in 0..plan.clients + LEASE_CLIENTS + user_clients {
            world.after(client * MILLISECOND, WorldEvent::Client { client, member: 0 });
        }
        for client in 0..WATCH_CLIENTS {
            world.after(client * MILLISECOND, WorldEvent::Watch { client });
        }
        for schedule in 0..world.schedules.len() {
            let first = 3 * SECOND + world.schedules[schedule].wait();
            world.after(first, WorldEvent::Fault { schedule });
        }
        if world.config.reduced {
            world.after(plan.seconds * SECOND, WorldEvent::Reduce);
        }
        world.after(healed, WorldEvent::Heal);
        world
    }

    pub fn after(&mut self, delay: u64, what: WorldEvent) {
        self.planned += 1;
        self.queue.push(Reverse(ScheduledEvent { at: self.now + delay, number: self.planned, what }));
    }

    /// Drops the messages of a wiped member. Its connections were closed long before its disk was
    /// replaced.
    pub fn drop_messages_of(&mut self, id: u64) {
        self.queue.retain(
            |Reverse(planned)| !matches!(planned.what, WorldEvent::Deliver { from, .. } if from == id),
        );
    }

    /// Makes messages in flight arrive soon: a repaired connection delivers its backlog.
    pub fn deliver_backlog(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        let mut soonest = BTreeMap::new();
        let mut planned: Vec<ScheduledEvent> = queue.into_iter().map(|Reverse(planned)| planned).collect();
        planned.sort_unstable();
        for mut next in planned {
            if let WorldEvent::Deliver { from, to, .. } = &next.what {
                // Preserve their order.
                let at = soonest.entry((*from, *to)).or_insert(self.now);
                *at = (*at).max(next.at.min(self.now + self.chances.network.within(0, SECOND / 2)));
                next.at = *at;
            }
            self.queue.push(Reverse(next));
        }
    }

    /// Returns the members that run or will be restarted, by id. Includes removed ones that have
    /// not learned of it.
    pub fn ids(&self) -> Vec<u64> {
        self.sites.iter().filter(|site| site.stage == MemberStage::Present).map(|site| site.id).collect()
    }

    pub fn site(&mut self, id: u64) -> &mut SimMember {
        &mut self.sites[id as usize - 1]
    }

    pub fn see(&self, id: u64) -> &SimMember {
        &self.sites[id as usize - 1]
    }

    pub fn leader(&self) -> Option<u64> {
        self.sites.iter().find(|site| site.leads()).map(|site| site.id)
    }

    pub fn count(&mut self, count: Statistic) {
        self.report.add(count, 1);
        self.tell(|| format!("{count:?}"));
    }

    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(&format!("{:>12.6}  {}", self.now as f64 / SECOND as f64, line()));
        }
    }

    pub(super) fn note(&mut self, what: &WorldEvent) {
        self.report.events += 1;
        let (kind, to) = match what {
            WorldEvent::Tick { to, .. } => (1, *to),
            WorldEvent::Burst { to, .. } => (2, *to),
            WorldEvent::Deliver { to, .. } => (3, *to),
            WorldEvent::Unreachable { to, .. } => (4, *to),
            WorldEvent::Sync { to, .. } => (5, *to),
            WorldEvent::Apply { to, .. } => (6, *to),
            WorldEvent::Maintain { to, .. } => (7, *to),
            WorldEvent::Client { client, .. } => (8, *client),
            WorldEvent::Restart { to } => (9, *to),
            WorldEvent::Checkpoint { to, .. } => (12, *to),
            WorldEvent::Stream { number } => (13, *number),
            WorldEvent::Report { to, .. } => (14, *to),
            WorldEvent::Crash { to } => (15, *to),
            WorldEvent::Release { to, .. } => (17, *to),
            WorldEvent::Fault { schedule } => (10, *schedule as u64),
            WorldEvent::LoseDisk { to, .. } => (21, *to),
            WorldEvent::Inquire { to, .. } => (18, *to),
            WorldEvent::Asked { to, .. } => (19, *to),
            WorldEvent::Answered { to, .. } => (20, *to),
            WorldEvent::Hub { to, .. } => (22, *to),
            WorldEvent::Watch { client } => (23, *client),
            WorldEvent::Lease { to, .. } => (24, *to),
            WorldEvent::Vouch { to, .. } => (25, *to),
            WorldEvent::Stop { to } => (26, *to),
            WorldEvent::Promote { to } => (27, *to),
            WorldEvent::LevelAsked { to, .. } => (28, *to),
            WorldEvent::LevelAnswered { to, .. } => (29, *to),
            WorldEvent::Reduce => (16, 0),
            WorldEvent::Heal => (11, 0),
        };
        let mut digest = fold_number(fold_number(self.report.trace, self.now), kind << 32 | to);
        if let WorldEvent::Deliver { from, bytes, .. } = what {
            digest = fold(digest ^ from << 8, bytes);
        }
        self.report.trace = digest;
        if self.trace.is_some() {
            let line = match what {
                WorldEvent::Deliver { from, to, bytes, .. } => {
                    format!("Deliver {from} -> {to}, {} bytes", bytes.len())
                }
                other => format!("{other:?}"),
            };
            self.tell(|| line);
        }
    }
}
