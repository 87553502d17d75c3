//! Checks leases: the keys of a lease are deleted at one revision, and not before the TTL has
//! passed.
//!
//! An acknowledged grant or renewal keeps a lease alive for its TTL, counted from the time at which
//! the request was sent; the server can only have counted from a later time. A deletion that
//! arrives earlier is a violation, unless a revocation had been sent. A reported remaining TTL must
//! not be lower than that either.
//!
//! The keys must not exist after an acknowledged revocation, or long after the TTL.
//!
//! Must not depend on connections or clocks.

use crate::operation::{KeyChange, KeyName};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Maximum clock drift between two machines: one part in a thousand, far more than quartz clocks
/// drift.
const DRIFT_DIVISOR: u32 = 1000;

/// An event in the life of a lease. Revocations are reported before they are sent; grants and
/// renewals after they were acknowledged.
#[derive(Clone, Debug)]
pub enum LeaseInput {
    /// The lease was granted and will be attached to these keys.
    Granted { keys: Vec<u32>, kept: LeaseGrant, asked: Duration },
    /// The puts of its keys were acknowledged.
    Attached,
    /// The lease was renewed.
    Renewed(LeaseGrant),
    /// A revocation is about to be sent: the lease may expire at any time.
    Revoking,
    /// The revocation was acknowledged.
    Revoked,
    /// TimeToLive response that arrived at `at`: granted and remaining seconds, and attached keys. A
    /// negative `left` means that the lease does not exist.
    Lifetime { at: Duration, granted: i64, left: i64, keys: Vec<u32> },
    /// A linearizable read found its keys after an acknowledged revocation, or long after the TTL.
    Exists(Duration),
    /// The client has stopped using the lease.
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Index of the endpoint that acknowledged it.
    pub member: usize,
    /// Send time of the request, relative to the start of the run.
    pub sent: Duration,
    pub ttl: Duration,
}

/// Statistics of finished leases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LeaseEnds {
    pub expired: u64,
    pub revoked: u64,
    pub lifetimes: u64,
    /// Maximum delay between the earliest expiry of a lease and the arrival of the deletions.
    pub latest: Duration,
}

#[derive(Debug)]
struct LeaseState {
    keys: Vec<u32>,
    kept: LeaseGrant,
    renewals: u64,
    /// True after the puts of the keys were acknowledged.
    attached: bool,
    revoking: bool,
    revoked: bool,
    /// Arrival time and description of the event that deleted the keys.
    deleted: Option<(Duration, String)>,
    left: bool,
}

/// Leases that are in use, or whose deletions are still pending.
#[derive(Debug, Default)]
pub struct LeaseRecords {
    by_key: HashMap<u32, i64>,
    states: HashMap<i64, LeaseState>,
    pub ended: LeaseEnds,
}

pub type BrokenRule = (&'static str, Vec<String>);

/// Minimum TTL that etcd grants with its longest election timeout, 50 s: one and a half times that.
const TTL_LEAST_MAX: Duration = Duration::from_secs(75);
/// TTLs are reported in whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

const EARLY: &str = "the keys of a lease were deleted before its time was over";

impl LeaseState {
    /// Compares the response of a TimeToLive request, received after `at`, with what is known of the lease.
    fn check_lifetime(
        &self,
        id: i64,
        (at, granted, left): (Duration, i64, i64),
        keys: &[u32],
    ) -> Result<(), BrokenRule> {
        let least = self.kept.until().saturating_sub(at);
        let is_less = least > ROUNDING
            && u64::try_from(left).map_or(true, |left| Duration::from_secs(left) + ROUNDING < least);
        let is_other = left >= 0 && u64::try_from(granted) != Ok(self.kept.ttl.as_secs());
        if is_other || is_less && !self.revoking {
            let said = format!("at {:.6} s: granted for {granted} s, {left} s are left", at.as_secs_f64());
            let evidence = vec![self.describe(id), said];
            return Err(("a lease is said to have another time than it has", evidence));
        }
        let is_foreign = |key: &u32| !self.keys.contains(key);
        let is_kept = self.attached && !self.revoking && at < self.kept.until();
        if keys.iter().any(is_foreign) || is_kept && keys.len() != self.keys.len() {
            let names = |keys: &[u32]| keys.iter().map(|&key| KeyName(key).to_string()).collect::<Vec<_>>();
            let reported = format!(
                "at {:.6} s: keys {:?} instead of {:?}",
                at.as_secs_f64(),
                names(keys),
                names(&self.keys)
            );
            return Err((
                "a lease is reported with other keys than it has",
                vec![self.describe(id), reported],
            ));
        }
        Ok(())
    }
}

impl LeaseRecords {
    pub fn count(&self) -> usize {
        self.states.len()
    }

    pub fn take(&mut self, id: i64, input: LeaseInput) -> Result<(), BrokenRule> {
        if let LeaseInput::Granted { keys, kept, asked } = input {
            if kept.ttl < asked || kept.ttl > asked.max(TTL_LEAST_MAX) {
                let evidence = format!("lease {id:x}, asked for {} s: {kept}", asked.as_secs());
                return Err(("a lease was granted for another time than was asked for", vec![evidence]));
            }
            self.by_key.extend(keys.iter().map(|&key| (key, id)));
            let (deleted, left) = (None, false);
            let (revoking, revoked) = (false, false);
            let (renewals, attached) = (0, false);
            let state = LeaseState { keys, kept, renewals, attached, revoking, revoked, deleted, left };
            self.states.insert(id, state);
            return Ok(());
        }
        let Some(state) = self.states.get_mut(&id) else { return Ok(()) };
        match input {
            LeaseInput::Granted { .. } => unreachable!("returned above"),
            LeaseInput::Renewed(kept) => {
                state.renewals += 1;
                if kept.ttl != state.kept.ttl {
                    let evidence = vec![state.describe(id), format!("then renewed: {kept}")];
                    return Err(("a lease was renewed for another time than it was granted for", evidence));
                }
                if kept.until() > state.kept.until() {
                    state.kept = kept;
                }
                // The deletion may have been received before the response to the renewal.
                if let Some((at, event)) = &state.deleted
                    && *at < state.kept.until()
                    && !state.revoking
                {
                    return Err((EARLY, vec![state.describe(id), event.clone()]));
                }
            }
            LeaseInput::Attached => state.attached = true,
            LeaseInput::Revoking => state.revoking = true,
            LeaseInput::Revoked => state.revoked = true,
            LeaseInput::Lifetime { at, granted, left, keys } => {
                self.ended.lifetimes += 1;
                state.check_lifetime(id, (at, granted, left), &keys)?;
            }
            LeaseInput::Exists(at) => {
                let rule = if state.revoked {
                    "the keys of a lease exist after its revocation was acknowledged"
                } else {
                    "the keys of a lease exist long after its time was over"
                };
                let read = format!("a linearizable read that began at {:.6} s shows them", at.as_secs_f64());
                return Err((rule, vec![state.describe(id), read]));
            }
            LeaseInput::Left => {
                state.left = true;
                self.drop_if_over(id);
            }
        }
        Ok(())
    }

    pub fn hold(&self, key: u32) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Checks the first report of a revision that deletes a key of a lease. Expects all changes of
    /// the revision.
    pub fn deleted(&mut self, changes: &[KeyChange], at: Duration, event: &str) -> Result<(), BrokenRule> {
        let Some(&id) = changes.first().and_then(|change| self.by_key.get(&change.key)) else {
            return Ok(());
        };
        let Some(state) = self.states.get_mut(&id) else { return Ok(()) };
        let others =
            changes.iter().filter(|change| change.record.is_some() || !state.keys.contains(&change.key));
        if changes.len() != state.keys.len() || others.count() > 0 {
            let changes = changes.iter().map(ToString::to_string);
            let evidence = [state.describe(id), event.to_owned()].into_iter().chain(changes).collect();
            return Err(("the keys of a lease were not deleted at one revision", evidence));
        }
        if !state.revoking {
            if at < state.kept.until() {
                return Err((EARLY, vec![state.describe(id), event.to_owned()]));
            }
            self.ended.expired += 1;
            self.ended.latest = self.ended.latest.max(at - state.kept.until());
        }
        state.deleted = Some((at, event.to_owned()));
        self.drop_if_over(id);
        Ok(())
    }

    fn drop_if_over(&mut self, id: i64) {
        let is_over = |state: &LeaseState| state.left && state.deleted.is_some();
        if self.states.get(&id).is_some_and(is_over)
            && let Some(state) = self.states.remove(&id)
        {
            // It may have expired before the revocation arrived.
            let early = state.deleted.is_some_and(|(at, _)| at < state.kept.until());
            if state.revoking && (state.revoked || early) {
                self.ended.revoked += 1;
            } else if state.revoking {
                self.ended.expired += 1;
            }
            for key in &state.keys {
                self.by_key.remove(key);
            }
        }
    }
}

impl LeaseGrant {
    /// Returns the earliest time at which the lease may expire, relative to the start of the run.
    fn until(&self) -> Duration {
        self.sent + self.ttl - self.ttl / DRIFT_DIVISOR
    }
}

impl LeaseState {
    fn describe(&self, id: i64) -> String {
        let revoked = if self.revoking { ", being revoked" } else { "" };
        format!("lease {id:x}, {} renewals, the last that counts: {}{revoked}", self.renewals, self.kept)
    }
}

impl fmt::Display for LeaseGrant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, sent, ttl } = self;
        let end = *sent + *ttl;
        write!(
            formatter,
            "member {member}, sent at {:.6} s and acknowledged, for {} s: until {:.6} s at least",
            sent.as_secs_f64(),
            ttl.as_secs(),
            end.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: i64 = 7;

    fn kept(sent_ms: u64) -> LeaseGrant {
        LeaseGrant { member: 0, sent: Duration::from_millis(sent_ms), ttl: Duration::from_secs(2) }
    }

    fn granted() -> LeaseRecords {
        let mut leases = LeaseRecords::default();
        let asked = Duration::from_secs(2);
        leases.take(ID, LeaseInput::Granted { keys: vec![1, 2], kept: kept(1000), asked }).unwrap();
        leases
    }

    fn gone(keys: &[u32]) -> Vec<KeyChange> {
        keys.iter().map(|&key| KeyChange { revision: 5, key, record: None }).collect()
    }

    fn delete(leases: &mut LeaseRecords, keys: &[u32], at_ms: u64) -> Option<&'static str> {
        leases.deleted(&gone(keys), Duration::from_millis(at_ms), "event").err().map(|(rule, _)| rule)
    }

    #[test]
    fn a_lease_ends_after_its_time_or_by_revocation() {
        let mut leases = granted();
        assert!(leases.hold(1) && !leases.hold(3));
        assert_eq!(delete(&mut leases, &[1, 2], 3100), None);
        assert_eq!((leases.ended.expired, leases.ended.latest), (1, Duration::from_millis(102)));
        leases.take(ID, LeaseInput::Left).unwrap();
        assert_eq!((leases.count(), leases.hold(1)), (0, false));

        let mut leases = granted();
        leases.take(ID, LeaseInput::Revoking).unwrap();
        leases.take(ID, LeaseInput::Left).unwrap();
        assert_eq!(delete(&mut leases, &[2, 1], 1001), None);
        assert_eq!((leases.ended.revoked, leases.count()), (1, 0));
    }

    #[test]
    fn an_early_end_is_found_whichever_is_received_first() {
        let early = Some(EARLY);
        assert_eq!(delete(&mut granted(), &[1, 2], 2990), early);

        let mut renewed = granted();
        renewed.take(ID, LeaseInput::Renewed(kept(2000))).unwrap();
        assert_eq!(delete(&mut renewed, &[1, 2], 3500), early);

        let mut deleted_first = granted();
        assert_eq!(delete(&mut deleted_first, &[1, 2], 3500), None);
        let renewed = deleted_first.take(ID, LeaseInput::Renewed(kept(2000)));
        assert_eq!(renewed.err().map(|(rule, _)| rule), early);
    }

    #[test]
    fn a_lease_that_expired_before_its_revocation_was_not_revoked() {
        for (revoked, at_ms, expected) in [(true, 3500, (0, 1)), (false, 3500, (1, 0)), (false, 2000, (0, 1))]
        {
            let mut leases = granted();
            leases.take(ID, LeaseInput::Revoking).unwrap();
            assert_eq!(delete(&mut leases, &[1, 2], at_ms), None);
            if revoked {
                leases.take(ID, LeaseInput::Revoked).unwrap();
            }
            leases.take(ID, LeaseInput::Left).unwrap();
            assert_eq!((leases.ended.expired, leases.ended.revoked), expected, "{revoked} {at_ms}");
        }
    }

    #[test]
    fn what_is_said_of_a_lease_is_true() {
        let rule = |before: Option<LeaseInput>, input| {
            let mut leases = granted();
            before.into_iter().for_each(|input| leases.take(ID, input).unwrap());
            leases.take(ID, input).err().map(|(rule, _)| rule)
        };
        let said = |at_ms, granted, left| {
            rule(
                None,
                LeaseInput::Lifetime { at: Duration::from_millis(at_ms), granted, left, keys: vec![1, 2] },
            )
        };
        let false_time = Some("a lease is said to have another time than it has");
        // Granted at 1 s for 2 s.
        assert_eq!([said(1100, 2, 1), said(2500, 2, 0), said(2500, 0, -1)], [None; 3]);
        assert_eq!([said(1100, 3, 2), said(1100, 2, 0), said(1100, 0, -1)], [false_time; 3]);
        let at = Duration::from_secs(30);
        let exists = |before| rule(before, LeaseInput::Exists(at));
        assert_eq!(exists(None), Some("the keys of a lease exist long after its time was over"));
        let revoked = Some("the keys of a lease exist after its revocation was acknowledged");
        assert_eq!(exists(Some(LeaseInput::Revoked)), revoked);
        let renewed = LeaseInput::Renewed(LeaseGrant { ttl: Duration::from_secs(100_000), ..kept(1200) });
        assert!(rule(None, renewed).is_some());
        for (asked, is_right) in [(1, true), (2, true), (3, false)] {
            let asked = Duration::from_secs(asked);
            let granted = LeaseInput::Granted { keys: vec![3], kept: kept(1000), asked };
            assert_eq!(LeaseRecords::default().take(7, granted).is_ok(), is_right, "{asked:?}");
        }
    }

    #[test]
    fn a_lease_is_reported_with_its_keys() {
        let reported = |attached, at_ms, keys: &[u32]| {
            let mut leases = granted();
            if attached {
                leases.take(ID, LeaseInput::Attached).unwrap();
            }
            let (at, keys) = (Duration::from_millis(at_ms), keys.to_vec());
            let lifetime = LeaseInput::Lifetime { at, granted: 2, left: 1, keys };
            leases.take(ID, lifetime).err().map(|(rule, _)| rule)
        };
        let wrong = Some("a lease is reported with other keys than it has");
        assert_eq!([reported(true, 1100, &[2, 1]), reported(false, 1100, &[])], [None; 2]);
        assert_eq!(reported(true, 3100, &[]), None, "it may have expired");
        assert_eq!([reported(true, 1100, &[1]), reported(false, 1100, &[1, 3])], [wrong; 2]);
    }

    #[test]
    fn all_keys_are_deleted_at_once() {
        let parted = Some("the keys of a lease were not deleted at one revision");
        assert_eq!(delete(&mut granted(), &[1], 5000), parted);
        assert_eq!(delete(&mut granted(), &[1, 2, 3], 5000), parted);
    }

    #[test]
    fn an_answer_that_comes_late_does_not_shorten_a_lease() {
        let mut leases = granted();
        leases.take(ID, LeaseInput::Renewed(kept(2000))).unwrap();
        leases.take(ID, LeaseInput::Renewed(kept(1500))).unwrap();
        assert_eq!(delete(&mut leases, &[1, 2], 3700), Some(EARLY));
    }
}
