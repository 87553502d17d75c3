//! Leases in memory: written by apply, read by any thread.
//!
//! Each call holds the lock for a bounded number of leases. A reader sees each lease in a state
//! between two applied commands.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use base::LogIndex;
use parking_lot::RwLock;

/// Minimum lifetime of a lease after its deadline, because of renewals without a record. Half a
/// second: clients renew less often, and etcd expires leases up to a second late.
pub const RENEWAL_GRACE_MS: i64 = 500;

/// Time after a recorded renewal during which further ones need no record. Less than the grace
/// period: clocks are read in whole milliseconds, and the clock of a new leader starts a
/// millisecond ahead.
pub const RENEWAL_COVERED_MS: i64 = RENEWAL_GRACE_MS - 10;

/// Memory per lease: 40 bytes in a tree with nodes that are two thirds full.
const LEASE_BYTES: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Granted time to live in seconds.
    pub ttl: i64,
    /// Expiry in milliseconds of the lease clock; `None` until the leader has recorded it.
    pub deadline: Option<i64>,
    /// Index of the entry that granted it; 0 once it has a deadline.
    pub granted: LogIndex,
}

impl Lease {
    /// Reports whether it has expired, including the grace period.
    pub fn is_expired(&self, now: i64) -> bool {
        let grace = if base::mutant("expiry-without-grace") { 0 } else { RENEWAL_GRACE_MS };
        self.deadline.is_some_and(|deadline| deadline + grace <= now)
    }

    /// Reports whether a renewal at `now` needs no record, because it is covered by one recorded in
    /// the current term, in which the clock started at `began`.
    pub fn is_renewed_at(&self, now: i64, began: i64) -> bool {
        self.deadline.map(|deadline| deadline - self.ttl * 1000).is_some_and(|recorded| {
            (recorded >= began || base::mutant("covered-by-earlier-term"))
                && now <= recorded + RENEWAL_COVERED_MS
        })
    }
}

/// Leases of this member. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LeaseTable(Arc<RwLock<LeaseContents>>);

#[derive(Debug, Default)]
struct LeaseContents {
    leases: BTreeMap<i64, Lease>,
    unrecorded: BTreeSet<i64>,
    clock: i64,
    /// Highest index of a grant among the leases that ever had no deadline here.
    newest_grant: LogIndex,
    /// Leases granted since the queue's owner last took them; `None` without such a queue.
    granted: Option<Vec<i64>>,
    waits_for_grant: Option<Waker>,
    /// Leases granted and revoked since the start of this process; not part of the replicated
    /// state.
    totals: (u64, u64),
}

impl LeaseTable {
    pub fn len(&self) -> usize {
        self.0.read().leases.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, id: i64) -> Option<Lease> {
        self.0.read().leases.get(&id).copied()
    }

    /// Looks up several leases under a single acquisition of the lock.
    pub fn get_all(&self, ids: &[i64]) -> Vec<Option<Lease>> {
        let contents = self.0.read();
        ids.iter().map(|id| contents.leases.get(id).copied()).collect()
    }

    /// Returns the first leases with an id greater than `after`, at most `count_max`.
    pub fn scan(&self, after: Option<i64>, count_max: usize) -> Vec<(i64, Lease)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let contents = self.0.read();
        let leases = contents.leases.range((from, Bound::Unbounded));
        leases.take(count_max).map(|(id, lease)| (*id, *lease)).collect()
    }

    /// Starts to list granted leases for [`LeaseTable::take_granted`]. A scan that starts after
    /// this call, combined with the listed leases, covers all leases.
    pub fn list_granted(&self) {
        self.0.write().granted = Some(Vec::new());
    }

    /// Returns ready if leases are listed; otherwise the next grant wakes the task.
    pub fn poll_granted(&self, context: &Context<'_>) -> Poll<()> {
        let mut contents = self.0.write();
        if contents.granted.as_ref().is_some_and(|granted| !granted.is_empty()) {
            return Poll::Ready(());
        }
        contents.waits_for_grant = Some(context.waker().clone());
        Poll::Pending
    }

    pub fn unlist_granted(&self) {
        self.0.write().granted = None;
    }

    /// Returns the leases granted since the last call, including revoked ones.
    pub fn take_granted(&self) -> Vec<i64> {
        if self.0.read().granted.as_ref().is_none_or(Vec::is_empty) {
            return Vec::new();
        }
        self.0.write().granted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns leases without a deadline, at most `count_max`.
    pub fn unrecorded(&self, count_max: usize) -> Vec<i64> {
        self.0.read().unrecorded.iter().take(count_max).copied().collect()
    }

    /// Returns the index of the last applied grant. A caller that chooses leases to record must
    /// read it first, so that all leases it finds were granted at or before this index.
    pub fn newest_grant(&self) -> LogIndex {
        self.0.read().newest_grant
    }

    /// Returns the number of leases granted and revoked since this member started.
    pub fn totals(&self) -> (u64, u64) {
        self.0.read().totals
    }

    /// Returns the last recorded lease clock.
    pub fn clock(&self) -> i64 {
        self.0.read().clock
    }

    pub(crate) fn set(&self, id: i64, lease: Lease) {
        let mut contents = self.0.write();
        let is_new = contents.leases.insert(id, lease).is_none();
        contents.newest_grant = contents.newest_grant.max(lease.granted);
        contents.totals.0 += u64::from(is_new);
        match lease.deadline {
            None => contents.unrecorded.insert(id),
            Some(_) => contents.unrecorded.remove(&id),
        };
        if is_new && let Some(granted) = &mut contents.granted {
            granted.push(id);
            let waker = contents.waits_for_grant.take();
            drop(contents);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn remove(&self, id: i64) {
        let mut contents = self.0.write();
        let removed = contents.leases.remove(&id);
        assert!(removed.is_some(), "a lease is removed once");
        contents.unrecorded.remove(&id);
        contents.totals.1 += 1;
    }

    pub(crate) fn set_clock(&self, clock: i64) {
        self.0.write().clock = clock;
    }

    pub(super) fn replace(&self, leases: BTreeMap<i64, Lease>, clock: i64) {
        let newest_grant = leases.values().map(|lease| lease.granted).max().unwrap_or_default();
        let unrecorded = leases.iter().filter(|(_, lease)| lease.deadline.is_none());
        let unrecorded = unrecorded.map(|(id, _)| *id).collect();
        let mut contents = self.0.write();
        let (totals, granted) = (contents.totals, contents.granted.take());
        let waits_for_grant = contents.waits_for_grant.take();
        let new = LeaseContents { leases, unrecorded, clock, newest_grant, granted, waits_for_grant, totals };
        let old = std::mem::replace(&mut *contents, new);
        drop(contents);
        // Drop the old leases, up to millions, without holding the lock.
        drop(old);
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        LEASE_BYTES * self.len() as u64
    }
}
