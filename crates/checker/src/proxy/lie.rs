//! Faults that a proxy can inject.

use std::fmt;
use std::str::FromStr;

/// A violated guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lie {
    StaleRead,
    MixedRead,
    LostWrite,
    DoubleWrite,
    DropEvent,
    DuplicateEvent,
    ReorderEvents,
    SplitRevision,
    BookmarkAhead,
    LostRenewal,
    WrongHash,
    EndlessLease,
    UnrevokedLease,
    ShortTtl,
    NewestForOld,
    WrongCount,
    WrongPrevious,
    ShortHistory,
    SharedLock,
    FalseLeader,
    WrongMembers,
    OtherLease,
    EventLease,
    WrongLeaseKeys,
    Unreleased,
    TermBack,
    OtherCluster,
}

/// Name and description of each lie, in the order of the type.
const TABLE: [(Lie, &str, &str); 27] = [
    (Lie::StaleRead, "stale-read", "a linearizable read returns an older answer"),
    (Lie::MixedRead, "mixed-read", "a read returns an older state under the newest revision"),
    (Lie::LostWrite, "lost-write", "a put is acknowledged and not executed"),
    (Lie::DoubleWrite, "double-write", "a put is executed twice"),
    (Lie::DropEvent, "drop-event", "an event is not delivered"),
    (Lie::DuplicateEvent, "duplicate-event", "events are delivered twice"),
    (Lie::ReorderEvents, "reorder-events", "two responses of a watcher change places"),
    (Lie::SplitRevision, "split-revision", "the events of one revision are delivered in two responses"),
    (Lie::BookmarkAhead, "bookmark-ahead", "progress is reported up to a revision that is not reached"),
    (Lie::LostRenewal, "lost-renewal", "a renewal of a lease is acknowledged and not executed"),
    (Lie::WrongHash, "wrong-hash", "a member reports another hash of its key space"),
    (Lie::EndlessLease, "endless-lease", "a lease is granted for 100,000 s"),
    (Lie::UnrevokedLease, "unrevoked-lease", "a revocation is acknowledged and not executed"),
    (Lie::ShortTtl, "short-ttl", "a lease is said to have less time left than it has"),
    (Lie::NewestForOld, "newest-for-old", "a read of an old revision returns the newest state"),
    (Lie::WrongCount, "wrong-count", "a range says another number of keys than there are"),
    (Lie::WrongPrevious, "wrong-previous", "an event lacks what its key was before"),
    (Lie::ShortHistory, "short-history", "a watcher from far back misses its first events"),
    (Lie::SharedLock, "shared-lock", "a lock is acknowledged and not taken"),
    (Lie::FalseLeader, "false-leader", "an election is said to have another leader than it has"),
    (Lie::WrongMembers, "wrong-members", "a member list has another ID for a member"),
    (Lie::OtherLease, "other-lease", "a read returns a key with another lease"),
    (Lie::EventLease, "event-lease", "an event has another lease than its key"),
    (Lie::WrongLeaseKeys, "wrong-lease-keys", "TimeToLive omits a key of the lease"),
    (Lie::Unreleased, "unreleased", "a release of a lock is acknowledged and not executed"),
    (Lie::TermBack, "term-back", "a response header has an older term"),
    (Lie::OtherCluster, "other-cluster", "a response header has another cluster ID"),
];

impl Lie {
    pub const ALL: [Lie; TABLE.len()] = {
        let (mut all, mut place) = ([Lie::StaleRead; TABLE.len()], 0);
        while place < all.len() {
            all[place] = TABLE[place].0;
            place += 1;
        }
        all
    };

    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    pub fn about(self) -> &'static str {
        TABLE[self as usize].2
    }
}

impl fmt::Display for Lie {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Lie {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Lie::ALL.map(Lie::name).join(", ");
        Lie::ALL
            .into_iter()
            .find(|lie| lie.name() == text)
            .ok_or_else(|| format!("expected one of {}", names()))
    }
}
