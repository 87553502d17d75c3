//! A run as its user sees it: a bar on a terminal, plain lines elsewhere, and Ctrl-C, which keeps what was measured.
//!
//! * A bar shows place, rate, p99 of the last seconds and the time to go, on standard error, so that the report can be redirected.
//! * Where standard error is no terminal, a line every ten seconds says the same: a log is no place for a bar.
//! * The first signal ends the run within a moment and reports what there is; a second one ends the process.

use super::terminal::note;
use crate::control::Control;
use crate::run::{Error, Measurement, Plan, Progress, Run};
use crate::scale::Counts;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The reason of a run that was ended by a signal.
pub const INTERRUPTED: &str = "interrupted";
/// Status of a program that its user interrupted: 128 + SIGINT, as shells have it.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Often enough to look alive, rare enough to cost nothing.
const REFRESH: Duration = Duration::from_millis(200);
/// Between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Rate and p99 are of so long: long enough to be calm, short enough to be live.
const RECENT: Duration = Duration::from_secs(2);

/// Runs the plan to its end or to the first signal. `beside` goes on meanwhile and may stop the run by failing.
pub async fn run<F>(plan: Plan, beside: F) -> Result<Measurement, Error>
where
    F: Future<Output = String>,
{
    let run = tokio::task::spawn_blocking(|| plan.start()).await.expect("starting does not panic")?;
    let mut view = View::new(run.progress().total, "", Elsewhere::Lines);
    let _ender = Ender(tokio::spawn(end_on_signal(run.control())));
    let mut beside = std::pin::pin!(beside);
    let mut beside_is_over = false;
    while !run.progress().finished {
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            reason = &mut beside, if !beside_is_over => {
                beside_is_over = true;
                run.control().stop(reason);
            }
        }
        view.show(&run);
    }
    drop(view);
    run.finish()
}

/// Ends with the run it belongs to.
struct Ender(tokio::task::JoinHandle<()>);

impl Drop for Ender {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn end_on_signal(control: Arc<Control>) {
    interrupted().await;
    control.stop(INTERRUPTED);
    interrupted().await;
    std::process::exit(i32::from(INTERRUPTED_STATUS));
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

/// What is shown while a run goes on.
pub struct View {
    bar: Option<ProgressBar>,
    /// Where there is no bar.
    line_due: Option<Instant>,
    show_due: Instant,
    recent: Recent,
}

/// What is said where standard error is no terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    Lines,
    /// Somebody else says enough.
    Silence,
}

/// The last moments of a run: where it was then, and where it is now.
struct Recent {
    start: Instant,
    /// Oldest first; the first is about [`RECENT`] old.
    seen: VecDeque<(Instant, u64, Counts)>,
}

/// What a view says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    done: u64,
    failed: u64,
    total: u64,
    per_second: f64,
    p99: Option<Duration>,
    left: Option<Duration>,
}

impl View {
    /// For a run of `total` requests that is called `label`.
    pub fn new(total: u64, label: &str, elsewhere: Elsewhere) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let now = Instant::now();
        let recent = Recent { start: now, seen: VecDeque::from([(now, 0, Counts::default())]) };
        let lines = !terminal && elsewhere == Elsewhere::Lines;
        let bar = terminal.then(|| bar(total, label));
        Self { bar, line_due: lines.then(|| now + LINE_EVERY), show_due: now, recent }
    }

    /// Says where the run is, if it is time to.
    pub fn show(&mut self, run: &Run) {
        let now = Instant::now();
        if now < self.show_due {
            return;
        }
        self.show_due = now + REFRESH / 2;
        let moment = self.recent.look(now, run.progress(), run.latencies());
        if let Some(bar) = &self.bar {
            bar.set_position(moment.done);
            bar.set_message(moment.text());
        }
        if let Some(due) = self.line_due.as_mut().filter(|due| now >= **due) {
            *due = now + LINE_EVERY;
            note(&format!("{} of {} requests, {}", moment.done, moment.total, moment.text()));
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: u64, label: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix}{bar:24} {percent:>3}% {human_pos}/{human_len} {msg}");
    let style = style.expect("the template is well-formed").progress_chars("█▉▊▋▌▍▎▏ ");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let prefix = if label.is_empty() { String::new() } else { format!("{label} ") };
    bar.with_style(style).with_prefix(prefix)
}

impl Recent {
    fn look(&mut self, now: Instant, progress: Progress, latencies: Counts) -> Moment {
        let done = progress.answered + progress.failed;
        // One that is old enough stays as the place to measure from.
        while self.seen.len() > 1 && now - self.seen[1].0 >= RECENT {
            self.seen.pop_front();
        }
        let (since, done_then, latencies_then) =
            self.seen.front().expect("the first look stays until another is old enough");
        let per_second = (done - done_then) as f64 / (now - *since).as_secs_f64().max(1e-3);
        let p99 = latencies.since(latencies_then).percentile(99.0);
        // What is left is judged by the whole run: steadier than the last moments.
        let pace = done as f64 / (now - self.start).as_secs_f64().max(1e-3);
        let left = (progress.total - done.min(progress.total)) as f64 / pace;
        let left = (done > 0).then(|| Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX));
        self.seen.push_back((now, done, latencies));
        Moment { done, failed: progress.failed, total: progress.total, per_second, p99, left }
    }
}

impl Moment {
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

/// Two or three digits and a unit.
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
        let mut recent = Recent { start, seen: VecDeque::from([(start, 0, Counts::default())]) };
        let mut latencies = Counts::default();
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
            let progress = Progress { answered, failed: 0, total: 11_000, finished: false };
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
    fn failures_are_told_as_they_come() {
        let moment = Moment { done: 5, failed: 2, total: 9, per_second: 3.0, p99: None, left: None };
        assert_eq!(moment.text(), "3/s, 2 failed");
    }
}
