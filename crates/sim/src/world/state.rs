//! Everything there is in a story: members, network, clients, and what is planned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use mvcc::{Export, RecountSpan, Revision};
use raft_node::Membership;

use super::happening::{Absence, Happening, Phase, Planned};
use crate::chance::{Chance, fold, fold_number};
use crate::count::{Count, Report};
use crate::member::{BootClock, LeaseTasks, Origin, SharedTruth, Site, Stage};
use crate::network::Network;
use crate::oracle::Elections;
use crate::plan::{Bent, CALM, MILLISECOND, Plan, REDUCED, SECOND, Temper, vices};
use crate::requests::{Changes, Clients, WatchClient};

/// Fewer than clients that write: each has several watchers.
const WATCH_CLIENTS: u64 = 3;
/// Clients that ask for leases only. Their numbers follow those of the other clients.
pub(super) const LEASE_CLIENTS: u64 = 2;
/// Clients that ask as users and change users, in the seeds that have them. Their numbers follow those.
const USER_CLIENTS: u64 = 2;
/// How many seeds of a thousand have them: where permissions are checked, the others are refused more.
const USER_SEEDS: u64 = 400;

/// Random numbers for what is always going on; each fault has its own stream, see [`Bent`].
pub(super) struct Chances {
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

/// A snapshot on its way.
pub(super) struct Stream {
    pub from: (u64, u64),
    pub to: u64,
    /// The receiver's run, once it has begun to receive.
    pub receiver: Option<u64>,
    pub export: Export,
    pub message: Bytes,
}

/// Receives a line for everything that happens.
pub type Trace = Box<dyn FnMut(&str)>;

pub(super) struct World {
    pub plan: Plan,
    pub temper: Temper,
    pub now: u64,
    planned: u64,
    pub(super) queue: BinaryHeap<Reverse<Planned>>,
    pub chances: Chances,
    pub vices: Vec<Bent>,
    /// In the order of their ids, which begin at 1.
    pub sites: Vec<Site>,
    pub network: Network,
    /// Snapshots on their way, by number.
    pub streams: BTreeMap<u64, Stream>,
    pub streams_begun: u64,
    pub clients: Clients,
    pub watches: Vec<WatchClient>,
    pub lease_tasks: LeaseTasks,
    /// The boot clocks of the members' machines, in the order of their ids.
    pub boot_clocks: Vec<BootClock>,
    pub truth: SharedTruth,
    pub changes: Changes,
    pub elections: Elections,
    /// Where the next part of the members' states begins that is compared.
    pub recount_from: Revision,
    pub report: Report,
    pub phase: Phase,
    /// When this phase began.
    pub phase_began: u64,
    /// When the first write was acknowledged in this phase.
    pub served: Option<u64>,
    pub end: u64,
    /// The members that are missing in the second phase.
    pub absent: BTreeMap<u64, Absence>,
    trace: Option<Trace>,
}

impl World {
    pub(super) fn new(plan: Plan, trace: Option<Trace>) -> World {
        let temper = Temper::new(plan.seed, plan.members);
        let stream = |name: &str| Chance::stream(plan.seed, name);
        let boot_clock = |id| BootClock::new(&mut stream(&format!("boot clock {id}")));
        let boot_clocks = (1..=plan.members).map(boot_clock).collect();
        let founders = Membership { voters: (1..=plan.members).collect(), learners: Vec::new() };
        let founder = || Origin::Founder(founders.clone());
        let healed = plan.seconds * SECOND + if temper.reduced { REDUCED } else { 0 };
        let mut world = World {
            plan,
            now: 0,
            planned: 0,
            queue: BinaryHeap::new(),
            chances: Chances {
                members: stream("members"),
                network: stream("network"),
                clients: stream("clients"),
                streams: stream("streams"),
                inquiries: stream("inquiries"),
                watches: stream("watches"),
                leases: stream("leases"),
                users: stream("users"),
                changes: stream("changes"),
            },
            vices: vices(plan.seed),
            sites: (1..=plan.members).map(|id| Site::new(id, plan.flaw, &temper, founder())).collect(),
            network: Network::new(temper.order),
            temper,
            streams: BTreeMap::new(),
            streams_begun: 0,
            clients: Clients::default(),
            watches: (0..WATCH_CLIENTS).map(|_| WatchClient::default()).collect(),
            lease_tasks: LeaseTasks::default(),
            boot_clocks,
            truth: SharedTruth::default(),
            changes: Changes::default(),
            elections: Elections::default(),
            recount_from: RecountSpan::START,
            report: Report::new(plan.seed),
            phase: Phase::Faults,
            phase_began: 0,
            served: None,
            end: healed + CALM,
            absent: BTreeMap::new(),
            trace,
        };
        for id in 1..=plan.members {
            let level = world.first_level();
            world.site(id).be_of_level(level);
        }
        world.truth.get().begin(1..=plan.members);
        world.changes.begin(founders);
        world.report.stories = 1;
        world.report.simulated_seconds = world.end / SECOND;
        let user_clients = if stream("has users").per_mille(USER_SEEDS) { USER_CLIENTS } else { 0 };
        for client in 0..plan.clients + LEASE_CLIENTS + user_clients {
            world.after(client * MILLISECOND, Happening::Client { client, member: 0 });
        }
        for client in 0..WATCH_CLIENTS {
            world.after(client * MILLISECOND, Happening::Watch { client });
        }
        for vice in 0..world.vices.len() {
            let first = 3 * SECOND + world.vices[vice].wait();
            world.after(first, Happening::Fault { vice });
        }
        if world.temper.reduced {
            world.after(plan.seconds * SECOND, Happening::Reduce);
        }
        world.after(healed, Happening::Heal);
        world
    }

    pub fn after(&mut self, delay: u64, what: Happening) {
        self.planned += 1;
        self.queue.push(Reverse(Planned { at: self.now + delay, number: self.planned, what }));
    }

    /// What a wiped member had sent is lost. Its connections ended with its process, long before its disk was replaced.
    pub fn drop_messages_of(&mut self, id: u64) {
        self.queue.retain(
            |Reverse(planned)| !matches!(planned.what, Happening::Deliver { from, .. } if from == id),
        );
    }

    /// Messages that are still on their way arrive soon: a connection that works again delivers its backlog.
    pub fn deliver_backlog(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        let mut soonest = BTreeMap::new();
        let mut planned: Vec<Planned> = queue.into_iter().map(|Reverse(planned)| planned).collect();
        planned.sort_unstable();
        for mut next in planned {
            if let Happening::Deliver { from, to, .. } = &next.what {
                // Their order stays.
                let at = soonest.entry((*from, *to)).or_insert(self.now);
                *at = (*at).max(next.at.min(self.now + self.chances.network.within(0, SECOND / 2)));
                next.at = *at;
            }
            self.queue.push(Reverse(next));
        }
    }

    /// All that run or are started again, in order; removed ones until they know that.
    pub fn ids(&self) -> Vec<u64> {
        self.sites.iter().filter(|site| site.stage == Stage::Present).map(|site| site.id).collect()
    }

    pub fn site(&mut self, id: u64) -> &mut Site {
        &mut self.sites[id as usize - 1]
    }

    pub fn see(&self, id: u64) -> &Site {
        &self.sites[id as usize - 1]
    }

    /// A member that leads, as it believes.
    pub fn leader(&self) -> Option<u64> {
        self.sites.iter().find(|site| site.leads()).map(|site| site.id)
    }

    pub fn count(&mut self, count: Count) {
        self.report.add(count, 1);
        self.tell(|| format!("{count:?}"));
    }

    /// A line of the trace, if there is one.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(&format!("{:>12.6}  {}", self.now as f64 / SECOND as f64, line()));
        }
    }

    /// Folds a happening into the trace.
    pub(super) fn note(&mut self, what: &Happening) {
        self.report.happenings += 1;
        let (kind, to) = match what {
            Happening::Tick { to, .. } => (1, *to),
            Happening::Burst { to, .. } => (2, *to),
            Happening::Deliver { to, .. } => (3, *to),
            Happening::Unreachable { to, .. } => (4, *to),
            Happening::Sync { to, .. } => (5, *to),
            Happening::Apply { to, .. } => (6, *to),
            Happening::Maintain { to, .. } => (7, *to),
            Happening::Client { client, .. } => (8, *client),
            Happening::Restart { to } => (9, *to),
            Happening::Checkpoint { to, .. } => (12, *to),
            Happening::Stream { number } => (13, *number),
            Happening::Report { to, .. } => (14, *to),
            Happening::Crash { to } => (15, *to),
            Happening::Release { to, .. } => (17, *to),
            Happening::Fault { vice } => (10, *vice as u64),
            Happening::LoseDisk { to, .. } => (21, *to),
            Happening::Inquire { to, .. } => (18, *to),
            Happening::Asked { to, .. } => (19, *to),
            Happening::Answered { to, .. } => (20, *to),
            Happening::Hub { to, .. } => (22, *to),
            Happening::Watch { client } => (23, *client),
            Happening::Lease { to, .. } => (24, *to),
            Happening::Vouch { to, .. } => (25, *to),
            Happening::Stop { to } => (26, *to),
            Happening::Promote { to } => (27, *to),
            Happening::Reduce => (16, 0),
            Happening::Heal => (11, 0),
        };
        let mut digest = fold_number(fold_number(self.report.trace, self.now), kind << 32 | to);
        if let Happening::Deliver { from, bytes, .. } = what {
            digest = fold(digest ^ from << 8, bytes);
        }
        self.report.trace = digest;
        if self.trace.is_some() {
            let line = match what {
                Happening::Deliver { from, to, bytes, .. } => {
                    format!("Deliver {from} -> {to}, {} bytes", bytes.len())
                }
                other => format!("{other:?}"),
            };
            self.tell(|| line);
        }
    }
}
