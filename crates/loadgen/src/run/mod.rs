//! A run: starts workers, waits for them, merges their results.
//!
//! ```text
//!   Plan ─start─▶ workers open all connections ─▶ the clock starts for all at once ─▶ Run ─finish─▶ Measurement
//! ```
//!
//! * Time spent on opening connections is never part of a measurement.
//! * Stopping early keeps what was measured and says that it is partial.

pub mod recorder; // the results of one worker
pub mod results; // the results of a run
pub mod schedule; // turns and their pace
pub mod stages; // rates that change

mod plan; // what defines a run

mod leader; // which endpoint leads

pub mod worker; // one thread's connections and callers

mod callers; // callers with a task each

pub mod gateway; // requests over HTTP/1.1 with JSON
pub mod watchers; // watch streams, and the events that they await

pub use plan::{Error, Plan, Target};

use crate::client::call::Replies;
use crate::client::endpoint::Endpoint;
use crate::client::failure::Code;
use crate::client::link::Link;
use crate::stats::histogram::Counts;
use crate::stats::progress::{Control, Counters};
use crate::stats::stillness::thread_cpu;
use crate::workload::Workload;
use bench_report::model::{Connect, Protocol};
use callers::tasks::{Tasks, Terms};
use callers::{kubernetes, pages, stm, ycsb};
use leader::LeaderWatch;
use recorder::{Start, Tally};
use results::{Ended, Measurement, Merged, Part, Role, ThreadEnded};
use schedule::{Pace, Schedule};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watchers::{Awaits, Ledger, Watchers};
use worker::{Setup, Worker};

/// A run whose connections and watchers are open.
pub struct Prepared {
    plan: Plan,
    control: Arc<Control>,
    threads: Vec<Thread>,
    ledger: Option<Arc<Ledger>>,
    leader: Option<LeaderWatch>,
    took: Duration,
}

/// A thread of a run, which waits for the start.
struct Thread {
    role: Role,
    starter: mpsc::Sender<(Arc<Schedule>, Instant)>,
    counters: Arc<Counters>,
    by_endpoint: Arc<[Counters]>,
    handle: JoinHandle<std::io::Result<ThreadEnded>>,
}

/// A run in progress.
pub struct Run {
    plan: Plan,
    control: Arc<Control>,
    threads: Vec<Thread>,
    schedule: Arc<Schedule>,
    ledger: Option<Arc<Ledger>>,
    /// Ends with the run.
    _leader: Option<LeaderWatch>,
    /// For connections and watchers, before the start.
    preparing: Duration,
    start: Instant,
    cpu_at_start: Duration,
}

/// What a worker has of a run: its number, and what it shares with the other threads.
#[derive(Clone)]
struct Share {
    thread: usize,
    threads: usize,
    control: Arc<Control>,
    /// The place of the leader among the endpoints, if requests follow it.
    leader: Option<Arc<AtomicUsize>>,
    counters: Arc<Counters>,
    /// The same for each endpoint.
    by_endpoint: Arc<[Counters]>,
}

/// The connections and callers of one worker, by protocol.
enum Carrier {
    Grpc(Box<Worker>),
    HttpJson(Tasks<gateway::Conn>),
    Pages(Tasks<pages::PagesCaller>),
    Stm(Tasks<stm::StmCaller>),
    Ycsb(Tasks<ycsb::YcsbCaller>),
    Kubernetes(Tasks<kubernetes::KubernetesCaller>),
    Watchers(Box<Watchers>),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub answered: u64,
    pub failed: u64,
    pub total: u64,
    pub finished: bool,
}

/// What one endpoint has answered so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfEndpoint {
    pub endpoint: Endpoint,
    pub answered: u64,
    pub failed: u64,
    pub latencies: Counts,
}

impl Plan {
    /// Opens all connections and watchers.
    pub fn prepare(mut self) -> Result<Prepared, Error> {
        self.check()?;
        let begin = Instant::now();
        let control = Arc::new(Control::default());
        let loaders = self.threads.min(self.conns);
        let leader = match self.target {
            Target::All => None,
            Target::Leader => Some(LeaderWatch::begin(&self.endpoints).map_err(Error::Connect)?),
        };
        let place = leader.as_ref().map(LeaderWatch::place);
        let ledger =
            self.watching.as_ref().map(|watching| Arc::new(Ledger::new(watching, loaders, self.total)));
        if let Some(ledger) = ledger.as_ref().filter(|_| self.puts_are_awaited()) {
            self.observer = Some(ledger.clone());
        }
        let watchers = self.watching.as_ref().map_or(0, |watching| self.threads.min(watching.streams));
        let roles = [(Role::Loads, loaders), (Role::Watches, watchers)];
        let roles = roles.iter().flat_map(|&(role, len)| (0..len).map(move |thread| (role, thread, len)));
        let (connected, connects) = mpsc::channel();
        let mut threads = Vec::new();
        for (role, thread, of) in roles {
            let (starter, begin) = mpsc::channel();
            let share = Share {
                thread,
                threads: of,
                control: control.clone(),
                leader: place.clone(),
                counters: Arc::default(),
                by_endpoint: self.endpoints.iter().map(|_| Counters::default()).collect(),
            };
            let (counters, by_endpoint) = (share.counters.clone(), share.by_endpoint.clone());
            let (plan, connected, ledger) = (self.clone(), connected.clone(), ledger.clone());
            let body = move || plan.work(role, share, ledger, &connected, &begin);
            let handle = std::thread::Builder::new().name(format!("worker-{thread}")).spawn(body);
            let handle = handle.map_err(Error::Worker)?;
            threads.push(Thread { role, starter, counters, by_endpoint, handle });
        }
        drop(connected);
        // Each thread reports once; a failed one makes the others end when their starters are dropped.
        connects.iter().take(threads.len()).collect::<Result<(), String>>().map_err(Error::Connect)?;
        Ok(Prepared { plan: self, control, threads, ledger, leader, took: begin.elapsed() })
    }

    /// Opens all connections, then lets every worker begin at the same moment.
    pub fn start(self) -> Result<Run, Error> {
        self.prepare().map(Prepared::begin)
    }

    /// Runs to the end.
    pub fn measure(self) -> Result<Measurement, Error> {
        self.start()?.finish()
    }

    /// The body of one worker thread.
    fn work(
        self,
        role: Role,
        share: Share,
        ledger: Option<Arc<Ledger>>,
        connected: &mpsc::Sender<Result<(), String>>,
        begin: &mpsc::Receiver<(Arc<Schedule>, Instant)>,
    ) -> std::io::Result<ThreadEnded> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (result, carrier) = match runtime.block_on(self.connect(role, share, ledger.clone())) {
            Ok(carrier) => (Ok(()), Some(carrier)),
            Err(reason) => (Err(reason), None),
        };
        // The receiver is gone only if another worker failed.
        let _ = connected.send(result);
        match (begin.recv(), carrier) {
            (Ok((schedule, start)), Some(carrier)) => {
                let cpu_before = thread_cpu();
                let ended = runtime.block_on(carrier.run(schedule, start));
                let busy = (thread_cpu() - cpu_before).as_secs_f64() / start.elapsed().as_secs_f64();
                if let Some(ledger) = ledger.filter(|_| role == Role::Loads) {
                    ledger.loader_ended();
                }
                ended.map(|ended| (ended, busy))
            }
            (Err(mpsc::RecvError), _) | (_, None) => Ok(((Vec::new(), Instant::now()), 0.0)),
        }
    }

    /// Opens the connections of one worker.
    async fn connect(self, role: Role, share: Share, ledger: Option<Arc<Ledger>>) -> Result<Carrier, String> {
        if let (Role::Watches, Some(watching), Some(ledger)) = (role, &self.watching, ledger) {
            let streams = share.of(watching.streams).collect();
            let Share { control, counters, by_endpoint, .. } = share;
            let setup = watchers::Setup {
                watching: watching.clone(),
                streams,
                endpoints: self.endpoints,
                conns: self.conns,
                patience: self.patience,
                ends_load: self.total == Self::OPEN_END,
                ledger,
                control,
                counters,
                by_endpoint,
            };
            return Ok(Carrier::Watchers(Box::new(Watchers::open(setup).await?)));
        }
        if let Workload::Pages(range) = &self.workload {
            let (objects, callers) = (share.of(self.conns).count(), self.callers(&share));
            let opening = pages::connect(range, &self.endpoints, objects, callers, &share.counters);
            return Ok(Carrier::Pages(Tasks::new(opening.await?, self.terms(share), 1)));
        }
        if let Workload::Stm(stm) = &self.workload {
            let (objects, callers) = (share.of(self.conns).count(), self.callers(&share));
            let opening = stm::connect(stm, &self.endpoints, objects, callers, &share.counters);
            let tasks = Tasks::new(opening.await?, self.terms(share), 1);
            return Ok(Carrier::Stm(tasks));
        }
        if let Workload::Ycsb(workload) = &self.workload {
            let (objects, callers) = (share.of(self.conns).count(), self.callers(&share));
            let opening = ycsb::connect(workload, &self.endpoints, objects, callers, &share.counters);
            let (opened, kinds) = (opening.await?, self.workload.kinds().len());
            return Ok(Carrier::Ycsb(Tasks::new(opened, self.terms(share), kinds)));
        }
        if let Workload::Kubernetes(cluster) = &self.workload {
            let api_servers = share.of(cluster.api_servers);
            kubernetes::watch(cluster, &self.endpoints, api_servers, &share.counters).await?;
            let (objects, callers) = (share.of(self.conns).count(), self.callers(&share));
            let opening = kubernetes::connect(cluster, &self.endpoints, objects, callers, &share.counters);
            let (opened, kinds) = (opening.await?, self.workload.kinds().len());
            return Ok(Carrier::Kubernetes(Tasks::new(opened, self.terms(share), kinds)));
        }
        match self.protocol {
            Protocol::Grpc => {
                let mut worker = Worker::new(self.setup(share)?);
                worker.connect().await?;
                Ok(Carrier::Grpc(Box::new(worker)))
            }
            Protocol::HttpJson => {
                let callers = share.of(self.clients).count();
                let (source, workload) = (self.workload.source(share.thread), self.workload.clone());
                let opening = gateway::connect(
                    &self.endpoints,
                    callers,
                    workload,
                    source,
                    &share.counters,
                    self.patience,
                );
                let tasks = Tasks::new(opening.await?, self.terms(share), 1);
                Ok(Carrier::HttpJson(tasks))
            }
        }
    }

    /// Where a connection object connects to. A load that follows the leader needs all of them.
    fn endpoints_of(&self, object: usize) -> &[Endpoint] {
        if self.connect == Connect::All || self.target == Target::Leader {
            return &self.endpoints;
        }
        std::slice::from_ref(&self.endpoints[object % self.endpoints.len()])
    }

    fn terms(&self, share: Share) -> Terms {
        let Share { control, counters, by_endpoint, .. } = share;
        let Self { request_timeout, failed_calls, patience, .. } = *self;
        Terms { request_timeout, failed_calls, patience, control, counters, by_endpoint }
    }

    /// Callers whose connection object belongs to this worker.
    fn callers(&self, share: &Share) -> usize {
        let Share { thread, threads, .. } = share;
        (0..self.clients).filter(|caller| caller % self.conns % threads == *thread).count()
    }

    /// The share of one worker: connection objects `thread`, `thread + threads`, … and the callers that use
    /// them.
    fn setup(self, share: Share) -> Result<Setup, String> {
        let path = self.workload.path();
        let endpoints_len = self.endpoints_of(0).len();
        let links = share.of(self.conns).flat_map(|object| self.endpoints_of(object).iter().cloned());
        let places = share.of(self.conns).flat_map(|object| (0..endpoints_len).map(move |nth| (object, nth)));
        let all = self.endpoints.len();
        let places: Vec<_> =
            places.map(|(object, nth)| if endpoints_len == 1 { object % all } else { nth }).collect();
        let Share { thread, control, counters, leader, by_endpoint, .. } = share.clone();
        let links =
            links.map(|endpoint| Link::new(endpoint, path, counters.clone())).collect::<Result<_, _>>();
        let callers = self.callers(&share);
        let replies = match self.workload {
            Workload::RangeStream(_) => Replies::Many,
            Workload::Put(_)
            | Workload::TxnPut { .. }
            | Workload::Range(_)
            | Workload::TxnMixed { .. }
            | Workload::PutKeys { .. }
            | Workload::LeaseKeepAlive(_)
            | Workload::Pages(_)
            | Workload::Stm(_)
            | Workload::Ycsb(_)
            | Workload::Kubernetes(_) => Replies::One,
        };
        Ok(Setup {
            links: links.map_err(|error| error.to_string())?,
            endpoints_len,
            callers,
            source: self.workload.source(thread),
            kinds: self.workload.kinds().len(),
            replies,
            request_timeout: self.request_timeout,
            failed_calls: self.failed_calls,
            leader,
            patience: self.patience,
            control,
            counters,
            by_endpoint,
            places,
            observer: self.observer,
        })
    }
}

impl Share {
    /// Every `threads`-th of so many things.
    fn of(&self, all: usize) -> impl Iterator<Item = usize> {
        (self.thread..all).step_by(self.threads)
    }
}

impl Carrier {
    /// Sends and receives until the schedule is used up or the run is stopped.
    async fn run(self, schedule: Arc<Schedule>, start: Instant) -> std::io::Result<Ended> {
        let tallies = match self {
            Carrier::Grpc(worker) => worker.run(schedule, start).await?,
            Carrier::HttpJson(tasks) => tasks.run(schedule, start).await?,
            Carrier::Pages(tasks) => tasks.run(schedule, start).await?,
            Carrier::Stm(tasks) => tasks.run(schedule, start).await?,
            Carrier::Ycsb(tasks) => tasks.run(schedule, start).await?,
            Carrier::Kubernetes(tasks) => tasks.run(schedule, start).await?,
            Carrier::Watchers(watchers) => return Ok(watchers.run(&schedule, start).await),
        };
        Ok((tallies, Instant::now()))
    }
}

impl Prepared {
    /// Lets all threads begin at the same moment.
    pub fn begin(self) -> Run {
        let Self { plan, control, threads, ledger, leader, took: preparing } = self;
        let start = Instant::now();
        let cpu_at_start = process_cpu();
        let until = plan.seconds_max.map(|seconds| start + seconds);
        let schedule = Arc::new(Schedule::new(plan.total, plan.pace, start).until(until));
        for thread in &threads {
            // The error of a thread that ended is found when it is joined.
            let _ = thread.starter.send((schedule.clone(), start));
        }
        Run { plan, control, threads, schedule, ledger, _leader: leader, preparing, start, cpu_at_start }
    }
}

impl Run {
    /// A handle that stops the run.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// What the run measures: requests or events.
    fn measures(&self) -> Role {
        if self.plan.measures_events() { Role::Watches } else { Role::Loads }
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
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

    pub fn progress(&self) -> Progress {
        let answered: u64 = self.counters().map(Counters::answered).sum();
        let failed: u64 = self.counters().map(Counters::failed).sum();
        let total = match (self.total(), self.plan.seconds_max) {
            // As many as the rest of the time will bring at the rate so far.
            (Plan::OPEN_END, Some(seconds)) => {
                let passed = self.start.elapsed().as_secs_f64() / seconds.as_secs_f64();
                ((answered + failed) as f64 / passed.clamp(1e-3, 1.0)) as u64
            }
            (total, _) => total,
        };
        Progress {
            answered,
            failed,
            total,
            finished: self.threads.iter().all(|thread| thread.handle.is_finished()),
        }
    }

    /// What each endpoint has answered so far.
    pub fn by_endpoint(&self) -> Vec<OfEndpoint> {
        let measures = self.measures();
        let threads = || self.threads.iter().filter(|thread| thread.role == measures);
        let of = |(place, endpoint): (usize, &Endpoint)| {
            let mut latencies = Counts::default();
            threads().for_each(|thread| latencies.merge(&thread.by_endpoint[place].latencies()));
            let sum = |of: fn(&Counters) -> u64| threads().map(|thread| of(&thread.by_endpoint[place])).sum();
            let (answered, failed) = (sum(Counters::answered), sum(Counters::failed));
            OfEndpoint { endpoint: endpoint.clone(), answered, failed, latencies }
        };
        self.plan.endpoints.iter().enumerate().map(of).collect()
    }

    /// How many calls have failed so far, by code.
    pub fn failures(&self) -> BTreeMap<Code, u64> {
        let mut all = BTreeMap::new();
        for (code, count) in self.counters().flat_map(Counters::failures) {
            *all.entry(Code(code)).or_default() += count;
        }
        all
    }

    /// Latencies so far, coarsely: enough for a live figure.
    pub fn latencies(&self) -> Counts {
        let mut all = Counts::default();
        self.counters().for_each(|counters| all.merge(&counters.latencies()));
        all
    }

    /// Waits for the end.
    pub fn finish(self) -> Result<Measurement, Error> {
        let (planned, measures, start) = (self.total(), self.measures(), self.start);
        let mut measurement = Measurement {
            threads: self.plan.threads,
            clients: self.plan.clients,
            intended_per_second: match self.plan.pace {
                Pace::Unlimited => None,
                Pace::AtMost(per_second) | Pace::Open(per_second) => Some(per_second),
                Pace::Stages(stages) => Some(stages.total() as f64 / stages.duration().as_secs_f64()),
            },
            ..Measurement::default()
        };
        let (mut loaded, mut watched) = (Merged::new(start), Merged::new(start));
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
            // Where events are missing, the last one is not the end.
            watched.end = watched.end.max(loaded.end);
        }
        let loaded_len: u64 = loaded.tallies.iter().map(|it| it.succeeded_len() + it.failed_len()).sum();
        // Events of puts that failed are missing for another reason than a time limit.
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
            // Creations come first and are no events.
            Role::Watches => watched.tallies.into_iter().nth(watchers::EVENTS).unwrap_or_default(),
        };
        let ended = measurement.tally.succeeded_len() + measurement.tally.failed_len();
        // Of a load without an end: what was due.
        let due = ended + measurement.tally.unanswered.count;
        measurement.planned = if planned == Plan::OPEN_END { due } else { planned };
        measurement.partial = self.control.reason().filter(|_| ended < planned);
        let is_short = measurement.partial.is_none() && ended < measurement.planned;
        measurement.capped = is_short && self.plan.seconds_max.is_some() && !is_sent;
        Ok(measurement)
    }
}

impl Plan {
    /// The results that are reported apart.
    fn parts(&self, loaded: &Merged, watched: &Merged, start: Instant, preparing: Duration) -> Vec<Part> {
        let kinds = self.workload.kinds();
        if kinds.len() > 1 {
            let named = kinds.iter().enumerate().filter(|(kind, _)| self.workload.has_kind(*kind));
            let named = named.map(|(kind, name)| {
                let part = loaded.part("", kind, start);
                let ops = part.tally.succeeded_len() + part.tally.failed_len();
                Part { title: format!("Total {name} Ops: {ops}\nDetails:"), ..part }
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
                Awaits::Puts | Awaits::Nothing => "Put summary:",
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

/// Processor time of the whole process since it began.
pub(crate) fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
