//! The start of a run: opens connections and watchers on each thread, then starts all threads together.

use super::callers::kubernetes::{self, KubernetesCaller};
use super::callers::pages::PagesCaller;
use super::callers::round_robin::RoundRobin;
use super::callers::stm::StmCaller;
use super::callers::tasks::{Tasks, Terms};
use super::callers::ycsb::YcsbCaller;
use super::gateway;
use super::leader::LeaderWatch;
use super::plan::{EndpointTarget, Error, Run};
use super::results::{Measurement, Role, ThreadEnded, ThreadTallies};
use super::running::{ActiveRun, Begin, Thread, process_cpu};
use super::schedule::Schedule;
use super::watchers::{self, Ledger, Watchers};
use super::worker::{Worker, WorkerSetup};
use crate::client::call::ReplyKind;
use crate::client::endpoint::Endpoint;
use crate::client::link::Link;
use crate::stats::progress::{Control, WorkerCounters};
use crate::stats::stillness::thread_cpu;
use crate::workload::Workload;
use bench_report::model::{Connect, Protocol};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A run with open connections and watchers.
pub struct PreparedRun {
    plan: Run,
    control: Arc<Control>,
    threads: Vec<Thread>,
    ledger: Option<Arc<Ledger>>,
    leader: Option<LeaderWatch>,
    took: Duration,
}

/// A worker's number and the state it shares with the other threads.
#[derive(Clone)]
struct Share {
    thread: usize,
    threads: usize,
    control: Arc<Control>,
    /// Index of the leading endpoint, if requests follow it.
    leader: Option<Arc<AtomicUsize>>,
    counters: Arc<WorkerCounters>,
    by_endpoint: Arc<[WorkerCounters]>,
}

/// Connections and callers of a worker, by protocol.
enum Carrier {
    Grpc(Box<Worker>),
    HttpJson(Tasks<gateway::Conn>),
    Pages(Tasks<PagesCaller>),
    Stm(Tasks<StmCaller>),
    Ycsb(Tasks<YcsbCaller>),
    Kubernetes(Tasks<KubernetesCaller>),
    /// None after they have run, which they do once.
    Watchers(Option<Box<Watchers>>),
}

impl Run {
    /// Opens all connections and watchers.
    pub fn prepare(mut self) -> Result<PreparedRun, Error> {
        self.check()?;
        let begin = Instant::now();
        let control = Arc::new(Control::default());
        let loaders = self.threads.min(self.conns);
        let leader = match self.target {
            EndpointTarget::All => None,
            EndpointTarget::Leader => Some(LeaderWatch::begin(&self.endpoints).map_err(Error::Connect)?),
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
                by_endpoint: self.endpoints.iter().map(|_| WorkerCounters::default()).collect(),
            };
            let (counters, by_endpoint) = (share.counters.clone(), share.by_endpoint.clone());
            let (plan, connected, ledger) = (self.clone(), connected.clone(), ledger.clone());
            let body = move || plan.work(role, share, ledger, &connected, &begin);
            let handle = std::thread::Builder::new().name(format!("worker-{thread}")).spawn(body);
            let handle = handle.map_err(Error::Worker)?;
            threads.push(Thread { role, starter, counters, by_endpoint, handle });
        }
        drop(connected);
        // Each thread reports once; after a failure, dropping the starters stops the remaining ones.
        let all = |threads: &[Thread]| connects.iter().take(threads.len()).collect::<Result<(), String>>();
        all(&threads).map_err(Error::Connect)?;
        let took = begin.elapsed();
        if !self.warm_up.is_zero() && self.watching.is_none() {
            let start = Instant::now();
            let schedule = Schedule::new(Self::OPEN_END, self.pace, start).until(Some(start + self.warm_up));
            begin_all(&threads, &Arc::new(schedule), start, false);
            all(&threads).map_err(Error::WarmUp)?;
            control.reason().map_or(Ok(()), |reason| Err(Error::WarmUp(reason)))?;
        }
        Ok(PreparedRun { plan: self, control, threads, ledger, leader, took })
    }

    /// Opens all connections, then starts all workers at the same time.
    pub fn start(self) -> Result<ActiveRun, Error> {
        self.prepare().map(PreparedRun::begin)
    }

    /// Runs to completion.
    pub fn measure(self) -> Result<Measurement, Error> {
        self.start()?.finish()
    }

    /// Body of a worker thread.
    fn work(
        self,
        role: Role,
        share: Share,
        ledger: Option<Arc<Ledger>>,
        connected: &mpsc::Sender<Result<(), String>>,
        begin: &mpsc::Receiver<Begin>,
    ) -> std::io::Result<ThreadEnded> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (counters, by_endpoint) = (share.counters.clone(), share.by_endpoint.clone());
        let (result, carrier) = match runtime.block_on(self.connect(role, share, ledger.clone())) {
            Ok(carrier) => (Ok(()), Some(carrier)),
            Err(reason) => (Err(reason), None),
        };
        // The receiver is dropped only if another worker failed.
        let _ = connected.send(result);
        if let Some(mut carrier) = carrier {
            while let Ok((schedule, start, is_the_run)) = begin.recv() {
                let cpu_before = thread_cpu();
                let ended = runtime.block_on(carrier.run(schedule, start, is_the_run));
                if !is_the_run {
                    counters.reset();
                    by_endpoint.iter().for_each(WorkerCounters::reset);
                    let _ = connected.send(ended.map(drop).map_err(|error| error.to_string()));
                    continue;
                }
                let busy = (thread_cpu() - cpu_before).as_secs_f64() / start.elapsed().as_secs_f64();
                if let Some(ledger) = ledger.filter(|_| role == Role::Loads) {
                    ledger.loader_ended();
                }
                return ended.map(|ended| (ended, busy));
            }
        }
        Ok(((Vec::new(), Instant::now()), 0.0))
    }

    /// Opens the connections of a worker.
    async fn connect(self, role: Role, share: Share, ledger: Option<Arc<Ledger>>) -> Result<Carrier, String> {
        if let (Role::Watches, Some(watching), Some(ledger)) = (role, &self.watching, ledger) {
            let streams = share.of(watching.streams).collect();
            let Share { control, counters, by_endpoint, .. } = share;
            let setup = watchers::WatcherSetup {
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
            return Ok(Carrier::Watchers(Some(Box::new(Watchers::open(setup).await?))));
        }
        let (objects, callers) = (share.of(self.conns).count(), self.callers(&share));
        let open = || RoundRobin::open(&self.endpoints, objects, callers, &share.counters);
        let kinds = self.workload.kinds().len();
        match &self.workload {
            Workload::Pages(range) => {
                let callers =
                    open().await?.into_iter().map(|members| PagesCaller::new(range, members)).collect();
                return Ok(Carrier::Pages(Tasks::new(callers, self.terms(share), kinds)));
            }
            Workload::Stm(stm) => {
                let mut callers = Vec::with_capacity(callers);
                for members in open().await? {
                    callers.push(StmCaller::open(stm, members).await?);
                }
                return Ok(Carrier::Stm(Tasks::new(callers, self.terms(share), kinds)));
            }
            Workload::Ycsb(ycsb) => {
                let callers =
                    open().await?.into_iter().map(|members| YcsbCaller::new(ycsb, members)).collect();
                return Ok(Carrier::Ycsb(Tasks::new(callers, self.terms(share), kinds)));
            }
            Workload::Kubernetes(cluster) => {
                let api_servers = share.of(cluster.api_servers);
                kubernetes::watch(cluster, &self.endpoints, api_servers, &share.counters).await?;
                let callers = open().await?.into_iter();
                let callers = callers.map(|members| KubernetesCaller::new(cluster, members)).collect();
                return Ok(Carrier::Kubernetes(Tasks::new(callers, self.terms(share), kinds)));
            }
            _ => {}
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

    /// Returns the endpoints of a connection object. A load that follows the leader needs all of them.
    fn endpoints_of(&self, object: usize) -> &[Endpoint] {
        if self.connect == Connect::All || self.target == EndpointTarget::Leader {
            return &self.endpoints;
        }
        std::slice::from_ref(&self.endpoints[object % self.endpoints.len()])
    }

    fn terms(&self, share: Share) -> Terms {
        let Share { control, counters, by_endpoint, .. } = share;
        let Self { request_timeout, failed_calls, patience, .. } = *self;
        Terms { request_timeout, failed_calls, patience, control, counters, by_endpoint }
    }

    /// Counts the callers with a connection object of this worker.
    fn callers(&self, share: &Share) -> usize {
        let Share { thread, threads, .. } = share;
        (0..self.clients).filter(|caller| caller % self.conns % threads == *thread).count()
    }

    /// Returns the part of a worker: connection objects `thread`, `thread + threads`, … and their callers.
    fn setup(self, share: Share) -> Result<WorkerSetup, String> {
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
            Workload::RangeStream(_) => ReplyKind::Stream,
            Workload::LeaseKeepAlive(_) => ReplyKind::Renewal,
            _ => ReplyKind::Message,
        };
        Ok(WorkerSetup {
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
    /// Returns every `threads`-th index below `all`.
    fn of(&self, all: usize) -> impl Iterator<Item = usize> {
        (self.thread..all).step_by(self.threads)
    }
}

impl Carrier {
    /// Sends and receives until the schedule is exhausted or the run is stopped.
    async fn run(
        &mut self,
        schedule: Arc<Schedule>,
        start: Instant,
        is_the_run: bool,
    ) -> std::io::Result<ThreadTallies> {
        match self {
            Carrier::Grpc(worker) => Ok((worker.run(schedule, start).await?, Instant::now())),
            Carrier::HttpJson(tasks) => tasks.run(schedule, start, is_the_run).await,
            Carrier::Pages(tasks) => tasks.run(schedule, start, is_the_run).await,
            Carrier::Stm(tasks) => tasks.run(schedule, start, is_the_run).await,
            Carrier::Ycsb(tasks) => tasks.run(schedule, start, is_the_run).await,
            Carrier::Kubernetes(tasks) => tasks.run(schedule, start, is_the_run).await,
            Carrier::Watchers(watchers) => {
                let watchers = watchers.take().expect("nothing is sent before a run with watchers");
                Ok(watchers.run(&schedule, start).await)
            }
        }
    }
}

impl PreparedRun {
    /// Starts all threads at the same time.
    pub fn begin(self) -> ActiveRun {
        let Self { plan, control, threads, ledger, leader, took: preparing } = self;
        let start = Instant::now();
        let cpu_at_start = process_cpu();
        let until = plan.seconds_max.map(|seconds| start + seconds);
        let schedule = Arc::new(Schedule::new(plan.total, plan.pace, start).until(until));
        begin_all(&threads, &schedule, start, true);
        ActiveRun {
            plan,
            control,
            threads,
            schedule,
            ledger,
            _leader: leader,
            preparing,
            start,
            cpu_at_start,
        }
    }
}

fn begin_all(threads: &[Thread], schedule: &Arc<Schedule>, start: Instant, is_the_run: bool) {
    for thread in threads {
        // The error of an exited thread is found when it is joined.
        let _ = thread.starter.send((schedule.clone(), start, is_the_run));
    }
}
