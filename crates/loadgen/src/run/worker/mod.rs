//! A worker: one thread and one task with all its connections and callers.
//!
//! ```text
//!   epoll ─▶ ready links: read ─▶ their callers: record, next request ─▶ links again: write ─▶ epoll
//! ```
//!
//! * Each caller has one request in flight. Caller i sends through connection object i mod conns; each
//!   object has a link per endpoint and uses them round-robin.
//! * A poll of the worker visits all ready links and callers once and then returns to epoll, so a busy
//!   connection cannot starve another. Replies to many callers are read with one system call, and their next
//!   requests are written with one.
//! * A server limits the number of concurrent calls per connection. Further callers wait here in FIFO order,
//!   and their latency includes the wait.
//! * Service time starts when the link of a call is next polled, which writes to the socket.
//! * A call costs 1 allocation and copy of the request, 2 clock readings, no task, no timer, no contended
//!   lock.

mod caller; // state of a caller
mod calls; // a caller's request, and the record of its result
mod housekeeping; // periodic checks
mod ready; // tracks connections and callers that can make progress

pub mod timer; // nanosecond resolution

use crate::client::call::ReplyKind;
use crate::client::failure::CallFailure;
use crate::client::link::{Link, LinkChange};
use crate::run::recorder::{FailedCalls, Start, Tally};
use crate::run::schedule::Schedule;
use crate::stats::progress::{Control, WorkerCounters};
use crate::stats::stillness::Stillness;
use crate::workload::WorkloadSource;
use bytes::Bytes;
use caller::CallerState;
use ready::ReadyQueue;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use timer::Timer;
use tokio::time::{Interval, MissedTickBehavior};

/// Interval of checks without an event: a stop, an overdue call, a link that may redial.
const HOUSEKEEPING: Duration = Duration::from_millis(50);
/// Rounds of reading and writing before the worker returns to epoll. Callers with a reply in the first round
/// send in the second; a third handles data that arrived in the meantime.
const ROUNDS_MAX: usize = 3;

/// Called for each acknowledged write and for each failed call.
pub trait CallObserver: Send + Sync {
    /// Called when the server has acknowledged the write of `key` at `revision`.
    fn acknowledged(&self, position: u64, key: Bytes, revision: i64);

    /// Called for a failed call. The server may have executed it, unless the failure excludes that.
    fn failed(&self, position: u64, failure: &CallFailure);

    /// Called when a connection accepts the request at a position, with a latency that counts from
    /// `clock_from`.
    fn sent(&self, _position: u64, _clock_from: Instant) {}
}

/// Connections, callers and settings of a worker.
pub struct WorkerSetup {
    /// `endpoints_len` links for each connection object, grouped by object.
    pub links: Vec<Link>,
    pub endpoints_len: usize,
    pub callers: usize,
    pub source: WorkloadSource,
    /// Kinds of requests in the source.
    pub kinds: usize,
    pub replies: ReplyKind,
    pub request_timeout: Option<Duration>,
    pub failed_calls: FailedCalls,
    /// Index of the target endpoint; None distributes requests round-robin.
    pub leader: Option<Arc<AtomicUsize>>,
    /// Time that callers wait for a link before the run is aborted, and for a reply after the time limit.
    pub patience: Duration,
    pub control: Arc<Control>,
    pub counters: Arc<WorkerCounters>,
    pub by_endpoint: Arc<[WorkerCounters]>,
    /// Endpoint index of each link.
    pub places: Vec<usize>,
    pub observer: Option<Arc<dyn CallObserver>>,
}

/// Sends the requests of its callers.
pub struct Worker {
    setup: WorkerSetup,
    /// Next link of each connection object.
    cursors: Vec<usize>,
    callers: Vec<CallerState>,
    /// Slots: the links, then the callers.
    ready: ReadyQueue,
    waiting: BinaryHeap<Reverse<(Instant, u32)>>,
    stranded: Vec<u32>,
    /// Queues of callers by link. A caller that timed out may still be in one.
    queues: Vec<VecDeque<u32>>,
    /// Callers with an unwritten request, by link; the link's next poll writes it.
    unwritten: Vec<Vec<u32>>,
    /// Number of callers that are not done.
    active: usize,
    /// True if replies are missing, but the time limit passed too long ago to await them.
    given_up: bool,
    /// Tallies by kind of request; pace counts in the first.
    tallies: Vec<Tally>,
    start: Start,
    stillness: Stillness,
}

/// Next action after a step of a caller: continue, or wait for a wake.
enum CallerNext {
    Again,
    Wait,
}

struct WorkerRun {
    schedule: Arc<Schedule>,
    timer: Timer,
    housekeeping: Interval,
}

impl Worker {
    pub fn new(setup: WorkerSetup) -> Self {
        assert!(setup.links.len().is_multiple_of(setup.endpoints_len), "each object has a link per endpoint");
        let conns = setup.links.len() / setup.endpoints_len;
        Self {
            ready: ReadyQueue::new(setup.links.len() + setup.callers),
            // Objects start at different endpoints; otherwise all first calls of a run would use the same
            // one.
            cursors: (0..conns).collect(),
            callers: Vec::new(),
            waiting: BinaryHeap::new(),
            stranded: Vec::new(),
            queues: setup.links.iter().map(|_| VecDeque::new()).collect(),
            active: 0,
            given_up: false,
            unwritten: setup.links.iter().map(|_| Vec::new()).collect(),
            tallies: vec![Tally::new(); setup.kinds],
            start: Start::new(Instant::now()),
            stillness: Stillness::new(HOUSEKEEPING),
            setup,
        }
    }

    /// Opens all links. Fails with the first error.
    pub async fn connect(&mut self) -> Result<(), String> {
        for slot in 0..self.setup.links.len() {
            self.ready.push(slot as u32);
        }
        let deadline = Box::pin(tokio::time::sleep(self.setup.patience));
        tokio::select! {
            result = std::future::poll_fn(|context| self.poll_connect(context)) => result,
            () = deadline => Err("not all connections could be opened in time".into()),
        }
    }

    fn poll_connect(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.ready.begin(context.waker());
        let mut batch = Vec::new();
        self.ready.take(&mut batch);
        for slot in batch {
            if !self.is_wanted(slot as usize) {
                continue;
            }
            let link = &mut self.setup.links[slot as usize];
            let mut context = Context::from_waker(self.ready.waker(slot));
            if link.poll(Instant::now(), &mut context) == LinkChange::WentDown {
                return Poll::Ready(Err(format!("endpoint {}: {}", link.endpoint(), link.reason())));
            }
        }
        if self.ready.end() {
            context.waker().wake_by_ref();
        }
        let mut links = self.setup.links.iter().enumerate();
        if links.all(|(index, link)| link.is_up() || !self.is_wanted(index)) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Sends and receives until the schedule is exhausted or the run is stopped.
    pub async fn run(&mut self, schedule: Arc<Schedule>, start: Instant) -> io::Result<Vec<Tally>> {
        self.callers = (0..self.setup.callers).map(|_| CallerState::Free).collect();
        (self.active, self.given_up) = (self.setup.callers, false);
        self.stranded.clear();
        self.queues.iter_mut().for_each(VecDeque::clear);
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.start = Start::new(start);
        self.stillness = Stillness::new(HOUSEKEEPING);
        let timer = Timer::new()?;
        let mut running = WorkerRun { schedule, timer, housekeeping };
        for slot in 0..self.setup.links.len() + self.setup.callers {
            self.ready.push(slot as u32);
        }
        let turns = std::future::poll_fn(|context| self.poll_run(&mut running, context));
        // tokio's cooperative budget would only delay this task, the only one in its runtime.
        tokio::task::unconstrained(turns).await?;
        Ok(std::mem::replace(&mut self.tallies, vec![Tally::new(); self.setup.kinds]))
    }

    fn poll_run(&mut self, running: &mut WorkerRun, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ready.begin(context.waker());
        if running.housekeeping.poll_tick(context).is_ready() {
            self.check_periodically(running);
            // Registers for the next tick.
            let _ = running.housekeeping.poll_tick(context);
        }
        if let Err(error) = self.wake_early(running, context) {
            return Poll::Ready(Err(error));
        }
        let mut batch = Vec::new();
        for _ in 0..ROUNDS_MAX {
            self.ready.take(&mut batch);
            if batch.is_empty() {
                break;
            }
            for slot in batch.drain(..) {
                self.visit(slot, running);
            }
        }
        let more = self.ready.end();
        if self.active == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.setup.control.is_stopped() || self.given_up {
            self.count_unanswered(Instant::now());
            return Poll::Ready(Ok(()));
        }
        if more {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn visit(&mut self, slot: u32, running: &mut WorkerRun) {
        let links = self.setup.links.len();
        match (slot as usize).checked_sub(links) {
            Some(caller) => self.drive(caller, running),
            None => self.poll_link(slot as usize),
        }
    }

    /// Reports whether requests may use a link. A link that is down is not reopened otherwise.
    fn is_wanted(&self, index: usize) -> bool {
        let leader = self.setup.leader.as_ref();
        leader.is_none_or(|leader| index % self.setup.endpoints_len == leader.load(Relaxed))
    }

    fn poll_link(&mut self, index: usize) {
        if !self.setup.links[index].is_up() && !self.is_wanted(index) {
            return;
        }
        let mut context = Context::from_waker(self.ready.waker(index as u32));
        let now = Instant::now();
        let links = self.setup.links.len();
        for slot in self.unwritten[index].drain(..) {
            if let CallerState::Calling(call) = &mut self.callers[slot as usize - links]
                && call.link as usize == index
            {
                call.sent_at = now;
            }
        }
        match self.setup.links[index].poll(now, &mut context) {
            LinkChange::Nothing => {}
            // h2 fails the calls in flight; queued callers choose another link.
            LinkChange::WentDown => self.queues[index].drain(..).for_each(|slot| self.ready.push(slot)),
            LinkChange::CameUp => self.wake_stranded(),
        }
    }

    /// Advances a caller as far as possible.
    fn drive(&mut self, caller: usize, running: &mut WorkerRun) {
        let mut now = Instant::now();
        loop {
            let state = std::mem::replace(&mut self.callers[caller], CallerState::Done);
            let (state, next) = self.step(caller, state, &mut now, running);
            self.callers[caller] = state;
            match next {
                CallerNext::Again => {}
                CallerNext::Wait => return,
            }
        }
    }

    fn step(
        &mut self,
        caller: usize,
        state: CallerState,
        now: &mut Instant,
        running: &mut WorkerRun,
    ) -> (CallerState, CallerNext) {
        match state {
            CallerState::Calling(mut call) => {
                let mut context = Context::from_waker(self.ready.waker(self.slot(caller)));
                match call.poll(self.setup.replies, &mut context) {
                    Poll::Pending => (CallerState::Calling(call), CallerNext::Wait),
                    Poll::Ready(result) => {
                        *now = Instant::now();
                        self.call_ended(call.link);
                        self.record(&call, result, *now);
                        (CallerState::Free, CallerNext::Again)
                    }
                }
            }
            CallerState::Free => match running.schedule.take(*now) {
                None => {
                    self.active -= 1;
                    (CallerState::Done, CallerNext::Wait)
                }
                Some(turn) => match turn.due {
                    Some(due) if due > *now => {
                        self.waiting.push(Reverse((due, self.slot(caller))));
                        (CallerState::Early(turn), CallerNext::Wait)
                    }
                    Some(due) => {
                        self.tallies[0].started_late(*now - due);
                        self.begin(caller, turn, *now)
                    }
                    None => self.begin(caller, turn, *now),
                },
            },
            CallerState::Early(turn) if turn.due.is_some_and(|due| due > *now) => {
                (CallerState::Early(turn), CallerNext::Wait)
            }
            CallerState::Early(turn) => {
                self.tallies[0].kept_pace(turn.due.map_or(Duration::ZERO, |due| *now - due));
                self.begin(caller, turn, *now)
            }
            CallerState::Stranded { turn, since } => self.begin(caller, turn, since),
            CallerState::Queued { turn, since, link } => self.leave_queue(caller, turn, since, link),
            CallerState::Done => (CallerState::Done, CallerNext::Wait),
        }
    }

    /// Readies the callers with a due slot and sets the timer for the next slot.
    fn wake_early(&mut self, running: &mut WorkerRun, context: &mut Context<'_>) -> io::Result<()> {
        while let Some(&Reverse((due, slot))) = self.waiting.peek() {
            if running.timer.poll_due(due, Instant::now(), context)?.is_pending() {
                break;
            }
            self.waiting.pop();
            self.ready.push(slot);
        }
        Ok(())
    }

    fn wake_stranded(&mut self) {
        for slot in self.stranded.drain(..) {
            self.ready.push(slot);
        }
    }

    fn slot(&self, caller: usize) -> u32 {
        (self.setup.links.len() + caller) as u32
    }

    fn caller(&self, slot: u32) -> &CallerState {
        &self.callers[slot as usize - self.setup.links.len()]
    }
}
