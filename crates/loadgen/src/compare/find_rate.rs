//! The highest rate that meets a limit: doubled until one does not, then halved in between.
//!
//! ```text
//!   1000 ✓ 2000 ✓ 4000 ✓ 8000 ✗ 6000 ✓ 7000 ✗ 6500 ✓ …  until the gap is a twentieth
//! ```
//!
//! Noise on a shared machine can fail a rate, so a rate fails only when it fails twice. Must not depend on
//! how a rate is tried.

use std::str::FromStr;

/// The relative gap between the highest met and the lowest failed rate at which the search ends.
const PRECISION: f64 = 0.05;
/// Steps at most: doublings to a million and halvings to the precision, each tried twice.
const STEPS_MAX: usize = 40;

/// A limit of latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// 0 to 100.
    pub percent: f64,
    pub ms: f64,
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Search {
    met: Option<f64>,
    failed: Option<f64>,
    next: f64,
    /// The rate to be tried has failed once.
    doubted: bool,
    steps: usize,
}

impl Slo {
    pub fn is_met_by(&self, latency_ms: f64) -> bool {
        latency_ms <= self.ms
    }
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?}: expected something like p99=10ms");
        let (percent, limit) = text.split_once('=').ok_or_else(invalid)?;
        let percent: f64 = percent.strip_prefix('p').ok_or_else(invalid)?.parse().map_err(|_| invalid())?;
        let (number, factor) =
            match (limit.strip_suffix("ms"), limit.strip_suffix("us"), limit.strip_suffix('s')) {
                (Some(number), _, _) => (number, 1.0),
                (None, Some(number), _) => (number, 1e-3),
                (None, None, Some(number)) => (number, 1e3),
                (None, None, None) => return Err(invalid()),
            };
        let ms = number.parse::<f64>().map_err(|_| invalid())? * factor;
        if !(percent > 0.0 && percent < 100.0 && ms > 0.0 && ms.is_finite()) {
            return Err(invalid());
        }
        Ok(Self { percent, ms })
    }
}

impl std::fmt::Display for Slo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "p{}={}ms", self.percent, self.ms)
    }
}

impl Search {
    pub fn from(rate: f64) -> Self {
        assert!(rate > 0.0, "the flags refuse a rate of nothing");
        Self { met: None, failed: None, next: rate, doubted: false, steps: 0 }
    }

    /// The rate to try next; `None` when the answer is known.
    pub fn next(&self) -> Option<f64> {
        let close = self.met.zip(self.failed).is_some_and(|(met, failed)| failed - met <= met * PRECISION);
        // Below one request per second there is nothing to find.
        (!close && self.steps < STEPS_MAX && self.next >= 1.0).then_some(self.next)
    }

    /// Whether the rate that was tried met its limit.
    pub fn judge(&mut self, met: bool) {
        self.steps += 1;
        if !met && !self.doubted {
            self.doubted = true;
            return;
        }
        self.doubted = false;
        if met {
            self.met = Some(self.next);
        } else {
            self.failed = Some(self.next);
        }
        self.next = match (self.met, self.failed) {
            (Some(met), None) => met * 2.0,
            (None, Some(failed)) => failed / 2.0,
            (Some(met), Some(failed)) => ((met + failed) / 2.0).round(),
            (None, None) => unreachable!("a judged rate is one or the other"),
        };
    }

    /// The highest rate that met the limit.
    pub fn best(&self) -> Option<f64> {
        self.met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(from: f64, capacity: f64) -> (Option<f64>, usize) {
        let mut search = Search::from(from);
        let mut steps = 0;
        while let Some(rate) = search.next() {
            search.judge(rate <= capacity);
            steps += 1;
        }
        (search.best(), steps)
    }

    #[test]
    fn the_highest_rate_is_found_from_above_and_from_below() {
        for (from, capacity) in [(1000.0, 6_543.0), (100_000.0, 6_543.0), (1000.0, 1000.0), (1.0, 250_000.0)]
        {
            let (best, steps) = search(from, capacity);
            let best = best.unwrap();
            assert!(best <= capacity && best >= capacity * 0.94, "{best} of {capacity}");
            assert!(steps < STEPS_MAX, "{steps}");
        }
        assert_eq!(search(1000.0, 0.1).0, None);
    }

    #[test]
    fn a_rate_that_fails_once_gets_a_second_chance() {
        let mut search = Search::from(1000.0);
        search.judge(false);
        assert_eq!(search.next(), Some(1000.0));
        search.judge(true);
        assert_eq!((search.best(), search.next()), (Some(1000.0), Some(2000.0)));
    }

    #[test]
    fn limits_are_parsed_and_invalid_ones_refused() {
        for (text, percent, ms) in
            [("p99=10ms", 99.0, 10.0), ("p99.9=500us", 99.9, 0.5), ("p50=1.5s", 50.0, 1500.0)]
        {
            assert_eq!(text.parse(), Ok(Slo { percent, ms }), "{text}");
        }
        assert_eq!(Slo { percent: 99.0, ms: 10.0 }.to_string(), "p99=10ms");
        for text in ["", "p99", "99=10ms", "p99=10", "p0=1ms", "p100=1ms", "p99=-1ms", "p99=0ms", "px=1ms"] {
            assert!(text.parse::<Slo>().is_err(), "{text}");
        }
    }
}
