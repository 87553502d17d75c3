//! The plan of a run, from the command line, and the configuration drawn from its seed.
//!
//! Every seed draws its own mix: kinds of faults and their rates, the size of segments and blocks, the
//! length of the retained log. Many worlds with some kinds of faults each find more than a single world
//! with all of them.

use raft_node::RaftLimits;

use crate::chance::Chance;
use crate::network::DeliveryOrder;

/// The identity of every log. Clients know it: it consists of public ids.
pub(crate) const IDENTITY: &[u8] = b"sim";

pub const MILLISECOND: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MILLISECOND;
/// Calm time after the faults: clients stop, and all members must catch up before it is over.
pub(crate) const CALM: u64 = 20 * SECOND;
/// How long a minority is missing while everything else works, in the seeds that have this phase. Longer than an election and
/// the timeout of every request that was lost before it.
pub(crate) const REDUCED: u64 = 14 * SECOND;
/// How many seeds of a thousand have that phase.
const REDUCED_SEEDS: u64 = 400;

/// Seeds per thousand with members that accept few requests at a time.
const TIGHT_SEEDS: u64 = 400;
/// Seeds per thousand with clients that forge frames of the log.
const FORGING_SEEDS: u64 = 250;

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlan {
    pub seed: u64,
    pub members: u64,
    pub clients: u64,
    /// Seconds of simulated time with faults; calm ones follow.
    pub seconds: u64,
    pub known_bug: KnownBug,
}

/// A deliberate bug, to test that the checkers fail on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBug {
    None,
    /// Disks report syncs that a crash shows never to have happened.
    DisksForget,
    /// A member serves reads from its store without a read round.
    ReadsAskNobody,
    /// A bit of a member's state is flipped after it was applied.
    BitsFlip,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Partition,
    Heal,
    Weather,
    Crash,
    AllDown,
    SlowDisk,
    StalledDisk,
    FailingDisk,
    LostStore,
    /// A member's state is declared corrupt, and replaced by the leader's.
    Reseed,
    /// The disks of log and store are replaced by empty ones.
    LostDisk,
    /// The log's disk changes data that it had confirmed.
    DamagedLog,
    Pause,
    Clock,
    Transfer,
    /// Some messages take longer than several elections.
    Tails,
    /// A connection breaks in one direction; its messages are lost, or delivered later in one burst.
    Lane,
    /// The log's disk or the store's is full for a while, starts included.
    FullDisk,
    /// The store's disk stalls.
    StalledStore,
    /// Members begin as an older version, and become a newer one, or an older one by mistake.
    Versions,
    /// Members are added, promoted, removed, and get other addresses. Not a fault: its changes end with the faults.
    Members,
}

/// Each kind with its weight (how often it comes), and how many seeds of a thousand have it.
const FAULTS: [(FaultKind, u64, u64); 21] = [
    (FaultKind::Partition, 25, 800),
    (FaultKind::Heal, 15, 1000),
    (FaultKind::Weather, 10, 600),
    (FaultKind::Crash, 20, 850),
    (FaultKind::AllDown, 4, 400),
    (FaultKind::SlowDisk, 5, 400),
    (FaultKind::StalledDisk, 5, 400),
    (FaultKind::FailingDisk, 8, 500),
    (FaultKind::LostStore, 6, 400),
    (FaultKind::Reseed, 6, 400),
    (FaultKind::LostDisk, 6, 400),
    (FaultKind::DamagedLog, 5, 300),
    (FaultKind::Pause, 10, 600),
    (FaultKind::Clock, 8, 500),
    (FaultKind::Transfer, 6, 500),
    (FaultKind::Tails, 5, 300),
    (FaultKind::Lane, 15, 400),
    (FaultKind::FullDisk, 4, 250),
    (FaultKind::StalledStore, 5, 300),
    (FaultKind::Versions, 12, 350),
    (FaultKind::Members, 50, 450),
];

/// The sum of weights at which a fault of any kind comes, on average, after half of the longest wait that a seed draws.
const WEIGHTS: u64 = 80;

/// A kind of fault enabled by a seed, with its own random numbers, so that its presence, times and details
/// do not depend on the remaining kinds.
#[derive(Clone, Debug)]
pub(crate) struct FaultSchedule {
    pub kind: FaultKind,
    pub chance: Chance,
    wait_max: u64,
}

impl FaultSchedule {
    /// The time to its next fault.
    pub fn wait(&mut self) -> u64 {
        self.chance.within(50 * MILLISECOND, self.wait_max)
    }
}

/// Configuration that a seed draws for its whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunConfig {
    /// The order in which the messages of a connection arrive.
    pub order: DeliveryOrder,
    /// Whether the faults are followed by a phase without a minority.
    pub reduced: bool,
    pub segment_bytes: u64,
    pub block_bytes: usize,
    pub checkpoint_due_bytes: usize,
    /// The longest wait between two rounds of a store's maintenance.
    pub maintain_wait_max: u64,
    /// Entries kept for followers behind a checkpoint.
    pub catch_up_entries: u64,
    /// Few keys, so that clients meet.
    pub keys: u64,
    pub value_bytes_max: u64,
    /// Whether some values look like frames of the log.
    pub forges: bool,
    /// Maximum pause of a client between requests.
    pub think_max: u64,
    /// Limits of a member on pending requests.
    pub limits: RaftLimits,
}

impl RunConfig {
    pub fn new(seed: u64, members: u64) -> RunConfig {
        let draw = |name| Chance::stream(seed, name);
        RunConfig {
            order: *draw("order").pick(&[DeliveryOrder::Fifo, DeliveryOrder::Any]),
            reduced: members > 2 && draw("reduced").per_mille(REDUCED_SEEDS),
            segment_bytes: *draw("segment_bytes").pick(&[16 << 10, 32 << 10, 64 << 10]),
            block_bytes: *draw("block_bytes").pick(&[600, 2_000, 8_000]),
            checkpoint_due_bytes: *draw("checkpoint_due_bytes").pick(&[4 << 10, 32 << 10]),
            maintain_wait_max: *draw("maintain_wait_max").pick(&[100 * MILLISECOND, SECOND, 4 * SECOND]),
            catch_up_entries: *draw("catch_up_entries").pick(&[0, 5, 50]),
            keys: draw("keys").within(2, 12),
            value_bytes_max: *draw("value_bytes_max").pick(&[30, 300, 3_000]),
            forges: draw("forges").per_mille(FORGING_SEEDS),
            think_max: *draw("think_max").pick(&[60 * MILLISECOND, 200 * MILLISECOND, 500 * MILLISECOND]),
            limits: limits(&mut draw("limits")),
        }
    }
}

/// Returns the server's limits, or limits that a few clients can reach.
fn limits(chance: &mut Chance) -> RaftLimits {
    if !chance.per_mille(TIGHT_SEEDS) {
        return RaftLimits::default();
    }
    RaftLimits {
        proposals_max: chance.within(1, 5) as usize,
        proposal_bytes_max: chance.within(100, 6_000) as usize,
        reads_max: chance.within(1, 4) as usize,
        inbox_bytes_max: chance.within(500, 8_000) as usize,
        unapplied_entries_max: chance.within(1, 20),
        ..RaftLimits::default()
    }
}

/// The schedules that a seed has.
pub(crate) fn schedules(seed: u64) -> Vec<FaultSchedule> {
    let pace = Chance::stream(seed, "pace").within(0, 3) as usize;
    let wait_max = [600 * MILLISECOND, 2 * SECOND, 4 * SECOND][pace];
    let schedule = |(kind, weight, seeds): &(FaultKind, u64, u64)| {
        let mut chance = Chance::stream(seed, &format!("{kind:?}"));
        let wait_max = wait_max * WEIGHTS / weight;
        chance.per_mille(*seeds).then_some(FaultSchedule { kind: *kind, chance, wait_max })
    };
    FAULTS.iter().filter_map(schedule).collect()
}
