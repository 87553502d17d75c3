//! A run as its user sees it: a bar with the rate on standard error, and Ctrl-C, which keeps what was measured.

use crate::run::{Error, Measurement, Plan, Run};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The reason of a run that was ended by a signal.
pub const INTERRUPTED: &str = "interrupted";

/// Often enough to look alive, rare enough to cost nothing.
const REFRESH: Duration = Duration::from_millis(200);

/// Runs the plan to its end or to the first Ctrl-C. `beside` goes on meanwhile and may stop the run by failing.
pub async fn run<F>(plan: Plan, beside: F) -> Result<Measurement, Error>
where
    F: Future<Output = String>,
{
    let run = tokio::task::spawn_blocking(|| plan.start()).await.expect("starting does not panic")?;
    let bar = bar(run.progress().total);
    let mut beside = std::pin::pin!(beside);
    let mut beside_is_over = false;
    while !run.progress().finished {
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            reason = &mut beside, if !beside_is_over => {
                beside_is_over = true;
                run.control().stop(reason);
            }
            () = interrupted() => run.control().stop(INTERRUPTED),
        }
        show(&bar, &run);
    }
    bar.finish_and_clear();
    run.finish()
}

/// Resolves when the user or the system wants this process to end.
pub async fn interrupted() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        // Without a handler the signal ends the process by itself.
        return std::future::pending().await;
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => if result.is_err() { std::future::pending().await },
        _ = terminate.recv() => {}
    }
}

fn bar(total: u64) -> ProgressBar {
    const TEMPLATE: &str = "{bar:40} {pos}/{len} {per_sec} {elapsed} ETA {eta} {msg}";
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

fn show(bar: &ProgressBar, run: &Run) {
    let progress = run.progress();
    bar.set_position(progress.answered + progress.failed);
    if progress.failed > 0 {
        bar.set_message(format!("{} failed", progress.failed));
    }
}
