//! The definition of a run, and the validation of its parameters.

use crate::client::endpoint::Endpoint;
use crate::run::gateway;
use crate::run::recorder::FailedCalls;
use crate::run::watchers::{Awaits, OpenWatchers};
use crate::run::worker::CallObserver;
use crate::workload::Workload;
use bench_report::model::Pace;
use bench_report::model::{Connect, Protocol};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointTarget {
    /// All endpoints, round-robin.
    All,
    /// The current leader, followed across elections.
    Leader,
}

/// Definition of a run.
#[derive(Clone)]
pub struct Run {
    pub protocol: Protocol,
    pub endpoints: Vec<Endpoint>,
    pub target: EndpointTarget,
    /// Connection objects, each with one HTTP/2 connection per endpoint.
    pub conns: usize,
    /// Endpoints of each object. Callers with a task each connect to all endpoints.
    pub connect: Connect,
    /// Callers, each with a single request in flight.
    pub clients: usize,
    /// Worker threads; at most one per connection object.
    pub threads: usize,
    pub workload: Workload,
    /// Total number of requests.
    pub total: u64,
    /// Requests start only within this time; those in flight are awaited for `patience`.
    pub seconds_max: Option<Duration>,
    pub pace: Pace,
    /// Duration of an uncounted warm-up of the same load and connections.
    pub warm_up: Duration,
    /// A call without a reply for this long has failed. etcd's tool waits forever.
    pub request_timeout: Option<Duration>,
    pub failed_calls: FailedCalls,
    /// The run is aborted when no endpoint is reachable for this long. A reply is awaited this long after
    /// the time limit.
    pub patience: Duration,
    pub observer: Option<Arc<dyn CallObserver>>,
    pub watching: Option<OpenWatchers>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    #[error("open the connections: {0}")]
    Connect(String),
    #[error("before the measurement: {0}")]
    WarmUp(String),
    #[error("run the workers")]
    Worker(#[source] std::io::Error),
}

impl Run {
    /// Total of a load without a fixed number of requests: it is stopped by its time limit, or by watchers
    /// that have received their events.
    pub const OPEN_END: u64 = u64::MAX / 2;

    /// Returns a plan with a single caller that sends `total` requests to an endpoint.
    pub fn new(endpoint: Endpoint, workload: Workload, total: u64) -> Self {
        Self {
            protocol: Protocol::Grpc,
            endpoints: vec![endpoint],
            target: EndpointTarget::All,
            conns: 1,
            connect: Connect::All,
            clients: 1,
            threads: 1,
            workload,
            total,
            seconds_max: None,
            pace: Pace::Unlimited,
            warm_up: Duration::ZERO,
            request_timeout: None,
            failed_calls: FailedCalls::Apart,
            patience: Duration::from_secs(10),
            observer: None,
            watching: None,
        }
    }

    pub fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Refused(reason));
        match self {
            Run { endpoints, .. } if endpoints.is_empty() => refuse("no endpoint given".into()),
            Run { clients: 0, .. } => refuse("0 clients would send nothing".into()),
            Run { conns: 0, .. } => refuse("0 connections cannot carry a request".into()),
            Run { threads: 0, .. } => refuse("0 threads would send nothing".into()),
            Run { conns, clients, .. } if conns > clients => {
                refuse(format!("{conns} connections are more than {clients} clients can use"))
            }
            Run { protocol: Protocol::HttpJson, workload, .. } if !gateway::carries(workload) => {
                refuse(format!("{} is not offered over HTTP/1.1 with JSON", workload.name()))
            }
            Run { connect: Connect::One, workload, .. } if workload.needs_tasks() => {
                refuse(format!("{} connects to all endpoints", workload.name()))
            }
            Run { target: EndpointTarget::Leader, .. } if !self.can_follow_leader() => {
                refuse("this load cannot follow the leader".into())
            }
            _ => Ok(()),
        }
    }

    /// Reports whether requests can follow the leader; callers with a task each stay on their connection.
    pub fn can_follow_leader(&self) -> bool {
        let with_tasks = self.protocol == Protocol::HttpJson || self.workload.needs_tasks();
        !with_tasks && self.watching.is_none()
    }

    /// Reports whether watchers await the events of the load.
    pub(super) fn puts_are_awaited(&self) -> bool {
        self.watching.as_ref().is_some_and(|watching| watching.awaits == Awaits::Puts)
    }

    pub fn name(&self) -> &'static str {
        if self.measures_events() { "watch" } else { self.workload.name() }
    }

    pub(super) fn kind(&self, position: u64) -> usize {
        self.workload.kind(position)
    }

    /// Reports whether the run measures events instead of requests.
    pub fn measures_events(&self) -> bool {
        self.puts_are_awaited() || self.watching.is_some() && self.total == 0
    }
}
