//! Clients that write, and record their requests and responses.
//!
//! ```text
//!   k/…    many keys, overwritten           big/…   few keys, values of up to 256 KiB: checkpoints and new segments
//!   gone/… put and deleted                  t/…     several keys in one txn
//!   probe/…  one put after another to each member, without waiting for the previous response, if enabled
//!   each client compacts now and then, so that history is dropped while others write
//! ```
//!
//! * Each value is sent once in the whole experiment and starts with the number of its sender.
//! * The position of a request is taken before it is sent, the position of a response after it has arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::claim::{Acknowledgement, Claim, Effect};
use super::client::MemberClient;

/// Timeout after which the fate of a call counts as unknown.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// Error of a learner that rejects a write; such a request is never applied.
const LEARNER: &str = "rpc not supported for learner";
const KEYS: u32 = 400;
const BIG_KEYS: u32 = 6;
const BIG_BYTES: std::ops::Range<usize> = 40 << 10..256 << 10;
const GONE_KEYS: u32 = 40;
const TXN_KEYS: u32 = 60;
const PROBE_KEYS: u64 = 50;
/// Approximate number of writes of all clients between two compactions.
const COMPACTION_INTERVAL: u64 = 64;
/// Revisions that a compaction retains before the latest one.
const HISTORY: i64 = 150;

/// Behaviour of the clients during one life of a server.
#[derive(Clone)]
pub struct Workload {
    pub seed: u64,
    /// Number of the life; makes values unique.
    pub life: u64,
    pub clients: u64,
    /// Share of writes that are big.
    pub big: f64,
    /// Ports of the members. A rejected client tries the next one.
    pub ports: Vec<u16>,
    /// Behaviour of a client after a failed call.
    pub after_failure: AfterFailure,
    /// Interval of probe puts to each member, which do not wait for earlier ones. None: no probes.
    pub probes_every: Option<Duration>,
    pub position: Arc<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// Stop: the only server has exited.
    End,
    /// Try another member.
    Next,
    /// Retry the same member until it responds. A hanging member then blocks only its own clients.
    Again,
}

/// A load that runs until it is stopped, or until its server has exited.
pub struct RunningWorkload {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<Vec<Claim>>>,
}

impl Workload {
    /// Starts the clients. Must be called within a runtime.
    pub fn start(&self) -> RunningWorkload {
        let stop = Arc::new(AtomicBool::new(false));
        let newest = Arc::new(AtomicI64::new(0));
        let clients = (0..self.clients).map(|number| {
            let (workload, stop, newest) = (self.clone(), Arc::clone(&stop), Arc::clone(&newest));
            tokio::spawn(Author::new(workload, number, newest).write(stop))
        });
        let mut clients: Vec<_> = clients.collect();
        for (number, port) in self.ports.iter().enumerate() {
            let Some(every) = self.probes_every else { break };
            let (probes, stop) = (Probes { workload: self.clone(), number, port: *port }, Arc::clone(&stop));
            clients.push(tokio::spawn(probes.write(every, stop)));
        }
        RunningWorkload { clients, stop }
    }

    /// Returns None if the request was rejected and thus not applied.
    async fn ask(&self, client: &mut MemberClient, effect: Effect) -> Option<Claim> {
        let asked_at = (self.position)();
        let answer = match client.make(&effect).await {
            Ok(revision) => Some(Acknowledgement { at: (self.position)(), revision }),
            Err(failure) if failure.to_string().contains(LEARNER) => return None,
            Err(_) => None,
        };
        Some(Claim { effect, asked_at, answer })
    }
}

impl RunningWorkload {
    pub fn is_over(&self) -> bool {
        self.clients.iter().all(tokio::task::JoinHandle::is_finished)
    }

    pub async fn finish(self) -> Vec<Claim> {
        self.stop.store(true, Ordering::Relaxed);
        let mut claims = Vec::new();
        for client in self.clients {
            claims.extend(client.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
        }
        claims
    }
}

/// Puts to one member at a fixed rate. A client blocked on a lost request measures only itself;
/// probes are independent of each other.
struct Probes {
    workload: Workload,
    number: usize,
    port: u16,
}

impl Probes {
    async fn write(self, every: Duration, stop: Arc<AtomicBool>) -> Vec<Claim> {
        let (mut claims, mut asked) = (Vec::new(), JoinSet::new());
        let mut connection: Option<MemberClient> = None;
        for sent in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(every).await;
            while let Some(Ok(claim)) = asked.try_join_next() {
                let claim: Option<Claim> = claim;
                if claim.as_ref().is_none_or(|claim| claim.answer.is_none()) {
                    connection = None;
                }
                claims.extend(claim);
            }
            if connection.is_none() {
                connection = MemberClient::connect(self.port, CALL_TIMEOUT).await.ok();
            }
            if let Some(mut client) = connection.clone() {
                let (workload, effect) = (self.workload.clone(), self.effect(sent));
                asked.spawn(async move { workload.ask(&mut client, effect).await });
            }
        }
        claims.extend(asked.join_all().await.into_iter().flatten());
        claims
    }

    fn effect(&self, sent: u64) -> Effect {
        let (Workload { seed, life, .. }, number) = (&self.workload, self.number);
        let value = Bytes::from(format!("{seed:x}.{life}.probe{number}.{sent};"));
        Effect::Put { key: Bytes::from(format!("probe/{}", sent % PROBE_KEYS)), value }
    }
}

struct Author {
    workload: Workload,
    number: u64,
    sent: u64,
    chance: SmallRng,
    newest: Arc<AtomicI64>,
}

impl Author {
    fn new(workload: Workload, number: u64, newest: Arc<AtomicI64>) -> Author {
        let seed = workload.seed ^ workload.life << 20 ^ number << 50;
        Author { workload, number, sent: 0, chance: SmallRng::seed_from_u64(seed), newest }
    }

    async fn write(mut self, stop: Arc<AtomicBool>) -> Vec<Claim> {
        let mut claims = Vec::new();
        let mut connection: Option<MemberClient> = None;
        let mut member = self.number as usize;
        while !stop.load(Ordering::Relaxed) {
            let Some(client) = &mut connection else {
                if self.workload.after_failure != AfterFailure::Again {
                    member += 1;
                }
                let port = self.workload.ports[member % self.workload.ports.len()];
                connection = MemberClient::connect(port, CALL_TIMEOUT).await.ok();
                if connection.is_none() {
                    if self.workload.after_failure == AfterFailure::End {
                        break;
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                continue;
            };
            let Some(claim) = self.ask(client).await else {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            };
            let failed = claim.answer.is_none();
            claims.push(claim);
            if failed && self.workload.after_failure == AfterFailure::End {
                break;
            }
            if failed {
                connection = None;
            } else if self.sent.is_multiple_of(COMPACTION_INTERVAL * self.workload.clients) {
                // May fail: no client relies on a compaction.
                let _refused = client.compact(self.newest.load(Ordering::Relaxed) - HISTORY).await;
            }
        }
        claims
    }

    /// Returns None if the request was rejected and thus not applied.
    async fn ask(&mut self, client: &mut MemberClient) -> Option<Claim> {
        let effect = self.effect();
        let claim = self.workload.ask(client, effect).await?;
        if let Some(answer) = claim.answer {
            self.newest.fetch_max(answer.revision, Ordering::Relaxed);
        }
        Some(claim)
    }

    fn effect(&mut self) -> Effect {
        if self.chance.random_bool(self.workload.big) {
            let bytes = self.chance.random_range(BIG_BYTES);
            return Effect::Put { key: self.key("big", BIG_KEYS), value: self.value(bytes) };
        }
        match self.chance.random_range(0..10) {
            0 => Effect::Delete { key: self.key("gone", GONE_KEYS) },
            1 => Effect::Put { key: self.key("gone", GONE_KEYS), value: self.value(100) },
            2 | 3 => Effect::Txn { puts: self.txn() },
            _ => {
                let bytes = self.chance.random_range(0..400);
                Effect::Put { key: self.key("k", KEYS), value: self.value(bytes) }
            }
        }
    }

    /// Returns puts of two to four different keys.
    fn txn(&mut self) -> Vec<(Bytes, Bytes)> {
        let (first, count) = (self.chance.random_range(0..TXN_KEYS), self.chance.random_range(2..=4));
        (0..count)
            .map(|offset| (Bytes::from(format!("t/{}", (first + offset * 7) % TXN_KEYS)), self.value(40)))
            .collect()
    }

    fn key(&mut self, class: &str, keys: u32) -> Bytes {
        Bytes::from(format!("{class}/{}", self.chance.random_range(0..keys)))
    }

    /// Returns a unique value of at least `bytes` bytes that does not compress well.
    fn value(&mut self, bytes: usize) -> Bytes {
        self.sent += 1;
        let Workload { seed, life, .. } = self.workload;
        let mut value = format!("{seed:x}.{life}.{}.{};", self.number, self.sent).into_bytes();
        let own = value.len();
        value.resize(bytes.max(own), 0);
        self.chance.fill(&mut value[own..]);
        Bytes::from(value)
    }
}
