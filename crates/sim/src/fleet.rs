//! Parallel runs: distributes seeds to threads and adds up the results.
//!
//! Each run is confined to one thread and independent of other runs, so their number and order do
//! not affect results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::panics::{listen, lock, quietly};
use crate::{Breach, RunPlan, RunReport, Trace, run, run_traced};

/// Executes a run. A panic also counts as a breach, since most assertions of the code under test
/// are laws.
pub fn play(plan: RunPlan, trace: Option<Trace>) -> Result<RunReport, Breach> {
    listen();
    let run = || match trace {
        Some(trace) => run_traced(plan, trace),
        None => run(plan),
    };
    quietly(run).unwrap_or_else(|said| Err(Breach(format!("a member panicked: {said}"))))
}

#[derive(Clone, Copy, Debug)]
pub struct StopCondition {
    pub runs: u64,
    pub simulated: Duration,
    /// Real time after which no further run is started.
    pub real: Option<Duration>,
}

#[derive(Debug)]
pub struct Totals {
    pub report: RunReport,
    pub took: Duration,
    /// Runs that broke a law, in no particular order.
    pub breaches: Vec<(RunPlan, Breach)>,
}

/// Executes runs in `jobs` threads; `plan` creates the plan of each, numbered from 0. Stops early
/// after a breach.
pub fn play_many(jobs: usize, until: StopCondition, plan: &(dyn Fn(u64) -> RunPlan + Sync)) -> Totals {
    let started = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let totals = Mutex::new((RunReport::new(0), Vec::new()));
    let enough = |report: &RunReport| {
        report.runs >= until.runs && report.simulated_seconds >= until.simulated.as_secs()
    };
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let plan = plan(next.fetch_add(1, Ordering::Relaxed));
            let came = play(plan, None);
            let mut totals = lock(&totals);
            let is_over = match came {
                Ok(report) => {
                    totals.0.merge(&report);
                    enough(&totals.0) || until.real.is_some_and(|real| started.elapsed() >= real)
                }
                Err(breach) => {
                    totals.1.push((plan, breach));
                    true
                }
            };
            stop.fetch_or(is_over, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    let (report, breaches) = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    Totals { report, took: started.elapsed(), breaches }
}
