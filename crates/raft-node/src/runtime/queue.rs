//! The queue to the driver, to the log thread and to the apply thread: many senders, a single owner that
//! takes all items together.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while senders wait.
//! * Order is preserved per sender. The driver relies on it for a `Durable` that must be handled before the
//!   responses to the messages it released.
//! * A sender wakes the owner only if it waits: under load there is no wake-up cost.
//! * The owner is a task, which polls, or a thread, which sleeps.
//! * Senders enforce the limits. A closed queue accepts no items.
//!
//! # Admission
//!
//! Limits on pending requests and messages.
//!
//! All data that a member holds for callers and peers is admitted here. The simulator uses the same code for
//! its clients and messages.
//!
//! * Limits are checked before queuing: a rejection does not affect other requests.
//! * Proposals and reads of the member itself, such as for lease expiry, have separate limits: clients that
//!   reach theirs do not delay them.
//! * A permit is released on drop, so the pending requests are counted exactly, regardless of how a wait
//!   finishes.
//!
//! Independent of queues and threads.
//!
//! # Completions
//!
//! Delivery of results to callers on the async runtime.
//!
//! ```text
//!   driver, apply thread ──a single result──▶ its waiter
//!                        └─several─▶ channel ──▶ Pump (a task of the runtime) ──▶ their waiters
//! ```
//!
//! * Waking a task from outside its runtime costs a lock and often a system call; from inside, a push on a
//!   queue. So the results of an entry cross the boundary together, and the pump distributes them.
//! * A permit is released just before the result is sent, or when its holder is dropped: a caller with a
//!   result finds its capacity free again.
//! * The channel needs no limit: each waiter has a permit, and permits are limited.
//! * The result of a waiter that disconnected is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, oneshot};

use crate::wire::is_snapshot;
use crate::{LogIndex, ProposeError, RaftLimits, ReadError};

struct QueueState<T> {
    /// Items in arrival order.
    items: Vec<T>,
    /// Waiting owner that no sender has woken yet; the first sender to find it does.
    waiting: Option<Owner>,
    /// The owner must return even without items.
    nudged: bool,
    /// No further items are accepted.
    closed: bool,
}

enum Owner {
    Task(Waker),
    Thread,
}

pub(super) struct InputQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Wakes an owner that is a thread.
    filled: Condvar,
}

/// State of a queue after taking its items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueStatus {
    /// There may be items; more may come.
    Open,
    /// Closed: the taken items are the last.
    Closed,
}

impl<T> InputQueue<T> {
    pub fn new() -> Self {
        let state = QueueState { items: Vec::new(), waiting: None, nudged: false, closed: false };
        InputQueue { state: Mutex::new(state), filled: Condvar::new() }
    }

    /// Adds `item`, or returns it if the queue is closed.
    pub fn put(&self, item: T) -> Result<(), T> {
        let mut refused = None;
        self.change(|state| match state.closed {
            true => refused = Some(item),
            false => state.items.push(item),
        });
        refused.map_or(Ok(()), Err)
    }

    /// Adds `item` without waking the owner; must be followed by [`InputQueue::wake`].
    pub fn put_quietly(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        Ok(())
    }

    /// Adds all of `items`, in order; they are dropped if the queue is closed.
    pub fn put_all(&self, items: Vec<T>) {
        if !items.is_empty() {
            self.change(|state| {
                if !state.closed {
                    state.items.extend(items);
                }
            });
        }
    }

    /// Wakes the owner if it waits, for quietly added items.
    pub fn wake(&self) {
        self.change(|_| {});
    }

    /// Makes the owner's current or next wait return immediately, even without items.
    pub fn nudge(&self) {
        self.change(|state| state.nudged = true);
    }

    /// Closes the queue; the owner wakes and takes the remaining items.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Changes the state, then wakes the owner.
    fn change(&self, change: impl FnOnce(&mut QueueState<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiting = state.waiting.take();
        drop(state);
        match waiting {
            None => {}
            Some(Owner::Task(waker)) => waker.wake(),
            Some(Owner::Thread) => {
                self.filled.notify_one();
            }
        }
    }

    /// For a task: ready when there are items, or the queue is closed.
    pub fn poll_filled(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.is_worth_a_look() {
            return Poll::Ready(());
        }
        match &mut state.waiting {
            Some(Owner::Task(waker)) => waker.clone_from(context.waker()),
            none => *none = Some(Owner::Task(context.waker().clone())),
        }
        Poll::Pending
    }

    /// For a thread: takes all items into `into`, which must be empty. Blocks while there are none.
    pub fn wait_and_take(&self, into: &mut Vec<T>) -> QueueStatus {
        let mut state = self.state.lock();
        while !state.is_worth_a_look() {
            state.waiting = Some(Owner::Thread);
            self.filled.wait(&mut state);
        }
        state.take(into)
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Takes all items into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<T>) -> QueueStatus {
        self.state.lock().take(into)
    }
}

impl<T> QueueState<T> {
    /// Reports whether a wait should return. Consumes a nudge.
    fn is_worth_a_look(&mut self) -> bool {
        !self.items.is_empty() || self.closed || std::mem::take(&mut self.nudged)
    }

    fn take(&mut self, into: &mut Vec<T>) -> QueueStatus {
        assert!(into.is_empty(), "what was taken before must be handled first");
        // The owner is awake, so senders need not wake it.
        self.waiting = None;
        // Swaps the buffers: `into` was emptied above, so the senders get an empty one with capacity.
        std::mem::swap(&mut self.items, into);
        if self.closed { QueueStatus::Closed } else { QueueStatus::Open }
    }
}

/// Peers' messages up to this size are admitted beyond the inbox limit, up to twice the limit: heartbeats
/// must not be lost because of appended entries.
const SMALL_MESSAGE_BYTES: usize = 1024;

/// Origin of a proposal or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    Client,
    /// The member itself: the number of its calls does not depend on clients.
    Member,
}

/// Limits of concurrent proposals and reads of the member itself.
const OWN_REQUESTS_MAX: usize = 1024;
const OWN_PROPOSAL_BYTES_MAX: usize = 8 << 20;

/// Admission limits of a member.
#[derive(Debug)]
pub struct Entrance {
    command_bytes_max: usize,
    inbox_bytes_max: usize,
    of_clients: PendingRequests,
    of_member: PendingRequests,
    inbox_bytes: AtomicUsize,
}

#[derive(Debug)]
struct PendingRequests {
    /// Proposals and their bytes.
    proposals: Arc<Occupancy>,
    proposals_max: usize,
    proposal_bytes_max: usize,
    reads: Arc<Occupancy>,
    reads_max: usize,
    unapplied_entries_max: u64,
}

impl PendingRequests {
    fn new(limits: &RaftLimits) -> PendingRequests {
        PendingRequests {
            proposals: Arc::default(),
            proposals_max: limits.proposals_max,
            proposal_bytes_max: limits.proposal_bytes_max,
            reads: Arc::default(),
            reads_max: limits.reads_max,
            unapplied_entries_max: limits.unapplied_entries_max,
        }
    }
}

impl Entrance {
    #[must_use]
    pub fn new(limits: &RaftLimits) -> Entrance {
        let of_member = RaftLimits {
            proposals_max: OWN_REQUESTS_MAX,
            proposal_bytes_max: OWN_PROPOSAL_BYTES_MAX,
            reads_max: OWN_REQUESTS_MAX,
            unapplied_entries_max: limits.unapplied_entries_max.saturating_mul(2),
            ..limits.clone()
        };
        Entrance {
            command_bytes_max: limits.command_bytes_max,
            inbox_bytes_max: limits.inbox_bytes_max,
            of_clients: PendingRequests::new(limits),
            of_member: PendingRequests::new(&of_member),
            inbox_bytes: AtomicUsize::new(0),
        }
    }

    fn waiting(&self, origin: RequestOrigin) -> &PendingRequests {
        // Mutant: a full admission delays lease expiry.
        match origin {
            RequestOrigin::Member if !base::mutant("one-entrance") => &self.of_member,
            _ => &self.of_clients,
        }
    }

    /// Admits a command of this size, given the number of unapplied committed entries. The permit must be
    /// held until the proposal completes.
    pub fn propose(
        &self,
        origin: RequestOrigin,
        command_bytes: usize,
        unapplied_entries: u64,
    ) -> Result<Permit, ProposeError> {
        if command_bytes > self.command_bytes_max {
            return Err(ProposeError::TooLarge { bytes: command_bytes, bytes_max: self.command_bytes_max });
        }
        let waiting = self.waiting(origin);
        if unapplied_entries > waiting.unapplied_entries_max {
            return Err(ProposeError::TooManyRequests);
        }
        waiting
            .proposals
            .admit(command_bytes, waiting.proposals_max, waiting.proposal_bytes_max)
            .ok_or(ProposeError::TooManyRequests)
    }

    /// Admits a read. The permit must be held until the read completes.
    pub fn read(&self, origin: RequestOrigin) -> Result<Permit, ReadError> {
        let waiting = self.waiting(origin);
        waiting.reads.admit(0, waiting.reads_max, 0).ok_or(ReadError::TooManyRequests)
    }

    /// Admits a peer's message to the inbox. If true, must be followed by [`Entrance::took`].
    pub fn receive(&self, message: &[u8]) -> bool {
        let bytes = inbox_cost(message);
        let bytes_max = match bytes {
            0..=SMALL_MESSAGE_BYTES => 2 * self.inbox_bytes_max,
            _ => self.inbox_bytes_max,
        };
        // The stream of a snapshot message is over: it would not be sent again, and its staged state would
        // remain forever.
        let must = is_snapshot(message);
        if self.inbox_bytes.fetch_add(bytes, Ordering::Relaxed) > bytes_max && !must {
            self.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Releases the bytes of a message taken from the inbox.
    pub fn took(&self, message: &[u8]) {
        self.inbox_bytes.fetch_sub(inbox_cost(message), Ordering::Relaxed);
    }

    /// Returns the number of pending proposals.
    pub fn proposals_pending(&self) -> usize {
        self.of_clients.proposals.count() + self.of_member.proposals.count()
    }
}

/// Returns the inbox size of a peer's message: its bytes, and its queue slot. Without the latter, the number
/// of empty messages would be unlimited.
fn inbox_cost(message: &[u8]) -> usize {
    const PLACE_BYTES: usize = 128;
    message.len() + PLACE_BYTES
}

/// Number and bytes of pending requests; shared by the admission and all permits.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// Number of permits.
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Occupancy {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Admits a request with `bytes`, unless that would exceed a limit. A single request is always within
    /// the byte limit.
    pub fn admit(self: &Arc<Self>, bytes: usize, count_max: usize, bytes_max: usize) -> Option<Permit> {
        let count_before = self.count.fetch_add(1, Ordering::Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Created first, so that a rejection releases the reserved amounts.
        let permit = Permit { bytes, of: self.clone() };
        let fits = count_before < count_max && (bytes_before == 0 || bytes_before + bytes <= bytes_max);
        fits.then_some(permit)
    }
}

/// The right to wait; releases its capacity on drop.
#[derive(Debug)]
pub struct Permit {
    bytes: usize,
    of: Arc<Occupancy>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let count = self.of.count.fetch_sub(1, Ordering::Relaxed);
        let bytes = self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(count > 0 && bytes >= self.bytes, "more permits given back than were taken");
    }
}

/// The reply channel of a waiter.
#[derive(Debug)]
pub(super) struct PendingReply<T> {
    /// Before `to`, so that the permit is released first when the reply is dropped.
    pub permit: Permit,
    pub to: oneshot::Sender<T>,
}

impl<T> PendingReply<T> {
    fn complete(self, answer: T) {
        drop(self.permit);
        let _ = self.to.send(answer);
    }
}

pub(super) type ProposeReply<O> = PendingReply<Result<O, ProposeError>>;
pub(super) type ReadReply = PendingReply<Result<LogIndex, ReadError>>;

/// A result and its destination.
pub(super) enum Completion<O> {
    Proposal(ProposeReply<O>, Result<O, ProposeError>),
    Read(ReadReply, Result<LogIndex, ReadError>),
}

impl<O> Completion<O> {
    fn complete(self) {
        match self {
            Completion::Proposal(reply, outcome) => reply.complete(outcome),
            Completion::Read(reply, index) => reply.complete(index),
        }
    }
}

/// The sending side in the threads.
pub(super) struct ReplySender<O> {
    to_pump: mpsc::UnboundedSender<Vec<Completion<O>>>,
}

impl<O> Clone for ReplySender<O> {
    fn clone(&self) -> Self {
        ReplySender { to_pump: self.to_pump.clone() }
    }
}

impl<O> ReplySender<O> {
    pub fn complete(&self, mut completions: Vec<Completion<O>>) {
        if completions.len() <= 1 {
            return completions.drain(..).for_each(Completion::complete);
        }
        // Without a pump (its runtime has stopped) the waiters may be dropped, but permits must still be
        // released.
        if let Err(unsent) = self.to_pump.send(completions) {
            unsent.0.into_iter().for_each(Completion::complete);
        }
    }
}

/// The receiving side in the runtime: spawn [`Pump::run`] there. Without it, results that were sent together
/// never reach their waiters.
pub struct Pump<O> {
    from_threads: mpsc::UnboundedReceiver<Vec<Completion<O>>>,
}

impl<O: Send + 'static> Pump<O> {
    /// Runs until the member has stopped.
    pub async fn run(mut self) {
        while let Some(completions) = self.from_threads.recv().await {
            completions.into_iter().for_each(Completion::complete);
        }
    }
}

pub(super) fn replies<O>() -> (ReplySender<O>, Pump<O>) {
    let (to_pump, from_threads) = mpsc::unbounded_channel();
    (ReplySender { to_pump }, Pump { from_threads })
}

#[cfg(test)]
mod tests;
