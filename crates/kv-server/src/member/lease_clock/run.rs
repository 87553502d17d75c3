//! Periodic work of the leader: records grants and the clock, revokes expired leases.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use raft_node::{RequestOrigin, Term};
use state_machine::{Chosen, LEASE_TURN, LeaderTurns, leases_in_command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::leader::{LeaderLeases, LeaseError};
use process::shutdown::Stop;

/// Bounds of the pause between two expiry commands, which is as long as the previous command took. The pause
/// leaves capacity for puts: 100,000 leases that expire at the same time are revoked within seconds. etcd
/// revokes 1,000 per second, with pauses of 500 ms.
const EXPIRE_PAUSE_MIN: Duration = Duration::from_millis(10);
/// A command that takes longer waits for a disk or a quorum; it does not delay puts.
const EXPIRE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Retry delay of a leader that could not start its term.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// State of a term in which this member leads.
struct LeaderTerm {
    term: Term,
    turns: LeaderTurns,
    /// The record in flight, if any.
    recording: JoinSet<Result<(), LeaseError>>,
}

/// Runs until `stop`. Counts expired leases.
pub async fn run(leases: Arc<LeaderLeases>, expired: Counter, stop: Stop) {
    let mut term: Option<LeaderTerm> = None;
    let mut leader = leases.raft.leader_known();
    loop {
        let running = async {
            match &term {
                Some(term) => {
                    tokio::select! {
                        () = term.has_work(&leases) => {}
                        _ = leader.changed() => {}
                    }
                    sleep(LEASE_TURN).await;
                }
                None => {
                    let leads = |leader: &Option<u64>| *leader == Some(leases.member);
                    if leader.wait_for(leads).await.is_err() {
                        std::future::pending::<()>().await; // The member stops.
                    }
                }
            }
            match leases.leading(RequestOrigin::Member).await {
                Ok(led) => {
                    if term.as_ref().is_none_or(|term| term.term != led) {
                        let turns = LeaderTurns::new(&leases.table);
                        term = Some(LeaderTerm { term: led, turns, recording: JoinSet::new() });
                    }
                    if let Some(term) = &mut term {
                        term.work(&leases, &expired).await;
                    }
                }
                // Commands in flight complete on their own; apply rejects commands of a previous term.
                Err(_) => {
                    leases.table.unlist_granted();
                    term = None;
                    sleep(RETRY_DELAY).await;
                }
            }
        };
        tokio::select! {
            () = running => {}
            () = stop.stopped() => return,
        }
    }
}

impl LeaderTerm {
    /// Waits until a lease is granted, or an action is due within [`LEASE_TURN`]. A member without leases is
    /// not woken.
    async fn has_work(&self, leases: &LeaderLeases) {
        if !self.recording.is_empty() {
            return;
        }
        // An error means that the term is over.
        let Ok((_, now)) = leases.read_clock(self.term) else { return };
        let granted = poll_fn(|context| leases.table.poll_granted(context));
        let Some(next) = self.turns.next_at(&leases.table) else { return granted.await };
        let due_after = Duration::from_millis(next.saturating_sub(now).max(0).unsigned_abs());
        timeout(due_after.saturating_sub(LEASE_TURN), granted).await.unwrap_or(());
    }

    async fn work(&mut self, leases: &Arc<LeaderLeases>, expired: &Counter) {
        loop {
            self.end_record();
            let Ok((_, now)) = leases.read_clock(self.term) else { return };
            let work = self.turns.turn(now, &leases.table);
            self.begin_record(leases, work.record);
            let mut due = work.expired.as_slice();
            while !due.is_empty() {
                let count = leases_in_command(due, |id, max| leases.store.count_keys_of_lease(id, max));
                let (ids, rest) = due.split_at(count);
                due = rest;
                let began = Instant::now();
                if !self.expire(leases, expired, ids).await {
                    // The member may have lost leadership, or lead a later term; that one starts over.
                    self.put_off(leases, due);
                    return;
                }
                if !due.is_empty() || work.has_more {
                    sleep(pause_after(began.elapsed())).await;
                }
                // Grants and the clock are recorded between expiry commands.
                self.end_record();
                let Ok((_, now)) = leases.read_clock(self.term) else { return };
                let record = self.turns.record(now, &leases.table);
                self.begin_record(leases, record);
            }
            if !work.has_more {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn begin_record(&mut self, leases: &Arc<LeaderLeases>, record: Option<Chosen>) {
        if let Some(chosen) = record {
            let (leases, term) = (Arc::clone(leases), self.term);
            self.recording.spawn(async move { leases.record(term, chosen).await });
        }
    }

    fn end_record(&mut self) {
        while let Some(done) = self.recording.try_join_next() {
            match done {
                Err(_panic) => self.turns.restart(),
                Ok(result) => {
                    self.turns.recorded();
                    if let Err(error) = result {
                        tracing::debug!(%error, "leases were not recorded; trying again");
                    }
                }
            }
        }
    }

    /// Returns whether the leases were expired.
    async fn expire(&mut self, leases: &LeaderLeases, expired: &Counter, ids: &[i64]) -> bool {
        match leases.expire(self.term, ids.to_vec()).await {
            Ok(count) => {
                expired.inc_by(count as u64);
                self.turns.expired(ids, &leases.table);
                true
            }
            Err(error) => {
                tracing::debug!(%error, leases = ids.len(), "leases were not revoked; trying again");
                self.put_off(leases, ids);
                false
            }
        }
    }

    /// Reschedules leases that were not expired.
    fn put_off(&mut self, leases: &LeaderLeases, ids: &[i64]) {
        if let Ok((_, now)) = leases.read_clock(self.term) {
            self.turns.not_expired(ids, now);
        }
    }
}

fn pause_after(took: Duration) -> Duration {
    took.clamp(EXPIRE_PAUSE_MIN, EXPIRE_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_timed_out_does_not_stop_expiry_for_as_long_again() {
        for (took, pause) in [(1, 10), (80, 80), (7_000, 500)] {
            let pause_after = pause_after(Duration::from_millis(took));
            assert_eq!(pause_after, Duration::from_millis(pause), "{took} ms");
        }
    }
}
