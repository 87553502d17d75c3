//! What a story is told from: the plan that a command line names, and the temper that its seed gives it.
//!
//! Every seed draws its own mix: which faults there are at all, how often they come, how large segments and blocks are,
//! how much log is kept. A world where everything goes wrong at once finds less than many worlds that each have a vice.

use crate::chance::Chance;

pub const MILLISECOND: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MILLISECOND;
/// Calm time after the faults: clients stop, and everybody must have caught up, before it ends.
pub(crate) const CALM: u64 = 20 * SECOND;

/// One story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub members: u64,
    pub clients: u64,
    /// Seconds of simulated time with faults; calm ones follow.
    pub seconds: u64,
    pub flaw: Flaw,
}

/// A bug that the world is given on purpose: a checker that never failed proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Disks report syncs that a crash shows never to have happened.
    DisksForget,
    /// A member answers reads from its store without asking anybody.
    ReadsAskNobody,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vice {
    Partition,
    Heal,
    Weather,
    Crash,
    AllDown,
    SlowDisk,
    StalledDisk,
    FailingDisk,
    LostStore,
    Pause,
    Clock,
    Transfer,
}

/// Each vice with its weight among the others, and how many seeds of a thousand have it.
const VICES: [(Vice, u64, u64); 12] = [
    (Vice::Partition, 25, 800),
    (Vice::Heal, 15, 1000),
    (Vice::Weather, 10, 600),
    (Vice::Crash, 20, 850),
    (Vice::AllDown, 4, 400),
    (Vice::SlowDisk, 5, 400),
    (Vice::StalledDisk, 5, 400),
    (Vice::FailingDisk, 8, 500),
    (Vice::LostStore, 6, 400),
    (Vice::Pause, 10, 600),
    (Vice::Clock, 8, 500),
    (Vice::Transfer, 6, 500),
];

/// What a seed decides once for its whole story.
#[derive(Clone, Debug)]
pub(crate) struct Temper {
    vices: Vec<(Vice, u64)>,
    /// The longest wait between two faults.
    pub fault_wait_max: u64,
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
    /// How long a client rests between requests at most.
    pub think_max: u64,
}

impl Temper {
    pub fn new(chance: &mut Chance) -> Temper {
        let vices = VICES.iter().filter(|(_, _, seeds)| chance.per_mille(*seeds));
        Temper {
            vices: vices.map(|(vice, weight, _)| (*vice, *weight)).collect(),
            fault_wait_max: *chance.pick(&[600 * MILLISECOND, 2 * SECOND, 4 * SECOND]),
            segment_bytes: *chance.pick(&[16 << 10, 32 << 10, 64 << 10]),
            block_bytes: *chance.pick(&[600, 2_000, 8_000]),
            checkpoint_due_bytes: *chance.pick(&[4 << 10, 32 << 10]),
            maintain_wait_max: *chance.pick(&[100 * MILLISECOND, SECOND, 4 * SECOND]),
            catch_up_entries: *chance.pick(&[0, 5, 50]),
            keys: chance.within(2, 12),
            value_bytes_max: *chance.pick(&[30, 300, 3_000]),
            think_max: *chance.pick(&[60 * MILLISECOND, 200 * MILLISECOND, 500 * MILLISECOND]),
        }
    }

    pub fn vice(&self, chance: &mut Chance) -> Vice {
        let all: u64 = self.vices.iter().map(|(_, weight)| weight).sum();
        let mut left = chance.within(0, all);
        for (vice, weight) in &self.vices {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *vice,
            }
        }
        unreachable!("the weights add up")
    }
}
