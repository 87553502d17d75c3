//! Periodic work of the leader: selects the leases to record and to expire, without the proposals.
//!
//! * At most one record is in flight.
//! * A lease that was returned as expired is not in the queue until the caller reports the outcome.

use std::time::Duration;

use super::expiry::ExpiryQueue;
use super::renewal::Chosen;
use crate::lease::LeaseTable;

/// Interval between turns: the maximum delay of a record after a grant, and of detecting an expired
/// lease.
pub const LEASE_TURN: Duration = Duration::from_millis(100);
/// Maximum number of leases per command: without keys, apply takes about a millisecond.
const LEASES_PER_COMMAND: usize = 256;
/// Maximum number of keys of the leases in a command, which apply deletes in some milliseconds
/// while puts wait. A lease with more keys is expired by a separate command: its keys are deleted
/// at a single revision.
const KEYS_PER_COMMAND: usize = 4_096;

/// Interval between records of the clock while there are leases. A restarted member has the clock
/// after that time.
const CLOCK_EVERY_MS: i64 = 1_000;
/// Maximum number of scanned leases, and of due leases, per turn. If more are due, the next turn
/// follows immediately.
const LEASES_PER_TURN: usize = 4 * LEASES_PER_COMMAND;
/// Maximum number of leases without a deadline per record.
const RECORDED_MAX: usize = LEASES_PER_COMMAND * 16;
/// Delay before retrying a failed expiry; etcd waits three seconds.
const RETRY_MS: i64 = 1_000;

#[derive(Debug)]
pub struct LeaderTurns {
    queue: ExpiryQueue,
    is_recording: bool,
    /// True if a record was requested in this term.
    has_recorded: bool,
}

/// Proposals that a turn requires.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TurnWork {
    /// Record the clock and these leases. The caller reports completion with
    /// [`LeaderTurns::recorded`].
    pub record: Option<Chosen>,
    /// Expire these leases, in commands sized by [`leases_in_command`]. The caller reports
    /// completion of each.
    pub expired: Vec<i64>,
    /// True if another turn should follow immediately.
    pub has_more: bool,
}

/// Returns the number of leases, from the first one, to expire in one command. `keys_of` counts the
/// keys of a lease, up to a limit.
pub fn leases_in_command(ids: &[i64], keys_of: impl Fn(i64, usize) -> usize) -> usize {
    let mut room = KEYS_PER_COMMAND;
    let fits = |id: &&i64| {
        let left = room.checked_sub(keys_of(**id, room + 1));
        room = left.unwrap_or(0);
        left.is_some()
    };
    let fitting = ids.iter().take(LEASES_PER_COMMAND).take_while(fits).count();
    fitting.max(1).min(ids.len())
}

impl LeaderTurns {
    /// Creates the turns of a new term.
    pub fn new(table: &LeaseTable) -> LeaderTurns {
        table.list_granted();
        LeaderTurns { queue: ExpiryQueue::new(), is_recording: false, has_recorded: false }
    }

    pub fn turn(&mut self, now: i64, table: &LeaseTable) -> TurnWork {
        let record = self.record(now, table);
        self.queue.add_granted(table.take_granted(), now);
        let due = self.queue.turn(now, table, LEASES_PER_TURN);
        TurnWork { record, expired: due.expired, has_more: due.has_more }
    }

    /// Returns the lease clock at which the next turn has work, unless a lease is granted or a
    /// command completes earlier. `None`: only then.
    pub fn next_at(&self, table: &LeaseTable) -> Option<i64> {
        let record = (!table.is_empty() && !self.is_recording).then(|| match self.has_recorded {
            true => table.clock().saturating_add(CLOCK_EVERY_MS),
            false => i64::MIN,
        });
        record.into_iter().chain(self.queue.next_at()).min()
    }

    /// Selects the leases to record: leases granted since the last record, possibly none if only
    /// the clock is due. The caller reports completion with [`LeaderTurns::recorded`]. A turn
    /// includes this call; it is also available separately because commands that expire leases may
    /// take longer than a record may wait.
    pub fn record(&mut self, now: i64, table: &LeaseTable) -> Option<Chosen> {
        if self.is_recording {
            return None;
        }
        let chosen = Chosen::find(table, |table| table.unrecorded(RECORDED_MAX));
        // Based on the applied clock, not on the requested records: the clock stops until a record
        // succeeds.
        let is_due = !self.has_recorded || now >= table.clock().saturating_add(CLOCK_EVERY_MS);
        if chosen.is_empty() && (!is_due || table.is_empty()) {
            return None;
        }
        (self.is_recording, self.has_recorded) = (true, true);
        Some(chosen)
    }

    /// Reports that the record has succeeded or failed. Leases without a deadline are selected
    /// again.
    pub fn recorded(&mut self) {
        self.is_recording = false;
    }

    /// Reports that a command that expires leases was applied. Leases that still exist were
    /// renewed, and are queued again.
    pub fn expired(&mut self, ids: &[i64], table: &LeaseTable) {
        for (id, lease) in ids.iter().zip(table.get_all(ids)) {
            if let Some(deadline) = lease.and_then(|lease| lease.deadline) {
                self.queue.push(*id, deadline);
            }
        }
    }

    /// Reports that a command that expires leases has failed. The leases are checked again later.
    pub fn not_expired(&mut self, ids: &[i64], now: i64) {
        ids.iter().for_each(|id| self.queue.retry(*id, now, RETRY_MS));
    }

    /// Resets the queue when the outcome of commands is unknown: all leases are checked again.
    pub fn restart(&mut self) {
        (self.queue, self.is_recording) = (ExpiryQueue::new(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    #[test]
    fn a_command_expires_few_leases_if_they_have_many_keys() {
        let ids: Vec<i64> = (0..300).collect();
        for (keys, count) in [(0, 256), (16, 256), (17, 240), (2_000, 2), (4_096, 1), (1_000_000, 1)] {
            let keys_of = |_, max| usize::min(keys, max);
            assert_eq!(leases_in_command(&ids, keys_of), count, "{keys} keys each");
        }
        let one_has_many = |id, max| if id == 5 { max } else { 0 };
        assert_eq!(leases_in_command(&ids, one_has_many), 5, "it begins the next command");
        assert_eq!(leases_in_command(&[], |_, _| 0), 0);
    }

    /// A lease without a deadline is selected whenever no record is in flight, which retries failed
    /// records.
    #[test]
    fn between_the_times_that_a_leader_names_its_turns_have_no_work() {
        let table = LeaseTable::default();
        let mut turns = LeaderTurns::new(&table);
        assert_eq!(turns.next_at(&table), Some(i64::MIN), "the leases that exist are to be queued");
        assert_eq!((turns.turn(0, &table), turns.next_at(&table)), (TurnWork::default(), None));
        let (mut now, mut times, mut expired) = (5_000, 0, 0);
        for (id, ttl) in [(1, 2), (2, 5)] {
            table.set(id, Lease { ttl, deadline: None, granted: base::LogIndex(1) });
        }
        while !table.is_empty() {
            let work = turns.turn(now, &table);
            for id in work.record.map(|_| table.unrecorded(9)).into_iter().flatten() {
                let ttl = table.get(id).unwrap().ttl;
                table.set(id, Lease { ttl, deadline: Some(now + ttl * 1000), granted: base::LogIndex(0) });
            }
            if turns.is_recording {
                table.set_clock(now);
                turns.recorded();
            }
            work.expired.iter().for_each(|id| table.remove(*id));
            expired += work.expired.len();
            let next = turns.next_at(&table).unwrap_or(now);
            for time in (now + 1..next).step_by(7) {
                assert_eq!(turns.turn(time, &table), TurnWork::default(), "at {time}, before {next}");
            }
            (now, times) = (next, times + 1);
        }
        assert_eq!(expired, 2);
        assert!(times < 16, "{times} turns in six seconds");
        assert_eq!(turns.next_at(&table), None);
    }
}
