//! Search for the highest rate that meets a limit: rates are doubled until one misses it, then bisected.
//!
//! ```text
//!   1000 ✓ 2000 ✓ 4000 ✓ 8000 ✗✗ 6000 ✓✓ 7000 ✓✗✗✗ 6500 … until the gap is a twentieth; then both ends again
//! ```
//!
//! * A single trial decides only if it meets the limit by a factor of two. Otherwise trials are repeated
//!   until one outcome leads by two, or by majority after five.
//! * A trial that missed the limit while the load generator or another program was the bottleneck does not
//!   count. After three of them at a rate, the search continues below it. If it stops there, it is
//!   undecided: only a miss of the servers settles it.
//! * Both bounds are tried once more after the search, because temporary noise could have decided them.
//!
//! Independent of the execution of trials.

use bench_report::model::SearchVerdict;
use std::str::FromStr;

/// Relative gap between the highest met and the lowest missed rate at which the search stops.
const PRECISION: f64 = 0.05;
/// Maximum number of trials: enough for doublings to a million and bisection to the precision, with most
/// rates tried three times. The verdict is not settled if the search reaches it.
const TRIALS_MAX: usize = 60;
/// A single trial decides if its latency is at most this share of the limit.
const CLEAR: f64 = 0.5;
/// Maximum number of valid trials per rate.
const CLEAN_MAX: usize = 5;
/// Maximum number of invalid trials per rate.
const FLAGGED_MAX: usize = 3;
/// Trials of each bound before the search is over.
const CONFIRMED_BY: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Percentile, 0 to 100.
    pub percent: f64,
    pub ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// Met by a factor of two.
    MetClearly,
    Met,
    Missed,
    /// Missed while something other than the servers was the bottleneck: does not count.
    Flagged,
}

#[derive(Clone, Debug)]
pub struct Search {
    trials: Vec<(f64, TrialOutcome)>,
    next: f64,
}

/// Combined outcome of the trials at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateVerdict {
    Met,
    Missed,
    /// The servers were never the bottleneck.
    Flagged,
    Undecided,
}

impl Slo {
    pub fn is_met_by(&self, latency_ms: f64) -> bool {
        latency_ms <= self.ms
    }

    pub fn outcome(&self, latency_ms: f64) -> TrialOutcome {
        if latency_ms <= self.ms * CLEAR { TrialOutcome::MetClearly } else { TrialOutcome::Met }
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
        Self { trials: Vec::new(), next: rate }
    }

    /// Returns the next rate to try; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        // The search does not go below one request per second.
        (self.trials.len() < TRIALS_MAX && self.next >= 1.0 && !self.is_over()).then_some(self.next)
    }

    /// Adds the outcome of the current rate. Returns the number of its trials.
    pub fn judge(&mut self, outcome: TrialOutcome) -> usize {
        self.trials.push((self.next, outcome));
        let tried = self.of(self.next).count();
        self.next = self.choose();
        tried
    }

    fn choose(&self) -> f64 {
        if self.verdict(self.next) == RateVerdict::Undecided {
            return self.next;
        }
        match (self.met(), self.end()) {
            (Some(met), None) => met * 2.0,
            (None, Some(end)) => end / 2.0,
            (Some(met), Some(end)) if is_close(met, end) => {
                let unconfirmed = [met, end].into_iter().find(|rate| !self.is_confirmed(*rate));
                unconfirmed.unwrap_or(met)
            }
            (Some(met), Some(end)) => ((met + end) / 2.0).round(),
            (None, None) => self.next,
        }
    }

    fn is_over(&self) -> bool {
        let ends = self.met().zip(self.end());
        ends.is_some_and(|(met, end)| is_close(met, end) && self.is_confirmed(met) && self.is_confirmed(end))
    }

    /// Returns the highest rate that met the limit, below every rate that missed it.
    fn met(&self) -> Option<f64> {
        let limit = self.missed().unwrap_or(f64::INFINITY);
        self.highest(|rate| rate < limit && self.verdict(rate) == RateVerdict::Met)
    }

    /// Returns the lowest rate that missed the limit.
    fn missed(&self) -> Option<f64> {
        self.lowest(|rate| self.verdict(rate) == RateVerdict::Missed)
    }

    /// Returns the lowest rate above the highest met one that missed the limit, or at which the servers were
    /// not the bottleneck.
    fn end(&self) -> Option<f64> {
        let met = self.met().unwrap_or(0.0);
        let ends = |rate| matches!(self.verdict(rate), RateVerdict::Missed | RateVerdict::Flagged);
        self.lowest(|rate| rate > met && ends(rate))
    }

    fn of(&self, rate: f64) -> impl Iterator<Item = TrialOutcome> {
        self.trials.iter().filter(move |(tried, _)| *tried == rate).map(|(_, outcome)| *outcome)
    }

    /// Counts the trials of a rate that met the limit, missed it, and are invalid.
    fn counts(&self, rate: f64) -> (usize, usize, usize) {
        self.of(rate).fold((0, 0, 0), |(met, missed, flagged), outcome| match outcome {
            TrialOutcome::MetClearly | TrialOutcome::Met => (met + 1, missed, flagged),
            TrialOutcome::Missed => (met, missed + 1, flagged),
            TrialOutcome::Flagged => (met, missed, flagged + 1),
        })
    }

    fn verdict(&self, rate: f64) -> RateVerdict {
        let (met, missed, flagged) = self.counts(rate);
        let clearly = self.of(rate).any(|outcome| outcome == TrialOutcome::MetClearly);
        let all = met + missed == CLEAN_MAX;
        if met >= missed + 2 || clearly && missed == 0 || all && met > missed {
            RateVerdict::Met
        } else if missed >= met + 2 || all {
            RateVerdict::Missed
        } else if flagged >= FLAGGED_MAX {
            RateVerdict::Flagged
        } else {
            RateVerdict::Undecided
        }
    }

    fn is_confirmed(&self, rate: f64) -> bool {
        let (met, missed, flagged) = self.counts(rate);
        met + missed >= CONFIRMED_BY || flagged >= FLAGGED_MAX
    }

    /// Returns the highest rate that met the limit, with its certainty.
    pub fn verdict_of(&self, slo: Slo) -> SearchVerdict {
        let missed_once = |rate| self.counts(rate).1 > 0;
        let met_once = |rate| self.counts(rate).0 > 0;
        let lowest_missed = self.lowest(missed_once).unwrap_or(f64::INFINITY);
        let highest_met = self.highest(met_once).unwrap_or(0.0);
        let (met, end) = (self.met(), self.end());
        let below = met.unwrap_or(0.0);
        let flagged = end.filter(|rate| self.verdict(*rate) == RateVerdict::Flagged);
        SearchVerdict {
            limit: slo.to_string(),
            requests_per_second: met,
            at_least: self.highest(|rate| met_once(rate) && rate < lowest_missed && rate <= below),
            at_most: self.lowest(|rate| missed_once(rate) && rate > highest_met),
            trials: self.trials.len() as u64,
            settled: (self.is_over() || met.is_none() && self.next < 1.0) && flagged.is_none(),
            generator_limit: flagged,
        }
    }

    fn highest(&self, wanted: impl Fn(f64) -> bool) -> Option<f64> {
        self.trials.iter().map(|(rate, _)| *rate).filter(|rate| wanted(*rate)).max_by(f64::total_cmp)
    }

    fn lowest(&self, wanted: impl Fn(f64) -> bool) -> Option<f64> {
        self.trials.iter().map(|(rate, _)| *rate).filter(|rate| wanted(*rate)).min_by(f64::total_cmp)
    }
}

fn is_close(met: f64, missed: f64) -> bool {
    missed - met <= met * PRECISION
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Slo = Slo { percent: 99.0, ms: 10.0 };

    /// Runs a search with the given outcome for each trial of a rate, numbered from 0.
    fn search(from: f64, outcome: impl Fn(f64, usize) -> TrialOutcome) -> SearchVerdict {
        let mut search = Search::from(from);
        while let Some(rate) = search.next() {
            let number = search.of(rate).count();
            search.judge(outcome(rate, number));
        }
        search.verdict_of(SLO)
    }

    fn by_capacity(capacity: f64) -> impl Fn(f64, usize) -> TrialOutcome {
        move |rate, _| match rate / capacity {
            share if share <= 0.7 => TrialOutcome::MetClearly,
            share if share <= 1.0 => TrialOutcome::Met,
            _ => TrialOutcome::Missed,
        }
    }

    #[test]
    fn the_highest_rate_is_found_from_above_and_from_below() {
        for (from, capacity) in [(1000.0, 6_543.0), (100_000.0, 6_543.0), (1000.0, 1000.0), (1.0, 250_000.0)]
        {
            let found = search(from, by_capacity(capacity));
            let (best, trials) = (found.requests_per_second.unwrap(), found.trials);
            assert!(best <= capacity && best >= capacity * 0.94, "{best} of {capacity}");
            assert!(found.settled && trials < 45, "{trials}");
            assert_eq!(found.at_least, Some(best));
            assert!(found.at_most.unwrap() <= best * 1.05, "{found:?}");
        }
        assert_eq!(search(1000.0, by_capacity(0.1)).requests_per_second, None);
    }

    #[test]
    fn noise_that_misses_the_limit_twice_does_not_decide_the_search() {
        // The first two trials of 4000 miss, like on a temporarily busy machine.
        let noisy = |rate: f64, number: usize| match rate {
            4000.0 if number < 2 => TrialOutcome::Missed,
            _ => by_capacity(6_543.0)(rate, number),
        };
        let found = search(1000.0, noisy);
        let best = found.requests_per_second.unwrap();
        assert!((6_100.0..=6_543.0).contains(&best), "{found:?}");
        // The range reflects the uncertainty.
        assert!(found.at_least.unwrap() < 4000.0 && found.at_most.unwrap() > 6_543.0, "{found:?}");
    }

    #[test]
    fn a_miss_of_the_generator_does_not_count() {
        let once = |rate: f64, number: usize| match number {
            0 if rate == 2000.0 => TrialOutcome::Flagged,
            _ => by_capacity(6_543.0)(rate, number),
        };
        assert!(search(1000.0, once).requests_per_second.unwrap() > 6_000.0);
        let always = |rate: f64, number: usize| match rate {
            rate if rate > 3_000.0 => TrialOutcome::Flagged,
            _ => by_capacity(6_543.0)(rate, number),
        };
        let found = search(1000.0, always);
        assert!((2_800.0..=3_000.0).contains(&found.requests_per_second.unwrap()), "{found:?}");
        assert!(found.generator_limit.unwrap() > 3_000.0 && found.at_most.is_none(), "{found:?}");
        // It is unknown whether the servers can do more.
        assert!(!found.settled, "{found:?}");
        let none = search(1000.0, |_, _| TrialOutcome::Flagged);
        assert!(
            none.requests_per_second.is_none() && !none.settled && none.generator_limit.is_some(),
            "{none:?}"
        );
        assert!(search(1000.0, |_, _| TrialOutcome::Missed).settled);
    }

    #[test]
    fn a_verdict_does_not_contradict_itself() {
        // Trials were disturbed at a rate below the result; a higher rate met the limit once between
        // disturbances.
        let disturbed = |rate: f64, number: usize| match (rate as u64, number) {
            (1000, _) => TrialOutcome::MetClearly,
            (2000, 0) => TrialOutcome::Met,
            (2000, _) => TrialOutcome::Flagged,
            _ => by_capacity(1_700.0)(rate, number),
        };
        // The search continues if a rate was disturbed and a higher one met the limit.
        let passed_over = |rate: f64, number: usize| match rate as u64 {
            1500 => TrialOutcome::Flagged,
            _ => by_capacity(6_543.0)(rate, number),
        };
        for found in [search(1000.0, disturbed), search(3000.0, passed_over), search(1500.0, passed_over)] {
            let (rate, least) = (found.requests_per_second.unwrap(), found.at_least.unwrap());
            assert!(least <= rate && found.at_most.is_none_or(|most| most >= rate), "{found:?}");
            assert!(found.generator_limit.is_none_or(|limit| limit > rate), "{found:?}");
            assert_eq!(found.settled, found.generator_limit.is_none(), "{found:?}");
        }
        assert!(search(1500.0, passed_over).requests_per_second.unwrap() < 1500.0);
    }

    #[test]
    fn a_single_trial_decides_only_if_it_is_clear() {
        let mut search = Search::from(1000.0);
        search.judge(TrialOutcome::Met);
        assert_eq!(search.next(), Some(1000.0));
        search.judge(TrialOutcome::Met);
        assert_eq!(search.next(), Some(2000.0));
        search.judge(TrialOutcome::MetClearly);
        assert_eq!(search.next(), Some(4000.0));
        assert_eq!(search.judge(TrialOutcome::Missed), 1);
        assert_eq!(search.judge(TrialOutcome::Missed), 2);
        assert_eq!(search.next(), Some(3000.0));
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
