//! Flags of `--rates` and `--find-max-rate`.

use super::go;
use super::outputs::Outputs;
use crate::compare::Slo;
use crate::compare::steps::Rates;
use clap::Args;
use std::time::Duration;

/// Flags of every command that sends one kind of request.
#[derive(Args, Debug)]
#[command(next_help_heading = "Several rates, and their report")]
pub struct StepFlags {
    /// Try these rates one after the other, open loop, each for --step
    #[arg(long, value_delimiter = ',', value_name = "PER-SECOND,…",
          conflicts_with_all = ["rate", "find_max_rate"])]
    pub rates: Vec<u64>,
    /// Search the highest rate that meets --slo, open loop, beginning at --rate or 1000
    #[arg(long, requires = "slo")]
    pub find_max_rate: bool,
    /// The limit for --find-max-rate, as p99=10ms
    #[arg(long, value_name = "pN=TIME")]
    pub slo: Option<Slo>,
    /// How long each rate is tried
    #[arg(long, default_value = "5s", value_parser = go::duration)]
    pub step: Duration,
    /// How long each rate is sent before that, without being counted
    #[arg(long, default_value = "1s", value_parser = go::duration)]
    pub warm_up: Duration,
    #[command(flatten)]
    pub outputs: Outputs,
}

impl StepFlags {
    pub fn are_wanted(&self) -> bool {
        !self.rates.is_empty() || self.find_max_rate
    }

    /// Refuses flags that would have no effect.
    pub fn refuse_idle(&self) -> Result<(), String> {
        if self.are_wanted() {
            return Ok(());
        }
        if self.slo.is_some() {
            return Err("--slo is the limit of a search: give --find-max-rate as well".into());
        }
        if self.outputs.is_empty() {
            return Ok(());
        }
        let reason = "--html, --csv and --markdown show several rates: give --rates or --find-max-rate, \
                      or --json for one run";
        Err(reason.into())
    }

    /// The rates of the flags. A search begins at `from` requests per second, or 1000.
    pub fn rates(&self, from: u64) -> Result<Rates, String> {
        if self.step.is_zero() {
            return Err("--step=0s would measure nothing".into());
        }
        if self.rates.contains(&0) {
            return Err("--rates: a rate of 0 sends nothing".into());
        }
        Ok(match self.slo.filter(|_| self.find_max_rate) {
            Some(slo) => Rates::Highest { from: if from == 0 { 1000.0 } else { from as f64 }, slo },
            None => Rates::Given(self.rates.iter().map(|&rate| rate as f64).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(rates: &[u64], find: bool) -> StepFlags {
        StepFlags {
            rates: rates.to_vec(),
            find_max_rate: find,
            slo: find.then(|| "p99=10ms".parse().unwrap()),
            step: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            outputs: Outputs::default(),
        }
    }

    #[test]
    fn rates_are_given_or_searched() {
        assert!(!flags(&[], false).are_wanted());
        assert!(matches!(flags(&[5, 7], false).rates(0), Ok(Rates::Given(rates)) if rates == [5.0, 7.0]));
        assert!(matches!(flags(&[], true).rates(0), Ok(Rates::Highest { from: 1000.0, .. })));
        assert!(matches!(flags(&[], true).rates(300), Ok(Rates::Highest { from: 300.0, .. })));
        assert!(flags(&[0], false).rates(0).is_err());
        assert!(StepFlags { step: Duration::ZERO, ..flags(&[5], false) }.rates(0).is_err());
    }
}
