//! Leases in the oracle: what the commands make of them, by the lease clock that the commands carry.
//!
//! Shares no code with `state-machine`.

use std::collections::BTreeMap;

use raft_node::LogIndex;
use state_machine::command::LeaseRenew;

use super::refusal::RefusalReason;
use crate::chance::fold_number;

/// etcd's longest TTL.
const TTL_MAX: i64 = 9_000_000_000;
/// A lease expires so long after its deadline, in milliseconds (docs/decisions/0040).
const GRACE: i64 = 500;
/// A clock further ahead of the newest record counts time in which no renewal could be recorded.
const AHEAD_MAX: i64 = 2_000;

/// What a command did to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    Granted {
        id: i64,
        ttl: i64,
    },
    /// A lease that had a deadline has a later one, so many milliseconds of the lease clock after its first.
    Extended {
        id: i64,
        since_first: i64,
    },
    Revoked(i64),
    Expired(i64),
    /// A leader's clock, so many milliseconds after the newest that was recorded, counts an outage.
    Outage(i64),
}

#[derive(Clone, Copy, Debug)]
struct LeaseRecord {
    ttl: i64,
    deadline: Option<i64>,
    /// Its first deadline.
    first: Option<i64>,
    /// Index of the entry that granted it.
    granted: LogIndex,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseModel {
    leases: BTreeMap<i64, LeaseRecord>,
    clock: i64,
    /// Since they were last taken.
    changes: Vec<LeaseChange>,
}

impl LeaseModel {
    pub fn holds(&self, id: i64) -> bool {
        self.leases.contains_key(&id)
    }

    pub fn take_changes(&mut self) -> Vec<LeaseChange> {
        std::mem::take(&mut self.changes)
    }

    /// Grants a lease and returns its TTL.
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

    /// The leader of the entry's term records that these leases begin anew.
    pub fn renew(&mut self, renew: &LeaseRenew) {
        self.check_clock(renew.now);
        self.clock = self.clock.max(renew.now);
        for id in &renew.ids {
            let Some(lease) = self.leases.get_mut(id) else { continue };
            // Another lease with the same id, which the leader had not seen.
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

    /// Removes those of the leases whose time is over, and returns them in the order of their ids.
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

    /// A leader that can record a renewal records its clock each second. If its clock is much later,
    /// a holder that renewed whenever it was answered may lose its lease.
    fn check_clock(&mut self, now: i64) {
        if now > self.clock + AHEAD_MAX {
            self.changes.push(LeaseChange::Outage(now - self.clock));
        }
    }

    /// What every member must have at this point: its leases and its clock, as numbers.
    pub fn digests(&self) -> (u64, i64) {
        let leases = self.leases.iter().map(|(id, lease)| (*id, lease.ttl, lease.deadline));
        (lease_digest(leases), self.clock)
    }
}

/// Leases in the order of their ids, each with its TTL and deadline.
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
