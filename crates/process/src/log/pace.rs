//! Lines of the log that any client or peer can cause: one each second.

use std::time::{Duration, Instant};

const LOGGED_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Pace {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Pace {
    /// Whether to log a line now, and how many before it were not.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now < logged + LOGGED_EVERY) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_once_each_second_with_the_number_of_those_left_out() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.next(now), Some(0));
        assert!((0..1000).all(|_| pace.next(now).is_none()));
        assert_eq!(pace.next(now + LOGGED_EVERY), Some(1000));
    }
}
