//! The leader's turns: records grants, records the clock, revokes what is expired.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use raft_node::{RequestOrigin, Term};
use state_machine::{LEASE_TURN, LEASES_PER_COMMAND, LeaderTurns};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::error::LeaseError;
use super::leader::LeaderLeases;
use process::shutdown::Stop;

/// Commands under way. When there are so many, the turn waits for one of them. Two: while one is applied, the
/// next one is synced. With eight, puts waited twice as long, and 100,000 leases were gone after 1.0 s, not 1.9
/// (two cores with a load of ten).
const COMMANDS_MAX: usize = 2;

/// Between two looks of a member that does not lead whether it does. A new leader begins its turns this much
/// late. With [`LEASE_TURN`] an idle follower was woken by them as often as by the ticks of Raft.
const FOLLOWER_TURN: Duration = Duration::from_millis(500);

/// What a command was for.
enum CommandEnd {
    Recorded(Result<(), LeaseError>),
    Expired { ids: Vec<i64>, result: Result<(), LeaseError> },
}

/// One term of a leader.
struct LeaderTerm {
    term: Term,
    turns: LeaderTurns,
    commands: JoinSet<CommandEnd>,
}

/// Runs until `stop`. Counts expired leases.
pub async fn run(leases: Arc<LeaderLeases>, expired: Counter, stop: Stop) {
    let mut term: Option<LeaderTerm> = None;
    loop {
        let running = async {
            sleep(if term.is_some() { LEASE_TURN } else { FOLLOWER_TURN }).await;
            match leases.leading(RequestOrigin::Member).await {
                Ok(led) => {
                    if term.as_ref().is_none_or(|term| term.term != led) {
                        let turns = LeaderTurns::new(&leases.table);
                        term = Some(LeaderTerm { term: led, turns, commands: JoinSet::new() });
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

impl LeaderTerm {
    /// One turn, or several while more is due.
    async fn work(&mut self, leases: &Arc<LeaderLeases>, expired: &Counter) {
        loop {
            while let Some(done) = self.commands.try_join_next() {
                self.note(leases, done.ok());
            }
            // Otherwise the term is over.
            let Ok((_, now)) = leases.read_clock(self.term) else { return };
            let work = self.turns.turn(now, &leases.table);
            if let Some(chosen) = work.record {
                let (leases, term) = (Arc::clone(leases), self.term);
                self.commands.spawn(async move { CommandEnd::Recorded(leases.record(term, chosen).await) });
            }
            for ids in work.expired.chunks(LEASES_PER_COMMAND) {
                while self.commands.len() >= COMMANDS_MAX {
                    let done = self.commands.join_next().await;
                    self.note(leases, done.and_then(Result::ok));
                }
                self.expire(leases, expired, ids.to_vec());
            }
            if !work.has_more {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn expire(&mut self, leases: &Arc<LeaderLeases>, expired: &Counter, ids: Vec<i64>) {
        let (leases, term, expired) = (Arc::clone(leases), self.term, expired.clone());
        self.commands.spawn(async move {
            let result = leases.expire(term, ids.clone()).await;
            expired.inc_by(*result.as_ref().unwrap_or(&0) as u64);
            CommandEnd::Expired { ids, result: result.map(drop) }
        });
    }

    /// A command has ended.
    fn note(&mut self, leases: &LeaderLeases, done: Option<CommandEnd>) {
        match done {
            // A task that panicked.
            None => self.turns.restart(),
            Some(CommandEnd::Recorded(result)) => {
                self.turns.recorded();
                if let Err(error) = result {
                    tracing::debug!(%error, "leases were not recorded; trying again");
                }
            }
            Some(CommandEnd::Expired { ids, result: Ok(()) }) => self.turns.expired(&ids, &leases.table),
            Some(CommandEnd::Expired { ids, result: Err(error) }) => {
                tracing::debug!(%error, leases = ids.len(), "leases were not revoked; trying again");
                if let Ok((_, now)) = leases.read_clock(self.term) {
                    self.turns.not_expired(&ids, now);
                }
            }
        }
    }
}
