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
const LEASES_PER_COMMAND: usize = 256;
/// Keys of the leases of one command, which one apply deletes in some milliseconds. Puts wait for it. A lease
/// that has more is expired alone: its keys are deleted at one revision.
const KEYS_PER_COMMAND: usize = 4_096;

/// The clock is recorded this often while there are leases: a member that was restarted has it after that.
const CLOCK_EVERY_MS: i64 = 1_000;
/// Leases of the scan, and due ones, in a turn. When more are due the next turn follows at once.
const LEASES_PER_TURN: usize = 4 * LEASES_PER_COMMAND;
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
    /// Expire these, as many at a time as [`leases_in_command`] says. The caller reports the end of each.
    pub expired: Vec<i64>,
    /// Whether another turn should follow at once.
    pub has_more: bool,
}

/// How many of these leases, from the first on, one command expires. `keys_of` counts the keys of a lease, up
/// to a number.
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

    /// The lease clock at which the next turn has work, if nothing is granted and no command ends before.
    /// `None`: only then.
    pub fn next_at(&self, table: &LeaseTable) -> Option<i64> {
        let record = (!table.is_empty() && !self.is_recording).then(|| match self.has_recorded {
            true => table.clock().saturating_add(CLOCK_EVERY_MS),
            false => i64::MIN,
        });
        record.into_iter().chain(self.queue.next_at()).min()
    }

    /// What is to be recorded: leases that were granted since, or none of them if only the clock is due. The
    /// caller reports the end with [`LeaderTurns::recorded`]. A turn has it too; commands that expire leases
    /// may take longer than a record may wait.
    pub fn record(&mut self, now: i64, table: &LeaseTable) -> Option<Chosen> {
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

    /// A lease without a deadline is handed out whenever no record is under way: a failed one is repeated.
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
