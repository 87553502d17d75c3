//! Operations of the leader: renewals, queries of remaining time, and the lease clock of its term.
//!
//! Invariants:
//! - Leadership of a term starts here once all entries of earlier terms are applied.
//! - A renewal is acknowledged only after all requirements of its batch are met:
//!   `state_machine::RenewalBatch`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mvcc::Store;
use parking_lot::Mutex;
use raft_node::{Handle, ProposeError, ReadError, RequestOrigin, Term};
use rustix::time::{ClockId, clock_gettime};
use state_machine::command::{self, Kind, LeaseExpire, LeaseRenew};
use state_machine::{
    Anchor, Chosen, LeaseTable, LedTerm, Outcome, Remaining, RenewalBatch, RenewalStep, WhenExpired,
    remaining,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::member::{Command, response_of};

/// Time that the renewal of an expired lease waits for its revocation: a `LEASE_TURN` and some commands. The
/// other renewals of the same batch wait as well.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

pub struct LeaderLeases {
    pub raft: Handle<Outcome>,
    pub table: LeaseTable,
    pub store: Store,
    pub member: u64,
    anchored: Arc<ClockAnchor>,
    /// Latest term in which this member has started to lead.
    term: Mutex<Option<LedTerm>>,
    expired: Notify,
}

impl LeaderLeases {
    pub fn new(
        raft: Handle<Outcome>,
        table: LeaseTable,
        store: Store,
        member: u64,
        anchored: Arc<ClockAnchor>,
    ) -> Self {
        LeaderLeases { raft, table, store, member, anchored, term: Mutex::new(None), expired: Notify::new() }
    }

    /// Returns the term that this member leads. The first call in a term waits until all entries of earlier
    /// terms are applied.
    pub async fn leading(&self, asker: RequestOrigin) -> Result<Term, LeaseError> {
        let before = self.led_term().ok_or(LeaseError::NotLeader)?;
        if self.has_begun(before) {
            return Ok(before);
        }
        self.raft.read_point_of(asker).await?;
        if self.led_term() != Some(before) {
            return Err(LeaseError::NotLeader);
        }
        let begun = LedTerm::begin(before, self.anchored.newest(), boot_time());
        let mut term = self.term.lock();
        // A concurrent call may have set the term already.
        if term.is_none_or(|led| led.term != before) {
            *term = Some(begun);
        }
        Ok(before)
    }

    fn has_begun(&self, term: Term) -> bool {
        self.term.lock().is_some_and(|led| led.term == term)
    }

    fn led_term(&self) -> Option<Term> {
        let status = self.raft.status();
        (status.leader == Some(self.member)).then_some(status.term)
    }

    /// Returns the lease clock of a term, and the term's state after the clock was read.
    pub fn read_clock(&self, term: Term) -> Result<(LedTerm, i64), LeaseError> {
        let mut newest = self.term.lock();
        let led = newest.as_mut().filter(|led| led.term == term).ok_or(LeaseError::NotLeader)?;
        let clock = led.read(self.anchored.newest(), boot_time());
        Ok((*led, clock))
    }

    /// Renews leases and returns the TTL of each, 0 if the lease does not exist, or
    /// `state_machine::UNREVOKED`. Callers pass batches, with few batches in flight.
    pub async fn renew(&self, ids: Vec<i64>, when_expired: WhenExpired) -> Result<Vec<i64>, LeaseError> {
        let term = self.leading(RequestOrigin::Member).await?;
        let (led, now) = self.read_clock(term)?;
        let mut batch = RenewalBatch::new(&self.table, ids, when_expired, led, now);
        loop {
            match batch.next(&self.table) {
                RenewalStep::Require { record, must_confirm } => {
                    let is_empty = record.is_empty();
                    let (recorded, confirmed) = tokio::join!(
                        async { if is_empty { Ok(()) } else { self.record(term, record).await } },
                        async {
                            if must_confirm {
                                self.confirm(term, RequestOrigin::Member).await
                            } else {
                                Ok(())
                            }
                        },
                    );
                    recorded.and(confirmed)?;
                }
                RenewalStep::AwaitRevoked(ids) => {
                    // The batch checks again, even after a timeout.
                    let _are_gone = timeout(REVOKE_TIMEOUT, self.until_gone(ids)).await;
                }
                RenewalStep::Answer(ttls) => return Ok(ttls),
            }
        }
    }

    /// Returns the remaining time of leases, for a client.
    pub async fn remaining(&self, ids: &[i64]) -> Result<Vec<Remaining>, LeaseError> {
        let term = self.leading(RequestOrigin::Client).await?;
        self.confirm(term, RequestOrigin::Client).await?;
        let (_, now) = self.read_clock(term)?;
        Ok(remaining(&self.table, ids, now))
    }

    /// Confirms that this member still leads `term`, and waits until all entries committed at the time of the
    /// call are applied.
    async fn confirm(&self, term: Term, asker: RequestOrigin) -> Result<(), LeaseError> {
        self.raft.read_point_of(asker).await?;
        if self.led_term() == Some(term) { Ok(()) } else { Err(LeaseError::NotLeader) }
    }

    /// Records that newly found leases have their full TTL, starting now.
    pub async fn record(&self, term: Term, chosen: Chosen) -> Result<(), LeaseError> {
        let (_, now) = self.read_clock(term)?;
        let command = command::encode(chosen.record(term, now));
        self.propose::<LeaseRenew>(command).await
    }

    /// Revokes the leases in `ids` that have expired, and returns their number.
    pub async fn expire(&self, term: Term, ids: Vec<i64>) -> Result<usize, LeaseError> {
        let (_, now) = self.read_clock(term)?;
        let command = command::encode(Kind::LeaseExpire(LeaseExpire { term: term.0, now, ids }));
        let count = self.propose::<LeaseExpire>(command).await?;
        self.expired.notify_waiters();
        Ok(count)
    }

    async fn propose<C: Command>(&self, command: Bytes) -> Result<C::Response, LeaseError> {
        match self.raft.propose_for_member(command).await? {
            Ok(response) => Ok(response_of::<C>(response)),
            Err(api::Error::LeaderChanged) => Err(LeaseError::NotLeader),
            Err(refusal) => Err(LeaseError::Refused(refusal)),
        }
    }

    async fn until_gone(&self, ids: Vec<i64>) {
        loop {
            let mut expired = std::pin::pin!(self.expired.notified());
            // Enabled before the check, so that no notification is lost.
            expired.as_mut().enable();
            if self.table.get_all(&ids).iter().all(Option::is_none) {
                return;
            }
            expired.await;
        }
    }
}

/// Returns the time since boot. It includes time in suspend and is not affected by changes to the system
/// time.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Lease clock of this member: its latest anchor, which apply sets.
#[derive(Debug)]
pub struct ClockAnchor(Mutex<Anchor>);

impl ClockAnchor {
    /// Starts with the store's clock: the time while the member was down is not counted.
    pub fn new(clock: i64) -> Self {
        ClockAnchor(Mutex::new(Anchor { clock, boot: boot_time() }))
    }

    pub fn set(&self, clock: i64) {
        *self.0.lock() = Anchor { clock, boot: boot_time() };
    }

    pub fn newest(&self) -> Anchor {
        *self.0.lock()
    }
}

/// Reason why a renewal or query failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("there is no leader")]
    NoLeader,
    /// The receiving member does not lead, or no longer leads.
    #[error("the member is not the leader")]
    NotLeader,
    #[error("the leader is unreachable")]
    Unreachable,
    #[error("timed out")]
    Timeout,
    #[error("too many requests are waiting")]
    TooManyRequests,
    #[error("the member is stopping")]
    Stopped,
    #[error("refused")]
    Refused(#[source] api::Error),
}

impl LeaseError {
    /// Reports whether a retry may succeed, since a leader is being elected or located.
    pub fn is_passing(self) -> bool {
        match self {
            LeaseError::NoLeader | LeaseError::NotLeader | LeaseError::Unreachable => true,
            LeaseError::Timeout
            | LeaseError::TooManyRequests
            | LeaseError::Stopped
            | LeaseError::Refused(_) => false,
        }
    }
}

impl From<ReadError> for LeaseError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::TooManyRequests => LeaseError::TooManyRequests,
            ReadError::Timeout => LeaseError::Timeout,
            ReadError::LeaderChanged => LeaseError::NotLeader,
            ReadError::Stopped => LeaseError::Stopped,
        }
    }
}

impl From<ProposeError> for LeaseError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::TooManyRequests => LeaseError::TooManyRequests,
            ProposeError::NoLeader => LeaseError::NoLeader,
            ProposeError::TimeoutLeaderFail => LeaseError::NotLeader,
            ProposeError::Timeout | ProposeError::TimeoutConnectionLost => LeaseError::Timeout,
            ProposeError::TooLarge { .. } => LeaseError::Refused(api::Error::RequestTooLarge),
            ProposeError::Stopped => LeaseError::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_goes_forward() {
        let (first, second) = (boot_time(), boot_time());
        assert!(first > Duration::ZERO && second >= first);
    }
}
