//! The progress of a run on standard error, and the handling of signals.
//!
//! * On a terminal, a bar shows position, rate, p99 of the last seconds and the remaining time.
//! * If standard error is not a terminal, a line every ten seconds shows the same.
//! * The first SIGINT or SIGTERM stops the run and reports the requests so far; the second terminates the
//!   process. After the first interruptible phase has started, a signal between two phases stops the next
//!   one.

use super::refusal::ExitReason;
use super::terminal::note;
use crate::output::text::chain;
use crate::run::results::Measurement;
use crate::run::{ActiveRun, Error, PreparedRun, Run, RunProgress};
use crate::stats::histogram::StepCounts;
use crate::stats::progress::Control;
use rustix::termios::tcgetwinsize;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write, stderr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Reason of a run that was stopped by a signal.
pub const INTERRUPTED: &str = "interrupted";
/// The exit status of an interrupted program, as shells define it: 128 + SIGINT.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Frequent enough to look current, at negligible cost.
const REFRESH: Duration = Duration::from_millis(200);
/// Interval between lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const BAR_WIDTH: usize = 24;
/// Width of a terminal that does not report one.
const COLUMNS: usize = 80;
/// Window of rate and p99: long enough to be steady, short enough to be current.
const RECENT: Duration = Duration::from_secs(2);

/// Waits until the run has finished or for the first signal. Polls `background` concurrently; its completion
/// stops the run.
pub async fn run<F>(run: ActiveRun, background: F) -> Result<Measurement, Error>
where
    F: Future<Output = String>,
{
    let mut view = ProgressView::new("", WithoutTerminal::Lines);
    run_shown(run, background, &mut |run| view.show(run)).await
}

/// Like `run` with another view, which is called several times a second.
pub async fn run_shown<F>(
    run: ActiveRun,
    background: F,
    show: &mut dyn FnMut(&ActiveRun),
) -> Result<Measurement, Error>
where
    F: Future<Output = String>,
{
    let _signals = AbortOnDrop(tokio::spawn(end_on_signal(run.control())));
    let mut background = std::pin::pin!(background);
    let mut background_ended = false;
    while !run.progress().finished {
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            reason = &mut background, if !background_ended => {
                background_ended = true;
                run.control().stop(reason);
            }
        }
        show(&run);
    }
    run.finish()
}

/// Stops signal handling after the run.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn end_on_signal(control: Arc<Control>) {
    interrupted().await;
    control.stop(INTERRUPTED);
}

/// Completes at SIGINT or SIGTERM, including signals since the first call.
pub async fn interrupted() {
    // Without a handler, the signal terminates the process.
    let Some(mut seen) = signals() else { return std::future::pending().await };
    if seen.wait_for(|seen| *seen).await.is_err() {
        std::future::pending().await
    }
}

/// Returns the signal state. Must be called within the program's runtime.
fn signals() -> Option<watch::Receiver<bool>> {
    static SEEN: OnceLock<Option<watch::Receiver<bool>>> = OnceLock::new();
    let begin = || {
        let mut interrupt = signal(SignalKind::interrupt()).ok()?;
        let mut terminate = signal(SignalKind::terminate()).ok()?;
        let (sender, seen) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if sender.send_replace(true) {
                    std::process::exit(i32::from(INTERRUPTED_STATUS));
                }
            }
        });
        Some(seen)
    };
    SEEN.get_or_init(begin).clone()
}

/// Opens all connections.
pub async fn prepared(plan: Run) -> Result<PreparedRun, ExitReason> {
    let preparing = tokio::task::spawn_blocking(|| plan.prepare());
    let prepared = unless_interrupted(preparing).await?.expect("preparing does not panic");
    Ok(prepared.map_err(|error| chain(&error))?)
}

/// Waits for a result or the first signal.
async fn unless_interrupted<T>(result: impl Future<Output = T>) -> Result<T, ExitReason> {
    tokio::select! {
        result = result => Ok(result),
        () = interrupted() => Err(ExitReason::Interrupted("interrupted before the measurement began".into())),
    }
}

pub struct ProgressView {
    /// Label of the bar; None without a terminal.
    bar: Option<String>,
    /// Time of the next line, without a bar.
    line_due: Option<Instant>,
    show_due: Instant,
    recent: Recent,
}

/// Output if standard error is not a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutTerminal {
    Lines,
    /// No output: the caller prints lines.
    Silence,
}

/// Recent samples of a run, for rate and p99.
struct Recent {
    start: Instant,
    /// Oldest first; the first is about [`RECENT`] old.
    seen: VecDeque<(Instant, u64, StepCounts)>,
}

/// Values displayed by a view.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    done: u64,
    failed: u64,
    total: u64,
    per_second: f64,
    p99: Option<Duration>,
    left: Option<Duration>,
}

impl ProgressView {
    /// Creates the view of a run with this label.
    pub fn new(label: &str, elsewhere: WithoutTerminal) -> Self {
        let terminal = stderr().is_terminal();
        let now = Instant::now();
        let recent = Recent { start: now, seen: VecDeque::from([(now, 0, StepCounts::default())]) };
        let lines = !terminal && elsewhere == WithoutTerminal::Lines;
        let bar = terminal.then(|| if label.is_empty() { String::new() } else { format!("{label} ") });
        Self { bar, line_due: lines.then(|| now + LINE_INTERVAL), show_due: now, recent }
    }

    /// Prints the progress if it is due.
    pub fn show(&mut self, run: &ActiveRun) {
        let now = Instant::now();
        if now < self.show_due {
            return;
        }
        self.show_due = now + REFRESH / 2;
        let moment = self.recent.look(now, run.progress(), run.latencies());
        if let Some(label) = &self.bar {
            redraw(&format!("{label}{}", moment.bar()));
        }
        if let Some(due) = self.line_due.as_mut().filter(|due| now >= **due) {
            *due = now + LINE_INTERVAL;
            note(&format!("{} of {} requests, {}", moment.done, moment.total, moment.text()));
        }
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        if self.bar.is_some() {
            redraw("");
        }
    }
}

/// Replaces the last line of the terminal, truncated to its width.
fn redraw(line: &str) {
    let columns = tcgetwinsize(stderr()).map_or(COLUMNS, |size| usize::from(size.ws_col).max(1));
    let shown: String = line.chars().take(columns - 1).collect();
    // A closed terminal must not stop the run.
    let _ = write!(stderr(), "\r\x1b[2K{shown}");
}

impl Recent {
    fn look(&mut self, now: Instant, progress: RunProgress, latencies: StepCounts) -> Moment {
        let done = progress.answered + progress.failed;
        // The latest sample that is old enough is the reference.
        while self.seen.len() > 1 && now - self.seen[1].0 >= RECENT {
            self.seen.pop_front();
        }
        let (since, done_then, latencies_then) =
            self.seen.front().expect("the first look stays until another is old enough");
        let per_second = (done - done_then) as f64 / (now - *since).as_secs_f64().max(1e-3);
        let p99 = latencies.since(latencies_then).percentile(99.0);
        // The remaining time is estimated from the whole run, which is steadier than the last seconds.
        let pace = done as f64 / (now - self.start).as_secs_f64().max(1e-3);
        let left = (progress.total - done.min(progress.total)) as f64 / pace;
        let left = (done > 0).then(|| Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX));
        self.seen.push_back((now, done, latencies));
        Moment { done, failed: progress.failed, total: progress.total, per_second, p99, left }
    }
}

impl Moment {
    fn bar(&self) -> String {
        let part = self.done.min(self.total) as f64 / self.total.max(1) as f64;
        let filled = "█".repeat((part * BAR_WIDTH as f64) as usize);
        let Self { done, total, .. } = self;
        format!("{filled:BAR_WIDTH$} {:>3.0}% {done}/{total} {}", part * 100.0, self.text())
    }

    fn text(&self) -> String {
        let mut text = format!("{:.0}/s", self.per_second);
        if let Some(p99) = self.p99 {
            text += &format!(", p99 {}", brief(p99));
        }
        if let Some(left) = self.left {
            text += &format!(", {} to go", brief(left));
        }
        if self.failed > 0 {
            text += &format!(", {} failed", self.failed);
        }
        text
    }
}

/// Formats a duration with two or three digits and a unit.
fn brief(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_p99_are_of_the_last_moments_and_the_rest_of_the_whole_run() {
        let start = Instant::now();
        let mut recent = Recent { start, seen: VecDeque::from([(start, 0, StepCounts::default())]) };
        let mut latencies = StepCounts::default();
        let mut moment = None;
        // 1000/s at 1 ms for five seconds, then 100/s at 50 ms for five.
        let mut answered = 0;
        for step in 1..=50_u64 {
            let (more, latency_ns) = if step <= 25 { (200, 1_000_000) } else { (20, 50_000_000) };
            for _ in 0..more {
                latencies.add(latency_ns);
            }
            answered += more;
            let now = start + step as u32 * REFRESH;
            let progress = RunProgress { answered, total: 11_000, ..RunProgress::default() };
            moment = Some(recent.look(now, progress, latencies.clone()));
        }
        let moment = moment.unwrap();
        assert!((moment.per_second - 100.0).abs() < 1.0, "{moment:?}");
        let p99 = moment.p99.unwrap().as_secs_f64();
        assert!((0.05..0.06).contains(&p99), "{moment:?}");
        assert!((moment.left.unwrap().as_secs_f64() - 10.0).abs() < 0.1, "{moment:?}");
        assert!(recent.seen.len() < 15, "{} looks are kept", recent.seen.len());
    }

    #[test]
    fn durations_are_brief() {
        for (micros, expected) in [
            (250, "250 µs"),
            (1_234, "1.2 ms"),
            (56_700, "57 ms"),
            (1_234_000, "1.2 s"),
            (42_000_000, "42 s"),
            (600_000_000, "10 min"),
        ] {
            assert_eq!(brief(Duration::from_micros(micros)), expected);
        }
    }

    #[test]
    fn failures_are_shown_and_the_bar_fills_with_the_work_done() {
        let moment = Moment { done: 5, failed: 2, total: 10, per_second: 3.0, p99: None, left: None };
        assert_eq!(moment.text(), "3/s, 2 failed");
        assert_eq!(moment.bar(), format!("{}{}  50% 5/10 3/s, 2 failed", "█".repeat(12), " ".repeat(12)));
    }
}
