//! `--rates` and `--find-max-rate`: sends a load open loop at several rates, and reports a row for each.

use super::flags::Global;
use super::flags::steps::StepFlags;
use super::measure::{self, ProgressLines};
use super::refusal::{ExitReason, of_flags};
use super::{outputs, progress};
use crate::compare::steps::{self, SteppedLoad};
use crate::compare::{self, Subject, SubjectOrigin};
use crate::load::title;
use crate::run::Run;
use bench_report::model::{Load, SuiteResult};
use std::process::ExitCode;

const UNDECIDED_STATUS: u8 = 3;

/// Sends `load` at every rate and reports it.
pub async fn run(
    global: &Global,
    flags: &StepFlags,
    from: f64,
    load: &Load,
    run: Run,
) -> Result<ExitCode, ExitReason> {
    let rates = of_flags(flags.rates(from))?;
    outputs::check(&flags.outputs)?;
    let title = title(load, run.endpoints.len());
    let subject = Subject { name: "cluster".into(), origin: SubjectOrigin::Endpoints(run.endpoints.clone()) };
    let plan = compare::ComparisonPlan::of_steps(format!("{title}, by rate"), subject.clone(), run.threads);
    let mut report = compare::report(&plan, measure::command_line())?;
    report.suites.push(SuiteResult {
        id: "rates".into(),
        title: title.clone(),
        about: format!(
            "One load at several rates, open loop: latency counts from the intended send time. \
             Each rate was measured for {1:?} after {0:?} of warm-up.",
            flags.warm_up_of_steps(),
            flags.step
        ),
        source_url: None,
        medium: None,
        rows: Vec::new(),
    });
    let stepped = SteppedLoad {
        rates,
        step: flags.step,
        warm_up: flags.warm_up_of_steps(),
        load: load.clone(),
        run,
        title,
    };
    let mut lines = ProgressLines::default();
    let ended = tokio::select! {
        ended = steps::run(&plan, &subject, &stepped, &mut report, &mut lines) => ended.map(|()| true),
        () = progress::interrupted() => Ok(false),
    };
    report.partial = match &ended {
        Ok(true) => None,
        Ok(false) => Some(progress::INTERRUPTED.into()),
        Err(reason) => Some(reason.clone()),
    };
    // Measurements from before an endpoint failed are retained.
    if ended.is_ok() || report.suites.iter().any(|suite| !suite.rows.is_empty()) {
        measure::write(global, &flags.outputs, &report)?;
    }
    if !ended? {
        return Ok(ExitCode::from(progress::INTERRUPTED_STATUS));
    }
    let Some(verdict) = &report.search else { return Ok(measure::verdict(global, &report)) };
    measure::say(global, &format!("\n{verdict}\n"))?;
    Ok(match verdict.requests_per_second {
        _ if !verdict.settled => ExitCode::from(UNDECIDED_STATUS),
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}
