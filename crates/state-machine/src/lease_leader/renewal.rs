//! Renewals and TimeToLive queries on the leader.
//!
//! Invariants:
//! - A renewal is acknowledged from memory only if a renewal recorded in the same term covers it,
//!   and after a read index has confirmed the leadership.
//! - A record of an earlier term covers no renewal: the clock of this leader may lag that of
//!   another member, which may lead next. A member that has applied a record of this term is not
//!   ahead of this leader.
//! - An expired lease is not renewed, even if it is not revoked in time. In that case a later
//!   leader may have renewed it, so the response waits until the leadership is confirmed once more.
//! - Renewals of other leases do not wait for that: [`WhenExpired`].
//! - A lease that is found late is recorded before its renewal is acknowledged.

use base::{LogIndex, Term};

use super::anchor::LedTerm;
use crate::command::{Kind, LeaseRenew};
use crate::lease::{Lease, LeaseTable, RENEWAL_GRACE_MS};

const LOOKED_UP: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Seconds, rounded down; a lower bound of the guaranteed time; -1 if the lease does not exist.
    pub ttl: i64,
    pub granted_ttl: i64,
}

/// Returns the remaining time of each lease at `now`, by the leader's clock. The caller has
/// confirmed its leadership.
pub fn remaining(table: &LeaseTable, ids: &[i64], now: i64) -> Vec<Remaining> {
    look_up(table, ids).into_iter().map(|lease| remaining_of(lease, now)).collect()
}

fn remaining_of(lease: Option<Lease>, now: i64) -> Remaining {
    let Some(lease) = lease else { return Remaining { ttl: -1, granted_ttl: 0 } };
    // A lease without a deadline was granted a moment ago.
    let full = lease.ttl * 1000 - 1;
    // Include the grace period: the TTL of a renewal acknowledged from memory may have started that
    // late.
    let left = lease.deadline.map_or(full, |deadline| deadline + RENEWAL_GRACE_MS - now);
    Remaining { ttl: left.clamp(0, full) / 1000, granted_ttl: lease.ttl }
}

/// Decision of the leader about a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// The lease does not exist, as far as this member has applied.
    Unknown,
    /// A recorded renewal covers it.
    Covered,
    Record,
    /// Expired. The response waits until it is revoked.
    Expired,
}

fn judge(lease: Option<Lease>, now: i64, began: i64) -> Renewal {
    match lease {
        None => Renewal::Unknown,
        Some(lease) if lease.is_expired(now) => Renewal::Expired,
        Some(lease) if lease.is_renewed_at(now, began) => Renewal::Covered,
        Some(_) => Renewal::Record,
    }
}

/// Renewal result for an expired lease that is not revoked yet.
pub const UNREVOKED: i64 = -1;

/// Handling of expired leases in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenExpired {
    /// Return [`UNREVOKED`], after which the client retries; the rest of the batch does not wait.
    Tell,
    /// Delay the batch until these leases are revoked, for a bounded time.
    Wait,
}

/// Batch of renewals, driven by the steps of [`RenewalBatch::next`].
#[derive(Clone, Debug)]
pub struct RenewalBatch {
    ids: Vec<i64>,
    when_expired: WhenExpired,
    judged: Vec<Renewal>,
    to_record: Chosen,
    /// Lease clock at which the renewals were judged.
    now: i64,
    done: RenewalProgress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RenewalProgress {
    Nothing,
    /// Required records and the confirmation are done.
    Required,
    Awaited,
    /// The leadership was confirmed after that.
    Confirmed,
    /// Late leases were recorded. Contains the previous results.
    LateRecorded(Vec<i64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalStep {
    /// Give these leases their full TTL, if there are any, and confirm the leadership if requested.
    /// If either fails, the renewals fail.
    Require { record: Chosen, must_confirm: bool },
    /// Wait until these leases are revoked, for a bounded time.
    AwaitRevoked(Vec<i64>),
    /// Return the TTL of each lease, 0 if it does not exist, or [`UNREVOKED`].
    Answer(Vec<i64>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RenewedLeases {
    ttls: Vec<i64>,
    /// Leases granted, renewed, or first visible here after the batch was judged. They have to be
    /// recorded.
    late: Chosen,
}

impl RenewalBatch {
    /// Creates a batch of renewals of `ids`, which arrived before the lease clock of the term was
    /// `now`.
    pub fn new(
        table: &LeaseTable,
        ids: Vec<i64>,
        when_expired: WhenExpired,
        led: LedTerm,
        now: i64,
    ) -> RenewalBatch {
        let mut judged = Vec::new();
        let to_record = Chosen::find(table, |table| {
            judged = look_up(table, &ids).into_iter().map(|lease| judge(lease, now, led.began())).collect();
            ids_that_are(Renewal::Record, &ids, &judged)
        });
        RenewalBatch { ids, when_expired, judged, to_record, now, done: RenewalProgress::Nothing }
    }

    /// Returns the next step. The caller executes it and calls this again, until it returns the
    /// results.
    pub fn next(&mut self, table: &LeaseTable) -> RenewalStep {
        if self.done == RenewalProgress::Nothing {
            self.done = RenewalProgress::Required;
            let (record, must_confirm) = (std::mem::take(&mut self.to_record), self.must_confirm());
            if must_confirm || !record.is_empty() {
                return RenewalStep::Require { record, must_confirm };
            }
        }
        if let RenewalProgress::Required | RenewalProgress::Awaited = self.done
            && (self.when_expired == WhenExpired::Wait || base::mutant("expired-hold-others"))
        {
            let expired = self.expired();
            if look_up(table, &expired).iter().any(Option::is_some) {
                if self.done == RenewalProgress::Required {
                    self.done = RenewalProgress::Awaited;
                    return RenewalStep::AwaitRevoked(expired);
                }
                self.done = RenewalProgress::Confirmed;
                return RenewalStep::Require { record: Chosen::default(), must_confirm: true };
            }
        }
        if let RenewalProgress::LateRecorded(ttls) = &self.done {
            return RenewalStep::Answer(self.answers_after_late(table, ttls));
        }
        let RenewedLeases { ttls, late } = self.answers(table);
        if late.is_empty() {
            return RenewalStep::Answer(ttls);
        }
        self.done = RenewalProgress::LateRecorded(ttls);
        RenewalStep::Require { record: late, must_confirm: false }
    }

    /// Reports whether the batch needs to confirm the leadership in addition to the record.
    fn must_confirm(&self) -> bool {
        !base::mutant("unconfirmed-renewals") && self.judged.iter().any(|judged| *judged != Renewal::Record)
    }

    fn expired(&self) -> Vec<i64> {
        ids_that_are(Renewal::Expired, &self.ids, &self.judged)
    }

    /// Returns the current results. Unknown ids may have been applied since, and a recorded lease
    /// may have been revoked or replaced by another lease with the same id, which has its full TTL
    /// since its grant.
    fn answers(&self, table: &LeaseTable) -> RenewedLeases {
        let mut ttls = Vec::new();
        let late = Chosen::find(table, |table| {
            let mut late = Vec::new();
            for ((id, judged), lease) in self.ids.iter().zip(&self.judged).zip(look_up(table, &self.ids)) {
                ttls.push(match (judged, lease) {
                    (Renewal::Covered | Renewal::Record, Some(lease)) => lease.ttl,
                    (Renewal::Unknown, Some(lease)) => {
                        late.push(*id);
                        lease.ttl
                    }
                    // A renewal that arrived in time was recorded concurrently.
                    (Renewal::Expired, Some(lease)) if !lease.is_expired(self.now) => {
                        late.push(*id);
                        lease.ttl
                    }
                    (Renewal::Expired, Some(_)) if self.when_expired == WhenExpired::Tell => UNREVOKED,
                    (Renewal::Expired, Some(_)) | (_, None) => 0,
                });
            }
            late
        });
        RenewedLeases { ttls, late }
    }

    /// Returns the results after late leases were recorded: a lease may have been revoked before
    /// its record.
    fn answers_after_late(&self, table: &LeaseTable, ttls: &[i64]) -> Vec<i64> {
        let leases = look_up(table, &self.ids);
        ttls.iter().zip(leases).map(|(ttl, lease)| lease.map_or(0, |_| *ttl)).collect()
    }
}

fn ids_that_are(wanted: Renewal, ids: &[i64], judged: &[Renewal]) -> Vec<i64> {
    let judged = ids.iter().zip(judged);
    judged.filter(|(_, judged)| **judged == wanted).map(|(id, _)| *id).collect()
}

fn look_up(table: &LeaseTable, ids: &[i64]) -> Vec<Option<Lease>> {
    ids.chunks(LOOKED_UP).flat_map(|ids| table.get_all(ids)).collect()
}

/// Leases that the leader has selected for a record, from a state of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    ids: Vec<i64>,
    /// Index of the last grant applied before the lookup.
    granted: LogIndex,
}

impl Chosen {
    /// Selects the leases that `find` returns.
    pub(super) fn find(table: &LeaseTable, find: impl FnOnce(&LeaseTable) -> Vec<i64>) -> Chosen {
        // Read the index first: a grant applied between the two reads then counts as later than the
        // selection.
        let granted = table.newest_grant();
        Chosen { ids: find(table), granted }
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the command that records them. `now` is the lease clock of the term, read after the
    /// selection: a lease granted a moment before has its full TTL.
    pub fn record(self, term: Term, now: i64) -> Kind {
        let (term, granted) = (term.0, Some(self.granted.0));
        Kind::LeaseRenew(LeaseRenew { term, now, ids: self.ids, granted })
    }

    #[cfg(test)]
    pub(super) fn of(ids: &[i64]) -> Chosen {
        Chosen { ids: ids.to_vec(), granted: LogIndex::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use base::LogIndex;

    use super::*;

    fn batch(ids: Vec<i64>, judged: Vec<Renewal>, now: i64) -> RenewalBatch {
        let (when_expired, to_record) = (WhenExpired::Wait, Chosen::default());
        RenewalBatch { ids, when_expired, judged, to_record, now, done: RenewalProgress::Nothing }
    }

    #[test]
    fn a_renewal_is_recorded_unless_a_recorded_one_covers_it() {
        let lease = |deadline| Some(Lease { ttl: 10, deadline, granted: LogIndex::ZERO });
        for (lease, now, began, expected) in [
            (None, 5_000, 0, Renewal::Unknown),
            (lease(None), 5_000, 0, Renewal::Record),
            // Recorded at 5000.
            (lease(Some(15_000)), 5_000, 5_000, Renewal::Covered),
            (lease(Some(15_000)), 5_490, 5_000, Renewal::Covered),
            (lease(Some(15_000)), 5_491, 5_000, Renewal::Record),
            (lease(Some(15_000)), 15_499, 5_000, Renewal::Record),
            (lease(Some(15_000)), 15_500, 5_000, Renewal::Expired),
            // Recorded in an earlier term.
            (lease(Some(15_000)), 5_001, 5_001, Renewal::Record),
            (lease(Some(15_000)), 15_500, 5_001, Renewal::Expired),
        ] {
            assert_eq!(judge(lease, now, began), expected, "{lease:?} at {now} since {began}");
        }
    }

    #[test]
    fn a_batch_is_confirmed_unless_all_of_it_is_recorded() {
        for (judged, must_confirm) in [
            (vec![Renewal::Record], false),
            (vec![Renewal::Record, Renewal::Covered], true),
            (vec![Renewal::Unknown], true),
            (vec![Renewal::Expired], true),
        ] {
            let batch = batch((1..).take(judged.len()).collect(), judged, 0);
            assert_eq!(batch.must_confirm(), must_confirm, "{batch:?}");
        }
    }

    #[test]
    fn a_lease_that_was_renewed_while_its_end_was_waited_for_has_its_time() {
        for (deadline, answers) in [
            (3_000, RenewedLeases { ttls: vec![0], late: Chosen::default() }),
            (6_000, RenewedLeases { ttls: vec![3], late: Chosen::of(&[7]) }),
        ] {
            let table = LeaseTable::default();
            table.set(7, Lease { ttl: 3, deadline: Some(deadline), granted: LogIndex::ZERO });
            let batch = batch(vec![7], vec![Renewal::Expired], 4_000);
            assert_eq!(batch.answers(&table), answers, "{deadline}");
        }
    }

    #[test]
    fn a_lease_that_is_revoked_before_its_late_record_is_gone() {
        let table = LeaseTable::default();
        table.set(7, Lease { ttl: 3, deadline: Some(6_000), granted: LogIndex::ZERO });
        let batch = batch(vec![7, 8], vec![Renewal::Expired, Renewal::Unknown], 4_000);
        let renewed = batch.answers(&table);
        assert_eq!(renewed, RenewedLeases { ttls: vec![3, 0], late: Chosen::of(&[7]) });
        assert_eq!(batch.answers_after_late(&table, &renewed.ttls), [3, 0]);
        table.remove(7);
        assert_eq!(batch.answers_after_late(&table, &renewed.ttls), [0, 0]);
    }

    /// Concurrent change of lease 7 during a step.
    #[derive(Clone, Copy)]
    enum Meanwhile {
        Nothing,
        Revoked,
        Renewed,
    }

    #[test]
    fn an_answer_comes_after_all_that_it_requires() {
        use Meanwhile::{Nothing, Renewed, Revoked};
        let confirm = || RenewalStep::Require { record: Chosen::default(), must_confirm: true };
        let record = |id| RenewalStep::Require { record: Chosen::of(&[id]), must_confirm: false };
        let (wait, answer) = (|| RenewalStep::AwaitRevoked(vec![7]), |ttl| RenewalStep::Answer(vec![ttl]));
        for (judged, steps) in [
            (Renewal::Record, vec![(record(7), Nothing), (answer(3), Nothing)]),
            (Renewal::Covered, vec![(confirm(), Nothing), (answer(3), Nothing)]),
            (Renewal::Covered, vec![(confirm(), Revoked), (answer(0), Nothing)]),
            (Renewal::Expired, vec![(confirm(), Revoked), (answer(0), Nothing)]),
            (Renewal::Expired, vec![(confirm(), Nothing), (wait(), Revoked), (answer(0), Nothing)]),
            (
                Renewal::Expired,
                vec![(confirm(), Nothing), (wait(), Nothing), (confirm(), Nothing), (answer(0), Nothing)],
            ),
            (
                Renewal::Expired,
                vec![
                    (confirm(), Nothing),
                    (wait(), Nothing),
                    (confirm(), Renewed),
                    (record(7), Nothing),
                    (answer(3), Nothing),
                ],
            ),
            (Renewal::Unknown, vec![(confirm(), Nothing), (record(7), Revoked), (answer(0), Nothing)]),
        ] {
            let table = LeaseTable::default();
            table.set(7, Lease { ttl: 3, deadline: Some(3_000), granted: LogIndex::ZERO });
            let mut batch = batch(vec![7], vec![judged], 4_000);
            if judged == Renewal::Record {
                batch.to_record = Chosen::of(&[7]);
            }
            for (number, (step, meanwhile)) in steps.into_iter().enumerate() {
                assert_eq!(batch.next(&table), step, "{judged:?}, step {number}");
                match meanwhile {
                    Nothing => {}
                    Revoked => table.remove(7),
                    Renewed => table.set(7, Lease { ttl: 3, deadline: Some(6_000), granted: LogIndex::ZERO }),
                }
            }
        }
    }

    #[test]
    fn an_expired_lease_does_not_hold_the_others_of_its_batch() {
        let table = LeaseTable::default();
        for (id, deadline) in [(7, 3_000), (8, 9_000), (9, 3_000)] {
            table.set(id, Lease { ttl: 3, deadline: Some(deadline), granted: LogIndex::ZERO });
        }
        let judged = vec![Renewal::Expired, Renewal::Covered, Renewal::Expired, Renewal::Unknown];
        let mut batch = batch(vec![7, 8, 9, 10], judged, 6_000);
        batch.when_expired = WhenExpired::Tell;
        let confirm = RenewalStep::Require { record: Chosen::default(), must_confirm: true };
        assert_eq!(batch.next(&table), confirm);
        table.remove(9);
        assert_eq!(batch.next(&table), RenewalStep::Answer(vec![UNREVOKED, 3, 0, 0]));
    }

    #[test]
    fn what_is_answered_from_memory_is_covered_until_the_promised_end() {
        for (ttl, recorded) in [(2, 0), (10, 5_000), (3600, 77)] {
            let lease = Lease { ttl, deadline: Some(recorded + ttl * 1000), granted: LogIndex::ZERO };
            for now in recorded..recorded + 600 {
                if judge(Some(lease), now, recorded) == Renewal::Covered {
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
    fn remaining_seconds_are_cut_and_never_less_than_is_sure() {
        let lease = |deadline| Some(Lease { ttl: 10, deadline, granted: LogIndex::ZERO });
        for (lease, now, ttl, granted_ttl) in [
            (None, 0, -1, 0),
            (lease(None), 5_000, 9, 10),
            (lease(Some(15_000)), 5_000, 9, 10),
            // Renewed from memory at 5,490: it has 9 seconds until 6,490.
            (lease(Some(15_000)), 6_490, 9, 10),
            (lease(Some(15_000)), 6_501, 8, 10),
            (lease(Some(15_000)), 14_501, 0, 10),
            (lease(Some(15_000)), 15_400, 0, 10),
            (lease(Some(15_000)), 17_000, 0, 10),
        ] {
            assert_eq!(remaining_of(lease, now), Remaining { ttl, granted_ttl }, "{lease:?} at {now}");
        }
    }
}
