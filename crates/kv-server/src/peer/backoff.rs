//! How long to wait before dialling again: longer each time, and never in step with others.

use std::time::Duration;

/// A peer that restarts is back within a second; dialling it more often has no use.
const FIRST: Duration = Duration::from_millis(20);
/// A peer that is gone for long costs one attempt a second, and is found within a second of its return.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// The next pause; `chance` in 0.0..1.0 picks its place in the upper half.
    pub fn pause(&mut self, chance: f64) -> Duration {
        let pause = self.next.mul_f64(0.5 + chance / 2.0);
        self.next = (self.next * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.pause(1.0).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.pause(0.0).as_millis(), 10);
    }
}
