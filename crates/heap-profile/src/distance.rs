//! Which allocations are sampled: those that hold one of the points that are strewn over all allocated bytes,
//! at random and with a mean distance. An allocation of `size` bytes holds one with probability
//! `1 - exp(-size / mean)`, independent of what came before it. So a pattern of allocations cannot fall into
//! step with the samples, and each sample stands for a known number of allocations.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nothing is further than this from its neighbour.
const MEANS_MAX: f64 = 40.0;
/// 2^64 divided by the golden ratio: seeds that differ by it are far from each other.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    /// Bytes up to the next point. Meaningless while there is no random number.
    static BYTES_LEFT: Cell<usize> = const { Cell::new(0) };
    /// The last random number; 0 if there was none.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Whether a point is among these bytes, of this thread.
pub fn is_due(size: usize, mean: usize) -> bool {
    let due = BYTES_LEFT.try_with(|left| {
        let distance = if RANDOM.get() == 0 { next(mean) } else { left.get() };
        let is_due = size >= distance;
        left.set(if is_due { next(mean) } else { distance - size });
        is_due
    });
    // A thread that ends allocates little.
    due.unwrap_or(false)
}

/// An exponentially distributed number of bytes, at least one.
fn next(mean: usize) -> usize {
    let uniform = (random() >> 11) as f64 / (1u64 << 53) as f64;
    let means = -(1.0 - uniform).ln();
    ((means.min(MEANS_MAX) * mean as f64) as usize).max(1)
}

/// xorshift64*.
fn random() -> u64 {
    static SEED: AtomicU64 = AtomicU64::new(STEP);
    let mut number = RANDOM.get();
    if number == 0 {
        // Never 0: the step is odd, and no process has 2^64 threads.
        number = SEED.fetch_add(STEP, Relaxed).max(1);
    }
    number ^= number >> 12;
    number ^= number << 25;
    number ^= number >> 27;
    RANDOM.set(number);
    number.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// How many allocations of `size` bytes one that is sampled stands for.
pub fn weight(size: usize, mean: usize) -> f64 {
    // An allocation of no bytes holds no point.
    let means = size.max(1) as f64 / mean as f64;
    -1.0 / (-means).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_samples_add_up_to_what_was_allocated() {
        for size in [16, 1000, 100_000, 3_000_000] {
            let (mean, allocations) = (100_000, 2_000_000);
            let sampled = (0..allocations).filter(|_| is_due(size, mean)).count();
            let estimated = sampled as f64 * weight(size, mean);
            let error = estimated / f64::from(allocations) - 1.0;
            assert!(error.abs() < 0.25, "{size}: {sampled} samples, {error:+.3}");
        }
    }

    #[test]
    fn what_is_much_larger_than_the_distance_is_always_sampled() {
        assert!((0..1000).all(|_| is_due(50_000_000, 1_000_000)));
        assert!((weight(50_000_000, 1_000_000) - 1.0).abs() < 1e-9);
        assert!(weight(0, 1_000_000).is_finite());
    }
}
