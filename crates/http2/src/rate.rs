//! How many frames of a kind pass in an interval.
//!
//! A fixed interval, counted from its first frame. When the count is used up, the connection pauses until
//! the interval ends.

use crate::limits::Tick;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    count_max: u32,
    interval: Tick,
    count: u32,
    since: Tick,
}

impl Rate {
    pub(crate) fn new(count_max: u32, interval: Tick) -> Rate {
        Rate { count_max, interval, count: 0, since: 0 }
    }

    pub(crate) fn count(&mut self, now: Tick) {
        self.count_many(1, now);
    }

    pub(crate) fn count_many(&mut self, added: usize, now: Tick) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(u32::try_from(added).unwrap_or(u32::MAX));
    }

    /// The tick at which the interval ends, if its count is used up. A new interval begins when it has
    /// passed.
    pub(crate) fn paused_until(&mut self, now: Tick) -> Option<Tick> {
        let end = self.since.saturating_add(self.interval);
        if now >= end {
            self.count = 0;
        }
        (self.count >= self.count_max).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_up_count_pauses_until_the_interval_ends() {
        let mut rate = Rate::new(2, 10);
        rate.count(5);
        assert_eq!(rate.paused_until(5), None);
        rate.count(14);
        assert_eq!(rate.paused_until(14), Some(15));
        assert_eq!(rate.paused_until(15), None);
        rate.count(20);
        assert_eq!(rate.paused_until(29), None);
    }
}
