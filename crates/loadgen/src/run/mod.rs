//! A run: starts workers, waits for them, merges their results.
//!
//! ```text
//!   Plan ─start─▶ workers open all connections ─▶ the clock starts for all at once ─▶ Run ─finish─▶ Measurement
//! ```
//!
//! * Time spent on opening connections is never part of a measurement.
//! * Stopping early keeps what was measured and says that it is partial.

pub mod recorder; // the results of one worker
pub mod schedule; // turns and their pace

mod ready; // which connections and callers can make progress
mod timer; // a timer with nanosecond resolution
pub mod worker; // one thread's connections and callers

pub mod gateway; // the same over HTTP/1.1 with JSON

use crate::client::call::Replies;
use crate::client::endpoint::Endpoint;
use crate::client::link::Link;
use crate::stats::histogram::Counts;
use crate::stats::progress::{Control, Counters};
use crate::workload::Workload;
use bench_report::model::Protocol;
use gateway::Gateway;
use recorder::Tally;
use schedule::{Pace, Schedule};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Observer, Setup, Worker};

/// Everything that defines a run.
#[derive(Clone)]
pub struct Plan {
    pub protocol: Protocol,
    pub endpoints: Vec<Endpoint>,
    /// Connection objects, each with one HTTP/2 connection per endpoint.
    pub conns: usize,
    /// Callers, each with one request in flight.
    pub clients: usize,
    /// Worker threads; at most one per connection object.
    pub threads: usize,
    pub workload: Workload,
    /// Requests in all.
    pub total: u64,
    /// No request begins after this time; those in flight are awaited.
    pub seconds_max: Option<Duration>,
    pub pace: Pace,
    /// A call without a reply for this long has failed. etcd's tool waits forever.
    pub request_timeout: Option<Duration>,
    /// The run is given up when no endpoint is reachable for this long.
    pub patience: Duration,
    pub observer: Option<Arc<dyn Observer>>,
}

/// Why a run did not begin or did not end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    #[error("open the connections: {0}")]
    Connect(String),
    #[error("run the workers")]
    Worker(#[source] std::io::Error),
}

/// A run in progress.
pub struct Run {
    control: Arc<Control>,
    counters: Vec<Arc<Counters>>,
    workers: Vec<JoinHandle<std::io::Result<Part>>>,
    total: u64,
    threads: usize,
    start: Instant,
    cpu_at_start: Duration,
}

/// The tally of one worker, and when it finished.
type Part = (Tally, Instant);

/// What a worker has of a run: its number, and what it shares with the other threads.
#[derive(Clone)]
struct Share {
    thread: usize,
    threads: usize,
    control: Arc<Control>,
    counters: Arc<Counters>,
}

/// The connections and callers of one worker, by protocol.
enum Carrier {
    Grpc(Box<Worker>),
    HttpJson(Gateway),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub answered: u64,
    pub failed: u64,
    pub total: u64,
    pub finished: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    pub tally: Tally,
    /// From the common start to the last answer.
    pub wall: Duration,
    /// CPU time of this process during the run, user and kernel.
    pub client_cpu: Duration,
    /// Worker threads.
    pub threads: usize,
    /// Of all connections, including HTTP/2 framing.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub planned: u64,
    /// [`Plan::seconds_max`] ended it before its total.
    pub capped: bool,
    /// Why the run ended before its total, if it did.
    pub partial: Option<String>,
}

impl Plan {
    /// A plan of one caller that sends `total` requests to one endpoint.
    pub fn new(endpoint: Endpoint, workload: Workload, total: u64) -> Self {
        Self {
            protocol: Protocol::Grpc,
            endpoints: vec![endpoint],
            conns: 1,
            clients: 1,
            threads: 1,
            workload,
            total,
            seconds_max: None,
            pace: Pace::Unlimited,
            request_timeout: None,
            patience: Duration::from_secs(10),
            observer: None,
        }
    }

    /// Opens all connections, then lets every worker begin at the same moment.
    pub fn start(self) -> Result<Run, Error> {
        self.check()?;
        let control = Arc::new(Control::default());
        let threads = self.threads.min(self.conns);
        let (connected, connects) = mpsc::channel();
        let mut counters = Vec::new();
        let mut starters = Vec::new();
        let mut workers = Vec::new();
        for thread in 0..threads {
            let (starter, begin) = mpsc::channel();
            let share = Share { thread, threads, control: control.clone(), counters: Arc::default() };
            counters.push(share.counters.clone());
            starters.push(starter);
            let (plan, connected) = (self.clone(), connected.clone());
            let body = move || plan.work(share, &connected, &begin);
            let thread = std::thread::Builder::new().name(format!("worker-{thread}"));
            workers.push(thread.spawn(body).map_err(Error::Worker)?);
        }
        drop(connected);
        // Each worker reports once; a failed one makes the others end when their starters are dropped.
        connects.iter().take(threads).collect::<Result<(), String>>().map_err(Error::Connect)?;

        let start = Instant::now();
        let cpu_at_start = process_cpu();
        let until = self.seconds_max.map(|seconds| start + seconds);
        let schedule = Arc::new(Schedule::new(self.total, self.pace, start).until(until));
        for starter in starters {
            // The error of a worker that ended is found when it is joined.
            let _ = starter.send((schedule.clone(), start));
        }
        Ok(Run { control, counters, workers, total: self.total, threads, start, cpu_at_start })
    }

    /// Runs to the end.
    pub fn measure(self) -> Result<Measurement, Error> {
        self.start()?.finish()
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Refused(reason));
        match self {
            Plan { endpoints, .. } if endpoints.is_empty() => refuse("no endpoint given".into()),
            Plan { clients: 0, .. } => refuse("0 clients would send nothing".into()),
            Plan { conns: 0, .. } => refuse("0 connections cannot carry a request".into()),
            Plan { threads: 0, .. } => refuse("0 threads would send nothing".into()),
            Plan { conns, clients, .. } if conns > clients => {
                refuse(format!("{conns} connections are more than {clients} clients can use"))
            }
            _ => Ok(()),
        }
    }

    /// The body of one worker thread.
    fn work(
        self,
        share: Share,
        connected: &mpsc::Sender<Result<(), String>>,
        begin: &mpsc::Receiver<(Arc<Schedule>, Instant)>,
    ) -> std::io::Result<Part> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (result, carrier) = match runtime.block_on(self.connect(share)) {
            Ok(carrier) => (Ok(()), Some(carrier)),
            Err(reason) => (Err(reason), None),
        };
        // The receiver is gone only if another worker failed.
        let _ = connected.send(result);
        match (begin.recv(), carrier) {
            (Ok((schedule, start)), Some(carrier)) => {
                let tally = runtime.block_on(carrier.run(schedule, start))?;
                Ok((tally, Instant::now()))
            }
            (Err(mpsc::RecvError), _) | (_, None) => Ok((Tally::new(), Instant::now())),
        }
    }

    /// Opens the connections of one worker.
    async fn connect(self, share: Share) -> Result<Carrier, String> {
        match self.protocol {
            Protocol::Grpc => {
                let mut worker = Worker::new(self.setup(share)?);
                worker.connect().await?;
                Ok(Carrier::Grpc(Box::new(worker)))
            }
            Protocol::HttpJson => {
                let callers = share.of(self.clients).count();
                let Share { thread, control, counters, .. } = share;
                let source = self.workload.source(thread);
                let Self { endpoints, workload, request_timeout, .. } = self;
                let opening = Gateway::connect(
                    &endpoints,
                    callers,
                    workload,
                    source,
                    request_timeout,
                    control,
                    counters,
                );
                Ok(Carrier::HttpJson(opening.await?))
            }
        }
    }

    /// The share of one worker: connection objects `thread`, `thread + threads`, … and the callers that use
    /// them.
    fn setup(self, share: Share) -> Result<Setup, String> {
        let path = self.workload.path();
        let links = share.of(self.conns).flat_map(|_| self.endpoints.iter().cloned());
        let Share { thread, threads, control, counters } = share.clone();
        let links =
            links.map(|endpoint| Link::new(endpoint, path, counters.clone())).collect::<Result<_, _>>();
        let callers = (0..self.clients).filter(|caller| caller % self.conns % threads == thread).count();
        let replies = match self.workload {
            Workload::RangeStream(_) => Replies::Many,
            Workload::Put(_) | Workload::TxnPut { .. } | Workload::Range(_) => Replies::One,
        };
        Ok(Setup {
            links: links.map_err(|error| error.to_string())?,
            endpoints_len: self.endpoints.len(),
            callers,
            source: self.workload.source(thread),
            replies,
            request_timeout: self.request_timeout,
            patience: self.patience,
            control,
            counters,
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
    async fn run(self, schedule: Arc<Schedule>, start: Instant) -> std::io::Result<Tally> {
        match self {
            Carrier::Grpc(worker) => worker.run(schedule, start).await,
            Carrier::HttpJson(gateway) => gateway.run(schedule, start).await,
        }
    }
}

impl Run {
    /// A handle that stops the run.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    pub fn progress(&self) -> Progress {
        Progress {
            answered: self.counters.iter().map(|counters| counters.answered()).sum(),
            failed: self.counters.iter().map(|counters| counters.failed()).sum(),
            total: self.total,
            finished: self.workers.iter().all(JoinHandle::is_finished),
        }
    }

    /// Latencies so far, coarsely: enough for a live figure.
    pub fn latencies(&self) -> Counts {
        let mut all = Counts::default();
        self.counters.iter().for_each(|counters| all.merge(&counters.latencies()));
        all
    }

    /// Waits for the end.
    pub fn finish(self) -> Result<Measurement, Error> {
        let mut tally = Tally::new();
        let mut end = self.start;
        for worker in self.workers {
            let part = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (part, part_end) = part.map_err(Error::Worker)?;
            tally.merge(&part);
            // When the last worker finished, not when this function is called.
            end = end.max(part_end);
        }
        let wall = end - self.start;
        let client_cpu = process_cpu() - self.cpu_at_start;
        let ended = tally.succeeded_len() + tally.failed_len();
        let partial = self.control.reason().filter(|_| ended < self.total);
        let capped = partial.is_none() && ended < self.total;
        let (sent_bytes, received_bytes) = self.counters.iter().fold((0, 0), |(sent, received), counters| {
            let bytes = counters.bytes();
            (sent + bytes.0, received + bytes.1)
        });
        let Self { threads, total: planned, .. } = self;
        Ok(Measurement {
            tally,
            wall,
            client_cpu,
            threads,
            sent_bytes,
            received_bytes,
            planned,
            capped,
            partial,
        })
    }
}

impl Measurement {
    /// Successful requests per second.
    pub fn per_second(&self) -> f64 {
        self.tally.succeeded_len() as f64 / self.wall.as_secs_f64()
    }

    /// Processor time of this process per successful request.
    pub fn client_cpu_micros(&self) -> f64 {
        self.client_cpu.as_secs_f64() * 1e6 / self.tally.succeeded_len() as f64
    }
}

/// Processor time of the whole process since it began.
pub(crate) fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
