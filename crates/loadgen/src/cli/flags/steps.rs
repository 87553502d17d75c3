//! Flags of `--rates` and `--find-max-rate`.

use super::go;
use super::limits::Limit;
use super::outputs::Outputs;
use crate::compare::steps::Rates;
use clap::Args;
use std::time::Duration;

/// Default warm-up of connections and caches before each of several rates.
const WARM_UP: Duration = Duration::from_secs(1);

/// Flags of every command that sends requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Several rates, and output")]
pub struct StepFlags {
    /// Send at each of these rates for --step, open loop
    #[arg(long, value_delimiter = ',', value_name = "PER-SECOND,…",
          conflicts_with_all = ["rate", "find_max_rate"])]
    pub rates: Vec<u64>,
    /// Find the highest rate that meets --slo, open loop, starting at --rate or 1000
    #[arg(long, requires = "slo")]
    pub find_max_rate: bool,
    /// Fail if a limit is missed, for example p99=10ms,errors=0; also the limit of --find-max-rate
    #[arg(long, value_delimiter = ',', value_name = "pN=TIME,errors=N")]
    pub slo: Vec<Limit>,
    /// Duration of each rate
    #[arg(long, default_value = "5s", value_parser = go::duration)]
    pub step: Duration,
    /// Warm-up before the measurement (default: 1s with several rates, else 0)
    #[arg(long, value_parser = go::duration)]
    pub warm_up: Option<Duration>,
    #[command(flatten)]
    pub outputs: Outputs,
}

impl StepFlags {
    pub fn are_wanted(&self) -> bool {
        !self.rates.is_empty() || self.find_max_rate
    }

    /// Returns the rates of the flags. A search starts at `from` requests per second, or 1000.
    pub fn rates(&self, from: f64) -> Result<Rates, String> {
        if self.step.is_zero() {
            return Err("invalid --step 0s: expected a positive duration".into());
        }
        if self.rates.contains(&0) {
            return Err("invalid --rates 0: expected positive rates".into());
        }
        if !self.find_max_rate {
            return if self.slo.is_empty() {
                Ok(Rates::Given(self.rates.iter().map(|&rate| rate as f64).collect()))
            } else {
                Err("--slo conflicts with --rates".into())
            };
        }
        match self.slo.as_slice() {
            [Limit::Latency(slo)] => {
                Ok(Rates::Highest { from: if from == 0.0 { 1000.0 } else { from }, slo: *slo })
            }
            // A rate at which calls fail never meets its limit.
            _ => Err("--find-max-rate requires one latency limit in --slo, for example p99=10ms".into()),
        }
    }

    /// Returns the warm-up before each of several rates.
    pub fn warm_up_of_steps(&self) -> Duration {
        self.warm_up.unwrap_or(WARM_UP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(rates: &[u64], find: bool) -> StepFlags {
        StepFlags {
            rates: rates.to_vec(),
            find_max_rate: find,
            slo: find.then(|| "p99=10ms".parse().unwrap()).into_iter().collect(),
            step: Duration::from_secs(1),
            warm_up: None,
            outputs: Outputs::default(),
        }
    }

    #[test]
    fn rates_are_given_or_searched() {
        assert!(!flags(&[], false).are_wanted());
        assert!(matches!(flags(&[5, 7], false).rates(0.0), Ok(Rates::Given(rates)) if rates == [5.0, 7.0]));
        assert!(matches!(flags(&[], true).rates(0.0), Ok(Rates::Highest { from: 1000.0, .. })));
        assert!(matches!(flags(&[], true).rates(300.0), Ok(Rates::Highest { from: 300.0, .. })));
        assert!(flags(&[0], false).rates(0.0).is_err());
        assert!(StepFlags { step: Duration::ZERO, ..flags(&[5], false) }.rates(0.0).is_err());
    }
}
