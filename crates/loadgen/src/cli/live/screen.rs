//! A full-screen view of a run: recent rates, percentiles, a histogram, failures by code, and each endpoint.

use crate::client::failure::Code;
use crate::run::{ActiveRun, OfEndpoint, RunProgress};
use crate::stats::histogram::StepCounts;
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::widgets::Paragraph;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Stderr, stderr};
use std::time::{Duration, Instant};

/// Interval between two frames.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// Number of displayed rates, one per frame.
const RATES_MAX: usize = 60;
const BAR_MAX: u64 = 50;
/// Displayed percentiles, for the whole run and since the last frame.
const PERCENTS: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A full-screen view; restores the terminal on drop.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    picture: Picture,
    due: Instant,
}

impl Screen {
    pub fn open(title: String) -> io::Result<Self> {
        execute!(stderr(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(stderr()))?;
        let now = Instant::now();
        Ok(Self { terminal, picture: Picture::new(title, now), due: now })
    }

    /// Draws a frame if it is due.
    pub fn show(&mut self, run: &ActiveRun) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + REFRESH_INTERVAL;
        let seen = RunTotals {
            progress: run.progress(),
            latencies: run.latencies(),
            failures: run.failures(),
            endpoints: run.by_endpoint(),
        };
        let lines = self.picture.lines(now, seen);
        // A closed terminal must not stop the run.
        let _ =
            self.terminal.draw(|frame| frame.render_widget(Paragraph::new(lines.join("\n")), frame.area()));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stderr(), LeaveAlternateScreen);
    }
}

#[derive(Default)]
struct RunTotals {
    progress: RunProgress,
    latencies: StepCounts,
    failures: BTreeMap<Code, u64>,
    endpoints: Vec<OfEndpoint>,
}

/// State of the view, including the previous frame.
struct Picture {
    title: String,
    start: Instant,
    before: (Instant, RunTotals),
    rates: VecDeque<f64>,
}

impl Picture {
    fn new(title: String, now: Instant) -> Self {
        Self { title, start: now, before: (now, RunTotals::default()), rates: VecDeque::new() }
    }

    fn lines(&mut self, now: Instant, seen: RunTotals) -> Vec<String> {
        let RunTotals { progress, latencies, failures, endpoints } = &seen;
        let RunProgress { answered, failed, waiting, .. } = progress;
        let (at, before) = &self.before;
        let seconds = (now - *at).as_secs_f64().max(1e-3);
        let rate = (answered - before.progress.answered) as f64 / seconds;
        let recent = latencies.since(&before.latencies);
        self.rates.push_back(rate);
        if self.rates.len() > RATES_MAX {
            self.rates.pop_front();
        }
        let passed = (now - self.start).as_secs_f64();
        let highest = self.rates.iter().copied().fold(0.0, f64::max);
        let mut lines = vec![
            format!("{}   {passed:.1} s   Ctrl-C ends the run", self.title),
            String::new(),
            format!("answered {answered}   failed {failed}   now {rate:.0}/s   highest {highest:.0}/s"),
            format!(
                "in flight {}   overdue {}   oldest wait {}",
                waiting.in_flight,
                waiting.overdue,
                shown(progress.oldest_wait(waiting))
            ),
            self.rates.iter().map(|rate| level(*rate, highest)).collect(),
            String::new(),
            format!("{:>10} {:>12} {:>12}", "", "last moment", "whole run"),
        ];
        for percent in PERCENTS {
            let [now, whole] = [&recent, latencies].map(|counts| shown(counts.percentile(percent)));
            lines.push(format!("{:>10} {now:>12} {whole:>12}", format!("p{percent}")));
        }
        lines.push(String::new());
        lines.extend(histogram(latencies));
        if !failures.is_empty() {
            lines.extend([String::new(), format!("failed: {}", by_code(failures))]);
        }
        if endpoints.len() > 1 {
            let head = ["endpoint", "now", "p50", "p99", "in flight", "oldest wait", "failed"];
            lines.extend([String::new(), of_endpoint(head)]);
        }
        for (place, it) in endpoints.iter().enumerate().filter(|_| endpoints.len() > 1) {
            let earlier = before.endpoints.get(place);
            let answered = it.answered - earlier.map_or(0, |earlier| earlier.answered);
            let recent = earlier
                .map_or_else(|| it.latencies.clone(), |earlier| it.latencies.since(&earlier.latencies));
            let rate = format!("{:.0}/s", answered as f64 / seconds);
            let [p50, p99] = [50.0, 99.0].map(|percent| shown(recent.percentile(percent)));
            let (name, failed) = (it.endpoint.to_string(), by_code(&it.failures));
            let (in_flight, oldest) =
                (it.waiting.in_flight.to_string(), shown(progress.oldest_wait(&it.waiting)));
            lines.push(of_endpoint([&name, &rate, &p50, &p99, &in_flight, &oldest, &failed]));
        }
        self.before = (now, seen);
        lines
    }
}

/// Formats a line of the endpoint table.
fn of_endpoint([endpoint, rate, p50, p99, in_flight, oldest, failed]: [&str; 7]) -> String {
    format!("{endpoint:<24} {rate:>12} {p50:>12} {p99:>12} {in_flight:>10} {oldest:>14}   {failed}")
}

fn by_code(failures: &BTreeMap<Code, u64>) -> String {
    let failures: Vec<_> = failures.iter().map(|(code, count)| format!("{code} {count}")).collect();
    if failures.is_empty() { "0".into() } else { failures.join("   ") }
}

fn level(rate: f64, highest: f64) -> char {
    if highest <= 0.0 {
        return LEVELS[0];
    }
    LEVELS[((rate / highest * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
}

fn shown(latency: Option<Duration>) -> String {
    latency.map_or("-".into(), |latency| format!("{:.3} ms", latency.as_secs_f64() * 1e3))
}

/// Formats a bar per doubling of latency, for the range with requests.
fn histogram(latencies: &StepCounts) -> Vec<String> {
    let mut before = 0;
    let mut bars: Vec<(Duration, u64)> = Vec::new();
    for (limit, up_to) in latencies.doublings() {
        if up_to > before || !bars.is_empty() {
            bars.push((limit, up_to - before));
        }
        before = up_to;
    }
    while bars.last().is_some_and(|(_, count)| *count == 0) {
        bars.pop();
    }
    let most = bars.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
    let bar = |(limit, count): &(Duration, u64)| {
        let filled = "█".repeat((count * BAR_MAX).div_ceil(most) as usize);
        format!("{:>13} {count:>10} {filled}", format!("< {}", shown(Some(*limit))))
    };
    bars.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::progress::WaitingCalls;

    #[test]
    fn a_picture_shows_the_last_moment_and_the_whole_run() {
        let start = Instant::now();
        let mut picture = Picture::new("put".into(), start);
        let mut latencies = StepCounts::default();
        (0..100).for_each(|_| latencies.add(1_000_000));
        let waiting = WaitingCalls { in_flight: 7, overdue: 90, oldest: Some(REFRESH_INTERVAL) };
        let seen = |answered, failed, latencies: &StepCounts| RunTotals {
            progress: RunProgress {
                answered,
                failed,
                waiting,
                passed: 2 * REFRESH_INTERVAL,
                ..RunProgress::default()
            },
            latencies: latencies.clone(),
            ..RunTotals::default()
        };
        picture.lines(start + REFRESH_INTERVAL, seen(100, 0, &latencies));
        (0..300).for_each(|_| latencies.add(40_000_000));
        let lines = picture.lines(start + 2 * REFRESH_INTERVAL, seen(400, 2, &latencies));
        assert_eq!(lines[2], "answered 400   failed 2   now 600/s   highest 600/s");
        assert_eq!(lines[3], "in flight 7   overdue 90   oldest wait 500.000 ms");
        assert_eq!(lines[4], "▃█");
        let p50: Vec<_> = lines[7].split_whitespace().collect();
        assert_eq!((p50[0], p50[1], p50[3]), ("p50", p50[3], p50[1]), "{lines:?}");
        let bars: Vec<_> = lines[13..].iter().map(|line| line.matches('█').count()).collect();
        assert_eq!((bars.first(), bars.last()), (Some(&17), Some(&50)), "{lines:?}");
    }

    #[test]
    fn each_endpoint_and_each_kind_of_failure_has_its_figures() {
        let start = Instant::now();
        let mut picture = Picture::new("put".into(), start);
        let of = |endpoint: &str, answered, failed| {
            let mut latencies = StepCounts::default();
            (0..answered).for_each(|_| latencies.add(1_000_000));
            let failures = BTreeMap::from([(Code::UNAVAILABLE, failed)]);
            let failures = failures.into_iter().filter(|(_, count)| *count > 0).collect();
            let waiting = WaitingCalls { in_flight: 3, overdue: 0, oldest: None };
            OfEndpoint { endpoint: endpoint.parse().unwrap(), answered, failures, waiting, latencies }
        };
        let seen = |endpoints: Vec<OfEndpoint>| RunTotals {
            failures: BTreeMap::from([(Code::UNAVAILABLE, 3), (Code::DEADLINE_EXCEEDED, 2)]),
            endpoints,
            ..RunTotals::default()
        };
        picture.lines(start + REFRESH_INTERVAL, seen(vec![of("a:1", 100, 0), of("b:2", 50, 0)]));
        let lines =
            picture.lines(start + 2 * REFRESH_INTERVAL, seen(vec![of("a:1", 400, 0), of("b:2", 50, 5)]));
        assert!(lines.contains(&"failed: DeadlineExceeded 2   Unavailable 3".to_owned()), "{lines:?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let [.., first, second] = &lines[..] else { panic!("{lines:?}") };
        let first = words(first);
        assert_eq!((first[0].as_str(), first[1].as_str(), first[8].as_str()), ("a:1", "600/s", "0"));
        // The endpoint is stalled, so recent requests have no latency.
        assert_eq!(words(second), ["b:2", "0/s", "-", "-", "3", "-", "Unavailable", "5"]);
        assert!(
            !picture
                .lines(start + 3 * REFRESH_INTERVAL, seen(vec![of("a:1", 1, 0)]))
                .iter()
                .any(|it| it.contains("a:1"))
        );
    }
}
