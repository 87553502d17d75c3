//! The lease clock of this member.
//!
//! Each command of the leader that carries the clock is an anchor: its value, and when this member applied it.
//! The present time is the value and the boot time that has passed since. Apply comes after the leader read its
//! clock, so the result is never ahead of the leader's. Boot time counts while the machine is suspended and
//! does not jump when the date is set.

use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was started, suspended time included.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

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

/// The newest anchor. Apply sets it.
#[derive(Debug)]
pub struct Anchored(Mutex<Anchor>);

impl Anchored {
    /// The clock as the store has it, from now on: time while the member was down is not counted.
    pub fn new(clock: i64) -> Self {
        Anchored(Mutex::new(Anchor { clock, boot: boot_time() }))
    }

    /// A command with this clock has just been applied.
    pub fn set(&self, clock: i64) {
        *self.0.lock() = Anchor { clock, boot: boot_time() };
    }

    /// The lease clock at a boot time.
    pub fn clock_at(&self, boot: Duration) -> i64 {
        self.0.lock().clock_at(boot)
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
                let behind = leader.clock_at(now) - follower.clock_at(now);
                assert_eq!(behind, delay as i64, "delay {delay}, {later} later");
            }
        }
    }

    #[test]
    fn boot_time_goes_forward() {
        let (first, second) = (boot_time(), boot_time());
        assert!(first > Duration::ZERO && second >= first);
    }
}
