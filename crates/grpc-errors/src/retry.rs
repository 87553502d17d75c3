//! Retry delay for rejected requests.
//!
//! If every rejected client retried after a second, a member would spend its time on rejections.
//! The delay therefore grows with the recent rejection rate: N clients that respect it send √(500
//! N) requests per second in total, 3,200 for 20,000 clients.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Delay per rejection within a second.
const PER_REFUSAL_MS: u64 = 2;
const DELAY_MS_MIN: u64 = 1_000;
const DELAY_MS_MAX: u64 = 30_000;

static REFUSALS: Refusals = Refusals::new();
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Number of rejections in the current and the previous second.
struct Refusals {
    second: AtomicU64,
    count: AtomicU64,
    before: AtomicU64,
}

/// Counts a rejection and returns the retry delay in milliseconds. The delay is jittered between
/// half and one and a half times the nominal value, to spread the retries of clients that were
/// rejected together.
pub fn delay_ms() -> u64 {
    let meant = REFUSALS.delay_ms(START.elapsed().as_secs());
    rand::random_range(meant / 2..meant + meant / 2)
}

impl Refusals {
    const fn new() -> Refusals {
        Refusals { second: AtomicU64::new(0), count: AtomicU64::new(0), before: AtomicU64::new(0) }
    }

    fn delay_ms(&self, second: u64) -> u64 {
        let last = self.second.swap(second, Relaxed);
        if last != second {
            let count = self.count.swap(0, Relaxed);
            self.before.store(if last + 1 == second { count } else { 0 }, Relaxed);
        }
        let count = self.count.fetch_add(1, Relaxed) + 1;
        let lately = count.max(self.before.load(Relaxed));
        (PER_REFUSAL_MS * lately).clamp(DELAY_MS_MIN, DELAY_MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_what_was_refused_in_the_last_second() {
        let refusals = Refusals::new();
        let times = |second, count: usize| (0..count).map(|_| refusals.delay_ms(second)).max();
        assert_eq!(times(7, 500), Some(1_000));
        assert_eq!(times(7, 1_500), Some(4_000));
        assert_eq!(times(8, 1), Some(4_000));
        assert_eq!(times(9, 1), Some(1_000), "one in the second before");
        assert_eq!(times(9, 20_000), Some(30_000));
        assert_eq!(times(30, 1), Some(1_000), "long after");
    }
}
