//! The lease clock of a member.
//!
//! Each command of the leader that carries the clock is an anchor: its value, and when this member applied
//! it. The present time is the value and the boot time that has passed since. Apply comes after the leader
//! read its clock, so the result is never ahead of the leader's.

use std::time::Duration;

use base::Term;

/// A value of the lease clock, and the boot time to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub clock: i64,
    pub boot: Duration,
}

impl Anchor {
    /// The lease clock at a boot time, in milliseconds. A time before the anchor counts as the anchor's.
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
}

impl LedTerm {
    /// Begins to lead at the boot time `now`. This member has applied everything of earlier terms, and
    /// `newest` is its newest anchor. The clock begins after every value that was recorded in earlier terms,
    /// so a member that applies a value of this term takes it as its anchor.
    pub fn begin(term: Term, newest: Anchor, now: Duration) -> LedTerm {
        if base::mutant("own-lease-clock") {
            return LedTerm { term, clock: Anchor { clock: 0, boot: Duration::ZERO } };
        }
        let clock = newest.clock_at(now).max(newest.clock.saturating_add(1));
        LedTerm { term, clock: Anchor { clock, boot: now } }
    }

    /// The lease clock at a boot time.
    pub fn clock_at(&self, boot: Duration) -> i64 {
        self.clock.clock_at(boot)
    }

    /// The lease clock at the beginning of the term: above every value that was recorded before it.
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
            // A read that was made before the anchor was set.
            (999, 5_000),
            (0, 5_000),
        ] {
            assert_eq!(anchor.clock_at(Duration::from_millis(boot)), clock, "{boot}");
        }
        assert_eq!(Anchor { clock: i64::MAX, ..anchor }.clock_at(Duration::from_secs(9)), i64::MAX);
    }

    #[test]
    fn a_member_that_applies_late_is_behind_its_leader_and_never_ahead() {
        // Both clocks run alike. The follower applies each command some time after the leader read its clock.
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
        let led = LedTerm::begin(Term(3), newest, Duration::from_millis(900));
        for (boot, clock) in [(900, 7_400), (1_900, 8_400), (100, 7_400)] {
            assert_eq!(led.clock_at(Duration::from_millis(boot)), clock, "{boot}");
        }
        assert_eq!(LedTerm::begin(Term(3), newest, newest.boot).began(), 7_001, "above what was recorded");
    }
}
