//! State shared by the attackers of one attack: the target's address, the deadline, and the counters.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attack::target::{Ids, ProgramKind};

/// Delay between two sessions of an attacker: a closed connection costs the attacker a little time.
const REST: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub struct Ground {
    pub kind: ProgramKind,
    /// Client and peer port of each member.
    pub ports: Arc<[(u16, u16)]>,
    pub pids: Arc<[u32]>,
    pub ids: Arc<Ids>,
    pub ends: Instant,
    pub ledger: Arc<Ledger>,
}

/// Counters of an attack.
#[derive(Default)]
pub struct Ledger {
    acts: AtomicU64,
    breaks: AtomicU64,
    lost: AtomicU64,
    frozen: Mutex<Vec<(Instant, Instant)>>,
}

impl Ledger {
    /// Number of frames, calls or connections, depending on the attack.
    pub fn acts(&self) -> u64 {
        self.acts.load(Ordering::Relaxed)
    }

    /// Sessions that the server closed or rejected.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// Calls lost after a stall.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub fn add_acts(&self, count: u64) {
        self.acts.fetch_add(count, Ordering::Relaxed);
    }

    pub fn add_break(&self) {
        self.breaks.fetch_add(1, Ordering::Relaxed);
    }

    pub fn add_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Periods in which the attack itself stopped the process; latencies in them are not the server's.
    pub fn frozen(&self) -> Vec<(Instant, Instant)> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add_frozen(&self, from: Instant, to: Instant) {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner).push((from, to));
    }
}

impl Ground {
    /// The first member's port for clients.
    pub fn client_port(&self) -> u16 {
        self.ports[0].0
    }

    pub fn peer_port(&self) -> u16 {
        self.ports[0].1
    }

    /// Runs `attackers` concurrent attackers until the deadline. A finished session is restarted.
    pub async fn keep<S, F>(&self, attackers: usize, session: S)
    where
        S: Fn(Ground) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        self.keep_numbered(attackers, move |ground, _| session(ground)).await;
    }

    /// Like `keep`, and passes each attacker its number.
    pub async fn keep_numbered<S, F>(&self, attackers: usize, session: S)
    where
        S: Fn(Ground, usize) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let mut crew = JoinSet::new();
        for number in 0..attackers {
            let (ground, session) = (self.clone(), session.clone());
            crew.spawn(async move {
                while Instant::now() < ground.ends {
                    if session(ground.clone(), number).await.is_err() {
                        ground.ledger.add_break();
                    }
                    tokio::time::sleep(REST).await;
                }
            });
        }
        // A blocked write is abandoned when the attack is over.
        let _over = tokio::time::timeout_at(self.ends, crew.join_all()).await;
    }
}

/// Rate limit of one attacker.
pub struct AttackPace {
    began: Instant,
    done: u64,
    per_second: u64,
}

impl AttackPace {
    pub fn new(per_second: u64) -> AttackPace {
        AttackPace { began: Instant::now(), done: 0, per_second }
    }

    /// Counts acts, and waits if they are ahead of the rate.
    pub async fn take(&mut self, acts: u64) {
        self.done += acts;
        let due = self.began + Duration::from_micros(self.done * 1_000_000 / self.per_second);
        tokio::time::sleep_until(due).await;
    }
}
