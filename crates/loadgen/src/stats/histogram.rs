//! A logarithmic histogram of latencies with eight buckets per doubling, smaller than an HDR histogram.
//! Percentiles are at most an eighth too high.

use super::percentile;
use std::time::Duration;

/// Steps of the scale: from about a microsecond to more than an hour.
pub const STEPS: usize = 256;
const STEPS_PER_DOUBLING: u64 = 8;
/// Nanoseconds are counted in units of this, so that finding the step needs no division.
const UNIT_BITS: u32 = 10;

/// Number of values per step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCounts([u32; STEPS]);

/// Returns the step of a latency; the last one includes everything above.
pub fn step_of(latency_ns: u64) -> usize {
    let units = latency_ns >> UNIT_BITS;
    if units < STEPS_PER_DOUBLING {
        return units as usize;
    }
    let doubling = units.ilog2() - STEPS_PER_DOUBLING.ilog2();
    let within = (units >> doubling) - STEPS_PER_DOUBLING;
    ((u64::from(doubling) + 1) * STEPS_PER_DOUBLING + within).min(STEPS as u64 - 1) as usize
}

/// Returns the exclusive upper bound of a step.
fn end_ns(step: usize) -> u64 {
    let next = step as u64 + 1;
    if next < 2 * STEPS_PER_DOUBLING {
        return next << UNIT_BITS;
    }
    let doubling = next / STEPS_PER_DOUBLING - 1;
    let within = next % STEPS_PER_DOUBLING;
    ((STEPS_PER_DOUBLING + within) << doubling) << UNIT_BITS
}

impl Default for StepCounts {
    fn default() -> Self {
        Self([0; STEPS])
    }
}

impl StepCounts {
    pub fn of(counts: [u32; STEPS]) -> Self {
        Self(counts)
    }

    pub fn add(&mut self, latency_ns: u64) {
        let count = &mut self.0[step_of(latency_ns)];
        *count = count.saturating_add(1);
    }

    pub fn merge(&mut self, other: &StepCounts) {
        for (ours, theirs) in self.0.iter_mut().zip(&other.0) {
            *ours = ours.saturating_add(*theirs);
        }
    }

    /// Returns the counts since `earlier`.
    pub fn since(&self, earlier: &StepCounts) -> StepCounts {
        let mut counts = self.clone();
        for (ours, theirs) in counts.0.iter_mut().zip(&earlier.0) {
            *ours = ours.saturating_sub(*theirs);
        }
        counts
    }

    /// Iterates over doubling limits, with the number of values below each.
    pub fn doublings(&self) -> impl Iterator<Item = (Duration, u64)> {
        let width = STEPS_PER_DOUBLING as usize;
        let mut up_to = 0;
        self.0.chunks(width).enumerate().map(move |(doubling, counts)| {
            up_to += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            (Duration::from_nanos(end_ns((doubling + 1) * width - 1)), up_to)
        })
    }

    /// Returns the sum of all values, each rounded up to the end of its step.
    pub fn sum(&self) -> Duration {
        let sums =
            self.0.iter().enumerate().map(|(step, &count)| u64::from(count) as f64 * end_ns(step) as f64);
        Duration::try_from_secs_f64(sums.sum::<f64>() / 1e9).unwrap_or(Duration::MAX)
    }

    /// Returns the latency above `percent` of all values; `None` without values.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let total: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let wanted = percentile::index(total, percent).map_or(total, |index| index + 1);
        let mut seen = 0;
        for (step, &count) in self.0.iter().enumerate() {
            seen += u64::from(count);
            if total > 0 && seen >= wanted {
                return Some(Duration::from_nanos(end_ns(step)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_on_its_step_and_steps_are_an_eighth_wide() {
        let mut latency = 1_u64;
        while latency < 4_000_000_000_000 {
            let step = step_of(latency);
            assert!(latency < end_ns(step), "{latency} ns, step {step}");
            assert!(step == 0 || latency >= end_ns(step - 1), "{latency} ns, step {step}");
            if latency > 1 << 14 {
                assert!(end_ns(step) as f64 <= latency as f64 * 1.126, "{latency} ns, step {step}");
            }
            latency += latency / 37 + 1;
        }
        assert_eq!(step_of(u64::MAX), STEPS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_values_within_a_step() {
        let mut counts = StepCounts::default();
        assert_eq!(counts.percentile(50.0), None);
        for millis in 1..=1000 {
            counts.add(millis * 1_000_000);
        }
        for (percent, millis) in [(50.0, 500.0), (99.0, 990.0), (100.0, 1000.0)] {
            let found = counts.percentile(percent).unwrap().as_secs_f64() * 1e3;
            assert!(found >= millis && found <= millis * 1.13, "p{percent}: {found}");
        }
    }

    #[test]
    fn later_counts_are_the_difference() {
        let mut earlier = StepCounts::default();
        earlier.add(1_000_000);
        let mut later = earlier.clone();
        later.add(64_000_000);
        assert!(later.since(&earlier).percentile(1.0).unwrap() > Duration::from_millis(60));
        earlier.merge(&later.since(&earlier));
        assert_eq!(earlier, later);
    }
}
