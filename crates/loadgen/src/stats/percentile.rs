//! The definition of a percentile, same as in etcd's tool: of n sorted values the first with an index i that
//! satisfies i · 100 / n ≥ percent. If that needs more values, the greatest is used.

use hdrhistogram::Histogram;

/// Returns the index of a percentile; `None` if it needs more values.
pub fn index(count: u64, percent: f64) -> Option<u64> {
    let reached = |index: &u64| *index as f64 * 100.0 / count as f64 >= percent;
    // The formula's rounding decides, so search around the estimate.
    let estimate = ((percent * count as f64 / 100.0) as u64).saturating_sub(1);
    (estimate..count).find(reached)
}

pub fn value_at(histogram: &Histogram<u64>, index: u64) -> u64 {
    let mut seen = 0;
    for step in histogram.iter_recorded() {
        seen += step.count_since_last_iteration();
        if seen > index {
            return step.value_iterated_to();
        }
    }
    histogram.max()
}

/// Returns the value of a percentile; 0 for an empty histogram.
pub fn value(histogram: &Histogram<u64>, percent: f64) -> u64 {
    index(histogram.len(), percent).map_or(histogram.max(), |index| value_at(histogram, index))
}
