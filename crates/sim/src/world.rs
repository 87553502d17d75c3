//! Time, and what happens next.
//!
//! A queue of happenings, ordered by time and then by when they were planned. Each is carried out on one member,
//! which then turns; what that calls for is planned in its turn. After the story's faulty part everything heals, and
//! the cluster must serve again and end in one state.
//!
//! * `steps` carries happenings out, `faults` makes things go wrong, `verdict` judges.
//! * A member whose disk fails stops and is started again later; a breach ends the story.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use raft_node::SnapshotOutcome;

use crate::chance::{Chance, fold, fold_number};
use crate::clients::Clients;
use crate::count::{Count, Report};
use crate::laws::{Breach, Elections};
use crate::machine::SharedTruth;
use crate::network::Network;
use crate::plan::{CALM, MILLISECOND, Plan, SECOND, Temper};
use crate::site::{Site, Trouble};
use crate::streams::Stream;

pub(crate) const TICK: u64 = 100 * MILLISECOND;

#[derive(Debug)]
pub(crate) enum Happening {
    Tick {
        to: u64,
        boot: u64,
    },
    /// So many ticks at once, after a jump of the clock.
    Burst {
        to: u64,
        boot: u64,
        ticks: u64,
    },
    Deliver {
        from: u64,
        to: u64,
        bytes: Bytes,
    },
    /// The transport noticed that a peer is not reached.
    Unreachable {
        to: u64,
        boot: u64,
        peer: u64,
    },
    Sync {
        to: u64,
        boot: u64,
    },
    Apply {
        to: u64,
        boot: u64,
    },
    /// The store writes a checkpoint or compacts.
    Maintain {
        to: u64,
        boot: u64,
    },
    /// The store writes a checkpoint, because somebody waits for one.
    Checkpoint {
        to: u64,
        boot: u64,
    },
    /// A snapshot's stream goes on.
    Stream {
        number: u64,
    },
    /// The sender of a snapshot hears how its stream ended.
    Report {
        to: u64,
        boot: u64,
        peer: u64,
        outcome: SnapshotOutcome,
    },
    /// Asks a member for something; 0 lets chance choose which.
    Client {
        client: u64,
        member: u64,
    },
    Crash {
        to: u64,
    },
    Restart {
        to: u64,
    },
    Fault,
    Heal,
}

/// A happening and its place in time. Ordered by time, then by when it was planned.
pub(crate) struct Planned {
    at: u64,
    number: u64,
    what: Happening,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Receives a line for everything that happens.
pub type Trace = Box<dyn FnMut(&str)>;

pub(crate) struct World {
    pub plan: Plan,
    pub temper: Temper,
    pub now: u64,
    planned: u64,
    queue: BinaryHeap<Reverse<Planned>>,
    pub chance: Chance,
    /// In the order of their ids, which begin at 1.
    pub sites: Vec<Site>,
    pub network: Network,
    /// Snapshots on their way, by number.
    pub streams: BTreeMap<u64, Stream>,
    pub streams_begun: u64,
    pub clients: Clients,
    pub truth: SharedTruth,
    pub elections: Elections,
    pub report: Report,
    pub healed: bool,
    /// When the first write was acknowledged after everything had healed.
    pub served_again: Option<u64>,
    trace: Option<Trace>,
}

/// Plays a story to its end.
pub fn run(plan: Plan) -> Result<Report, Breach> {
    play(plan, None)
}

/// Plays a story and tells it.
pub fn run_traced(plan: Plan, trace: Trace) -> Result<Report, Breach> {
    play(plan, Some(trace))
}

fn play(plan: Plan, trace: Option<Trace>) -> Result<Report, Breach> {
    let mut world = World::new(plan, trace);
    let end = plan.seconds * SECOND + CALM;
    for id in world.ids() {
        world.guarded(|world| world.boot(id))?;
    }
    while let Some(Reverse(next)) = world.queue.pop() {
        if next.at > end {
            break;
        }
        world.now = next.at;
        world.note(&next.what);
        world.guarded(|world| world.happen(next.what))?;
    }
    world.finish()
}

impl World {
    fn new(plan: Plan, trace: Option<Trace>) -> World {
        let mut chance = Chance::new(plan.seed);
        let temper = Temper::new(&mut chance);
        let mut world = World {
            plan,
            now: 0,
            planned: 0,
            queue: BinaryHeap::new(),
            chance,
            sites: (1..=plan.members).map(|id| Site::new(id, plan.flaw, &temper)).collect(),
            temper,
            network: Network::new(),
            streams: BTreeMap::new(),
            streams_begun: 0,
            clients: Clients::default(),
            truth: SharedTruth::default(),
            elections: Elections::default(),
            report: Report::new(plan.seed),
            healed: false,
            served_again: None,
            trace,
        };
        world.report.stories = 1;
        world.report.simulated_seconds = plan.seconds + CALM / SECOND;
        for client in 0..plan.clients {
            world.after(client * MILLISECOND, Happening::Client { client, member: 0 });
        }
        world.after(3 * SECOND, Happening::Fault);
        world.after(plan.seconds * SECOND, Happening::Heal);
        world
    }

    /// Carries something out. If a disk failed on the way, its member stops there and then.
    fn guarded(&mut self, work: impl FnOnce(&mut World) -> Result<(), Trouble>) -> Result<(), Breach> {
        match work(self) {
            Ok(()) => Ok(()),
            Err(Trouble::Disk(id)) => {
                self.disk_failed(id);
                Ok(())
            }
            Err(Trouble::Breach(Breach(what))) => {
                let seconds = self.now as f64 / SECOND as f64;
                Err(Breach(format!("at {seconds:.3} s: {what}")))
            }
        }
    }

    pub fn after(&mut self, delay: u64, what: Happening) {
        self.planned += 1;
        self.queue.push(Reverse(Planned { at: self.now + delay, number: self.planned, what }));
    }

    pub fn ids(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.plan.members
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

    /// A line of the story, if anybody listens.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(&format!("{:>12.6}  {}", self.now as f64 / SECOND as f64, line()));
        }
    }

    /// Folds a happening into the trace.
    fn note(&mut self, what: &Happening) {
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
            Happening::Fault => (10, 0),
            Happening::Heal => (11, 0),
        };
        let mut digest = fold_number(fold_number(self.report.trace, self.now), kind << 32 | to);
        if let Happening::Deliver { from, bytes, .. } = what {
            digest = fold(digest ^ from << 8, bytes);
        }
        self.report.trace = digest;
        if self.trace.is_some() {
            let line = match what {
                Happening::Deliver { from, to, bytes } => {
                    format!("Deliver {from} -> {to}, {} bytes", bytes.len())
                }
                other => format!("{other:?}"),
            };
            self.tell(|| line);
        }
    }
}
