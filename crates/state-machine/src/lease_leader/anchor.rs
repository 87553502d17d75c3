//! The lease clock of a member.
//!
//! Each command of the leader that carries the clock sets an anchor: its value, and the time at
//! which this member applied it. The current clock is the anchor plus the boot time that has passed
//! since. Apply happens after the leader has read its clock, so the result is never ahead of the
//! leader's.
//!
//! Time during which renewals could not be recorded does not count: loss of quorum, a paused
//! process, a stalled disk. A healthy leader records each second. A new leader therefore counts at
//! most [`OUTAGE_COUNTED_MS`] since the last record. If its clock is more than
//! [`UNRECORDED_MAX_MS`] ahead of the record, the clock resumes from the last value read and is
//! restarted as in a new term: earlier records no longer cover renewals.

use std::time::Duration;

use base::Term;

use crate::lease::RENEWAL_GRACE_MS;

/// Maximum part of an outage that counts. No more than the grace period, so a lease keeps the time
/// that it had at the last record. This also covers a renewal that the previous leader acknowledged
/// from memory.
const OUTAGE_COUNTED_MS: i64 = RENEWAL_GRACE_MS;
/// Maximum lead of a leader's clock over the last record: twice the interval between records.
const UNRECORDED_MAX_MS: i64 = 2_000;

/// A value of the lease clock, and the corresponding boot time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub clock: i64,
    pub boot: Duration,
}

impl Anchor {
    /// Returns the lease clock at a boot time, in milliseconds. Times before the anchor are clamped
    /// to it.
    pub fn clock_at(&self, boot: Duration) -> i64 {
        let passed = boot.saturating_sub(self.boot).as_millis();
        self.clock.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

/// A term that this member leads, and its lease clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedTerm {
    pub term: Term,
    clock: Anchor,
    read: i64,
}

impl LedTerm {
    /// Starts a term as leader at the boot time `now`. This member has applied all entries of
    /// earlier terms, and `newest` is its last anchor. The clock starts above every value recorded
    /// in earlier terms, so a member that applies a value of this term takes it as its anchor.
    pub fn begin(term: Term, newest: Anchor, now: Duration) -> LedTerm {
        if base::mutant("own-lease-clock") {
            return LedTerm { term, clock: Anchor { clock: 0, boot: Duration::ZERO }, read: 0 };
        }
        let counted = if base::mutant("outage-counts") { i64::MAX } else { OUTAGE_COUNTED_MS };
        let clock = newest.clock_at(now).min(newest.clock.saturating_add(counted));
        let clock = clock.max(newest.clock.saturating_add(1));
        LedTerm { term, clock: Anchor { clock, boot: now }, read: clock }
    }

    /// Returns the lease clock at a boot time. `newest` is the last anchor of this member.
    pub fn read(&mut self, newest: Anchor, now: Duration) -> i64 {
        let clock = self.clock.clock_at(now);
        let is_unrecorded = clock > newest.clock.saturating_add(UNRECORDED_MAX_MS);
        if is_unrecorded && !base::mutant("pause-counts") && !base::mutant("own-lease-clock") {
            let clock = self.read.max(newest.clock.saturating_add(OUTAGE_COUNTED_MS));
            self.clock = Anchor { clock, boot: now };
        }
        self.read = self.read.max(self.clock.clock_at(now));
        self.read
    }

    /// Returns the value at which the lease clock started in this term, or was restarted. It is at
    /// or above every value recorded before.
    pub fn began(&self) -> i64 {
        self.clock.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_with_the_boot_time_and_never_back() {
        let anchor = Anchor { clock: 5_000, boot: Duration::from_millis(1_000) };
        for (boot, clock) in [
            (1_000, 5_000),
            (1_001, 5_001),
            (61_000, 65_000),
            // The machine was suspended for a day.
            (86_401_000, 86_405_000),
            // A read from before the anchor was set.
            (999, 5_000),
            (0, 5_000),
        ] {
            assert_eq!(anchor.clock_at(Duration::from_millis(boot)), clock, "{boot}");
        }
        assert_eq!(Anchor { clock: i64::MAX, ..anchor }.clock_at(Duration::from_secs(9)), i64::MAX);
    }

    #[test]
    fn a_member_that_applies_late_is_behind_its_leader_and_never_ahead() {
        // Both clocks run at the same speed. The follower applies each command some time after the
        // leader read its clock.
        let leader = Anchor { clock: 1_000, boot: Duration::ZERO };
        for delay in [0, 1, 250, 30_000] {
            let read_at = Duration::from_millis(10_000);
            let applied_at = read_at + Duration::from_millis(delay);
            let follower = Anchor { clock: leader.clock_at(read_at), boot: applied_at };
            for later in [0, 7, 5_000] {
                let now = applied_at + Duration::from_millis(later);
                let lag = leader.clock_at(now) - follower.clock_at(now);
                assert_eq!(lag, delay as i64, "delay {delay}, {later} later");
            }
        }
    }

    #[test]
    fn a_new_leader_goes_on_from_its_newest_anchor() {
        let newest = Anchor { clock: 7_000, boot: Duration::from_millis(500) };
        let mut led = LedTerm::begin(Term(3), newest, Duration::from_millis(900));
        for (boot, clock) in [(900, 7_400), (1_900, 8_400), (100, 8_400)] {
            assert_eq!(led.read(newest, Duration::from_millis(boot)), clock, "{boot}");
        }
        assert_eq!(LedTerm::begin(Term(3), newest, newest.boot).began(), 7_001, "above what was recorded");
    }

    #[test]
    fn a_new_leader_does_not_count_an_outage() {
        let newest = Anchor { clock: 7_000, boot: Duration::from_millis(500) };
        for (now, began) in [(999, 7_499), (1_000, 7_500), (11_000, 7_500), (86_400_000, 7_500)] {
            assert_eq!(LedTerm::begin(Term(3), newest, Duration::from_millis(now)).began(), began, "{now}");
        }
    }

    #[test]
    fn a_leader_does_not_count_time_in_which_nothing_was_recorded() {
        // Boot time of the read, last record, and expected clock.
        for reads in [
            // Records each second, or slightly less often.
            vec![(0, 0, 1), (1_000, 0, 1_001), (1_990, 1_001, 1_991), (3_900, 1_991, 3_901)],
            // A pause, short and long: the clock resumes from the last value read.
            vec![(1_200, 0, 1_201), (1_900, 0, 1_901), (3_900, 1_001, 1_901), (4_000, 1_901, 2_001)],
            vec![(1_200, 1_001, 1_201), (86_400_000, 1_001, 1_501), (86_400_500, 1_501, 2_001)],
            // A stalled disk: the clock stops until the next record, and then runs.
            vec![(1_900, 0, 1_901), (2_000, 0, 1_901), (2_300, 0, 1_901), (2_310, 0, 1_911)],
            vec![(1_999, 0, 2_000), (9_000, 0, 2_000), (19_000, 0, 2_000), (19_100, 2_000, 2_100)],
        ] {
            let mut led = LedTerm::begin(Term(3), Anchor { clock: 0, boot: Duration::ZERO }, Duration::ZERO);
            for (boot, newest, clock) in &reads {
                let newest = Anchor { clock: *newest, boot: Duration::ZERO };
                let read = led.read(newest, Duration::from_millis(*boot));
                assert_eq!(read, *clock, "{boot} in {reads:?}");
                assert!(led.began() <= read && read <= newest.clock + UNRECORDED_MAX_MS);
            }
        }
    }
}
