//! The leader's turns: records grants, records the clock, revokes what is expired.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::error::LeaseError;
use super::expiry::ExpiryQueue;
use super::leader::{LeaderLeases, LedTerm};
use crate::process::shutdown::Stop;

/// Between two turns: a grant is recorded, and an expired lease is found, this much late.
const TURN: Duration = Duration::from_millis(100);
/// The clock is recorded this often while there are leases: a member that was restarted has it after that.
const CLOCK_EVERY_MS: i64 = 1_000;
/// Leases of the scan, and due ones, in a turn: some 2 ms. When more are due the next turn follows at once.
const LEASES_PER_TURN: usize = 8_192;
/// Leases in one command: without keys one apply takes about a millisecond.
const LEASES_PER_COMMAND: usize = 256;
/// Commands under way. Eight hide the time of a sync. When they are, the turn waits for one of them.
const COMMANDS_MAX: usize = 8;
/// Before a lease whose revoke failed is looked at again; etcd waits three seconds.
const RETRY_MS: i64 = 1_000;

/// What a command was for.
enum Done {
    Recorded(Result<(), LeaseError>),
    Expired { ids: Vec<i64>, result: Result<(), LeaseError> },
}

/// One term of a leader.
struct Term {
    led: LedTerm,
    queue: ExpiryQueue,
    commands: JoinSet<Done>,
    is_recording: bool,
    /// When the clock was last sent to be recorded.
    recorded_at: i64,
}

/// Runs until `stop`. Counts expired leases.
pub async fn run(leases: Arc<LeaderLeases>, expired: Counter, stop: Stop) {
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut term: Option<Term> = None;
    loop {
        let running = async {
            turns.tick().await;
            match leases.leading().await {
                Ok(led) => {
                    if term.as_ref().is_none_or(|term| term.led != led) {
                        leases.table.list_granted();
                        term = Some(Term::new(led));
                    }
                    if let Some(term) = &mut term {
                        term.work(&leases, &expired).await;
                    }
                }
                // Commands under way end by themselves; apply refuses those of a term that is over.
                Err(_) => {
                    leases.table.unlist_granted();
                    term = None;
                }
            }
        };
        tokio::select! {
            () = running => {}
            () = stop.stopped() => return,
        }
    }
}

impl Term {
    fn new(led: LedTerm) -> Term {
        Term {
            led,
            queue: ExpiryQueue::new(),
            commands: JoinSet::new(),
            is_recording: false,
            recorded_at: i64::MIN,
        }
    }

    /// One turn, or several while more is due.
    async fn work(&mut self, leases: &Arc<LeaderLeases>, expired: &Counter) {
        loop {
            while let Some(done) = self.commands.try_join_next() {
                self.note(leases, done.ok());
            }
            let now = self.led.now();
            self.record(leases, now);
            self.queue.add_granted(leases.table.take_granted(), now);
            let due = self.queue.turn(now, &leases.table, LEASES_PER_TURN);
            for ids in due.expired.chunks(LEASES_PER_COMMAND) {
                while self.commands.len() >= COMMANDS_MAX {
                    let done = self.commands.join_next().await;
                    self.note(leases, done.and_then(Result::ok));
                }
                self.expire(leases, expired, ids.to_vec());
            }
            if !due.has_more {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Records leases that were granted since, or the clock if that is due.
    fn record(&mut self, leases: &Arc<LeaderLeases>, now: i64) {
        if self.is_recording {
            return;
        }
        let ids = leases.table.unrecorded(LEASES_PER_COMMAND * 16);
        let is_clock_due = now >= self.recorded_at.saturating_add(CLOCK_EVERY_MS) && !leases.table.is_empty();
        if ids.is_empty() && !is_clock_due {
            return;
        }
        (self.is_recording, self.recorded_at) = (true, now);
        let (leases, term) = (Arc::clone(leases), self.led.term);
        self.commands.spawn(async move { Done::Recorded(leases.record(term, now, ids).await) });
    }

    fn expire(&mut self, leases: &Arc<LeaderLeases>, expired: &Counter, ids: Vec<i64>) {
        let (leases, led, expired) = (Arc::clone(leases), self.led, expired.clone());
        self.commands.spawn(async move {
            let result = leases.expire(led.term, led.now(), ids.clone()).await;
            expired.inc_by(*result.as_ref().unwrap_or(&0) as u64);
            Done::Expired { ids, result: result.map(drop) }
        });
    }

    /// A command has ended. Leases that still exist are queued again.
    fn note(&mut self, leases: &LeaderLeases, done: Option<Done>) {
        let ids = match done {
            // A task that panicked: the queue is made anew from the table.
            None => {
                self.queue = ExpiryQueue::new();
                self.is_recording = false;
                return;
            }
            Some(Done::Recorded(result)) => {
                self.is_recording = false;
                if let Err(error) = result {
                    tracing::debug!(%error, "leases were not recorded; trying again");
                }
                return;
            }
            Some(Done::Expired { ids, result }) => match result {
                Ok(()) => ids,
                Err(error) => {
                    tracing::debug!(%error, leases = ids.len(), "leases were not revoked; trying again");
                    let now = self.led.now();
                    return ids.iter().for_each(|id| self.queue.retry(*id, now, RETRY_MS));
                }
            },
        };
        for (id, lease) in ids.iter().zip(leases.table.get_all(&ids)) {
            if let Some(deadline) = lease.and_then(|lease| lease.deadline) {
                self.queue.push(*id, deadline);
            }
        }
    }
}
