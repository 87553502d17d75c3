//! The queue to the driver, to the log thread and to the apply thread: many senders, one owner that takes
//! everything out at once.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while others wait.
//! * Order is kept per sender. The driver relies on it for a `Durable` that must be seen before the answers
//!   to what it allowed.
//! * A sender wakes the owner only if it waits: under load there is no cost of a wake-up.
//! * The owner is a task, which polls, or a thread, which sleeps.
//! * Bounds are the senders' affair (each says its own). A closed queue takes nothing more.
//!
//! # Who may wait
//!
//! What may come in, and what is refused because too much waits already.
//!
//! Everything that a member holds for callers and peers passes here first. The simulator lets its clients and
//! messages in by the same code.
//!
//! * Bounds are checked before anything is queued: a refusal costs others nothing.
//! * What a member proposes and reads for itself, such as the end of leases, has separate bounds: clients
//!   that fill theirs do not delay it.
//! * A permit is given back when it is dropped, so what waits is counted exactly, through every way that a
//!   wait can end.
//!
//! Knows neither queues nor threads.
//!
//! # Answers
//!
//! Answers on their way back to those who wait on the async runtime.
//!
//! ```text
//!   driver, apply thread ──one answer──▶ its waiter
//!                        └─many at once─▶ channel ──▶ Pump (a task of the runtime) ──▶ their waiters
//! ```
//!
//! * Waking a task from outside its runtime costs a lock and often a system call; from inside, a push on a
//!   queue. So the answers of one entry cross the border together, and the pump hands them out on the other
//!   side.
//! * A permit is given back just before the answer goes out, or when its holder is dropped: a
//!   caller that has its answer finds the room that it took free again.
//! * The channel needs no bound: each waiter has a permit, and permits are bounded.
//! * A waiter that went away is no error; its answer is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, oneshot};

use crate::wire::is_snapshot;
use crate::{LogIndex, ProposeError, RaftLimits, ReadError};

struct QueueState<T> {
    /// In order of arrival; taken all at once.
    items: Vec<T>,
    /// The owner waits, and no sender has woken it yet: the one who finds this does.
    waiting: Option<Owner>,
    /// The owner should look around although there may be no items.
    nudged: bool,
    /// Nothing comes in any more.
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

/// Whether the owner should go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueStatus {
    /// There may be items; more may come.
    Open,
    /// Closed: what was taken is the last.
    Closed,
}

impl<T> InputQueue<T> {
    pub fn new() -> Self {
        let state = QueueState { items: Vec::new(), waiting: None, nudged: false, closed: false };
        InputQueue { state: Mutex::new(state), filled: Condvar::new() }
    }

    /// Puts `item` in, or gives it back if the queue is closed.
    pub fn put(&self, item: T) -> Result<(), T> {
        let mut refused = None;
        self.change(|state| match state.closed {
            true => refused = Some(item),
            false => state.items.push(item),
        });
        refused.map_or(Ok(()), Err)
    }

    /// Puts `item` in without waking the owner; [`InputQueue::wake`] is owed.
    pub fn put_quietly(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        Ok(())
    }

    /// Puts all of `items` in, in order; they are lost if the queue is closed.
    pub fn put_all(&self, items: Vec<T>) {
        if !items.is_empty() {
            self.change(|state| {
                if !state.closed {
                    state.items.extend(items);
                }
            });
        }
    }

    /// Wakes the owner if it waits; what was put in quietly is then found.
    pub fn wake(&self) {
        self.change(|_| {});
    }

    /// Makes the owner's current or next wait end at once, items or not.
    pub fn nudge(&self) {
        self.change(|state| state.nudged = true);
    }

    /// Nothing can be put in any more; the owner wakes and takes the rest.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Changes the state, and wakes the owner after that.
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

    /// For a task: ready when there is something to take, or the end.
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

    /// For a thread: takes all items into `into`, which must be empty. Sleeps while there are none.
    pub fn wait_and_take(&self, into: &mut Vec<T>) -> QueueStatus {
        let mut state = self.state.lock();
        while !state.is_worth_a_look() {
            state.waiting = Some(Owner::Thread);
            self.filled.wait(&mut state);
        }
        state.take(into)
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Takes all items into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<T>) -> QueueStatus {
        self.state.lock().take(into)
    }
}

impl<T> QueueState<T> {
    /// A nudge ends one wait.
    fn is_worth_a_look(&mut self) -> bool {
        !self.items.is_empty() || self.closed || std::mem::take(&mut self.nudged)
    }

    fn take(&mut self, into: &mut Vec<T>) -> QueueStatus {
        assert!(into.is_empty(), "what was taken before must be handled first");
        // The owner is awake: no sender need wake it.
        self.waiting = None;
        // The buffers change places: `into` was emptied above, so the senders get an empty one with room in
        // it.
        std::mem::swap(&mut self.items, into);
        if self.closed { QueueStatus::Closed } else { QueueStatus::Open }
    }
}

/// Peers' messages up to this size are still let in when the inbox is over its bound, up to twice the bound:
/// heartbeats must not be lost because of appended entries.
const SMALL_MESSAGE_BYTES: usize = 1024;

/// For whom a command is proposed, or a read point asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    Client,
    /// The member itself: the number of its calls does not depend on clients.
    Member,
}

/// What a member proposes and reads for itself, at one time.
const OWN_REQUESTS_MAX: usize = 1024;
const OWN_PROPOSAL_BYTES_MAX: usize = 8 << 20;

/// Of one member.
#[derive(Debug)]
pub struct Entrance {
    command_bytes_max: usize,
    inbox_bytes_max: usize,
    of_clients: PendingRequests,
    of_member: PendingRequests,
    /// Of peers' messages in the inbox.
    inbox_bytes: AtomicUsize,
}

/// What waits for an answer, and its bounds.
#[derive(Debug)]
struct PendingRequests {
    /// Proposals and their bytes.
    proposals: Arc<Occupancy>,
    proposals_max: usize,
    proposal_bytes_max: usize,
    reads: Arc<Occupancy>,
    reads_max: usize,
    /// Committed entries that are not applied yet.
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
        // A bug to be found: a full entrance delays the end of leases.
        match origin {
            RequestOrigin::Member if !base::mutant("one-entrance") => &self.of_member,
            _ => &self.of_clients,
        }
    }

    /// A command of this size may be proposed; so many committed entries are not applied yet. The permit is
    /// to be held until the proposer is answered.
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

    /// A read point may be asked for. The permit is to be held until the reader is answered.
    pub fn read(&self, origin: RequestOrigin) -> Result<Permit, ReadError> {
        let waiting = self.waiting(origin);
        waiting.reads.admit(0, waiting.reads_max, 0).ok_or(ReadError::TooManyRequests)
    }

    /// Whether a peer's message may wait in the inbox. If so, [`Entrance::took`] is owed.
    pub fn receive(&self, message: &[u8]) -> bool {
        let bytes = inbox_cost(message);
        let bytes_max = match bytes {
            0..=SMALL_MESSAGE_BYTES => 2 * self.inbox_bytes_max,
            _ => self.inbox_bytes_max,
        };
        // Its stream is over: it would not be sent again, and what was staged for it would lie there for
        // ever.
        let must = is_snapshot(message);
        if self.inbox_bytes.fetch_add(bytes, Ordering::Relaxed) > bytes_max && !must {
            self.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// A message that waited in the inbox was taken out of it.
    pub fn took(&self, message: &[u8]) {
        self.inbox_bytes.fetch_sub(inbox_cost(message), Ordering::Relaxed);
    }

    /// Proposals that have no answer yet.
    pub fn proposals_pending(&self) -> usize {
        self.of_clients.proposals.count() + self.of_member.proposals.count()
    }
}

/// What a peer's message takes in the inbox: its bytes, and its place in the queue. Without the latter,
/// messages of no bytes would come in without number.
fn inbox_cost(message: &[u8]) -> usize {
    const PLACE_BYTES: usize = 128;
    message.len() + PLACE_BYTES
}

/// How many wait, and with how many bytes; shared by the entrance and all permits.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// Permits out.
    count: AtomicUsize,
    /// Their bytes.
    bytes: AtomicUsize,
}

impl Occupancy {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Admits one with `bytes`, unless that would exceed a bound. One alone is always within the bound on
    /// bytes.
    pub fn admit(self: &Arc<Self>, bytes: usize, count_max: usize, bytes_max: usize) -> Option<Permit> {
        let count_before = self.count.fetch_add(1, Ordering::Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Made first, so that a refusal gives back what was just taken.
        let permit = Permit { bytes, of: self.clone() };
        let fits = count_before < count_max && (bytes_before == 0 || bytes_before + bytes <= bytes_max);
        fits.then_some(permit)
    }
}

/// The right to wait; dropping it makes room.
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

/// The receiver of one waiter.
#[derive(Debug)]
pub(super) struct PendingReply<T> {
    /// Before `to`, for the order in which a reply without an answer is dropped.
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

/// One answer and where it goes.
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

/// The threads' end.
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
        // Without a pump (its runtime is gone) the waiters may be gone, but permits must still be given back.
        if let Err(unsent) = self.to_pump.send(completions) {
            unsent.0.into_iter().for_each(Completion::complete);
        }
    }
}

/// The runtime's end: spawn [`Pump::run`] there. Without it no waiter is ever answered whose
/// answer came together with others.
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
