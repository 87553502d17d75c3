//! Expiry queue of a leader.
//!
//! ```text
//!   incremental scan of the table ─▶ buckets of 128 ms ─due─▶ look up the lease ─┬▶ expired
//!                  granted leases ────────────────▲                              └▶ queued again
//! ```
//!
//! * A renewal does not touch the queue. When a queued lease is due, its current deadline is
//!   checked, and it is queued again if it was renewed. That happens once per TTL.
//! * A lease leaves the queue no earlier than it expires.
//! * A turn handles a bounded number of leases. A new leader queues the existing leases while it
//!   already serves renewals; a lease does not expire before it is queued.
//! * Every lease is in the queue: from the scan, or from the grants applied since the scan started.
//!   A lease without a recorded deadline is checked again soon.
//! * A lease granted during the scan may be queued twice. Both entries soon have the same time, and
//!   the second one is dropped as a duplicate.
//!
//! Must not depend on clocks, Raft or tasks.

use std::collections::BTreeMap;

use crate::lease::{Lease, LeaseTable, RENEWAL_GRACE_MS};

/// Width of a bucket. Adds at most this delay to an expiry.
const BUCKET_MS: i64 = 128;
/// Delay before a lease without a deadline is checked again: the leader records it in its next
/// turn.
const UNRECORDED_MS: i64 = 200;
/// Number of lookups per acquisition of the table's lock: some 50 µs.
const LOOKED_UP: usize = 256;

/// Leases of a leader, by the time of their next check.
#[derive(Debug)]
pub struct ExpiryQueue {
    /// Ids by bucket: the number of the first bucket that starts at or after the expiry.
    buckets: BTreeMap<i64, Vec<i64>>,
    scan: Scan,
}

/// Progress in queueing the leases that existed initially.
#[derive(Debug, PartialEq, Eq)]
enum Scan {
    After(Option<i64>),
    Done,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct DueLeases {
    pub expired: Vec<i64>,
    pub has_more: bool,
}

impl ExpiryQueue {
    /// Creates a queue, which starts with a scan of the table.
    pub fn new() -> Self {
        ExpiryQueue { buckets: BTreeMap::new(), scan: Scan::After(None) }
    }

    pub fn push(&mut self, id: i64, deadline: i64) {
        let expires = deadline.saturating_add(RENEWAL_GRACE_MS);
        self.queue_at(id, expires);
    }

    pub fn add_granted(&mut self, ids: Vec<i64>, now: i64) {
        ids.into_iter().for_each(|id| self.retry(id, now, UNRECORDED_MS));
    }

    pub fn retry(&mut self, id: i64, now: i64, pause_ms: i64) {
        self.queue_at(id, now.saturating_add(pause_ms));
    }

    fn queue_at(&mut self, id: i64, time: i64) {
        // Rounded up: never early.
        let bucket = time.saturating_add(BUCKET_MS - 1).div_euclid(BUCKET_MS);
        self.buckets.entry(bucket).or_default().push(id);
    }

    /// Handles at most `budget` leases of the scan, and as many due ones.
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

    /// Returns the time at which the next turn has work, unless a lease is granted earlier. `None`:
    /// never.
    pub fn next_at(&self) -> Option<i64> {
        if self.scan != Scan::Done {
            return Some(i64::MIN);
        }
        self.buckets.first_key_value().map(|(bucket, _)| *bucket * BUCKET_MS)
    }

    fn next_bucket_is_due(&self, now: i64) -> bool {
        self.buckets.first_key_value().is_some_and(|(bucket, _)| *bucket * BUCKET_MS <= now)
    }

    /// Takes ids from a due bucket, without duplicates.
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
                // Revoked in the meantime.
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
