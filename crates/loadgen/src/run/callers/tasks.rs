//! Callers with a task each: for operations with several calls, or without gRPC.
//!
//! * Made for hundreds of callers, not thousands.
//! * Slots start precisely, like in a worker: a timer with nanosecond resolution wakes the callers in the
//!   order of their slots.

use crate::client::failure::{CallFailure, Code};
use crate::run::recorder::{FailedCalls, Start, Tally};
use crate::run::results::ThreadTallies;
use crate::run::schedule::{Schedule, SendSlot};
use crate::run::worker::timer::Timer;
use crate::stats::progress::{Control, WaitingCalls, WorkerCounters};
use crate::stats::stillness::Stillness;
use prost::Message;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Interval of checking whether the run was stopped.
const LOOK: Duration = Duration::from_millis(50);

pub trait CallerTask: 'static {
    /// Sends the request at a position.
    fn call(&mut self, position: u64) -> impl Future<Output = Result<AnsweredCall, CallFailure>>;

    /// Prepares for the next call; returns false if that is impossible.
    fn settle(&mut self, _control: &Control) -> impl Future<Output = bool> {
        std::future::ready(true)
    }

    /// Closes the caller after the last call.
    fn close(&mut self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Returns the endpoint index of the next call.
    fn endpoint(&self) -> usize;

    fn kind(&self, _position: u64) -> usize {
        0
    }
}

/// A successful request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredCall {
    pub body_bytes: u64,
    /// Additional attempts.
    pub retries: u64,
}

impl AnsweredCall {
    pub fn of(message: &impl Message, retries: u64) -> Self {
        Self { body_bytes: message.encoded_len() as u64, retries }
    }
}

/// Connected callers of a worker.
pub struct Tasks<C> {
    callers: Vec<C>,
    terms: Terms,
    kinds: usize,
}

/// Run parameters for the callers of a worker.
#[derive(Clone)]
pub struct Terms {
    pub request_timeout: Option<Duration>,
    pub failed_calls: FailedCalls,
    /// Time to await a reply after the time limit of the run.
    pub patience: Duration,
    pub control: Arc<Control>,
    pub counters: Arc<WorkerCounters>,
    pub by_endpoint: Arc<[WorkerCounters]>,
}

/// Indexes of a call's operation and endpoint.
#[derive(Clone, Copy)]
struct CallTarget {
    kind: usize,
    endpoint: usize,
}

/// A request taken by a caller.
#[derive(Clone, Copy)]
struct TaskWait {
    position: u64,
    target: CallTarget,
    /// Time from which its latency counts.
    since: Instant,
}

/// Shared state of all callers of a worker.
struct TaskShared {
    terms: Terms,
    /// Tallies by kind of operation.
    tallies: RefCell<Vec<Tally>>,
    /// Pending requests by caller.
    waiting: RefCell<Vec<Option<TaskWait>>>,
    /// Callers with a future slot, by its time and their number.
    early: RefCell<BTreeMap<(Instant, usize), Waker>>,
    /// Time of the last result of all finished callers.
    ended: Cell<Option<Instant>>,
}

impl<C: CallerTask> Tasks<C> {
    /// Creates callers with `kinds` kinds of operations.
    pub fn new(callers: Vec<C>, terms: Terms, kinds: usize) -> Self {
        Self { callers, terms, kinds }
    }

    /// Sends and receives until the schedule is exhausted or the run is stopped. Returns the time of the
    /// last call; closing callers does not count.
    pub async fn run(
        &mut self,
        schedule: Arc<Schedule>,
        start: Instant,
        is_the_run: bool,
    ) -> io::Result<ThreadTallies> {
        let start = Start::new(start);
        let shared = Rc::new(TaskShared {
            tallies: RefCell::new(vec![Tally::new(); self.kinds]),
            waiting: RefCell::new(vec![None; self.callers.len()]),
            terms: self.terms.clone(),
            early: RefCell::default(),
            ended: Cell::default(),
        });
        let callers = tokio::task::LocalSet::new();
        let tasks = self.callers.drain(..).enumerate().map(|(number, caller)| {
            let shared = shared.clone();
            callers.spawn_local(shared.drive(number, caller, schedule.clone(), start, is_the_run))
        });
        let tasks: Vec<_> = tasks.collect();
        let Terms { control, patience, .. } = &shared.terms;
        let mut timer = Timer::new()?;
        tokio::select! {
            // In this order, because a caller that now waits may be the next one to wake.
            biased;
            () = callers => {
                for task in tasks {
                    self.callers.extend(task.await);
                }
                return Ok((shared.tallies.take(), shared.ended.get().unwrap_or(start.at())));
            }
            failed = poll_fn(|context| shared.wake_early(&mut timer, context)) => return Err(failed),
            () = async {
                let mut stillness = Stillness::new(LOOK);
                while !control.is_stopped() && !schedule.is_over_since(Instant::now(), *patience) {
                    tokio::time::sleep(LOOK).await;
                    shared.show_waiting(start);
                    if let Some(gap) = stillness.look() {
                        shared.tallies.borrow_mut()[0].stood_still(gap);
                    }
                }
            } => {}
        }
        let (now, mut tallies) = (Instant::now(), shared.tallies.take());
        // A slot in the future has not waited.
        let waiting = shared.waiting.borrow();
        for TaskWait { position, target, since } in waiting.iter().flatten().filter(|wait| wait.since <= now)
        {
            tallies[target.kind].unanswered(*position, &start.wait(*since, now));
        }
        drop(waiting);
        Ok((tallies, now))
    }
}

impl TaskShared {
    /// Runs a caller from its first slot to the last.
    async fn drive<C: CallerTask>(
        self: Rc<Self>,
        number: usize,
        mut caller: C,
        schedule: Arc<Schedule>,
        start: Start,
        is_the_run: bool,
    ) -> C {
        while let Some(turn) = schedule.take(Instant::now()) {
            let target = CallTarget { kind: caller.kind(turn.position), endpoint: caller.endpoint() };
            let wait = |since| TaskWait { position: turn.position, target, since };
            self.waiting.borrow_mut()[number] = turn.due.map(wait);
            let sent_at = match turn.due {
                Some(due) => self.begin_at(due, number).await,
                None => Instant::now(),
            };
            self.waiting.borrow_mut()[number] = Some(wait(turn.counts_from(sent_at)));
            let answer = within(self.terms.request_timeout, caller.call(turn.position)).await;
            self.waiting.borrow_mut()[number] = None;
            self.record(turn, target, sent_at, answer, start);
            self.ended.set(self.ended.get().max(Some(Instant::now())));
            if !caller.settle(&self.terms.control).await {
                return caller;
            }
        }
        if is_the_run {
            caller.close().await;
        }
        caller
    }

    /// Waits for the time of a slot, and records its lateness.
    async fn begin_at(&self, due: Instant, number: usize) -> Instant {
        let taken = Instant::now();
        let is_due = |context: &mut Context<'_>| {
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.early.borrow_mut().insert((due, number), context.waker().clone());
            Poll::Pending
        };
        poll_fn(is_due).await;
        let (now, tally) = (Instant::now(), &mut self.tallies.borrow_mut()[0]);
        match taken.checked_duration_since(due) {
            Some(late) => tally.started_late(late),
            None => tally.kept_pace(now - due),
        }
        now
    }

    /// Publishes the requests without a reply for observers of the run.
    fn show_waiting(&self, start: Start) {
        let Terms { counters, by_endpoint, .. } = &self.terms;
        let mut waiting = vec![WaitingCalls::default(); by_endpoint.len()];
        let now = Instant::now();
        for TaskWait { target, since, .. } in
            self.waiting.borrow().iter().flatten().filter(|it| it.since <= now)
        {
            let oldest = Some(since.saturating_duration_since(start.at()));
            waiting[target.endpoint].add(WaitingCalls { in_flight: 1, overdue: 0, oldest });
        }
        let mut whole = WaitingCalls::default();
        for (of, waiting) in by_endpoint.iter().zip(waiting) {
            whole.add(waiting);
            of.set_waiting(waiting);
        }
        counters.set_waiting(whole);
    }

    /// Wakes the callers with a due slot, and sets the timer for the next one.
    fn wake_early(&self, timer: &mut Timer, context: &mut Context<'_>) -> Poll<io::Error> {
        let mut early = self.early.borrow_mut();
        while let Some(first) = early.first_entry() {
            match timer.poll_due(first.key().0, Instant::now(), context) {
                Ok(Poll::Ready(())) => first.remove().wake(),
                Ok(Poll::Pending) => break,
                Err(error) => return Poll::Ready(error),
            }
        }
        Poll::Pending
    }

    fn record(
        &self,
        turn: SendSlot,
        CallTarget { kind, endpoint }: CallTarget,
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

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::model::Pace;

    /// A caller with instantaneous calls.
    struct AtOnce;

    impl CallerTask for AtOnce {
        async fn call(&mut self, _: u64) -> Result<AnsweredCall, CallFailure> {
            Ok(AnsweredCall::default())
        }

        async fn close(&mut self) {
            tokio::time::sleep(Duration::from_millis(400)).await;
        }

        fn endpoint(&self) -> usize {
            0
        }
    }

    fn terms() -> Terms {
        Terms {
            request_timeout: None,
            failed_calls: FailedCalls::Apart,
            patience: Duration::from_secs(1),
            control: Arc::default(),
            counters: Arc::default(),
            by_endpoint: [WorkerCounters::default()].into(),
        }
    }

    #[test]
    fn what_callers_do_after_their_last_call_takes_no_time_of_the_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let start = Instant::now();
        let schedule = Arc::new(Schedule::new(3, Pace::Unlimited, start));
        let mut run = Tasks::new(vec![AtOnce, AtOnce], terms(), 1);
        let (tallies, end) = runtime.block_on(run.run(schedule, start, true)).unwrap();
        assert_eq!(tallies[0].succeeded_len(), 3);
        assert!(end - start < Duration::from_millis(200) && start.elapsed() >= Duration::from_millis(400));
    }

    #[test]
    fn calls_of_an_open_loop_are_sent_at_their_moments_and_their_lateness_is_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Several callers wait concurrently, for times between the milliseconds of tokio's timer, which
        // would be late by one on average. On a busy machine one of several tries is on time.
        let is_on_time = |_| {
            let tallies = runtime.block_on(async {
                let start = Instant::now();
                let schedule = Arc::new(Schedule::new(300, Pace::Open(700.0), start));
                let callers = (0..4).map(|_| AtOnce).collect();
                Tasks::new(callers, terms(), 1).run(schedule, start, true).await.unwrap().0
            });
            let (lateness, latencies) = (tallies[0].lateness, &tallies[0].latencies_ns);
            assert!(latencies.len() == 300 && lateness.kept > 0, "{lateness:?}");
            latencies.value_at_quantile(0.5) < 500_000
        };
        assert!((0..10).any(is_on_time));
    }
}
