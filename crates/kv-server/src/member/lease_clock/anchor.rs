//! The lease clock of this member: its newest anchor, and the boot time.
//!
//! Boot time counts while the machine is suspended and does not jump when the date is set.

use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use state_machine::Anchor;

/// Time since the machine was started, suspended time included.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The newest anchor. Apply sets it.
#[derive(Debug)]
pub struct ClockAnchor(Mutex<Anchor>);

impl ClockAnchor {
    /// The clock as the store has it, from now on: time while the member was down is not counted.
    pub fn new(clock: i64) -> Self {
        ClockAnchor(Mutex::new(Anchor { clock, boot: boot_time() }))
    }

    /// A command with this clock has just been applied.
    pub fn set(&self, clock: i64) {
        *self.0.lock() = Anchor { clock, boot: boot_time() };
    }

    pub fn newest(&self) -> Anchor {
        *self.0.lock()
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
