//! Detects that this thread did not run: a stopped process or machine delays all its calls without a fault
//! of the server.

use std::time::{Duration, Instant};

/// Shorter gaps are a usual wait for a processor.
const GAP_MIN: Duration = Duration::from_millis(500);

/// A detector, checked regularly by a single thread.
#[derive(Clone, Copy, Debug)]
pub struct Stillness {
    at: Instant,
    cpu: Duration,
    every: Duration,
}

impl Stillness {
    /// Creates a detector that is checked at this interval.
    pub fn new(every: Duration) -> Self {
        Self { at: Instant::now(), cpu: thread_cpu(), every }
    }

    /// Returns for how long the thread was runnable without running since the last check, if that is long.
    pub fn look(&mut self) -> Option<Duration> {
        let before = std::mem::replace(self, Self::new(self.every));
        before.gap(self.at, self.cpu)
    }

    fn gap(&self, at: Instant, cpu: Duration) -> Option<Duration> {
        let gap = at.saturating_duration_since(self.at);
        let gap = gap.saturating_sub(self.every).saturating_sub(cpu.saturating_sub(self.cpu));
        (gap > GAP_MIN).then_some(gap)
    }
}

/// Returns the processor time of this thread.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_or_waits_as_it_should_does_not_stand_still() {
        let millis = Duration::from_millis;
        let start = Stillness { at: Instant::now(), cpu: millis(100), every: millis(50) };
        for (passed, ran, gap) in [
            (50, 0, None),
            (540, 0, None),
            (2000, 0, Some(1950)),
            (2000, 1900, None),
            (2000, 450, Some(1500)),
        ] {
            let found = start.gap(start.at + millis(passed), start.cpu + millis(ran));
            assert_eq!(found, gap.map(millis), "{passed} {ran}");
        }
    }
}
