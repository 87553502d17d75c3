//! The leader's turns: which leases it records and which it expires, without the proposals.
//!
//! * One record is under way at a time.
//! * A lease that was handed out as expired is not in the queue until the caller reports what came of it.

use std::time::Duration;

use super::expiry::ExpiryQueue;
use super::renewal::Chosen;
use crate::lease::LeaseTable;

/// Between two turns: a grant is recorded, and an expired lease is found, this much late.
pub const LEASE_TURN: Duration = Duration::from_millis(100);
/// Leases in one command: without keys one apply takes about a millisecond.
pub const LEASES_PER_COMMAND: usize = 256;

/// The clock is recorded this often while there are leases: a member that was restarted has it after that.
const CLOCK_EVERY_MS: i64 = 1_000;
/// Leases of the scan, and due ones, in a turn: some 2 ms. When more are due the next turn follows at once.
const LEASES_PER_TURN: usize = 8_192;
/// Leases without a deadline in one record.
const RECORDED_MAX: usize = LEASES_PER_COMMAND * 16;
/// Before a lease whose revoke failed is looked at again; etcd waits three seconds.
const RETRY_MS: i64 = 1_000;

/// The turns of a leader in one term.
#[derive(Debug)]
pub struct LeaderTurns {
    queue: ExpiryQueue,
    is_recording: bool,
    /// Whether something was handed out to be recorded.
    has_recorded: bool,
}

/// What the leader has to propose after a turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TurnWork {
    /// Record the clock, and these leases. The caller reports the end with [`LeaderTurns::recorded`].
    pub record: Option<Chosen>,
    /// Expire these, [`LEASES_PER_COMMAND`] at a time. The caller reports the end of each command.
    pub expired: Vec<i64>,
    /// Whether another turn should follow at once.
    pub has_more: bool,
}

impl LeaderTurns {
    /// The turns of a term that begins.
    pub fn new(table: &LeaseTable) -> LeaderTurns {
        table.list_granted();
        LeaderTurns { queue: ExpiryQueue::new(), is_recording: false, has_recorded: false }
    }

    /// One turn at `now`.
    pub fn turn(&mut self, now: i64, table: &LeaseTable) -> TurnWork {
        let record = self.record(now, table);
        self.queue.add_granted(table.take_granted(), now);
        let due = self.queue.turn(now, table, LEASES_PER_TURN);
        TurnWork { record, expired: due.expired, has_more: due.has_more }
    }

    /// Leases that were granted since, or none of them if only the clock is due.
    fn record(&mut self, now: i64, table: &LeaseTable) -> Option<Chosen> {
        if self.is_recording {
            return None;
        }
        let chosen = Chosen::find(table, |table| table.unrecorded(RECORDED_MAX));
        // Since what was applied, not what was handed out: the clock stands until a record succeeds.
        let is_due = !self.has_recorded || now >= table.clock().saturating_add(CLOCK_EVERY_MS);
        if chosen.is_empty() && (!is_due || table.is_empty()) {
            return None;
        }
        (self.is_recording, self.has_recorded) = (true, true);
        Some(chosen)
    }

    /// The record has succeeded or failed: leases without a deadline are handed out again.
    pub fn recorded(&mut self) {
        self.is_recording = false;
    }

    /// A command that expires leases was applied. Those that still exist were renewed, and are queued again.
    pub fn expired(&mut self, ids: &[i64], table: &LeaseTable) {
        for (id, lease) in ids.iter().zip(table.get_all(ids)) {
            if let Some(deadline) = lease.and_then(|lease| lease.deadline) {
                self.queue.push(*id, deadline);
            }
        }
    }

    /// A command that expires leases has failed: they are looked at again later.
    pub fn not_expired(&mut self, ids: &[i64], now: i64) {
        ids.iter().for_each(|id| self.queue.retry(*id, now, RETRY_MS));
    }

    /// It is not known which command has ended: everything is looked at again.
    pub fn restart(&mut self) {
        (self.queue, self.is_recording) = (ExpiryQueue::new(), false);
    }
}
