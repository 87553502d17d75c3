//! Run statistics: faults by kind, and coverage of the code under test.

use std::fmt;

/// Defines the enum, its list and its names together, so that they cannot diverge.
macro_rules! counts {
    ($($variant:ident => $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Statistic { $($variant,)* }

        impl Statistic {
            pub const ALL: &'static [(Statistic, &'static str)] = &[$((Statistic::$variant, $name),)*];
        }
    };
}

counts! {
    Splits => "faults: partitions in two",
    OneWays => "faults: partitions one way",
    Isolations => "faults: leaders cut off",
    Bridges => "faults: partitions with a bridge",
    Rings => "faults: partitions into a ring",
    Weathers => "faults: spells of loss, delay, duplicates",
    MessagesLost => "faults: messages lost",
    MessagesTwice => "faults: messages delivered twice",
    Kills => "faults: processes killed",
    PowerCuts => "faults: power cuts that keep what was synced",
    PowerCutsSubset => "faults: power cuts that keep part of the rest",
    PowerCutsTorn => "faults: power cuts that tear writes",
    CrashesInWrite => "faults: crashes within a log write",
    CrashesInCheckpoint => "faults: crashes within a checkpoint",
    AllDown => "faults: all members down at once",
    SlowDisks => "faults: slow disks",
    StalledDisks => "faults: stalled disks",
    DiskErrors => "faults: members stopped by EIO",
    DisksFull => "faults: members stopped by ENOSPC",
    DisksStayFull => "faults: disks that stay full",
    StalledStores => "faults: stalled disks of stores",
    Tails => "faults: spells of very late messages",
    BrokenLanes => "faults: connections broken",
    Reductions => "faults: minorities missing while the rest works",
    LostStores => "faults: stores wiped",
    Reseeds => "faults: states given up for the leader's",
    LostDisks => "faults: logs and stores wiped",
    FlippedBits => "faults: bits of logs flipped",
    Misdirected => "faults: log writes that went to another place",
    Pauses => "faults: pauses",
    FastClocks => "faults: clocks that run fast",
    SlowClocks => "faults: clocks that run slow or stand still",
    ClockJumps => "faults: clock jumps",
    Transfers => "faults: leadership moved",
    Misplaced => "faults: members that start where they were before their update",
    Upgrades => "faults: members replaced by a newer version",
    Downgrades => "faults: members replaced by an older version",
    TooOld => "reached: starts and applies refused to a version that is too old",
    Elections => "reached: terms led",
    Restarts => "reached: restarts",
    FailedStarts => "reached: starts that a disk error ended",
    DamageFound => "reached: starts refused for a damaged log",
    TornTails => "reached: torn tails cut",
    BriefEntries => "reached: entries applied by the driver",
    NotLetIn => "reached: requests that the entrance refused",
    InboxesFull => "reached: messages that a full inbox refused",
    Checkpoints => "reached: checkpoints",
    Compactions => "reached: compactions applied",
    Sweeps => "reached: compactions finished on a disk",
    LeasesExpired => "reached: leases expired",
    Hashes => "reached: state hashes compared",
    Digests => "reached: digests of entries compared",
    Recounts => "reached: parts of two states recounted and compared",
    SnapshotsSent => "reached: snapshot streams begun",
    SnapshotsCut => "reached: snapshot streams cut",
    Installs => "reached: snapshots installed",
    StartsWithoutStore => "reached: starts without a store",
    Confirmed => "reached: members with an empty log confirmed",
    RaisesChecked => "reached: command levels verified before a raise",
    CaughtUp => "reached: members with an empty log caught up",
    StartsWithStaged => "reached: installs finished at a start",
    Trims => "reached: log segments released",
    Puts => "answered: puts",
    Deletes => "answered: deletes",
    Txns => "answered: txns",
    Grants => "answered: leases granted",
    Revokes => "answered: leases revoked",
    Renewals => "answered: renewals",
    RenewalsUnrevoked => "answered: renewals of leases that were to be revoked",
    RenewalsRefused => "answered: renewals of leases that are gone",
    RemainingTimes => "answered: remaining times of leases",
    KeysOfLeases => "answered: keys of leases",
    ChangesOfUsers => "answered: changes of users, and tokens",
    AccessRefused => "answered: refusals of who asks",
    ReadsRefused => "answered: refusals of who reads",
    Refusals => "answered: other refusals",
    Reads => "answered: linearizable reads",
    OldReads => "answered: reads of old revisions",
    SerializableReads => "answered: serializable reads",
    WatchStreams => "watched: streams opened",
    WatchEvents => "watched: events received",
    WatchProgress => "watched: progress answers",
    WatchesCompacted => "watched: watchers cancelled by a compaction",
    VotersAdded => "changed: voters added",
    LearnersAdded => "changed: learners added",
    Promotions => "changed: learners promoted",
    Removals => "changed: members removed",
    LeadersRemoved => "changed: leaders removed",
    Moves => "changed: members given other addresses",
    ChangesRefused => "changed: changes refused",
    ChangesAtOnce => "changed: proposals while another was under way",
    Joins => "changed: members that joined",
    ToldAnew => "changed: members that joined by a newer list than they began with",
    FoundElsewhere => "changed: messages taken by members that the list has elsewhere",
    MembersStopped => "changed: removed members that stopped",
    Vouched => "changed: members heard that the receiver's list did not have",
    Unanswered => "unanswered requests",
}

/// Result of a run, or the sum of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunReport {
    /// Hash of all events, in order.
    pub trace: u64,
    pub runs: u64,
    pub simulated_seconds: u64,
    pub events: u64,
    counts: [u64; Statistic::ALL.len()],
}

impl RunReport {
    #[must_use]
    pub fn new(seed: u64) -> RunReport {
        RunReport { trace: seed, runs: 0, simulated_seconds: 0, events: 0, counts: [0; Statistic::ALL.len()] }
    }

    pub fn add(&mut self, count: Statistic, times: u64) {
        self.counts[count as usize] += times;
    }

    #[must_use]
    pub fn get(&self, count: Statistic) -> u64 {
        self.counts[count as usize]
    }

    /// Returns the number of faults of every kind, without lost and duplicated messages.
    #[must_use]
    pub fn faults(&self) -> u64 {
        let messages = [Statistic::MessagesLost, Statistic::MessagesTwice];
        let faults = Statistic::ALL
            .iter()
            .filter(|(count, name)| name.starts_with("faults: ") && !messages.contains(count));
        faults.map(|(count, _)| self.get(*count)).sum()
    }

    /// Adds another run. Commutative, so that runs may be executed in parallel.
    pub fn merge(&mut self, other: &RunReport) {
        self.trace = self.trace.wrapping_add(other.trace);
        self.runs += other.runs;
        self.simulated_seconds += other.simulated_seconds;
        self.events += other.events;
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, name) in Statistic::ALL {
            writeln!(f, "{:>14}  {name}", self.get(*count))?;
        }
        Ok(())
    }
}
