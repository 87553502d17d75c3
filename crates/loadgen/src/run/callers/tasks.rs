//! Callers with a task each: for requests that take several calls, or that are not gRPC.
//!
//! It is made for hundreds of callers, not thousands.

use crate::client::failure::{CallFailure, Code};
use crate::run::recorder::{FailedCalls, Start, Tally};
use crate::run::schedule::{Schedule, SendSlot};
use crate::stats::progress::{Control, WorkerCounters};
use crate::stats::stillness::Stillness;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval between checks whether the run was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// One caller.
pub trait CallerTask: 'static {
    /// Sends the request of a position.
    fn call(&mut self, position: u64) -> impl Future<Output = Result<AnsweredCall, CallFailure>>;

    /// Gets ready for the next call after one that succeeded, or did not; false if that cannot be.
    fn settle(&mut self, succeeded: bool, control: &Control) -> impl Future<Output = bool>;

    /// Ends after the last call.
    fn close(&mut self) -> impl Future<Output = ()>;

    /// The endpoint of the last call, among those of the run.
    fn endpoint(&self) -> usize;

    /// The kind of the operation at a position, among those of the workload.
    fn kind(&self, _position: u64) -> usize {
        0
    }
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredCall {
    pub body_bytes: u64,
    /// Attempts beyond the first.
    pub retries: u64,
}

/// The callers of one worker, connected.
pub struct Tasks<C> {
    callers: Vec<C>,
    shared: Rc<TaskShared>,
}

/// What callers of a worker need of the run.
pub struct Terms {
    pub request_timeout: Option<Duration>,
    pub failed_calls: FailedCalls,
    /// How long a reply is awaited after the time limit of the run.
    pub patience: Duration,
    pub control: Arc<Control>,
    pub counters: Arc<WorkerCounters>,
    /// The same for each endpoint.
    pub by_endpoint: Arc<[WorkerCounters]>,
}

/// State that all callers of a worker share.
struct TaskShared {
    terms: Terms,
    /// By the kind of operation.
    tallies: RefCell<Vec<Tally>>,
    /// Of each caller, the position and kind of its request and the moment from which its latency counts.
    waiting: RefCell<Vec<Option<(u64, usize, Instant)>>>,
}

impl<C: CallerTask> Tasks<C> {
    /// Callers whose operations have so many kinds.
    pub fn new(callers: Vec<C>, terms: Terms, kinds: usize) -> Self {
        let tallies = RefCell::new(vec![Tally::new(); kinds]);
        let waiting = RefCell::new(vec![None; callers.len()]);
        Self { callers, shared: Rc::new(TaskShared { terms, tallies, waiting }) }
    }

    /// Sends and receives until the schedule is used up or the run is stopped.
    pub async fn run(self, schedule: Arc<Schedule>, start: Instant) -> io::Result<Vec<Tally>> {
        let start = Start::new(start);
        let callers = tokio::task::LocalSet::new();
        for (number, caller) in self.callers.into_iter().enumerate() {
            callers.spawn_local(self.shared.clone().drive(number, caller, schedule.clone(), start));
        }
        let Terms { control, patience, .. } = &self.shared.terms;
        tokio::select! {
            () = callers => {}
            () = async {
                let mut stillness = Stillness::new(LOOK);
                while !control.is_stopped() && !schedule.is_over_since(Instant::now(), *patience) {
                    tokio::time::sleep(LOOK).await;
                    if let Some(gap) = stillness.look() {
                        self.shared.tallies.borrow_mut()[0].stood_still(gap);
                    }
                }
            } => {}
        }
        let (now, mut tallies) = (Instant::now(), self.shared.tallies.take());
        // A turn that is not due yet has not waited.
        let waiting = self.shared.waiting.borrow();
        for (position, kind, since) in waiting.iter().flatten().filter(|(_, _, since)| *since <= now) {
            tallies[*kind].unanswered(*position, &start.wait(*since, now));
        }
        drop(waiting);
        Ok(tallies)
    }
}

impl TaskShared {
    /// One caller, from its first turn to the last.
    async fn drive(
        self: Rc<Self>,
        number: usize,
        mut caller: impl CallerTask,
        schedule: Arc<Schedule>,
        start: Start,
    ) {
        while let Some(turn) = schedule.take(Instant::now()) {
            let kind = caller.kind(turn.position);
            self.waiting.borrow_mut()[number] = turn.due.map(|due| (turn.position, kind, due));
            if let Some(due) = turn.due {
                tokio::time::sleep_until(due.into()).await;
            }
            let sent_at = Instant::now();
            self.waiting.borrow_mut()[number] = Some((turn.position, kind, turn.counts_from(sent_at)));
            let answer = within(self.terms.request_timeout, caller.call(turn.position)).await;
            self.waiting.borrow_mut()[number] = None;
            let succeeded = answer.is_ok();
            self.record(turn, (kind, caller.endpoint()), sent_at, answer, start);
            if !caller.settle(succeeded, &self.terms.control).await {
                return;
            }
        }
        caller.close().await;
    }

    fn record(
        &self,
        turn: SendSlot,
        (kind, endpoint): (usize, usize),
        sent_at: Instant,
        answer: Result<AnsweredCall, CallFailure>,
        start: Start,
    ) {
        let tally = &mut self.tallies.borrow_mut()[kind];
        let Terms { counters, by_endpoint, failed_calls, .. } = &self.terms;
        match answer {
            Ok(AnsweredCall { body_bytes, retries }) => {
                let sample = start.sample(turn.counts_from(sent_at), sent_at, Instant::now(), body_bytes);
                tally.record(&sample);
                tally.retries += retries;
                let latency_ns = sample.latency.as_nanos() as u64;
                [&**counters, &by_endpoint[endpoint]].iter().for_each(|it| it.add_answered(latency_ns));
            }
            Err(failure) => {
                let wait = start.wait(turn.counts_from(sent_at), Instant::now());
                tally.failed_at(turn.position, &failure, &wait, *failed_calls);
                [&**counters, &by_endpoint[endpoint]].iter().for_each(|it| it.add_failed(failure.code.0));
            }
        }
    }
}

async fn within<T>(
    timeout: Option<Duration>,
    call: impl Future<Output = Result<T, CallFailure>>,
) -> Result<T, CallFailure> {
    let Some(timeout) = timeout else { return call.await };
    let answer = tokio::time::timeout(timeout, call).await;
    let late = |_| CallFailure::new(Code::DEADLINE_EXCEEDED, format!("no answer within {timeout:?}"));
    answer.map_err(late)?
}
