//! Checks whether a cluster keeps etcd's guarantees, while clients write and read through every member and
//! watchers follow at every member.
//!
//! ```text
//!   clients, lessees ──┐
//!   feeds ─────────────┼─messages─▶ Checker ──▶ Report
//!   polls ─────────────┘
//! ```
//!
//! All keys have a prefix that is new in each run, and are deleted at the end.

pub mod cluster; // members and connections
mod pace; // start times of operations
pub mod timeline; // leaders, windows without a write

pub mod report; // result of a run

mod actors; // use the cluster

use crate::operation::CallOutcome;
use crate::rules::Checker;
use crate::verdict::{CheckCounts, Input, Violation};
use actors::client::{ClientShared, VerifyClient};
use actors::feed::Feed;
use actors::holder::Holder;
use actors::lessee::Lessee;
use actors::names::KeyNames;
use actors::polls;
use actors::{CheckerMessage, LeaderSeen};
use api::etcdserverpb::{DeleteRangeRequest, RangeRequest};
use client::Client;
use pace::Pace;
use report::VerifyReport;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use timeline::{Leader, TimelineRecorder};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum of unread messages; beyond it, clients and watchers block.
const MESSAGES_MAX: usize = 1 << 14;
/// Maximum of failed writes that no watcher has observed: with more, memory would grow without bound, so the
/// run is stopped.
const UNRESOLVED_MAX: usize = 1 << 20;
/// Maximum wait for watchers after the last operation.
const DRAIN: Duration = Duration::from_secs(30);
/// Timeout of the final deletion of the keys.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// Timeout of the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of clients that compete for locks and elections.
const HOLDERS: usize = 2;
/// Interval between two progress remarks.
const REMARK: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Settings {
    /// Endpoint of every member.
    pub endpoints: Vec<String>,
    pub prefix: String,
    pub duration: Duration,
    /// Operations per second of all clients.
    pub rate: f64,
    pub clients: usize,
    pub keys: u32,
    /// Number of concurrent leases.
    pub leases: usize,
    /// Interval of comparing the members' hashes; `None`: never.
    pub hash_interval: Option<Duration>,
    /// Interval of compactions; `None`: never.
    pub compact_interval: Option<Duration>,
    pub request_timeout: Duration,
}

/// A run in progress.
struct Verification {
    checker: Checker,
    recorder: TimelineRecorder,
    endpoints: Vec<String>,
    shared: Arc<ClientShared>,
    clients: JoinSet<()>,
    /// Lessees, holders and polls, which are stopped with the clients.
    others: JoinSet<()>,
    feeds: JoinSet<()>,
    received: mpsc::Receiver<CheckerMessage>,
    violation: Option<Violation>,
    failed: Option<String>,
}

/// Uses and checks a cluster until the duration is over, `interrupted` completes, or a contradiction is
/// found.
pub async fn run(
    settings: &Settings,
    interrupted: impl Future<Output = ()>,
    remark: &mut (dyn FnMut(Duration, &CheckCounts) + Send),
) -> Result<VerifyReport, String> {
    let mut channels = Vec::with_capacity(settings.endpoints.len());
    for endpoint in &settings.endpoints {
        channels.push(cluster::connect(endpoint).await?);
    }
    let first = channels.first().ok_or("no endpoint given")?;
    let revision = revision(first).await.map_err(|status| status.message().to_owned())?;
    let mut verification = Verification::begin(settings, &channels, revision);
    let mut interrupted = std::pin::pin!(interrupted);
    let mut is_interrupted = verification.observe(interrupted.as_mut(), remark).await;
    let ended = verification.shared.start.elapsed();
    verification.others.shutdown().await;
    let target = verification.checker.newest();
    tokio::select! {
        () = verification.drain(target) => {}
        () = interrupted, if !is_interrupted => is_interrupted = true,
    }
    verification.feeds.shutdown().await;
    verification.close();
    clean_up(&channels, &verification.shared.names).await;
    let Verification { checker, recorder, shared, violation, failed, .. } = verification;
    let late = checker.late_watchers(target);
    Ok(VerifyReport {
        seconds: shared.start.elapsed().as_secs_f64(),
        checked: checker.checked,
        violation,
        failed,
        undecided: checker.waiting_len(),
        late: late.into_iter().map(|place| settings.endpoints[place].clone()).collect(),
        interrupted: is_interrupted,
        endpoints: settings.endpoints.clone(),
        hashes_wanted: settings.hash_interval.is_some(),
        timeline: recorder.finish(ended),
        ..VerifyReport::default()
    })
}

/// Reads the current revision, linearizably.
async fn revision(client: &Client) -> Result<i64, tonic::Status> {
    let range = RangeRequest { key: "\0".into(), ..Default::default() };
    let reply = client.within(CONNECT_TIMEOUT).kv().range(range).await?.into_inner();
    Ok(reply.header.map_or(0, |header| header.revision))
}

impl Verification {
    fn begin(settings: &Settings, channels: &[Client], revision: i64) -> Self {
        let (messages, received) = mpsc::channel(MESSAGES_MAX);
        let start = Instant::now();
        let names = KeyNames::new(format!("{}{:016x}/", settings.prefix, rand::random::<u64>()));
        let mut feeds = JoinSet::new();
        for (watcher, channel) in channels.iter().enumerate() {
            let (channel, names, messages) = (channel.clone(), names.clone(), messages.clone());
            feeds.spawn(Feed { watcher, channel, names, received: revision, messages, start }.follow());
        }
        let shared = Arc::new(ClientShared {
            names,
            keys: settings.keys,
            request_timeout: settings.request_timeout,
            pace: Pace::new(start, settings.duration, settings.rate),
            messages,
            start,
            operations: AtomicU64::new(0),
            values: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            first: revision,
            leader_changed_ms: AtomicU64::new(0),
            newest: AtomicI64::new(revision),
            received_by_all: AtomicI64::new(revision),
            leased: AtomicU32::new(0),
        });
        let (mut clients, seed) = (JoinSet::new(), rand::random());
        for number in 0..settings.clients {
            clients.spawn(VerifyClient::new(number, channels, shared.clone(), seed).run());
        }
        let checker = Checker::new(revision, channels.len());
        let (recorder, others) =
            (TimelineRecorder::new(settings.rate), others(settings, channels, &shared, seed));
        let endpoints = settings.endpoints.clone();
        let (violation, failed) = (None, None);
        Self { checker, recorder, endpoints, shared, clients, others, feeds, received, violation, failed }
    }

    /// Checks until the clients have finished; returns whether they were interrupted.
    async fn observe(
        &mut self,
        mut interrupted: Pin<&mut impl Future<Output = ()>>,
        remark: &mut (dyn FnMut(Duration, &CheckCounts) + Send),
    ) -> bool {
        let mut is_interrupted = false;
        let mut remarks = tokio::time::interval(REMARK);
        remarks.tick().await;
        loop {
            tokio::select! {
                Some(message) = self.received.recv() => self.take(message),
                ended = self.clients.join_next() => match ended {
                    Some(Err(panic)) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
                    Some(_) => {}
                    None => return is_interrupted,
                },
                () = interrupted.as_mut(), if !is_interrupted => {
                    is_interrupted = true;
                    self.shared.pace.close();
                }
                _ = remarks.tick() => remark(self.shared.start.elapsed(), &self.checker.checked),
            }
            if self.is_over() {
                self.clients.shutdown().await;
                return is_interrupted;
            }
        }
    }

    /// Waits until every watcher has received everything up to a revision.
    async fn drain(&mut self, target: i64) {
        let deadline = Instant::now() + DRAIN;
        while !self.is_over()
            && (self.checker.waiting_len() > 0 || !self.checker.late_watchers(target).is_empty())
        {
            match tokio::time::timeout_at(deadline.into(), self.received.recv()).await {
                Ok(Some(message)) => self.take(message),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Checks the operations that waited for others in flight.
    fn close(&mut self) {
        if !self.is_over()
            && let Err(violation) = self.checker.close(self.shared.start.elapsed())
        {
            self.violation = Some(*violation);
        }
    }

    fn is_over(&self) -> bool {
        self.violation.is_some() || self.failed.is_some()
    }

    fn take(&mut self, message: CheckerMessage) {
        match message {
            CheckerMessage::Failed(reason) => self.failed = Some(reason),
            CheckerMessage::Leader(LeaderSeen { at, member, term }) => {
                let endpoint = member.map(|place| self.endpoints[place].clone());
                self.recorder.leader(Leader { at_seconds: at.as_secs_f64(), endpoint, term });
            }
            CheckerMessage::Input(input) => {
                if let Input::Ended(_, at, CallOutcome::Written { .. }) = &input {
                    self.recorder.written(*at);
                }
                if let Err(violation) = self.checker.take(input) {
                    self.violation = Some(*violation);
                }
                self.shared.waiting.store(self.checker.waiting_size(), Relaxed);
                self.shared.newest.store(self.checker.newest(), Relaxed);
                self.shared.received_by_all.store(self.checker.received_by_all(), Relaxed);
                if self.checker.unresolved_len() > UNRESOLVED_MAX {
                    self.failed = Some(format!("{UNRESOLVED_MAX} writes failed, and may be executed later"));
                }
            }
        }
    }
}

/// Starts lessees, holders and polls.
fn others(settings: &Settings, channels: &[Client], shared: &Arc<ClientShared>, seed: u64) -> JoinSet<()> {
    let (mut tasks, all) = (JoinSet::new(), || (channels.to_vec(), shared.clone()));
    for number in 0..settings.leases {
        tasks.spawn(Lessee::new(settings.clients + number, channels, shared.clone(), seed).run());
    }
    for number in 0..HOLDERS {
        let number = settings.clients + settings.leases + number;
        tasks.spawn(Holder::new(number, channels, shared.clone(), seed).run());
    }
    let (channels, shared) = all();
    tasks.spawn(polls::leaders(channels.clone(), shared.clone()));
    tasks.spawn(polls::members(channels.clone(), shared.clone()));
    tasks.spawn(polls::replays(channels, shared, seed));
    if let Some(every) = settings.hash_interval {
        let (channels, shared) = all();
        tasks.spawn(polls::hashes(channels, shared, every));
    }
    if let Some(every) = settings.compact_interval {
        let (channels, shared) = all();
        tasks.spawn(polls::compactions(channels, shared, every));
    }
    tasks
}

/// Deletes the keys of the run, if the cluster responds.
async fn clean_up(channels: &[Client], names: &KeyNames) {
    let (key, range_end) = names.written();
    let delete = DeleteRangeRequest { key, range_end, ..Default::default() };
    for channel in channels {
        let mut client = channel.kv();
        let deleted = client.delete_range(delete.clone());
        if tokio::time::timeout(CLEAN_UP, deleted).await.is_ok_and(|answer| answer.is_ok()) {
            return;
        }
    }
}
