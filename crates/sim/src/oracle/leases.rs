//! Lease model of the oracle, based on the lease clock in the commands.
//!
//! Shares no code with `state-machine`.

use std::collections::BTreeMap;

use raft_node::LogIndex;
use state_machine::command::LeaseRenew;

use super::refusal::RefusalReason;
use crate::chance::fold_number;

const TTL_MAX: i64 = 9_000_000_000;
/// Grace period after the deadline, in milliseconds (docs/decisions/0040).
const GRACE: i64 = 500;
/// Maximum lead of a clock over the last record. Beyond it, the clock counts time in which renewals
/// could not be recorded.
const AHEAD_MAX: i64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    Granted {
        id: i64,
        ttl: i64,
    },
    /// The deadline of a lease moved to `since_first` milliseconds of the lease clock after its
    /// first deadline.
    Extended {
        id: i64,
        since_first: i64,
    },
    Revoked(i64),
    Expired(i64),
    /// A leader's clock is this many milliseconds ahead of the last record, so it counts an outage.
    Outage(i64),
}

#[derive(Clone, Copy, Debug)]
struct LeaseRecord {
    ttl: i64,
    deadline: Option<i64>,
    first: Option<i64>,
    granted: LogIndex,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseModel {
    leases: BTreeMap<i64, LeaseRecord>,
    clock: i64,
    changes: Vec<LeaseChange>,
}

impl LeaseModel {
    pub fn holds(&self, id: i64) -> bool {
        self.leases.contains_key(&id)
    }

    pub fn take_changes(&mut self) -> Vec<LeaseChange> {
        std::mem::take(&mut self.changes)
    }

    pub fn grant(&mut self, index: LogIndex, id: i64, ttl: i64) -> Result<i64, RefusalReason> {
        match id {
            0 => return Err(RefusalReason::LeaseNotFound),
            _ if ttl > TTL_MAX => return Err(RefusalReason::TtlTooLarge),
            _ if self.holds(id) => return Err(RefusalReason::LeaseExists),
            _ => {}
        }
        let ttl = ttl.max(1);
        self.leases.insert(id, LeaseRecord { ttl, deadline: None, first: None, granted: index });
        self.changes.push(LeaseChange::Granted { id, ttl });
        Ok(ttl)
    }

    pub fn revoke(&mut self, id: i64) -> Result<(), RefusalReason> {
        self.leases.remove(&id).ok_or(RefusalReason::LeaseNotFound)?;
        self.changes.push(LeaseChange::Revoked(id));
        Ok(())
    }

    /// Applies a record of the entry's leader, which restarts the TTL of these leases.
    pub fn renew(&mut self, renew: &LeaseRenew) {
        self.check_clock(renew.now);
        self.clock = self.clock.max(renew.now);
        for id in &renew.ids {
            let Some(lease) = self.leases.get_mut(id) else { continue };
            // A different lease with the same id, which the leader had not seen.
            if lease.deadline.is_none()
                && renew.granted.is_some_and(|granted| LogIndex(granted) < lease.granted)
            {
                continue;
            }
            let deadline = self.clock + lease.ttl * 1000;
            let first = *lease.first.get_or_insert(deadline);
            if lease.deadline.is_some_and(|before| deadline > before) {
                self.changes.push(LeaseChange::Extended { id: *id, since_first: deadline - first });
            }
            lease.deadline = lease.deadline.max(Some(deadline));
        }
    }

    /// Removes the expired ones of these leases, and returns them ordered by id.
    pub fn expire(&mut self, now: i64, ids: &[i64]) -> Vec<i64> {
        self.check_clock(now);
        let is_over = |id: &i64| {
            let deadline = self.leases.get(id).and_then(|lease| lease.deadline);
            deadline.is_some_and(|deadline| now >= deadline + GRACE)
        };
        let mut over: Vec<i64> = ids.iter().copied().filter(is_over).collect();
        over.sort_unstable();
        over.dedup();
        for id in &over {
            self.leases.remove(id);
            self.changes.push(LeaseChange::Expired(*id));
        }
        over
    }

    /// Checks that the clock is not far ahead. A leader that is able to record renewals records its
    /// clock each second. With a clock that is much later, a client may lose its lease although all
    /// its renewals were acknowledged.
    fn check_clock(&mut self, now: i64) {
        if now > self.clock + AHEAD_MAX {
            self.changes.push(LeaseChange::Outage(now - self.clock));
        }
    }

    /// Returns a digest of the leases, and the clock, which must be equal on every member.
    pub fn digests(&self) -> (u64, i64) {
        let leases = self.leases.iter().map(|(id, lease)| (*id, lease.ttl, lease.deadline));
        (lease_digest(leases), self.clock)
    }
}

/// Digests leases, given in id order with their TTLs and deadlines.
pub(crate) fn lease_digest(leases: impl Iterator<Item = (i64, i64, Option<i64>)>) -> u64 {
    leases.fold(0, |digest, (id, ttl, deadline)| {
        let numbers = [id, ttl, deadline.unwrap_or(-1)];
        numbers.iter().fold(digest, |digest, number| fold_number(digest, *number as u64 ^ 0x5555))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_follow_the_clock_of_their_commands() {
        let mut leases = LeaseModel::default();
        let renew = |now, ids: &[i64]| LeaseRenew { term: 1, now, ids: ids.to_vec(), granted: Some(3) };
        assert_eq!(leases.grant(LogIndex(3), 7, 2), Ok(2));
        assert_eq!(leases.grant(LogIndex(3), 7, 2), Err(RefusalReason::LeaseExists));
        assert_eq!(leases.expire(2_000, &[7]), [0; 0], "a lease without a deadline");
        leases.renew(&LeaseRenew { granted: Some(2), ..renew(1_000, &[7]) });
        assert_eq!(leases.expire(3_000, &[7]), [0; 0], "a lease that was granted after its record");
        leases.renew(&renew(1_000, &[7, 8]));
        leases.renew(&renew(900, &[7]));
        assert_eq!(leases.expire(3_000, &[7]), [0; 0]);
        leases.renew(&renew(1_001, &[7]));
        leases.renew(&renew(3_001, &[]));
        assert_eq!(leases.expire(3_500, &[7]), [0; 0]);
        assert_eq!(leases.expire(3_501, &[7, 7, 9]), [7]);
        assert_eq!(leases.revoke(7), Err(RefusalReason::LeaseNotFound));
        let changes = leases.take_changes();
        assert_eq!(
            changes,
            [
                LeaseChange::Granted { id: 7, ttl: 2 },
                LeaseChange::Extended { id: 7, since_first: 1 },
                LeaseChange::Expired(7)
            ]
        );
        leases.renew(&renew(5_001, &[]));
        assert_eq!(leases.take_changes(), []);
        leases.renew(&renew(7_002, &[]));
        assert_eq!(leases.take_changes(), [LeaseChange::Outage(2_001)]);
    }
}
