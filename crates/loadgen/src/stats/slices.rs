//! A run split into equal slices of time: number and latency of the requests of each.
//!
//! * A request belongs to the slice in which its latency starts.
//! * Memory is bounded: when the slices are used up, pairs of them are merged.

use crate::stats::histogram::StepCounts;
use std::time::Duration;

/// Initial width; enough to see a stall of a tenth of a second.
const WIDTH: Duration = Duration::from_millis(50);
/// 128 slices of about 1 KiB per worker.
const SLICES_MAX: usize = 128;

/// Requests over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    width: Duration,
    slices: Vec<Slice>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub count: u64,
    pub sum_ns: u64,
    pub greatest_ns: u64,
    pub latencies: StepCounts,
}

impl Default for Slices {
    fn default() -> Self {
        Self { width: WIDTH, slices: Vec::new() }
    }
}

impl Slices {
    /// Counts a request with a latency that started at `began` after the start of the run.
    pub fn add(&mut self, began: Duration, latency_ns: u64) {
        let mut index = self.index(began);
        while index >= SLICES_MAX {
            self.widen();
            index = self.index(began);
        }
        if index >= self.slices.len() {
            self.slices.resize_with(index + 1, Slice::default);
        }
        let slice = &mut self.slices[index];
        slice.count += 1;
        slice.sum_ns = slice.sum_ns.saturating_add(latency_ns);
        slice.greatest_ns = slice.greatest_ns.max(latency_ns);
        slice.latencies.add(latency_ns);
    }

    /// Adds another worker's slices of the same run.
    pub fn merge(&mut self, other: &Slices) {
        let mut other = other.clone();
        while self.width < other.width {
            self.widen();
        }
        while other.width < self.width {
            other.widen();
        }
        if self.slices.len() < other.slices.len() {
            self.slices.resize_with(other.slices.len(), Slice::default);
        }
        for (ours, theirs) in self.slices.iter_mut().zip(&other.slices) {
            ours.merge(theirs);
        }
    }

    /// Merges slices until they are at least this wide; widths are doubles of each other.
    pub fn widen_to(&mut self, width: Duration) {
        while self.width < width {
            self.widen();
        }
    }

    pub fn width(&self) -> Duration {
        self.width
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter()
    }

    fn index(&self, began: Duration) -> usize {
        (began.as_nanos() / self.width.as_nanos()) as usize
    }

    fn widen(&mut self) {
        self.width *= 2;
        for index in 0..self.slices.len().div_ceil(2) {
            let mut both = std::mem::take(&mut self.slices[2 * index]);
            if let Some(second) = self.slices.get(2 * index + 1) {
                both.merge(second);
            }
            self.slices[index] = both;
        }
        self.slices.truncate(self.slices.len().div_ceil(2));
    }
}

impl Slice {
    fn merge(&mut self, other: &Slice) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.greatest_ns = self.greatest_ns.max(other.greatest_ns);
        self.latencies.merge(&other.latencies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(slices: &Slices) -> Vec<u64> {
        slices.iter().map(|slice| slice.count).collect()
    }

    #[test]
    fn requests_fall_into_the_slice_in_which_they_begin() {
        let mut slices = Slices::default();
        for millis in [0, 49, 50, 149, 200] {
            slices.add(Duration::from_millis(millis), millis);
        }
        assert_eq!(counts(&slices), [2, 1, 1, 0, 1]);
        assert_eq!(slices.iter().next().map(|slice| (slice.sum_ns, slice.greatest_ns)), Some((49, 49)));
    }

    #[test]
    fn a_long_run_has_wider_slices_and_loses_nothing() {
        let mut slices = Slices::default();
        for second in 0..3600 {
            slices.add(Duration::from_secs(second), 1);
        }
        assert!(slices.iter().count() <= SLICES_MAX);
        assert_eq!(counts(&slices).iter().sum::<u64>(), 3600);
        assert_eq!(slices.width(), WIDTH * 1024);
    }

    #[test]
    fn workers_of_different_widths_are_added_up() {
        let (mut long, mut short) = (Slices::default(), Slices::default());
        (0..100).for_each(|second| long.add(Duration::from_secs(second), 1));
        (0..10).for_each(|second| short.add(Duration::from_secs(second), 1));
        let mut merged = short.clone();
        merged.merge(&long);
        long.merge(&short);
        assert_eq!(merged, long);
        assert_eq!(counts(&merged).iter().sum::<u64>(), 110);
    }
}
