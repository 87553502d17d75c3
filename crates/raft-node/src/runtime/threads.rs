//! The two threads of a member: those who wait for a disk, so that the driver need not.
//!
//! * Only the log thread touches the log; who applies, `applying.rs` says.
//! * Each takes everything that waits at once, and ends when its queue is closed and empty.
//! * Each ends by itself when the other, or the driver, has failed: nothing more is acknowledged then.

use std::sync::atomic::Ordering;
use std::time::Instant;

use wal::{Fs, Wal};

use super::applying::Applying;
use super::driver::LocalJob;
use super::queue::{InputQueue, QueueStatus};
use super::shared::{Input, RuntimeShared};
use crate::core::Event;
use crate::log::{PersistJob, SyncRelease, persist};
use crate::{Fatal, LogSync, StateMachine, Transport};

/// The log thread: everything that waits becomes durable with one sync, and only then what was promised is
/// said.
///
/// While it waits for the disk, the driver goes on: heartbeats leave, followers' acknowledgements arrive, and
/// what comes for the log meanwhile forms the next group. A slow disk makes groups larger, not elections.
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
            // The driver's inbox comes first, so that no answer to a promise can be handled before it;
            // waking the driver comes last, so that peers need not wait for a context switch here. If it
            // begins to wait meanwhile, it finds the inbox filled.
            receipt.release(|released| match released {
                SyncRelease::Durable(durable) => {
                    // Refused only by an inbox that is closed, when the driver has ended.
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

/// The apply thread: what the driver does not apply itself.
///
/// When the store is full the machine waits inside `end_entry`; entries then pile up in the core, within its
/// bound, while commits go on.
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
