//! A run in progress: its results so far, and the final measurement.

use super::leader::LeaderWatch;
use super::plan::{Error, Run};
use super::recorder::{Start, Tally};
use super::results::{self, KindResults, Measurement, MergedResults, Role, ThreadEnded};
use super::schedule::Schedule;
use super::watchers::{self, Awaits, Ledger};
use crate::client::endpoint::Endpoint;
use crate::client::failure::Code;
use crate::stats::histogram::StepCounts;
use crate::stats::progress::{Control, WaitingCalls, WorkerCounters};
use bench_report::model::Pace;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Schedule and start time of a thread; false for the warm-up.
pub(super) type Begin = (Arc<Schedule>, Instant, bool);

/// A thread of a run, which waits for the start.
pub(super) struct Thread {
    pub(super) role: Role,
    pub(super) starter: mpsc::Sender<Begin>,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) by_endpoint: Arc<[WorkerCounters]>,
    pub(super) handle: JoinHandle<std::io::Result<ThreadEnded>>,
}

pub struct ActiveRun {
    pub(super) plan: Run,
    pub(super) control: Arc<Control>,
    pub(super) threads: Vec<Thread>,
    pub(super) schedule: Arc<Schedule>,
    pub(super) ledger: Option<Arc<Ledger>>,
    /// Stopped with the run.
    pub(super) _leader: Option<LeaderWatch>,
    /// Time spent on connections and watchers before the start.
    pub(super) preparing: Duration,
    pub(super) start: Instant,
    pub(super) cpu_at_start: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    pub answered: u64,
    pub failed: u64,
    pub total: u64,
    pub waiting: WaitingCalls,
    pub passed: Duration,
    pub finished: bool,
}

impl RunProgress {
    /// Returns the wait of the oldest request without a reply.
    pub fn oldest_wait(&self, waiting: &WaitingCalls) -> Option<Duration> {
        waiting.oldest.map(|since| self.passed.saturating_sub(since))
    }
}

/// Results of an endpoint so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfEndpoint {
    pub endpoint: Endpoint,
    pub answered: u64,
    pub failures: BTreeMap<Code, u64>,
    pub waiting: WaitingCalls,
    pub latencies: StepCounts,
}

impl ActiveRun {
    /// Returns a handle that stops the run.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    fn measures(&self) -> Role {
        if self.plan.measures_events() { Role::Watches } else { Role::Loads }
    }

    fn counters(&self) -> impl Iterator<Item = &WorkerCounters> {
        let measures = self.measures();
        self.threads.iter().filter(move |thread| thread.role == measures).map(|thread| &*thread.counters)
    }

    fn total(&self) -> u64 {
        match (&self.plan.watching, &self.ledger) {
            (Some(watching), Some(ledger)) if self.plan.measures_events() => {
                ledger.events(watching, self.plan.total)
            }
            _ => self.plan.total,
        }
    }

    pub fn progress(&self) -> RunProgress {
        let answered: u64 = self.counters().map(WorkerCounters::answered).sum();
        let failed: u64 = self.counters().map(WorkerCounters::failed).sum();
        let total = match (self.total(), self.plan.seconds_max) {
            // Extrapolated to the remaining time at the rate so far.
            (Run::OPEN_END, Some(seconds)) => {
                let passed = self.start.elapsed().as_secs_f64() / seconds.as_secs_f64();
                ((answered + failed) as f64 / passed.clamp(1e-3, 1.0)) as u64
            }
            (total, _) => total,
        };
        let now = Instant::now();
        // Also if events are measured: none is due while the puts wait.
        let mut waiting = self.schedule.overdue(now);
        self.threads.iter().for_each(|thread| waiting.add(thread.counters.waiting()));
        RunProgress {
            answered,
            failed,
            total,
            waiting,
            passed: now.saturating_duration_since(self.start),
            finished: self.threads.iter().all(|thread| thread.handle.is_finished()),
        }
    }

    /// Returns the results of each endpoint so far.
    pub fn by_endpoint(&self) -> Vec<OfEndpoint> {
        let measures = self.measures();
        let threads = || self.threads.iter().filter(|thread| thread.role == measures);
        let of = |(place, endpoint): (usize, &Endpoint)| {
            let mut latencies = StepCounts::default();
            threads().for_each(|thread| latencies.merge(&thread.by_endpoint[place].latencies()));
            let counters = || threads().map(|thread| &thread.by_endpoint[place]);
            let mut waiting = WaitingCalls::default();
            self.threads.iter().for_each(|thread| waiting.add(thread.by_endpoint[place].waiting()));
            let answered = counters().map(WorkerCounters::answered).sum();
            OfEndpoint {
                endpoint: endpoint.clone(),
                answered,
                failures: by_code(counters()),
                waiting,
                latencies,
            }
        };
        self.plan.endpoints.iter().enumerate().map(of).collect()
    }

    /// Counts the failed calls so far, by code.
    pub fn failures(&self) -> BTreeMap<Code, u64> {
        by_code(self.counters())
    }

    /// Returns the latencies so far, at a low resolution for live displays.
    pub fn latencies(&self) -> StepCounts {
        let mut all = StepCounts::default();
        self.counters().for_each(|counters| all.merge(&counters.latencies()));
        all
    }

    /// Waits for the run and returns its results.
    pub fn finish(self) -> Result<Measurement, Error> {
        let (planned, measures, start) = (self.total(), self.measures(), self.start);
        let mut measurement = Measurement {
            threads: self.plan.threads,
            clients: self.plan.clients,
            conns: self.plan.conns,
            closed_loop: matches!(self.plan.pace, Pace::Unlimited | Pace::AtMost(_)),
            intended_per_second: match self.plan.pace {
                Pace::Unlimited => None,
                Pace::AtMost(per_second) | Pace::Open(per_second) => Some(per_second),
            },
            ..Measurement::default()
        };
        let (mut loaded, mut watched) = (MergedResults::new(start), MergedResults::new(start));
        for thread in self.threads {
            let (sent, received) = thread.counters.bytes();
            measurement.sent_bytes += sent;
            measurement.received_bytes += received;
            let ended = thread.handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (ended, busy) = ended.map_err(Error::Worker)?;
            measurement.busiest_thread = measurement.busiest_thread.max(busy);
            match thread.role {
                Role::Loads => loaded.add(ended),
                Role::Watches => watched.add(ended),
            }
        }
        loaded.tallies.resize_with(self.plan.workload.kinds().len(), Tally::new);
        let began = Start::new(start);
        for (position, due, waited) in self.schedule.unsent(loaded.end) {
            loaded.tallies[self.plan.kind(position)].unsent(&began.wait(start + due, start + due + waited));
        }
        if self.plan.puts_are_awaited() {
            // If events are missing, the run lasts longer than the last event.
            watched.end = watched.end.max(loaded.end);
        }
        let loaded_len: u64 = loaded.tallies.iter().map(|it| it.succeeded_len() + it.failed_len()).sum();
        // Events of failed puts are missing for another reason than a time limit.
        let is_sent = self.plan.puts_are_awaited() && loaded_len >= self.plan.total;
        measurement.client_cpu = process_cpu() - self.cpu_at_start;
        measurement.wall = match measures {
            Role::Loads => loaded.end - start,
            Role::Watches => watched.end - start,
        };
        measurement.events = measures == Role::Watches;
        measurement.parts = self.plan.parts(&loaded, &watched, start, self.preparing);
        measurement.tally = match measures {
            Role::Loads => loaded.whole(),
            // Creations come first and are not events.
            Role::Watches => watched.tallies.into_iter().nth(watchers::EVENTS).unwrap_or_default(),
        };
        let ended = measurement.tally.succeeded_len() + measurement.tally.failed_len();
        // For a load without a total, the number of due requests.
        let due = ended + measurement.tally.unanswered.count;
        measurement.planned = if planned == Run::OPEN_END { due } else { planned };
        measurement.partial = self.control.reason().filter(|_| ended < planned);
        let is_short = measurement.partial.is_none() && ended < measurement.planned;
        measurement.capped = is_short && self.plan.seconds_max.is_some() && !is_sent;
        Ok(measurement)
    }
}

impl Run {
    /// Returns the separately reported results.
    fn parts(
        &self,
        loaded: &MergedResults,
        watched: &MergedResults,
        start: Instant,
        preparing: Duration,
    ) -> Vec<KindResults> {
        let kinds = self.workload.kinds();
        if kinds.len() > 1 {
            let named = kinds.iter().enumerate().filter(|(kind, _)| self.workload.has_kind(*kind));
            let named = named.map(|(kind, name)| {
                let part = loaded.part("", kind, start);
                let ops = part.tally.succeeded_len() + part.tally.failed_len();
                KindResults { title: format!("Total {name} Ops: {ops}\nDetails:"), ..part }
            });
            return named.collect();
        }
        let Some(watching) = &self.watching else { return Vec::new() };
        let mut created = watched.part("Watch creation summary:", watchers::CREATIONS, start);
        if !matches!(watching.awaits, Awaits::History { .. }) {
            created.wall = preparing;
        }
        let mut parts = vec![created];
        if self.total > 0 {
            let title = match watching.awaits {
                Awaits::History { .. } => "Get during watch summary:",
                Awaits::Puts | Awaits::Nothing => results::PUTS,
            };
            parts.push(loaded.part(title, 0, start));
        }
        let events = watched.part("Watch events received summary:", watchers::EVENTS, start);
        if watching.awaits != Awaits::Nothing || events.tally.failed_len() > 0 {
            parts.push(events);
        }
        if watching.since_answer && watching.awaits == Awaits::Puts {
            let title = "Watch events summary, from the answer of the put:";
            parts.push(watched.part(title, watchers::SINCE_ANSWER, start));
        }
        parts
    }
}

fn by_code<'a>(counters: impl Iterator<Item = &'a WorkerCounters>) -> BTreeMap<Code, u64> {
    let mut all = BTreeMap::new();
    for (code, count) in counters.flat_map(WorkerCounters::failures) {
        *all.entry(Code(code)).or_default() += count;
    }
    all
}

/// Returns the processor time of the process.
pub(crate) fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
