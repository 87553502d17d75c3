//! Which leases are due: the queue of a leader.
//!
//! ```text
//!   scan of the table, a part in each turn ─▶ buckets of 128 ms ─due─▶ look the lease up ─┬▶ expired
//!                  granted leases ────────────────▲                                      └▶ queued again
//! ```
//!
//! * A renewal does not touch the queue. When the queued time of a lease comes, its deadline is looked up,
//!   and it is queued again if it was renewed. That is once for each TTL.
//! * A lease leaves the queue no earlier than it expires.
//! * A turn handles a bounded number of leases. A new leader queues the leases that exist while it already
//!   answers renewals; until a lease is queued it does not expire.
//! * Every lease is in the queue: from the scan, or from the grants that were applied since it began. One
//!   whose deadline is not recorded yet is looked at again soon.
//! * A lease that is granted during the scan may be queued twice. Both entries are at the same time soon, and
//!   the second finds nothing or is dropped as a double.
//!
//! Knows no clock, no Raft, no tasks.

use std::collections::BTreeMap;

use crate::lease::{Lease, LeaseTable, RENEWAL_GRACE_MS};

/// Width of a bucket. A lease expires at most this much late because of it.
const BUCKET_MS: i64 = 128;
/// Before a lease without a deadline is looked at again: it is recorded in the leader's next turn.
const UNRECORDED_MS: i64 = 200;
/// Leases that are looked up under one hold of the table's lock: some 50 µs.
const LOOKED_UP: usize = 256;

/// The leases of a leader, by the time at which they have to be looked at.
#[derive(Debug)]
pub struct ExpiryQueue {
    /// Ids by bucket: the number of the first bucket that begins when they may be expired.
    buckets: BTreeMap<i64, Vec<i64>>,
    scan: Scan,
}

/// How far the leases that existed at the beginning are queued.
#[derive(Debug, PartialEq, Eq)]
enum Scan {
    After(Option<i64>),
    Done,
}

/// What a turn found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DueLeases {
    /// Leases whose time is over.
    pub expired: Vec<i64>,
    /// Whether more is due now.
    pub has_more: bool,
}

impl ExpiryQueue {
    /// A queue that begins with a scan of the table.
    pub fn new() -> Self {
        ExpiryQueue { buckets: BTreeMap::new(), scan: Scan::After(None) }
    }

    /// Queues a lease with this deadline.
    pub fn push(&mut self, id: i64, deadline: i64) {
        let expires = deadline.saturating_add(RENEWAL_GRACE_MS);
        self.queue_at(id, expires);
    }

    /// Queues leases that were just granted.
    pub fn add_granted(&mut self, ids: Vec<i64>, now: i64) {
        ids.into_iter().for_each(|id| self.retry(id, now, UNRECORDED_MS));
    }

    /// Queues a lease to be looked at again after `pause_ms`.
    pub fn retry(&mut self, id: i64, now: i64, pause_ms: i64) {
        self.queue_at(id, now.saturating_add(pause_ms));
    }

    fn queue_at(&mut self, id: i64, time: i64) {
        // Rounded up: never early.
        let bucket = time.saturating_add(BUCKET_MS - 1).div_euclid(BUCKET_MS);
        self.buckets.entry(bucket).or_default().push(id);
    }

    /// Handles at most `budget` leases of the scan, and as many that are due.
    pub fn turn(&mut self, now: i64, table: &LeaseTable, budget: usize) -> DueLeases {
        self.scan(now, table, budget);
        let mut due = DueLeases::default();
        let mut left = budget;
        while left > 0 {
            let Some(ids) = self.take_due(now, left.min(LOOKED_UP)) else { break };
            left -= ids.len();
            self.look_up(ids, now, table, &mut due.expired);
        }
        due.has_more = self.scan != Scan::Done || self.next_bucket_is_due(now);
        due
    }

    /// Entries in the queue.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    fn scan(&mut self, now: i64, table: &LeaseTable, budget: usize) {
        let mut left = budget;
        while let Scan::After(after) = self.scan
            && left > 0
        {
            let leases = table.scan(after, left.min(LOOKED_UP));
            left -= leases.len();
            self.scan = leases.last().map_or(Scan::Done, |(id, _)| Scan::After(Some(*id)));
            for (id, lease) in leases {
                match lease.deadline {
                    Some(deadline) => self.push(id, deadline),
                    None => self.retry(id, now, UNRECORDED_MS),
                }
            }
        }
    }

    /// When the next turn has something to do, if nothing is granted meanwhile. `None`: never.
    pub fn next_at(&self) -> Option<i64> {
        if self.scan != Scan::Done {
            return Some(i64::MIN);
        }
        self.buckets.first_key_value().map(|(bucket, _)| *bucket * BUCKET_MS)
    }

    fn next_bucket_is_due(&self, now: i64) -> bool {
        self.buckets.first_key_value().is_some_and(|(bucket, _)| *bucket * BUCKET_MS <= now)
    }

    /// Some ids whose bucket has begun, each once.
    fn take_due(&mut self, now: i64, count_max: usize) -> Option<Vec<i64>> {
        if !self.next_bucket_is_due(now) {
            return None;
        }
        let mut bucket = self.buckets.first_entry()?;
        let ids = bucket.get_mut();
        let mut taken = ids.split_off(ids.len().saturating_sub(count_max));
        if ids.is_empty() {
            bucket.remove();
        }
        taken.sort_unstable();
        taken.dedup();
        Some(taken)
    }

    fn look_up(&mut self, ids: Vec<i64>, now: i64, table: &LeaseTable, expired: &mut Vec<i64>) {
        let leases = table.get_all(&ids);
        for (id, lease) in ids.into_iter().zip(leases) {
            match lease {
                // Revoked meanwhile.
                None => {}
                Some(lease) if lease.is_expired(now) => expired.push(id),
                Some(Lease { deadline: Some(deadline), .. }) => self.push(id, deadline),
                Some(Lease { deadline: None, .. }) => self.retry(id, now, UNRECORDED_MS),
            }
        }
    }
}

#[cfg(test)]
#[path = "expiry_tests.rs"]
mod tests;
