//! Callers with a task each: for requests that take several calls, or that are not gRPC.
//!
//! It is made for hundreds of callers, not thousands.

use crate::client::failure::{Code, Failure};
use crate::run::recorder::{Start, Tally};
use crate::run::schedule::{Schedule, Turn};
use crate::stats::progress::{Control, Counters};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval between checks whether the run was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// One caller.
pub trait Caller: 'static {
    /// Sends the request of a position.
    fn call(&mut self, position: u64) -> impl Future<Output = Result<Answered, Failure>>;

    /// Gets ready for the next call after one that succeeded, or did not; false if that cannot be.
    fn settle(&mut self, succeeded: bool, control: &Control) -> impl Future<Output = bool>;

    /// Ends after the last call.
    fn close(&mut self) -> impl Future<Output = ()>;
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub body_bytes: u64,
    /// Attempts beyond the first.
    pub retries: u64,
}

/// The callers of one worker, connected.
pub struct Tasks<C> {
    callers: Vec<C>,
    shared: Rc<Shared>,
}

/// State that all callers of a worker share.
struct Shared {
    request_timeout: Option<Duration>,
    tally: RefCell<Tally>,
    control: Arc<Control>,
    counters: Arc<Counters>,
}

impl<C: Caller> Tasks<C> {
    pub fn new(
        callers: Vec<C>,
        request_timeout: Option<Duration>,
        control: Arc<Control>,
        counters: Arc<Counters>,
    ) -> Self {
        let tally = RefCell::new(Tally::new());
        Self { callers, shared: Rc::new(Shared { request_timeout, tally, control, counters }) }
    }

    /// Sends and receives until the schedule is used up or the run is stopped.
    pub async fn run(self, schedule: Arc<Schedule>, start: Instant) -> io::Result<Tally> {
        let start = Start::new(start);
        let callers = tokio::task::LocalSet::new();
        for caller in self.callers {
            callers.spawn_local(self.shared.clone().drive(caller, schedule.clone(), start));
        }
        let control = self.shared.control.clone();
        tokio::select! {
            () = callers => {}
            () = async {
                while !control.is_stopped() {
                    tokio::time::sleep(LOOK).await;
                }
            } => {}
        }
        Ok(self.shared.tally.take())
    }
}

impl Shared {
    /// One caller, from its first turn to the last.
    async fn drive(self: Rc<Self>, mut caller: impl Caller, schedule: Arc<Schedule>, start: Start) {
        while let Some(turn) = schedule.take(Instant::now()) {
            if let Some(due) = turn.due {
                tokio::time::sleep_until(due.into()).await;
            }
            let sent_at = Instant::now();
            let answer = within(self.request_timeout, caller.call(turn.position)).await;
            let succeeded = answer.is_ok();
            self.record(turn, sent_at, answer, start);
            if !caller.settle(succeeded, &self.control).await {
                return;
            }
        }
        caller.close().await;
    }

    fn record(&self, turn: Turn, sent_at: Instant, answer: Result<Answered, Failure>, start: Start) {
        let mut tally = self.tally.borrow_mut();
        match answer {
            Ok(Answered { body_bytes, retries }) => {
                let sample = start.sample(turn.counts_from(sent_at), sent_at, Instant::now(), body_bytes);
                tally.record(&sample);
                tally.retries += retries;
                self.counters.add_answered(sample.latency.as_nanos() as u64);
            }
            Err(failure) => {
                tally.failed_at(turn.position, &failure);
                self.counters.add_failed();
            }
        }
    }
}

async fn within<T>(
    timeout: Option<Duration>,
    call: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(timeout) = timeout else { return call.await };
    let answer = tokio::time::timeout(timeout, call).await;
    let late = |_| Failure::new(Code::DEADLINE_EXCEEDED, format!("no answer within {timeout:?}"));
    answer.map_err(late)?
}
