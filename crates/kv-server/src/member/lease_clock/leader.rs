//! What only the leader does: renewals, questions about remaining time, and the clock of its term.
//!
//! Invariants:
//! - A member leads here once it has applied everything of earlier terms, and for one term.
//! - A renewal is answered from memory only if a recorded one covers it, and after a read index has confirmed
//!   that no other member leads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use raft_node::Handle;
use state_machine::command::{self, Kind, LeaseExpire, LeaseRenew};
use state_machine::{Lease, LeaseTable, Outcome, Response};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::anchor::{Anchor, Anchored, boot_time};
use super::error::LeaseError;

/// How long the renewal of an expired lease waits until it is revoked: a turn and some commands. Other renewals
/// of its batch wait with it.
const REVOKED_WITHIN: Duration = Duration::from_secs(1);

/// Ids that are looked up under one hold of the table's lock.
const LOOKED_UP: usize = 256;

/// The leases of this member, for the times when it leads.
pub struct LeaderLeases {
    pub raft: Handle<Outcome>,
    pub table: LeaseTable,
    member: u64,
    anchored: Arc<Anchored>,
    /// The newest term in which this member has begun to lead.
    term: Mutex<Option<LedTerm>>,
    /// Notified when leases were expired.
    expired: Notify,
}

/// A term that this member leads, and its lease clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedTerm {
    pub term: u64,
    clock: Anchor,
}

impl LedTerm {
    /// The lease clock now.
    pub fn now(&self) -> i64 {
        self.clock.clock_at(boot_time())
    }
}

/// How long a lease still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Seconds, cut to an integer; -1 if there is no such lease.
    pub ttl: i64,
    pub granted_ttl: i64,
}

/// What the leader does with a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// There is no such lease, as far as this member has applied.
    Unknown,
    /// A recorded renewal covers it.
    Covered(i64),
    Record,
    /// Its time is over; it is answered when it is revoked.
    Expired,
}

fn judge(lease: Option<Lease>, now: i64) -> Renewal {
    match lease {
        None => Renewal::Unknown,
        Some(lease) if lease.is_expired(now) => Renewal::Expired,
        Some(lease) if lease.is_renewed_at(now) => Renewal::Covered(lease.ttl),
        Some(_) => Renewal::Record,
    }
}

fn remaining(lease: Option<Lease>, now: i64) -> Remaining {
    let Some(lease) = lease else { return Remaining { ttl: -1, granted_ttl: 0 } };
    // A lease that is not recorded yet was granted a moment ago.
    let left = lease.deadline.map_or(lease.ttl * 1000 - 1, |deadline| deadline - now);
    Remaining { ttl: left / 1000, granted_ttl: lease.ttl }
}

impl LeaderLeases {
    pub fn new(raft: Handle<Outcome>, table: LeaseTable, member: u64, anchored: Arc<Anchored>) -> Self {
        LeaderLeases { raft, table, member, anchored, term: Mutex::new(None), expired: Notify::new() }
    }

    /// The term that this member leads. The first call in a term waits until everything of earlier terms is
    /// applied.
    pub async fn leading(&self) -> Result<LedTerm, LeaseError> {
        let before = self.led_term().ok_or(LeaseError::NotLeader)?;
        if let Some(led) = self.known(before) {
            return Ok(led);
        }
        self.raft.read_point().await?;
        if self.led_term() != Some(before) {
            return Err(LeaseError::NotLeader);
        }
        let boot = boot_time();
        let clock = Anchor { clock: self.anchored.clock_at(boot), boot };
        let mut term = self.term.lock();
        match *term {
            // Another call was faster.
            Some(led) if led.term == before => Ok(led),
            Some(_) | None => Ok(*term.insert(LedTerm { term: before, clock })),
        }
    }

    fn known(&self, term: u64) -> Option<LedTerm> {
        (*self.term.lock()).filter(|led| led.term == term)
    }

    /// The term of this member, if it leads.
    fn led_term(&self) -> Option<u64> {
        let status = self.raft.status();
        (status.leader == Some(self.member)).then_some(status.term)
    }

    /// Renews leases and returns the TTL of each, or 0 if there is no such lease.
    pub async fn renew(&self, ids: &[i64]) -> Result<Vec<i64>, LeaseError> {
        let led = self.leading().await?;
        let now = led.now();
        let judged: Vec<_> = self.look_up(ids).into_iter().map(|lease| judge(lease, now)).collect();
        let of = |wanted: Renewal| {
            ids.iter().zip(&judged).filter(move |(_, it)| **it == wanted).map(|(id, _)| *id)
        };
        let to_record: Vec<i64> = of(Renewal::Record).collect();
        let must_confirm = to_record.len() < ids.len();
        let (recorded, confirmed) = tokio::join!(
            async {
                match to_record.is_empty() {
                    true => Ok(()),
                    false => self.record(led.term, now, to_record).await,
                }
            },
            async { if must_confirm { self.confirm(led.term).await } else { Ok(()) } },
        );
        recorded.and(confirmed)?;
        if judged.contains(&Renewal::Expired) {
            // An expired lease is not renewed, whether or not it is revoked in time.
            let gone = self.until_gone(of(Renewal::Expired).collect());
            drop(timeout(REVOKED_WITHIN, gone).await);
        }
        // As it is now: unknown ids may have been applied since, and a recorded one may have been revoked.
        let mut late = Vec::new();
        let mut ttls = Vec::with_capacity(ids.len());
        for ((id, judged), lease) in ids.iter().zip(&judged).zip(self.look_up(ids)) {
            match (judged, lease) {
                (Renewal::Covered(ttl), Some(_)) => ttls.push(*ttl),
                (Renewal::Record, Some(lease)) => ttls.push(lease.ttl),
                (Renewal::Unknown, Some(lease)) => {
                    late.push(*id);
                    ttls.push(lease.ttl);
                }
                (Renewal::Expired, Some(_)) | (_, None) => ttls.push(0),
            }
        }
        if !late.is_empty() {
            self.record(led.term, now, late).await?;
        }
        Ok(ttls)
    }

    /// How long leases still have.
    pub async fn remaining(&self, ids: &[i64]) -> Result<Vec<Remaining>, LeaseError> {
        let led = self.leading().await?;
        self.confirm(led.term).await?;
        let now = led.now();
        Ok(self.look_up(ids).into_iter().map(|lease| remaining(lease, now)).collect())
    }

    fn look_up(&self, ids: &[i64]) -> Vec<Option<Lease>> {
        ids.chunks(LOOKED_UP).flat_map(|ids| self.table.get_all(ids)).collect()
    }

    /// No other member led when this call began, and everything that was committed then is applied.
    async fn confirm(&self, term: u64) -> Result<(), LeaseError> {
        self.raft.read_point().await?;
        if self.led_term() == Some(term) { Ok(()) } else { Err(LeaseError::NotLeader) }
    }

    /// Records that leases have their full TTL from `now` on.
    pub async fn record(&self, term: u64, now: i64, ids: Vec<i64>) -> Result<(), LeaseError> {
        let command = command::encode(Kind::LeaseRenew(LeaseRenew { term, now, ids }));
        match self.propose(command).await? {
            Response::LeaseRenew => Ok(()),
            other => unreachable!("a renewal was answered with {other:?}"),
        }
    }

    /// Revokes those of the leases whose time is over at `now`, and returns how many those were.
    pub async fn expire(&self, term: u64, now: i64, ids: Vec<i64>) -> Result<usize, LeaseError> {
        let command = command::encode(Kind::LeaseExpire(LeaseExpire { term, now, ids }));
        match self.propose(command).await? {
            Response::LeaseExpire(count) => {
                self.expired.notify_waiters();
                Ok(count)
            }
            other => unreachable!("an expiry was answered with {other:?}"),
        }
    }

    async fn propose(&self, command: Bytes) -> Result<Response, LeaseError> {
        match self.raft.propose(command).await? {
            Ok(response) => Ok(response),
            Err(api::Error::LeaderChanged) => Err(LeaseError::NotLeader),
            Err(refusal) => Err(LeaseError::Refused(refusal)),
        }
    }

    /// Waits until the leases are revoked.
    async fn until_gone(&self, ids: Vec<i64>) {
        loop {
            let mut expired = std::pin::pin!(self.expired.notified());
            // Before the look: a notification after it is not lost.
            expired.as_mut().enable();
            if self.look_up(&ids).iter().all(Option::is_none) {
                return;
            }
            expired.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_recorded_unless_a_recorded_one_covers_it() {
        let lease = |deadline| Some(Lease { ttl: 10, deadline });
        for (lease, now, expected) in [
            (None, 5_000, Renewal::Unknown),
            (lease(None), 5_000, Renewal::Record),
            // Recorded at 5000.
            (lease(Some(15_000)), 5_000, Renewal::Covered(10)),
            (lease(Some(15_000)), 5_500, Renewal::Covered(10)),
            (lease(Some(15_000)), 5_501, Renewal::Record),
            (lease(Some(15_000)), 15_499, Renewal::Record),
            (lease(Some(15_000)), 15_500, Renewal::Expired),
            // A clock that is behind the one that recorded it.
            (lease(Some(15_000)), 4_000, Renewal::Covered(10)),
        ] {
            assert_eq!(judge(lease, now), expected, "{lease:?} at {now}");
        }
    }

    #[test]
    fn what_is_answered_from_memory_is_covered_until_the_promised_end() {
        for (ttl, recorded) in [(2, 0), (10, 5_000), (3600, 77)] {
            let lease = Lease { ttl, deadline: Some(recorded + ttl * 1000) };
            for now in recorded..recorded + 600 {
                if judge(Some(lease), now) == Renewal::Covered(ttl) {
                    let last_alive = now + ttl * 1000 - 1;
                    assert!(
                        !lease.is_expired(last_alive),
                        "{ttl} s, recorded at {recorded}, renewed at {now}"
                    );
                }
            }
        }
    }

    #[test]
    fn remaining_seconds_are_cut() {
        let lease = |deadline| Some(Lease { ttl: 10, deadline });
        for (lease, now, ttl, granted_ttl) in [
            (None, 0, -1, 0),
            (lease(None), 5_000, 9, 10),
            (lease(Some(15_000)), 5_000, 10, 10),
            (lease(Some(15_000)), 5_001, 9, 10),
            (lease(Some(15_000)), 14_001, 0, 10),
            (lease(Some(15_000)), 15_400, 0, 10),
            (lease(Some(15_000)), 17_000, -2, 10),
        ] {
            assert_eq!(remaining(lease, now), Remaining { ttl, granted_ttl }, "{lease:?} at {now}");
        }
    }
}
