//! Decides when to compact, and at which revision. Pure: the caller supplies the revisions, and calls once
//! per interval.

use std::collections::VecDeque;
use std::time::Duration;

use config::Retention;

/// Maximum interval between compactions: a longer retention period is applied hourly.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
/// Revision samples per period.
const SAMPLES: u32 = 10;
/// Interval between checks in revision mode.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// A member's compaction schedule.
#[derive(Debug)]
pub(super) struct Schedule {
    retention: Retention,
    /// Revisions sampled in the last period, oldest first. A single one in revision mode.
    samples: VecDeque<i64>,
    /// Time since the last compaction, or since the start.
    since: Duration,
    /// Value of `since` at which a compaction is due.
    wanted: Duration,
    compacted: i64,
}

impl Schedule {
    pub fn new(retention: Retention) -> Schedule {
        let wanted = match retention {
            Retention::Period(period) => period, // The first compaction is due after a full period.
            Retention::Revisions(_) => Duration::ZERO,
        };
        Schedule { retention, samples: VecDeque::new(), since: Duration::ZERO, wanted, compacted: 0 }
    }

    /// Interval between calls of [`Schedule::turn`].
    pub fn interval(&self) -> Duration {
        match self.retention {
            Retention::Period(period) => (period.min(PERIOD_MAX) / SAMPLES).max(Duration::from_millis(1)),
            Retention::Revisions(_) => REVISION_INTERVAL,
        }
    }

    /// Records the current revision. To be called at the start and after each [`Schedule::turn`].
    pub fn sample(&mut self, revision: i64) {
        let kept = match self.retention {
            Retention::Period(period) => period.as_nanos() / self.interval().as_nanos() + 1,
            Retention::Revisions(_) => 1,
        };
        self.samples.push_back(revision);
        while self.samples.len() as u128 > kept {
            self.samples.pop_front();
        }
    }

    /// Advances the schedule by one interval, at the current `revision`. Returns the revision to compact at,
    /// if a compaction is due. It remains due until [`Schedule::done`].
    pub fn turn(&mut self, revision: i64) -> Option<i64> {
        self.since = self.since.saturating_add(self.interval());
        if self.since < self.wanted {
            return None;
        }
        let target = match self.retention {
            Retention::Period(_) => *self.samples.front()?,
            Retention::Revisions(kept) => revision.saturating_sub(kept),
        };
        (target > 0 && target != self.compacted).then_some(target)
    }

    /// Records a completed compaction at `revision`, by this member or another.
    pub fn done(&mut self, revision: i64) {
        self.compacted = revision;
        self.since = Duration::ZERO;
        if let Retention::Period(period) = self.retention {
            self.wanted = period.min(PERIOD_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the time in minutes and the target of each compaction. The revision increases once per second.
    fn compactions(retention: Retention, turns: u32) -> Vec<(u64, i64)> {
        let mut schedule = Schedule::new(retention);
        let interval = schedule.interval();
        let (mut now, mut found) = (Duration::ZERO, Vec::new());
        for _ in 0..turns {
            schedule.sample(1 + now.as_secs() as i64);
            now += interval;
            if let Some(target) = schedule.turn(1 + now.as_secs() as i64) {
                found.push((now.as_secs() / 60, target));
                schedule.done(target);
            }
        }
        found
    }

    #[test]
    fn a_period_is_kept_and_compacted_once_in_each_or_in_each_hour() {
        // After 10 minutes the start revision, then every 10 minutes the revision of 10 minutes ago.
        let ten = compactions(Retention::Period(10 * MINUTE), 40);
        assert_eq!(ten, [(10, 1), (20, 541), (30, 1141), (40, 1741)]);
        let day = compactions(Retention::Period(24 * 60 * MINUTE), 270);
        assert_eq!(day[..2], [(24 * 60, 1), (25 * 60, 1 + 54 * 60)]);
        assert_eq!(day.len(), 4);
    }

    #[test]
    fn a_number_of_revisions_is_kept_every_five_minutes() {
        assert_eq!(compactions(Retention::Revisions(400), 3), [(10, 201), (15, 501)]);
    }

    #[test]
    fn nothing_is_compacted_twice_and_a_failure_is_tried_again() {
        let mut schedule = Schedule::new(Retention::Revisions(10));
        assert_eq!(schedule.turn(11), Some(1));
        assert_eq!(schedule.turn(12), Some(2), "the first failed");
        schedule.done(2);
        assert_eq!(schedule.turn(12), None);
        assert_eq!(schedule.turn(5), None);
    }
}
