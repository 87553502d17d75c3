//! The two threads of a member, which wait for disks so that the driver need not.
//!
//! * Only the log thread accesses the log.
//! * Each takes all waiting jobs together, and exits when its queue is closed and empty.
//! * Each exits when the other, or the driver, has failed: no requests are acknowledged then.
//!
//! # Applying
//!
//! The apply thread applies entries, or the driver if that takes no longer than a wake-up of the thread.
//!
//! ```text
//!   driver ──brief, next, applier free────▶ Applier ──▶ replies
//!      └─else─▶ queue ───▶ apply thread ──────┘
//! ```
//!
//! * One thread applies at a time, and each entry only in order: queued entries cannot be overtaken, since
//!   later ones are not next.
//! * The driver never waits for the applier: while the apply thread uses it, that thread also gets new
//!   entries.
//! * A step that fails or panics drops the machine: no entries are applied to its remains.
//! * The applied index is published before another thread can apply: it never decreases.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use wal::{Fs, Wal};

use super::driver::LocalJob;
use super::queue::{Completion, InputQueue, ProposeReply, QueueStatus, ReadReply, ReplySender};
use super::shared::{Input, RuntimeShared};
use crate::core::Event;
use crate::log::{PersistJob, SyncRelease, persist};
use crate::node::{Applier, StepResult};
use crate::{Fatal, LogSync, ProposeError, StateMachine, Transport};

/// Runs the log thread: all waiting jobs become durable with one sync, and only then their promises are
/// sent.
///
/// While it waits for the disk, the driver continues: heartbeats are sent, followers' acknowledgements
/// arrive, and new jobs form the next group. A slow disk makes groups larger, and does not cause elections.
pub(super) fn run_log<O, F: Fs>(
    mut wal: Wal<F>,
    jobs: &InputQueue<PersistJob>,
    shared: &RuntimeShared<O>,
    transport: &dyn Transport,
) -> Result<(), Fatal> {
    let mut waiting = Vec::new();
    loop {
        let taken = jobs.wait_and_take(&mut waiting);
        if !waiting.is_empty() {
            let started = Instant::now();
            let (receipt, persisted) = persist(&mut wal, std::mem::take(&mut waiting))
                .map_err(|error| Fatal::caused("persist Raft entries", error))?;
            if persisted.bytes > 0 {
                let (entries, bytes) = (persisted.entries, persisted.bytes);
                shared.observer.log_synced(LogSync { entries, bytes, took: started.elapsed() });
            }
            // The driver's inbox comes first, so that no response to a promise can be handled before it;
            // waking the driver comes last, so that peers need not wait for a context switch here. If it
            // starts to wait in between, it finds the inbox filled.
            receipt.release(|released| match released {
                SyncRelease::Durable(durable) => {
                    // Fails only if the inbox is closed because the driver has exited.
                    let _ = shared.inbox.put_quietly(Input::Event(Event::Durable(durable)));
                }
                SyncRelease::Promise(message) => transport.send(message.to, message.lane, message.bytes),
            });
            if shared.waits_for_sync.load(Ordering::SeqCst) {
                shared.inbox.wake();
            }
        }
        if taken == QueueStatus::Closed {
            return wal.close().map_err(|error| Fatal::caused("close the log", error));
        }
    }
}

/// Runs the apply thread: applies entries that the driver does not apply itself.
///
/// When the store is full the machine blocks inside `end_entry`; entries then accumulate in the core, within
/// its limit, while commits continue.
pub(super) fn run_apply<S: StateMachine>(
    applying: &Applying<S>,
    jobs: &InputQueue<LocalJob<S::Outcome>>,
    shared: &RuntimeShared<S::Outcome>,
) -> Result<(), Fatal> {
    let mut waiting = Vec::new();
    loop {
        let taken = jobs.wait_and_take(&mut waiting);
        for job in waiting.drain(..) {
            if !shared.has_failed() {
                applying.apply(job)?;
            }
        }
        if shared.wants_applied.swap(false, Ordering::SeqCst) {
            shared.inbox.nudge();
        }
        if taken == QueueStatus::Closed || shared.has_failed() {
            applying.end();
            return Ok(());
        }
    }
}

type LocalDone<O> = StepResult<ProposeReply<O>, ReadReply, O>;

/// The machine, shared by the threads that may apply.
pub(super) struct Applying<S: StateMachine> {
    /// None once a step failed, or the apply thread has exited.
    applier: Mutex<Option<Applier<S, ReadReply>>>,
    shared: Arc<RuntimeShared<S::Outcome>>,
    replies: ReplySender<S::Outcome>,
}

impl<S: StateMachine> Applying<S> {
    pub fn new(
        applier: Applier<S, ReadReply>,
        shared: Arc<RuntimeShared<S::Outcome>>,
        replies: ReplySender<S::Outcome>,
    ) -> Self {
        Applying { applier: Mutex::new(Some(applier)), shared, replies }
    }

    /// Applies a job on the apply thread: waits until no other thread applies. Has no effect once the
    /// machine was dropped.
    pub fn apply(&self, job: LocalJob<S::Outcome>) -> Result<(), Fatal> {
        let mut place = self.applier.lock();
        if let Some(applier) = place.take() {
            let done = self.step(applier, &mut place, job)?;
            drop(place);
            self.answer(done);
        }
        Ok(())
    }

    /// Applies a job on the driver if it is brief and next; otherwise returns it for the thread.
    pub fn apply_brief(&self, job: LocalJob<S::Outcome>) -> Result<Option<LocalJob<S::Outcome>>, Fatal> {
        let Some(mut place) = self.applier.try_lock() else { return Ok(Some(job)) };
        let Some(applier) = place.take_if(|applier| applier.is_brief(&job)) else { return Ok(Some(job)) };
        let done = self.step(applier, &mut place, job)?;
        drop(place);
        self.answer(done);
        Ok(None)
    }

    /// Drops the machine on the calling thread; no further entries are applied.
    pub fn end(&self) {
        drop(self.applier.lock().take());
    }

    /// Runs a step; stores the machine back if it succeeded.
    fn step(
        &self,
        mut applier: Applier<S, ReadReply>,
        place: &mut Option<Applier<S, ReadReply>>,
        job: LocalJob<S::Outcome>,
    ) -> Result<LocalDone<S::Outcome>, Fatal> {
        let started = Instant::now();
        let done = applier.apply(job)?;
        if let Some(at) = done.entry {
            let changed = done.membership.clone();
            if let Some(membership) = &changed {
                self.shared.memberships.lock().push_back((at.index, membership.clone()));
            }
            self.shared.applied.store(applier.applied().index.0, Ordering::SeqCst);
            self.shared.observer.entry_applied(done.commands, started.elapsed());
            if let Some(membership) = changed {
                self.shared.host.membership_applied(&membership);
                self.shared.inbox.nudge(); // Wakes the driver.
            }
        }
        *place = Some(applier);
        Ok(done)
    }

    /// Sends the results of an entry after its last command, without waiting for other entries: a proposer
    /// of a small entry is not delayed by the large one after it.
    fn answer(&self, done: LocalDone<S::Outcome>) {
        if self.shared.has_failed() {
            return; // The log may have failed: no requests are acknowledged.
        }
        let applied = self.shared.applied();
        let answered =
            done.answered.into_iter().map(|(reply, outcome)| Completion::Proposal(reply, Ok(outcome)));
        let unanswered = done.unanswered.into_iter().map(|reply| {
            // Another member replaced its batch in transit; it is unknown whether the original commits too.
            Completion::Proposal(reply, Err(ProposeError::Timeout))
        });
        let readable = done.readable.into_iter().map(|reply| Completion::Read(reply, Ok(applied)));
        self.replies.complete(answered.chain(unanswered).chain(readable).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::node::ApplyJob;
    use crate::runtime::queue::Occupancy;
    use crate::runtime::queue::{PendingReply, replies};
    use crate::wire::{Batch, BatchBuilder, BatchId};
    use crate::{Answer, Cost, Host, LogIndex, LogPosition, Membership, RaftLimits};

    struct NoHost;

    impl Host for NoHost {
        fn checkpoint_wanted(&self, _index: LogIndex) {}

        fn snapshot_ignored(&self, _at: LogPosition) {}

        fn membership_applied(&self, _membership: &Membership) {}
    }

    /// Echoes commands, and treats those with the prefix as brief. "slow" signals its start and blocks until
    /// released; "die" fails.
    struct Echo {
        applied: LogPosition,
        begun: mpsc::Sender<()>,
        word: mpsc::Receiver<()>,
    }

    impl StateMachine for Echo {
        type Outcome = Bytes;

        fn applied(&self) -> LogPosition {
            self.applied
        }

        fn apply(
            &mut self,
            _at: LogPosition,
            command: &Bytes,
            answer: Answer,
        ) -> Result<Option<Bytes>, Fatal> {
            if command.ends_with(b"die") {
                return Err(Fatal::new("apply die"));
            }
            if command == "slow" {
                self.begun.send(()).unwrap();
                self.word.recv().unwrap();
            }
            Ok((answer == Answer::Wanted).then(|| command.clone()))
        }

        fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
            self.applied = at;
            Ok(())
        }

        fn cost(&mut self, command: &Bytes) -> Option<Cost> {
            command.starts_with(b"brief").then_some(Cost { keys: 1, reads_values: false })
        }

        fn install(&mut self, _at: LogPosition) -> Result<(), Fatal> {
            unreachable!("no snapshots here")
        }
    }

    type Answered = oneshot::Receiver<Result<Bytes, ProposeError>>;

    /// Returns entry `index` with these commands, and the reply of its first proposer.
    fn entry(index: u64, commands: &[&str]) -> (LocalJob<Bytes>, Answered) {
        let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence: index }, 0);
        commands.iter().for_each(|command| builder.push(command.as_bytes()));
        let batch = Batch::parse(&builder.finish()).unwrap();
        let (to, answered) = oneshot::channel();
        let permit = Arc::new(Occupancy::default()).admit(1, 1, 1).unwrap();
        let mut waiting = vec![Some(PendingReply { to, permit })];
        waiting.resize_with(commands.len(), || None);
        (ApplyJob::batch(LogPosition::new(index, 1), batch, Some(waiting)), answered)
    }

    fn applying() -> (Applying<Echo>, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((begun, begins), (go, word)) = (mpsc::channel(), mpsc::channel());
        let machine = Echo { applied: LogPosition::default(), begun, word };
        let limits = RaftLimits::default();
        let shared = RuntimeShared::new(1, &limits, Arc::new(NoHost), Arc::new(()), Box::new(|_| {}));
        (Applying::new(Applier::new(machine), Arc::new(shared), replies().0), begins, go)
    }

    #[test]
    fn only_what_is_brief_and_next_is_applied_at_once() {
        let cases: [(u64, &[&str], bool); 6] = [
            (1, &["brief"], true),
            (1, &["brief", "brief", "brief", "brief"], true),
            (1, &["brief"; 5], false), // many
            (1, &["brief", "long"], false),
            (2, &["brief"], false), // the first is missing
            (1, &[&"brief".repeat(4000)], false),
        ];
        for (index, commands, at_once) in cases {
            let (applying, ..) = applying();
            let (job, mut answered) = entry(index, commands);
            let left = applying.apply_brief(job).unwrap();
            assert_eq!(left.is_none(), at_once, "entry {index}: {} commands", commands.len());
            assert_eq!(applying.shared.applied.load(Ordering::SeqCst), u64::from(at_once));
            assert_eq!(answered.try_recv().is_ok(), at_once);
            if let Some(job) = left.filter(|_| index == 1) {
                applying.apply(job).unwrap();
                assert_eq!(answered.try_recv().unwrap().unwrap(), commands[0], "the thread's way");
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_long_step_and_nothing_overtakes_it() {
        let (applying, begins, go) = applying();
        std::thread::scope(|scope| {
            scope.spawn(|| applying.apply(entry(1, &["slow"]).0).unwrap());
            begins.recv().unwrap();
            let (job, mut answered) = entry(2, &["brief"]);
            let job = applying.apply_brief(job).unwrap().expect("another one applies");
            go.send(()).unwrap();
            applying.apply(job).unwrap(); // waits for the first
            assert_eq!(answered.try_recv().unwrap().unwrap(), "brief");
        });
    }

    #[test]
    fn nothing_is_applied_behind_a_failure() {
        let (applying, ..) = applying();
        let failed = applying.apply_brief(entry(1, &["brief die"]).0).err();
        assert_eq!(failed.map(|fatal| fatal.what).as_deref(), Some("apply die"));
        assert!(applying.apply_brief(entry(2, &["brief"]).0).unwrap().is_some());
        applying.apply(entry(1, &["brief"]).0).unwrap();
        assert_eq!(applying.shared.applied.load(Ordering::SeqCst), 0);
    }
}
