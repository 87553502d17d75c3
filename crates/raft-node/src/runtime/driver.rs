//! The driver: the loop around a node, as a task of the process's runtime.
//!
//! ```text
//!   driver, a task   inbox ─▶ node.turn ─▶ transport · log thread · apply thread   waits for inbox or tick
//!                                        └▶ state machine, if brief ─▶ replies
//!   log thread       persist jobs ─▶ one sync ─▶ driver, then the promises         waits for the disk
//!   apply thread     committed entries ─▶ state machine ─▶ replies                 waits for the machine
//! ```
//!
//! * Only the driver accesses the node. A poll never blocks: disk waits are delegated to a thread
//!   (`threads.rs`). Entries that the state machine applies faster than a thread wakes up are applied in the
//!   poll.
//! * It is a task instead of a thread, to run where the peers' sockets are served: an incoming message is
//!   handled, and its effects are sent, without a context switch.
//! * When woken, it lets all other tasks in the runtime's queue run first: their input shares the poll. If
//!   that is useless it is rarely done, see [`Deferral`].
//! * A poll handles all pending input, up to [`INPUTS_PER_TURN`], before it advances time, and at most
//!   [`TICKS_PER_TURN`] ticks: a suspended member must handle the heartbeats that arrived in the meantime
//!   before it times out its leader.
//! * The queues to the threads need no other limit. To the log thread: a leader holds proposals back during
//!   a sync, a follower gets at most 64 messages of 1 MiB ahead of its acknowledgements. To the apply
//!   thread: the core outputs at most `apply_bytes_max`. Back to the driver: one notification for each of
//!   these.
//! * Shutdown: the inbox is closed; the driver handles its remaining input, polls once more, and closes the
//!   other two queues; the threads finish their remaining work. The log thread then closes the log cleanly.
//!   Pending requests fail because the member stops. Dropping the driver early also closes the queues.
//! * A driver or a thread that fails or panics stops the member through [`RuntimeShared::fail`], once.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::queue::{Completion, InputQueue, ProposeReply, QueueStatus, ReadReply, ReplySender};
use super::shared::{Input, RuntimeShared};
use crate::core::Event;
use crate::log::PersistJob;
use crate::node::{ApplyJob, apply_brief_first};
use crate::node::{Node, NodeOutput};
use crate::types::Travel;
use crate::{Fatal, LogIndex, Membership, NodeId, ProposeError, ReadError, Role, TransferError, Transport};

/// Maximum ticks per poll; see the module documentation.
const TICKS_PER_TURN: u32 = 2;

/// Maximum inputs per poll; further ones follow in the next poll, after the due ticks. At some microseconds
/// each, heartbeats are sent in time regardless of the number of small messages from peers. A thousand
/// clients with all their requests fit.
const INPUTS_PER_TURN: usize = 8192;

pub(super) type LocalNode<O> = Node<ProposeReply<O>, ReadReply>;
pub(super) type LocalJob<O> = ApplyJob<ProposeReply<O>, ReadReply>;

/// Converts time to ticks.
///
/// After a long pause it produces two ticks, not one for each that was missed: the heartbeats that arrived
/// in the meantime are in the inbox, and a burst of ticks before them would start an unnecessary election.
///
/// It is the only clock of the node. Ticks keep their schedule: a late poll does not delay the following
/// ticks, so a busy member's heartbeats do not slow down gradually.
#[derive(Debug)]
pub(super) struct TickClock {
    tick: Duration,
    /// Time of the next tick; the driver waits no longer than that.
    next: Instant,
}

impl TickClock {
    pub fn new(tick: Duration, now: Instant) -> Self {
        assert!(!tick.is_zero(), "a tick takes time");
        TickClock { tick, next: now + tick }
    }

    /// Returns the wake-up time for the next tick without other events.
    fn wake_at(&self, follows: bool) -> Instant {
        if follows { self.next + self.tick / 2 } else { self.next }
    }

    /// Returns the number of ticks to deliver now, and the lateness of the first. A longer pause is
    /// discarded: this member was suspended, not its leader.
    ///
    /// `hears`: a follower has just received a message from a member. Then a tick is due half a tick early,
    /// so that each heartbeat comes with a tick, regardless of its phase. Without messages, ticks are never
    /// early.
    pub fn due(&mut self, now: Instant, hears: bool) -> (u32, Duration) {
        let late = now.saturating_duration_since(self.next);
        let until = if hears { now + self.tick / 2 } else { now };
        let mut ticks = 0;
        while self.next <= until && ticks < TICKS_PER_TURN {
            self.next += self.tick;
            ticks += 1;
        }
        if self.next <= now {
            self.next = now + self.tick;
        }
        assert!(self.next > now, "the next tick lies ahead");
        (ticks, late)
    }
}

/// Polls without a gain after which the driver rarely lets other tasks run first.
const GAINLESS_TURNS: u32 = 8;

/// Decides whether other tasks run before a poll, since they may add input to it. That costs a poll of all
/// sockets, so with few requests, where it is useless, it is only tried once in [`GAINLESS_TURNS`].
#[derive(Debug, Default)]
pub(super) struct Deferral {
    /// Polls since other tasks last added input.
    gainless: u32,
}

impl Deferral {
    fn is_due(&self, inputs: usize) -> bool {
        inputs > 1 || self.gainless < GAINLESS_TURNS || self.gainless.is_multiple_of(GAINLESS_TURNS)
    }

    fn note(&mut self, has_gained: bool) {
        self.gainless = if has_gained { 0 } else { self.gainless.wrapping_add(1) };
    }
}

/// See [`crate::runtime::threads::Applying::apply_brief`].
type ApplyBrief<O> = Box<dyn Fn(LocalJob<O>) -> Result<Option<LocalJob<O>>, Fatal> + Send + Sync>;

/// Next action of the driver after a poll.
#[derive(PartialEq, Eq)]
enum Going {
    On,
    Ended,
}

/// A leadership transfer in progress.
struct Transfer {
    ticks_left: u32,
    reply: oneshot::Sender<Result<(), TransferError>>,
}

/// Destinations of a poll's effects. Dropping it makes the threads finish their remaining work and exit.
pub(super) struct Outlets<O> {
    pub shared: Arc<RuntimeShared<O>>,
    pub log: Arc<InputQueue<PersistJob>>,
    pub apply: Arc<InputQueue<LocalJob<O>>>,
    /// Applies a brief job immediately; returns any other job.
    pub apply_brief: ApplyBrief<O>,
    pub replies: ReplySender<O>,
    pub transport: Arc<dyn Transport>,
}

impl<O> Drop for Outlets<O> {
    fn drop(&mut self) {
        self.log.close();
        self.apply.close();
        self.shared.inbox.close();
    }
}

/// The loop around a member's node: spawn [`Driver::run`] on the runtime that serves the peers.
pub struct Driver<O> {
    /// Accessed only by the driver.
    node: LocalNode<O>,
    outlets: Outlets<O>,
    clock: TickClock,
    /// Maximum ticks of a leadership transfer.
    transfer_ticks: u32,
    /// Transfers in progress; usually none, and one during a stop.
    transfers: Vec<Transfer>,
    /// Leader after the last poll, to notify the observer of a change.
    leader: Option<NodeId>,
    /// True if another member leads.
    follows: bool,
    /// True if a message from a member was handled since the last poll.
    hears: bool,
}

impl<O: Send + 'static> Driver<O> {
    pub(super) fn new(
        node: LocalNode<O>,
        outlets: Outlets<O>,
        clock: TickClock,
        transfer_ticks: u32,
    ) -> Self {
        let (transfers, leader, follows, hears) = (Vec::new(), None, false, false);
        Driver { node, outlets, clock, transfer_ticks, transfers, leader, follows, hears }
    }

    /// Runs until the member stops or fails. The runtime must have I/O enabled.
    pub async fn run(self) {
        let shared = self.outlets.shared.clone();
        let mut driving = pin!(self.drive());
        let caught = poll_fn(|context| {
            // raft-rs panics on violated invariants, such as a conflict below the commit index.
            catch_unwind(AssertUnwindSafe(|| driving.as_mut().poll(context)))
                .unwrap_or_else(|panic| Poll::Ready(Err(Fatal::panicked("the driver", &*panic))))
        });
        if let Err(fatal) = caught.await {
            shared.fail(fatal);
        }
    }

    /// Polls until the inbox is closed, then fails all pending requests.
    async fn drive(mut self) -> Result<(), Fatal> {
        let result = self.turns().await;
        let Driver { node, outlets, .. } = self;
        let replies = outlets.replies.clone();
        drop(outlets); // No input arrives after this.
        let (proposers, readers) = node.stop();
        let stopped = |reply| Completion::Proposal(reply, Err(ProposeError::Stopped));
        let unread = |reply| Completion::Read(reply, Err(ReadError::Stopped));
        replies.complete(proposers.into_iter().map(stopped).chain(readers.into_iter().map(unread)).collect());
        result
    }

    /// The loop: take the input, advance time, poll, execute the effects.
    ///
    /// A wake-up handles all input that has arrived, so the batches and rounds of a poll grow with the load.
    /// With a single client a put costs three polls: the command, the sync, and the acknowledgement that
    /// commits it.
    async fn turns(&mut self) -> Result<(), Fatal> {
        let mut inputs = Vec::new();
        let mut again = true; // A lone voter has work before the first input.
        let mut deferral = Deferral::default();
        let no_timer = |error| Fatal::new(format!("the driver's tick timer: {error}"));
        let mut alarm = Alarm::new().map_err(no_timer)?;
        loop {
            if !again {
                self.woken(&mut alarm).await.map_err(no_timer)?;
            }
            let waiting = self.outlets.shared.inbox.len();
            if again || deferral.is_due(waiting) {
                tokio::task::yield_now().await;
            }
            let taken = self.outlets.shared.inbox.take(&mut inputs);
            deferral.note(inputs.len() > waiting);
            let mut rest = inputs.drain(..);
            loop {
                for input in rest.by_ref().take(INPUTS_PER_TURN) {
                    self.input(input)?;
                }
                if self.turn(&mut again)? == Going::Ended {
                    return Ok(());
                }
                if rest.len() == 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(rest);
            if taken == QueueStatus::Closed {
                return Ok(());
            }
        }
    }

    /// Runs a poll: due ticks, decisions of the node, and their effects.
    fn turn(&mut self, again: &mut bool) -> Result<Going, Fatal> {
        self.tick()?;
        self.note_applied()?;
        // Drops abandoned requests (expired deadline, broken connection) that were not proposed.
        self.node.withdraw(|reply| reply.to.is_closed());
        let turn = self.node.turn()?;
        *again = turn.effects.more;
        if self.outlets.shared.has_failed() {
            return Ok(Going::Ended); // Another thread failed and reported it: no effects are executed.
        }
        self.perform(turn)?;
        self.note_gauges();
        if self.node.is_starved() {
            // Checked again after setting the flag: the apply thread may have finished in between.
            self.outlets.shared.wants_applied.store(true, Ordering::SeqCst);
            *again |= self.outlets.shared.applied() > self.node.applied();
        }
        Ok(Going::On)
    }

    /// Returns when there is input, or the next tick is due. A follower's ticks come with the heartbeats of
    /// its leader: its timer wakes it only half a tick after one was due.
    async fn woken(&mut self, alarm: &mut Alarm) -> io::Result<()> {
        alarm.set(self.clock.wake_at(self.follows))?;
        poll_fn(|context| match self.outlets.shared.inbox.poll_filled(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => alarm.poll(context),
        })
        .await
    }

    /// Dispatches an input. Decisions are left to the poll of the node.
    fn input(&mut self, input: Input<O>) -> Result<(), Fatal> {
        match input {
            Input::Event(event) => {
                if let Event::Message { bytes, .. } = &event {
                    self.hears = true;
                    self.outlets.shared.entrance.took(bytes);
                }
                self.node.handle(event)?;
            }
            Input::Propose { command, travel, reply } => match travel {
                Travel::Batched => self.node.offer(command, reply),
                Travel::AsChange => self.node.offer_change(command, reply),
            },
            Input::Read { reply } => self.node.ask(reply),
            // The requester may have disconnected.
            Input::AnswerMember { asker, reply } => {
                // Without a result the reply is dropped, and the requester retries.
                if let Some(answer) = self.node.answer_member(asker) {
                    let _asker_has_gone = reply.send(answer);
                }
            }
            Input::Progress { of, reply } => {
                let _asker_has_gone = reply.send(self.node.progress_of(of));
            }
            Input::HandOver { to, reply } => self.hand_over(to, reply)?,
        }
        Ok(())
    }

    /// Delivers the due ticks.
    fn tick(&mut self) -> Result<(), Fatal> {
        let hears = self.follows && std::mem::take(&mut self.hears);
        let (ticks, late) = self.clock.due(Instant::now(), hears);
        if late > self.clock.tick {
            self.outlets.shared.observer.tick_late(late);
        }
        for _ in 0..ticks {
            self.node.handle(Event::Tick)?;
            for transfer in &mut self.transfers {
                transfer.ticks_left = transfer.ticks_left.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Reads the progress of the apply thread, once per poll: a message for each entry would wake this
    /// thread unnecessarily. The apply thread wakes it only when entries wait for capacity, see
    /// `wants_applied`.
    fn note_applied(&mut self) -> Result<(), Fatal> {
        let applied = self.outlets.shared.applied();
        assert!(applied >= self.node.applied(), "the machine went back");
        if applied > self.node.applied() {
            for (at, membership) in self.memberships_until(applied) {
                self.node.handle(Event::Membership { at, membership })?;
            }
            self.node.handle(Event::Applied { index: applied })?;
        }
        Ok(())
    }

    /// Returns the machine's memberships up to this entry, in order.
    fn memberships_until(&self, applied: LogIndex) -> Vec<(LogIndex, Membership)> {
        let mut unheard = self.outlets.shared.memberships.lock();
        let count = unheard.iter().take_while(|(index, _)| *index <= applied).count();
        unheard.drain(..count).collect()
    }

    /// Executes effects: peers first, because their disks work concurrently with the local one; results
    /// last, because a completed task wakes up on another thread and would compete for the processor.
    fn perform(&mut self, turn: NodeOutput<ProposeReply<O>, ReadReply>) -> Result<(), Fatal> {
        for message in turn.effects.send {
            self.outlets.transport.send(message.to, message.lane, message.bytes);
        }
        for offer in turn.effects.snapshots {
            self.outlets.transport.send_snapshot(offer);
        }
        self.outlets.log.put_all(turn.effects.persist);
        self.apply(turn.apply)?;
        let RuntimeShared { host, observer, .. } = &*self.outlets.shared;
        turn.effects.snapshots_ignored.into_iter().for_each(|at| host.snapshot_ignored(at));
        turn.effects.checkpoint_wanted.into_iter().for_each(|index| host.checkpoint_wanted(index));
        if let Some((commands, bytes)) = turn.batch {
            observer.batch_proposed(commands, bytes);
        }
        if !turn.proposals_failed.is_empty() {
            observer.proposals_failed(turn.proposals_failed.len());
        }
        if !turn.reads_failed.is_empty() {
            observer.read_points_failed(turn.reads_failed.len());
        }
        let failed =
            turn.proposals_failed.into_iter().map(|(reply, why)| Completion::Proposal(reply, Err(why)));
        let unread = turn.reads_failed.into_iter().map(|(reply, why)| Completion::Read(reply, Err(why)));
        let applied = self.node.applied();
        let readable = turn.readable.into_iter().map(|reply| Completion::Read(reply, Ok(applied)));
        self.outlets.replies.complete(failed.chain(unread).chain(readable).collect());
        Ok(())
    }

    /// Applies brief jobs here, unless there are many; the remaining ones go to the apply thread.
    fn apply(&self, jobs: Vec<LocalJob<O>>) -> Result<(), Fatal> {
        let rest = apply_brief_first(jobs, &self.outlets.apply_brief)?;
        self.outlets.apply.put_all(rest);
        Ok(())
    }

    /// Publishes the gauges, and notifies waiters for a leadership transfer.
    fn note_gauges(&mut self) {
        let gauges = self.node.gauges();
        self.outlets.shared.publish(gauges);
        self.outlets.shared.publish_start(self.node.is_unconfirmed(), self.node.start());
        self.outlets.shared.waits_for_sync.store(self.node.waits_for_sync(), Ordering::SeqCst);
        self.follows = gauges.leader.is_some() && gauges.role == Role::Follower;
        if gauges.leader != self.leader {
            self.outlets.shared.leader_known.send_replace(gauges.leader);
            tracing::debug!(leader = gauges.leader, term = gauges.term.0, "leader changed");
            self.leader = gauges.leader;
            self.outlets.shared.observer.leader_changed(gauges.leader);
        }
        let moved = gauges.leader.is_some() && gauges.role != Role::Leader;
        for transfer in self.transfers.extract_if(.., |transfer| moved || transfer.ticks_left == 0) {
            // The requester may have disconnected.
            let _ = transfer.reply.send(if moved { Ok(()) } else { Err(TransferError::Timeout) });
        }
    }

    /// Starts a leadership transfer. Raft aborts it after an election timeout; the request completes after
    /// two.
    fn hand_over(
        &mut self,
        to: Option<NodeId>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    ) -> Result<(), Fatal> {
        let heir = match to {
            _ if self.node.gauges().role != Role::Leader => {
                let answer = if to.is_none() { Ok(()) } else { Err(TransferError::NotLeader) };
                let _ = reply.send(answer); // As above.
                return Ok(());
            }
            Some(to) => {
                Some(to).filter(|to| *to != self.outlets.shared.id && self.node.voters().contains(to))
            }
            None => self.node.most_caught_up(),
        };
        let Some(heir) = heir else {
            let _ = reply.send(Err(TransferError::NoCandidate)); // As above.
            return Ok(());
        };
        tracing::info!(to = heir, "transferring leadership");
        self.node.handle(Event::TransferLeader { to: heir })?;
        self.transfers.push(Transfer { ticks_left: self.transfer_ticks, reply });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
