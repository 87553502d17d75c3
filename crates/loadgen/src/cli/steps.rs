//! `--rates` and `--find-max-rate`: one load sent open loop at several rates, and a report with a row for each.

use super::flags::Global;
use super::measure::{self, Lines};
use super::outputs::Outputs;
use super::{go, watch};
use crate::compare::steps::{self, Rates, Stepped};
use crate::compare::{self, Origin, Subject};
use crate::find_rate::Slo;
use crate::report::model::{Operation, Protocol, RowSpec, SuiteResult, Target};
use crate::run;
use crate::workload::{Workload, Writes};
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

/// Flags of every command that sends one kind of request.
#[derive(Args, Debug)]
#[command(next_help_heading = "Several rates, and their report")]
pub struct StepFlags {
    /// Try these rates one after the other, open loop, each for --step
    #[arg(long, value_delimiter = ',', value_name = "PER-SECOND,…", conflicts_with_all = ["rate", "find_max_rate"])]
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

    /// Flags that would be ignored without a word.
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
        Err("--html, --csv and --markdown show several rates: give --rates or --find-max-rate, or --json for one run".into())
    }

    fn rates(&self, from: u64) -> Result<Rates, String> {
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

/// Sends the load of `load` at every rate and reports it.
pub async fn run(global: &Global, flags: &StepFlags, from: u64, load: run::Plan) -> Result<ExitCode, String> {
    let rates = flags.rates(from)?;
    flags.outputs.check()?;
    let spec = spec(&load);
    let title = format!("{}, {} clients on {} connections", load.workload.name(), load.clients, load.conns);
    let subject = Subject { name: "cluster".into(), origin: Origin::Endpoints(load.endpoints.clone()) };
    let plan = compare::Plan::of_steps(format!("{title}, by rate"), subject.clone(), load.threads);
    let mut report = plan.report(measure::command_line())?;
    report.suites.push(SuiteResult {
        id: "rates".into(),
        title: title.clone(),
        about: format!(
            "One load at several rates, open loop: latency counts from the moment at which a request should have been sent. Each rate was sent for {:?} before it was measured for {:?}.",
            flags.warm_up, flags.step
        ),
        source_url: None,
        rows: Vec::new(),
    });
    let stepped = Stepped { rates, step: flags.step, warm_up: flags.warm_up, load, spec, title };
    let mut lines = Lines::default();
    let best = tokio::select! {
        best = steps::run(&plan, &subject, &stepped, &mut report, &mut lines) => Some(best?),
        () = watch::interrupted() => None,
    };
    report.partial = best.is_none().then(|| watch::INTERRUPTED.into());
    measure::write(global, &flags.outputs, &report)?;
    let Some(best) = best else { return Ok(ExitCode::from(watch::INTERRUPTED_STATUS)) };
    let Rates::Highest { slo, .. } = stepped.rates else { return Ok(ExitCode::SUCCESS) };
    match best {
        Some(rate) => {
            measure::say(
                global,
                &format!("\nHighest rate that met {slo}: {rate:.0} requests per second.\n"),
            )?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            measure::say(global, &format!("\nNo rate met {slo}.\n"))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn spec(load: &run::Plan) -> RowSpec {
    let (operation, key_bytes, value_bytes, keys) = match &load.workload {
        Workload::Put(Writes { key_bytes, value_bytes, key_space, .. }) => {
            (Operation::Put, *key_bytes, *value_bytes, *key_space)
        }
        Workload::TxnPut { writes: Writes { key_bytes, value_bytes, key_space, .. }, .. } => {
            (Operation::TxnPut, *key_bytes, *value_bytes, *key_space)
        }
        Workload::Range(range) | Workload::RangeStream(range) if range.serializable => {
            (Operation::RangeSerializable, range.key.len(), 0, 1)
        }
        Workload::Range(range) | Workload::RangeStream(range) => {
            (Operation::RangeLinearizable, range.key.len(), 0, 1)
        }
    };
    RowSpec {
        operation,
        protocol: Protocol::Grpc,
        key_bytes,
        value_bytes,
        keys,
        conns: load.conns,
        clients: load.clients,
        target: Target::All,
        members: load.endpoints.len(),
        total_published: 0,
        total: 0,
        rounds: 1,
        warm_up_total: 0,
        rate: None,
        sweep: None,
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
    fn rates_are_given_or_looked_for() {
        assert!(!flags(&[], false).are_wanted());
        assert!(matches!(flags(&[5, 7], false).rates(0), Ok(Rates::Given(rates)) if rates == [5.0, 7.0]));
        assert!(matches!(flags(&[], true).rates(0), Ok(Rates::Highest { from: 1000.0, .. })));
        assert!(matches!(flags(&[], true).rates(300), Ok(Rates::Highest { from: 300.0, .. })));
        assert!(flags(&[0], false).rates(0).is_err());
        assert!(StepFlags { step: Duration::ZERO, ..flags(&[5], false) }.rates(0).is_err());
    }
}
