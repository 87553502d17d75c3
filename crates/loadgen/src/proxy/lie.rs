//! What a proxy can do wrong.

use std::fmt;
use std::str::FromStr;

/// A guarantee that is broken.
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
}

impl Lie {
    pub const ALL: [Lie; 17] = [
        Lie::StaleRead,
        Lie::MixedRead,
        Lie::LostWrite,
        Lie::DoubleWrite,
        Lie::DropEvent,
        Lie::DuplicateEvent,
        Lie::ReorderEvents,
        Lie::SplitRevision,
        Lie::BookmarkAhead,
        Lie::LostRenewal,
        Lie::WrongHash,
        Lie::EndlessLease,
        Lie::UnrevokedLease,
        Lie::ShortTtl,
        Lie::NewestForOld,
        Lie::WrongCount,
        Lie::WrongPrevious,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Lie::StaleRead => "stale-read",
            Lie::MixedRead => "mixed-read",
            Lie::LostWrite => "lost-write",
            Lie::DoubleWrite => "double-write",
            Lie::DropEvent => "drop-event",
            Lie::DuplicateEvent => "duplicate-event",
            Lie::ReorderEvents => "reorder-events",
            Lie::SplitRevision => "split-revision",
            Lie::BookmarkAhead => "bookmark-ahead",
            Lie::LostRenewal => "lost-renewal",
            Lie::WrongHash => "wrong-hash",
            Lie::EndlessLease => "endless-lease",
            Lie::UnrevokedLease => "unrevoked-lease",
            Lie::ShortTtl => "short-ttl",
            Lie::NewestForOld => "newest-for-old",
            Lie::WrongCount => "wrong-count",
            Lie::WrongPrevious => "wrong-previous",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Lie::StaleRead => "a linearizable read returns an older answer",
            Lie::MixedRead => "a read returns an older state under the newest revision",
            Lie::LostWrite => "a put is acknowledged and not executed",
            Lie::DoubleWrite => "a put is executed twice",
            Lie::DropEvent => "an event is not delivered",
            Lie::DuplicateEvent => "events are delivered twice",
            Lie::ReorderEvents => "two responses of a watcher change places",
            Lie::SplitRevision => "the events of one revision are delivered in two responses",
            Lie::BookmarkAhead => "progress is reported up to a revision that is not reached",
            Lie::LostRenewal => "a renewal of a lease is acknowledged and not executed",
            Lie::WrongHash => "a member reports another hash of its key space",
            Lie::EndlessLease => "a lease is granted for 100,000 s",
            Lie::UnrevokedLease => "a revocation is acknowledged and not executed",
            Lie::ShortTtl => "a lease is said to have less time left than it has",
            Lie::NewestForOld => "a read of an old revision returns the newest state",
            Lie::WrongCount => "a range says another number of keys than there are",
            Lie::WrongPrevious => "an event lacks what its key was before",
        }
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
