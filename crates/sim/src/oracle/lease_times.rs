//! Lease guarantees in true time: minimum and maximum lifetime of each lease.
//!
//! * A lease exists for its TTL from its grant, and from the request of each acknowledged renewal.
//!   A member's clock may run up to [`DRIFT`] faster than true time, which shortens this.
//! * A renewal is acknowledged only if the lease existed after the request, and rejected only if
//!   the lease did not exist or had expired.
//! * A deadline moves only because of a renewal requested by a client: a new leader does not reset
//!   deadlines.
//! * No lease clock is far ahead of the last record, so an outage does not use up the remaining
//!   time of a client that keeps renewing. (Checked by `leases`.)
//! * In a healthy cluster, a lease is removed at most [`LATE`] after its TTL plus the grace period
//!   of decision 0040.
//!
//! Uses only true time. `leases` checks the contents of commands.

use std::collections::{BTreeMap, VecDeque};

use state_machine::Remaining;

use super::leases::LeaseChange;
use crate::plan::{MILLISECOND, SECOND};

/// Maximum clock drift of a member in either direction, in thousandths of true time.
pub(crate) const DRIFT: u64 = 20;
/// Rounding error: clocks are read in whole milliseconds.
const CUT: u64 = 3 * MILLISECOND;
const GRACE: u64 = 500 * MILLISECOND;
/// Maximum delay of an expiry: a turn of the leader, a bucket of its queue, a retry of a lost
/// command, and a commit.
const LATE: u64 = 1_500 * MILLISECOND;
/// Maximum promises to remember per lease: more than are acknowledged during a single query.
const HOLDS_MAX: usize = 32;
/// Time on the lease clock, in milliseconds, within which the record of a granted lease may be
/// repeated because it seems lost. Both may be applied, at any time.
const RECORDED_TWICE: i64 = 15_000;

/// A lease from its grant to its removal. An id may be granted again.
#[derive(Clone, Debug)]
struct Life {
    ttl: i64,
    granted: u64,
    extended: u64,
    held_until: u64,
    /// Last promises: acknowledgement time, and the resulting earliest expiry.
    holds: VecDeque<(u64, u64)>,
    ended: Option<u64>,
    has_expired: bool,
}

impl Life {
    /// Reports whether it existed at some time from `from` to `to`.
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.granted <= to && self.ended.is_none_or(|ended| ended >= from)
    }

    /// Reports whether it has existed since `from`.
    fn covers(&self, from: u64) -> bool {
        self.granted < from && self.ended.is_none()
    }

    /// Records a promise acknowledged at `now`: the TTL counts from `from`.
    fn hold(&mut self, from: u64, now: u64) {
        let held = self.ttl as u64 * SECOND * 1000 / (1000 + DRIFT);
        self.held_until = self.held_until.max((from + held).saturating_sub(CUT));
        self.holds.push_back((now, self.held_until));
        if self.holds.len() > HOLDS_MAX {
            self.holds.pop_front();
        }
    }

    /// Returns the earliest expiry promised before `asked`. A later promise need not be reflected
    /// in the response.
    fn held_as_of(&self, asked: u64) -> u64 {
        let known = self.holds.iter().rev().find(|(acknowledged, _)| *acknowledged < asked);
        known.map_or(0, |(_, until)| *until)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LeaseTimes {
    pub now: u64,
    lives: BTreeMap<i64, Vec<Life>>,
    /// Number of renewals requested per id, and of moved deadlines.
    renewals: BTreeMap<i64, (u64, u64)>,
    pub expired: u64,
}

impl LeaseTimes {
    /// Records a command when the first member has applied it.
    pub fn changed(&mut self, change: LeaseChange) -> Result<(), String> {
        let now = self.now;
        match change {
            LeaseChange::Granted { id, ttl } => {
                let mut life = Life {
                    ttl,
                    granted: now,
                    extended: now,
                    held_until: 0,
                    holds: VecDeque::new(),
                    ended: None,
                    has_expired: false,
                };
                life.hold(now, now);
                self.lives.entry(id).or_default().push(life);
            }
            LeaseChange::Extended { id, since_first } => {
                let (asked, moved) = self.renewals.entry(id).or_default();
                *moved += 1;
                let is_asked = moved <= asked;
                let life = self.life(id)?;
                life.extended = now;
                if !is_asked && since_first > RECORDED_TWICE {
                    return Err(format!("the deadline of lease {id} moved, and no client renewed it"));
                }
            }
            LeaseChange::Revoked(id) => self.life(id)?.ended = Some(now),
            LeaseChange::Outage(ms) => return Err(format!("{ms} ms without a record count for leases")),
            LeaseChange::Expired(id) => {
                self.expired += 1;
                let life = self.life(id)?;
                (life.ended, life.has_expired) = (Some(now), true);
                if now < life.held_until {
                    let early = (life.held_until - now) / MILLISECOND;
                    return Err(format!("lease {id} expired {early} ms early: {life:?}"));
                }
            }
        }
        Ok(())
    }

    fn life(&mut self, id: i64) -> Result<&mut Life, String> {
        let newest = self.lives.get_mut(&id).and_then(|lives| lives.last_mut());
        newest.filter(|life| life.ended.is_none()).ok_or_else(|| format!("lease {id} does not exist"))
    }

    pub fn asked(&mut self, id: i64) {
        self.renewals.entry(id).or_default().0 += 1;
    }

    /// Checks an acknowledged renewal that was requested at `asked`; a TTL of 0 means that the
    /// lease does not exist.
    pub fn renewed(&mut self, id: i64, asked: u64, ttl: i64) -> Result<(), String> {
        let now = self.now;
        let lives = self.lives.entry(id).or_default();
        if ttl == 0 {
            return match lives.iter().find(|life| life.covers(asked) && now < life.held_until) {
                Some(life) => Err(format!("the renewal of lease {id} was refused: {life:?}, now {now}")),
                None => Ok(()),
            };
        }
        let mut fitting = lives.iter_mut().filter(|life| life.ttl == ttl && life.overlaps(asked, now));
        let Some(life) = fitting.next() else {
            return Err(format!("lease {id} was renewed for {ttl} s at {asked}..{now}: {lives:?}"));
        };
        if fitting.next().is_some() {
            return Ok(()); // It is not known which of them was renewed.
        }
        life.hold(asked, now);
        match life.ended {
            Some(ended) if life.has_expired && ended < life.held_until => {
                Err(format!("lease {id} expired at {ended}, though it was renewed at {asked}: {life:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the remaining time reported to a client that sent its request at `asked`.
    pub fn remains(&self, id: i64, asked: u64, remaining: Remaining) -> Result<(), String> {
        let now = self.now;
        let lives = self.lives.get(&id).map_or(&[][..], Vec::as_slice);
        let wrong =
            |what: &str| Err(format!("lease {id} {what}: {remaining:?} at {asked}..{now}, {lives:?}"));
        if remaining.granted_ttl == 0 {
            let exists = lives.iter().any(|life| life.covers(asked));
            return if exists || remaining.ttl != -1 { wrong("exists") } else { Ok(()) };
        }
        let fits = |life: &&Life| life.ttl == remaining.granted_ttl && life.overlaps(asked, now);
        let mut fitting = lives.iter().filter(fits);
        let Some(life) = fitting.next() else { return wrong("does not exist") };
        if remaining.ttl > life.ttl {
            return wrong("has more than its TTL");
        }
        let left = life.held_as_of(asked).saturating_sub(now);
        let said = (remaining.ttl + 1).max(0) as u64 * SECOND;
        if left > said && fitting.next().is_none() { wrong("has more time left") } else { Ok(()) }
    }

    /// Returns a lease that should have been removed in a cluster that is healthy since `healthy`.
    pub fn overdue(&self, healthy: u64) -> Option<String> {
        let existing = self.lives.iter().filter_map(|(id, lives)| Some((id, lives.last()?)));
        let mut existing = existing.filter(|(_, life)| life.ended.is_none());
        let is_overdue = |life: &Life| {
            let ttl = life.ttl as u64 * SECOND;
            life.extended.max(healthy) + ttl * (1000 + DRIFT) / 1000 + GRACE + LATE < self.now
        };
        let (id, life) = existing.find(|(_, life)| is_overdue(life))?;
        Some(format!("lease {id} is not gone at {}: {life:?}", self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a lease of 2 s, granted at 10 s and renewed with a request at 11 s.
    fn renewed() -> LeaseTimes {
        let mut times = LeaseTimes { now: 10 * SECOND, ..LeaseTimes::default() };
        times.changed(LeaseChange::Granted { id: 7, ttl: 2 }).unwrap();
        times.now = 11 * SECOND;
        times.asked(7);
        times.changed(LeaseChange::Extended { id: 7, since_first: 1_000 }).unwrap();
        times.renewed(7, 11 * SECOND, 2).unwrap();
        times
    }

    #[test]
    fn an_early_expiry_is_caught() {
        for (at, is_early) in [(12_900, true), (13_000, false), (19_000, false)] {
            let mut times = renewed();
            times.now = at * MILLISECOND;
            assert_eq!(times.changed(LeaseChange::Expired(7)).is_err(), is_early, "{at}");
        }
    }

    #[test]
    fn an_acknowledgement_after_the_expiry_counts_as_well() {
        let mut times = renewed();
        times.now = 13 * SECOND;
        times.changed(LeaseChange::Expired(7)).unwrap();
        times.now = 14 * SECOND;
        for (asked, ttl, is_caught) in
            [(10_500, 2, false), (12_000, 2, true), (13_500, 2, true), (12_000, 0, false)]
        {
            assert_eq!(times.renewed(7, asked * MILLISECOND, ttl).is_err(), is_caught, "{asked} {ttl}");
        }
    }

    #[test]
    fn a_lease_that_has_time_is_not_refused() {
        let mut times = renewed();
        assert!(times.renewed(7, 10_500 * MILLISECOND, 0).is_err());
        times.now = 14 * SECOND;
        assert!(times.renewed(7, 13 * SECOND, 0).is_ok(), "its time is over");
        assert!(times.renewed(8, 13 * SECOND, 0).is_ok(), "there is none");
    }

    #[test]
    fn a_deadline_that_no_client_moved_is_caught() {
        for (since_first, is_caught) in [(1_000, false), (RECORDED_TWICE, false), (RECORDED_TWICE + 1, true)]
        {
            let mut times = renewed();
            let moved = times.changed(LeaseChange::Extended { id: 7, since_first });
            assert_eq!(moved.is_err(), is_caught, "{since_first}");
        }
    }

    #[test]
    fn remaining_times_are_held_against_the_promise() {
        let times = renewed();
        for (ttl, granted_ttl, is_caught) in
            [(2, 2, false), (1, 2, false), (3, 2, true), (-1, 2, true), (1, 3, true), (-1, 0, true)]
        {
            let remaining = Remaining { ttl, granted_ttl };
            assert_eq!(
                times.remains(7, 10_500 * MILLISECOND, remaining).is_err(),
                is_caught,
                "{remaining:?}"
            );
        }
    }

    #[test]
    fn an_answer_need_not_know_of_renewals_that_came_after_its_question() {
        let mut times = renewed();
        times.now = 12_500 * MILLISECOND;
        times.asked(7);
        times.renewed(7, 12_400 * MILLISECOND, 2).unwrap();
        times.now = 12_510 * MILLISECOND;
        // Recorded at 11 s: some 500 ms were left before the renewal.
        let remaining = Remaining { ttl: 0, granted_ttl: 2 };
        for (asked, is_caught) in [(12_450, false), (12_505, true)] {
            assert_eq!(times.remains(7, asked * MILLISECOND, remaining).is_err(), is_caught, "{asked}");
        }
    }

    #[test]
    fn a_lease_that_stays_is_caught_in_a_healthy_cluster() {
        for (now, healthy, is_caught) in [(14_000, 0, false), (15_200, 0, true), (15_200, 12_000, false)] {
            let mut times = renewed();
            times.now = now * MILLISECOND;
            assert_eq!(times.overdue(healthy * MILLISECOND).is_some(), is_caught, "{now} {healthy}");
        }
    }
}
