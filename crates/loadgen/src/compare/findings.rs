//! Conditions that limit the metrics of a round: bottlenecks, other programs, reductions by the budget.
//!
//! Each kind of finding is reported once per row and side, with the number of affected rounds.

use super::measure::Cost;
use crate::run::recorder::{Lateness, Tally, UnansweredCalls};
use crate::run::results::{HiddenStall, Measurement};
use bench_report::model::Notice;
use bench_report::number::counted;
use bench_report::suite::REQUESTS_PER_CLIENT_MIN;
use std::collections::BTreeMap;

/// Maximum CPU share of a generator thread; above it, faster servers would not show.
const GENERATOR_CPU_MAX: f64 = 0.9;
/// Minimum share of the intended rate.
const RATE_MIN: f64 = 0.95;
/// In a shorter run, new connections and empty caches dominate.
const RUN_SECONDS_MIN: f64 = 1.0;
/// Minimum duration of a compared row.
pub const COMPARED_SECONDS_MIN: f64 = 3.0;
/// Maximum CPU share of programs outside the comparison.
const FOREIGN_CPU_MAX: f64 = 0.15;
/// Maximum share of late requests.
const LATE_MAX: f64 = 0.01;

/// Kinds of findings, in report order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    Failed,
    Partial,
    Unanswered,
    Unmeasured,
    Lost,
    LeaderChanged,
    TooShort,
    GeneratorCpu,
    StoodStill,
    Stalled,
    RateMissed,
    GeneratorLate,
    CallersBusy,
    Foreign,
    Capped,
}

/// Findings of a row, by side.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<(usize, FindingKind), (Notice, usize)>);

/// Returns the findings of a run, its servers and its machine.
pub fn of(cost: &Cost) -> Vec<(FindingKind, Notice)> {
    let mut found = of_load(&cost.measurement);
    if let Some((measured, members)) = cost.unmeasured {
        let text =
            format!("{measured} of {members} members were reachable: metrics of all members are omitted");
        found.push((FindingKind::Unmeasured, Notice::warning(text)));
    }
    if let Some(reason) = &cost.lost {
        found.push((FindingKind::Lost, Notice::warning(format!("no metrics of the servers: {reason}"))));
    }
    if cost.leader_changed {
        found.push((FindingKind::LeaderChanged, Notice::warning("the leader changed during a run")));
    }
    if let Some(foreign) = cost.foreign_cpu.filter(|foreign| *foreign > FOREIGN_CPU_MAX) {
        let text = format!("other programs used {:.0} % of this machine's processors", foreign * 100.0);
        found.push((FindingKind::Foreign, Notice::warning(text)));
    }
    found.sort_by_key(|(kind, _)| *kind);
    found
}

/// Returns the findings of a round of a comparison, which must not be too short.
pub fn of_compared(cost: &Cost) -> Vec<(FindingKind, Notice)> {
    let mut found = of(cost);
    let seconds = cost.measurement.wall.as_secs_f64();
    let short = seconds < COMPARED_SECONDS_MIN && !cost.measurement.events;
    if short && found.iter().all(|(kind, _)| *kind != FindingKind::TooShort) {
        let text = format!("measured for {seconds:.2} s: too short to be compared");
        found.push((FindingKind::TooShort, Notice::warning(text)));
        found.sort_by_key(|(kind, _)| *kind);
    }
    found
}

/// Returns the findings of a load, which affect how its metrics are read.
pub fn of_load(measurement: &Measurement) -> Vec<(FindingKind, Notice)> {
    let tally = &measurement.tally;
    let (succeeded, failed) = (tally.succeeded_len(), measurement.failed_len());
    let mut found = Vec::new();
    let first = measurement.tallies().find_map(|tally| tally.failures.first_key_value());
    if let Some((code, failures)) = first {
        let text = format!("{failed} requests failed, first {code}: {}", failures.sample);
        found.push((FindingKind::Failed, Notice::error(text + &waits_of_failures(tally))));
    }
    if let Some(reason) = &measurement.partial {
        let text = format!("stopped after {succeeded} of {} requests: {reason}", measurement.planned);
        found.push((FindingKind::Partial, Notice::error(text)));
    }
    let UnansweredCalls { count, unsent, waited_most_ns } = measurement.unanswered();
    if count > 0 {
        let text = format!(
            "{count} due requests had no reply at the end of the run ({unsent} were not sent); \
             latencies include their waits of up to {:.1} ms",
            waited_most_ns as f64 / 1e6
        );
        found.push((FindingKind::Unanswered, Notice::warning(text)));
    }
    found.extend(too_short(measurement));
    found.extend(saturated(measurement));
    found.extend(stood_still(measurement));
    found.extend(stalled(measurement));
    found.extend(rate_missed(measurement));
    found.extend(pace(&tally.lateness, measurement.clients, measurement.closed_loop));
    if measurement.capped {
        let text = format!(
            "stopped by its time limit after {:.1} s: {} of {} requests",
            measurement.wall.as_secs_f64(),
            succeeded + tally.failed_len(),
            measurement.planned
        );
        found.push((FindingKind::Capped, Notice::remark(text)));
    }
    found
}

fn too_short(measurement: &Measurement) -> Option<(FindingKind, Notice)> {
    let seconds = measurement.wall.as_secs_f64();
    let each = measurement.tally.counted_len() as f64 / measurement.clients.max(1) as f64;
    let short = seconds < RUN_SECONDS_MIN || each < REQUESTS_PER_CLIENT_MIN as f64;
    // Watcher events have no callers.
    let short = short && !measurement.events && measurement.clients > 0;
    short.then(|| {
        let text = format!(
            "run too short for reliable results: {seconds:.2} s, {each:.1} requests per client with {}",
            counted(measurement.clients, "client")
        );
        (FindingKind::TooShort, Notice::warning(text))
    })
}

/// Reports whether the generator was the bottleneck: a single saturated thread suffices.
fn saturated(measurement: &Measurement) -> Option<(FindingKind, Notice)> {
    (measurement.busiest_thread > GENERATOR_CPU_MAX).then(|| {
        let text = format!(
            "the busiest of {} load generator threads used {:.0} % of a processor: try --threads",
            measurement.threads,
            measurement.busiest_thread * 100.0
        );
        (FindingKind::GeneratorCpu, Notice::warning(text))
    })
}

/// Reports whether the generator was stopped, or had no processor, while calls were in flight.
fn stood_still(measurement: &Measurement) -> Option<(FindingKind, Notice)> {
    let gaps = measurement.tallies().map(|tally| tally.lateness.stood_still_most_ns);
    let most = gaps.chain([measurement.tally.lateness.stood_still_most_ns]).max().unwrap_or(0);
    (most > 0).then(|| {
        let text = format!(
            "load generator stalled for {:.1} ms: latencies up to that may be its own",
            most as f64 / 1e6
        );
        (FindingKind::StoodStill, Notice::warning(text))
    })
}

/// Reports a time without replies that the percentiles of a closed loop hide.
fn stalled(measurement: &Measurement) -> Option<(FindingKind, Notice)> {
    let HiddenStall { longest, requests, counted, time_share } = measurement.hidden_stall()?;
    let text = format!(
        "{requests} of {counted} requests took up to {:.1} s, {:.1} % of the clients' time; \
         an open loop would also count the requests that were due during that time",
        longest.as_secs_f64(),
        time_share * 100.0
    );
    Some((FindingKind::Stalled, Notice::warning(text)))
}

fn rate_missed(measurement: &Measurement) -> Option<(FindingKind, Notice)> {
    let intended = measurement.intended_per_second?;
    let seconds = measurement.wall.as_secs_f64();
    let sent = measurement.tally.taken_len() as f64 / seconds;
    // A run of few requests is over with the last reply, some time after the last request was due.
    let missed = sent < intended * RATE_MIN && seconds > RUN_SECONDS_MIN && !measurement.events;
    missed.then(|| {
        let text = format!("sent {sent:.0} requests per second instead of {intended:.0}");
        (FindingKind::RateMissed, Notice::warning(text))
    })
}

fn waits_of_failures(tally: &Tally) -> String {
    let waits = &tally.failed_ns;
    if waits.is_empty() {
        return String::new();
    }
    let [mean, most] = [waits.mean(), waits.max() as f64].map(|ns| ns / 1e6);
    format!(" (after {mean:.1} ms on average, {most:.1} ms at most)")
}

/// Reports whether an intended pace was kept, and if not, whether the generator or its callers delayed it.
fn pace(lateness: &Lateness, clients: usize, closed_loop: bool) -> Vec<(FindingKind, Notice)> {
    let mut found = Vec::new();
    let Lateness { kept, late, late_most_ns, overdue, overdue_most_ns, .. } = *lateness;
    let turns = (kept + overdue) as f64;
    if late as f64 > turns * LATE_MAX {
        let text = format!(
            "client-side scheduling delay on {late} requests, up to {:.1} ms{}",
            late_most_ns as f64 / 1e6,
            if closed_loop { "" } else { ": latencies include it" }
        );
        found.push((FindingKind::GeneratorLate, Notice::warning(text)));
    }
    if overdue as f64 > turns * LATE_MAX {
        let text = format!(
            "{overdue} requests were sent up to {:.1} ms late because all {clients} clients were busy{}",
            overdue_most_ns as f64 / 1e6,
            if closed_loop { "" } else { ": latencies include it" }
        );
        found.push((FindingKind::CallersBusy, Notice::remark(text)));
    }
    found
}

impl Findings {
    pub fn add(&mut self, side: usize, found: &[(FindingKind, Notice)]) {
        for (kind, notice) in found {
            self.0.entry((side, *kind)).or_insert_with(|| (notice.clone(), 0)).1 += 1;
        }
    }

    pub fn notices(self, sides: &[String], rounds: usize) -> Vec<Notice> {
        let notice = |((side, _), (notice, count)): ((usize, FindingKind), (Notice, usize))| {
            let where_found =
                if rounds > 1 { format!(" (in {count} of {rounds} rounds)") } else { String::new() };
            Notice { text: format!("{}: {}{where_found}", sides[side], notice.text), ..notice }
        };
        self.0.into_iter().map(notice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::model::NoteLevel;
    use std::time::Duration;

    #[test]
    fn busy_callers_are_distinguished_from_a_late_generator() {
        let lateness = |late, overdue| Lateness {
            kept: 900,
            late,
            late_most_ns: 5,
            overdue,
            overdue_most_ns: 2_000_000_000,
            stood_still_most_ns: 0,
        };
        let kinds = |lateness: &Lateness| {
            pace(lateness, 7, false).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&lateness(0, 0)), []);
        assert_eq!(kinds(&lateness(100, 0)), [FindingKind::GeneratorLate]);
        assert_eq!(kinds(&lateness(0, 100)), [FindingKind::CallersBusy]);
        let text = |closed| pace(&lateness(0, 100), 7, closed)[0].1.text.clone();
        let late = "100 requests were sent up to 2000.0 ms late because all 7 clients were busy";
        assert_eq!((text(true), text(false)), (late.to_owned(), format!("{late}: latencies include it")));
        let late = "client-side scheduling delay on 100 requests, up to 0.0 ms";
        let text = |closed| pace(&lateness(100, 0), 7, closed)[0].1.text.clone();
        assert_eq!((text(true), text(false)), (late.to_owned(), format!("{late}: latencies include it")));
    }

    #[test]
    fn a_run_says_why_its_figures_may_mislead() {
        let whole = || {
            let mut tally = Tally::new();
            (0..2_000).for_each(|_| tally.succeeded(1, Duration::from_millis(1), 0));
            Measurement {
                tally,
                wall: Duration::from_secs(2),
                threads: 2,
                clients: 10,
                planned: 2_000,
                ..Measurement::default()
            }
        };
        let frozen = |closed_loop| {
            let mut frozen = Measurement { wall: Duration::from_secs(6), closed_loop, ..whole() };
            (0..10).for_each(|_| frozen.tally.succeeded(1, Duration::from_millis(1_990), 0));
            frozen
        };
        let text = &of_load(&frozen(true))[0].1.text;
        assert!(text.starts_with("10 of 2010 requests took up to 2.0 s"), "{text}");
        let mut still = whole();
        still.tally.stood_still(Duration::from_secs(2));
        for (measurement, kinds) in [
            (whole(), &[][..]),
            (still, &[FindingKind::StoodStill]),
            // One thread of two is saturated: half of the processor time of both.
            (Measurement { busiest_thread: 0.97, ..whole() }, &[FindingKind::GeneratorCpu]),
            (Measurement { intended_per_second: Some(1_000.0), ..whole() }, &[]),
            (Measurement { intended_per_second: Some(1_100.0), ..whole() }, &[FindingKind::RateMissed]),
            (Measurement { wall: Duration::from_millis(100), ..whole() }, &[FindingKind::TooShort]),
            (Measurement { clients: 2_000, ..whole() }, &[FindingKind::TooShort]),
            (frozen(true), &[FindingKind::Stalled]),
            (frozen(false), &[]),
        ] {
            let found: Vec<_> = of_load(&measurement).into_iter().map(|(kind, _)| kind).collect();
            assert_eq!(found, kinds);
        }
    }

    #[test]
    fn only_rounds_of_a_comparison_are_too_short_to_be_compared() {
        let mut tally = Tally::new();
        (0..2_000).for_each(|_| tally.succeeded(1, Duration::from_millis(1), 0));
        let wall = Duration::from_secs(2);
        let cost = Cost::of_run(Measurement { tally, wall, clients: 1, ..Measurement::default() }, None);
        assert_eq!(of(&cost).len(), 0);
        assert!(of_compared(&cost)[0].1.text.ends_with("too short to be compared"));
    }

    #[test]
    fn a_finding_of_several_rounds_is_reported_once() {
        let mut findings = Findings::default();
        for _ in 0..2 {
            findings.add(1, &[(FindingKind::Foreign, Notice::warning("noise"))]);
        }
        findings.add(0, &[(FindingKind::Failed, Notice::error("bad"))]);
        let notices = findings.notices(&["a".into(), "b".into()], 3);
        let lines: Vec<_> = notices.iter().map(|notice| (notice.level, notice.text.as_str())).collect();
        assert_eq!(
            lines,
            [
                (NoteLevel::Error, "a: bad (in 1 of 3 rounds)"),
                (NoteLevel::Warning, "b: noise (in 2 of 3 rounds)")
            ]
        );
    }
}
