//! A run: workers started, driven to the end, their results merged.
//!
//! ```text
//!   Plan ─start─▶ workers open all connections ─▶ the clock starts for all at once ─▶ Run ─finish─▶ Measurement
//! ```
//!
//! * Time spent on opening connections is never part of a measurement.
//! * Stopping early keeps what was measured and says that it is partial.

use crate::call::Replies;
use crate::control::{Control, Counters};
use crate::endpoint::Endpoint;
use crate::gateway::Gateway;
use crate::link::Link;
use crate::recorder::Tally;
use crate::report::model::Protocol;
use crate::scale::Counts;
use crate::schedule::{Pace, Schedule};
use crate::worker::{Observer, Setup, Worker};
use crate::workload::Workload;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    /// No request is begun after so long; what is in flight then is waited for.
    pub seconds_max: Option<Duration>,
    pub pace: Pace,
    /// A call without an answer for so long has failed. etcd's tool waits forever.
    pub request_timeout: Option<Duration>,
    /// With no endpoint reachable for so long, the run is given up.
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

/// What one worker brought, and when it was done.
type Part = (Tally, Instant);

/// The connections of one worker and the callers on them, by what they speak.
enum Carrier {
    Grpc(Box<Worker>),
    HttpJson(Gateway),
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub answered: u64,
    pub failed: u64,
    pub total: u64,
    pub finished: bool,
}

/// What a run brought.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    pub tally: Tally,
    /// From the common start to the last answer.
    pub wall: Duration,
    /// Processor time of this process meanwhile, both user and kernel.
    pub client_cpu: Duration,
    /// Worker threads.
    pub threads: usize,
    /// Of all connections, with everything that HTTP/2 adds.
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
            let (plan, control, connected) = (self.clone(), control.clone(), connected.clone());
            let counted = Arc::new(Counters::default());
            counters.push(counted.clone());
            starters.push(starter);
            let body = move || plan.work(thread, threads, control, counted, &connected, &begin);
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
            // A worker that is gone tells why when it is joined.
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

    /// The life of one worker thread.
    fn work(
        self,
        thread: usize,
        threads: usize,
        control: Arc<Control>,
        counters: Arc<Counters>,
        connected: &mpsc::Sender<Result<(), String>>,
        begin: &mpsc::Receiver<(Arc<Schedule>, Instant)>,
    ) -> std::io::Result<Part> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let connecting = self.connect(thread, threads, control, counters);
        let (result, carrier) = match runtime.block_on(connecting) {
            Ok(carrier) => (Ok(()), Some(carrier)),
            Err(reason) => (Err(reason), None),
        };
        // The other side hangs up only after another worker failed.
        let _ = connected.send(result);
        match (begin.recv(), carrier) {
            (Ok((schedule, start)), Some(carrier)) => {
                let tally = runtime.block_on(carrier.run(schedule, start))?;
                Ok((tally, Instant::now()))
            }
            (Err(mpsc::RecvError), _) | (_, None) => Ok((Tally::new(), Instant::now())),
        }
    }

    /// Opens the connections of one worker, whatever is spoken on them.
    async fn connect(
        self,
        thread: usize,
        threads: usize,
        control: Arc<Control>,
        counters: Arc<Counters>,
    ) -> Result<Carrier, String> {
        match self.protocol {
            Protocol::Grpc => {
                let mut worker = Worker::new(self.setup(thread, threads, control, counters)?);
                worker.connect().await?;
                Ok(Carrier::Grpc(Box::new(worker)))
            }
            Protocol::HttpJson => {
                let callers = (thread..self.clients).step_by(threads).count();
                let connecting =
                    Gateway::connect(&self.endpoints, callers, &self.workload, thread, control, counters);
                Ok(Carrier::HttpJson(connecting.await?))
            }
        }
    }

    /// The share of one worker: connection objects `thread`, `thread + threads`, … and the callers that use them.
    fn setup(
        self,
        thread: usize,
        threads: usize,
        control: Arc<Control>,
        counters: Arc<Counters>,
    ) -> Result<Setup, String> {
        let path = self.workload.path();
        let share = |of: usize| (thread..of).step_by(threads);
        let links = share(self.conns).flat_map(|_| self.endpoints.iter().cloned());
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
    /// A handle that stops the run from elsewhere.
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

    /// Latencies so far, coarsely: enough for a figure that moves.
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
            // When the last worker was done, however late somebody asks.
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
