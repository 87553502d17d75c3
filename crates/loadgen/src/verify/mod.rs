//! Checks whether a cluster keeps etcd's guarantees, while clients write and read through every member and
//! watchers follow at every member.
//!
//! ```text
//!   clients ──┐
//!             ├─messages─▶ Checker ──▶ Report
//!   feeds ────┘
//! ```
//!
//! All keys are below a prefix that is new in each run, and are deleted at the end.

pub mod operation; // requests, outcomes, changes

mod history; // what watchers have shown

pub mod checker; // operations and events against each other

mod messages; // to the checker
mod names; // keys and values as bytes

mod client; // sends operations
mod feed; // watches

use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::run::schedule::{Pace, Schedule};
use api::etcdserverpb::DeleteRangeRequest;
use api::etcdserverpb::kv_client::KvClient;
use checker::{Checked, Checker, Violation};
use client::{Client, Shared};
use feed::Feed;
use messages::Message;
use names::Names;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What the checker has not read yet: beyond this, clients and watchers wait for it.
const MESSAGES_MAX: usize = 1 << 14;
/// Failed writes that no watcher has shown: with more, memory would grow without a bound, and the run ends.
const UNRESOLVED_MAX: usize = 1 << 20;
/// How long watchers are awaited after the last operation.
const DRAIN: Duration = Duration::from_secs(30);
/// The deletion of the keys at the end is given up after this.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// Between two remarks about the progress.
const REMARK: Duration = Duration::from_secs(10);

/// How the cluster is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of every member.
    pub endpoints: Vec<Endpoint>,
    pub prefix: String,
    pub duration: Duration,
    /// Operations per second, of all clients.
    pub rate: f64,
    pub clients: usize,
    pub keys: u32,
    pub request_timeout: Duration,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub seconds: f64,
    #[serde(flatten)]
    pub checked: Checked,
    pub violation: Option<Violation>,
    /// Why the run could not go on.
    pub failed: Option<String>,
    /// Operations whose revision no watcher has reached.
    pub undecided: usize,
    /// Endpoints whose watcher did not receive everything before the end.
    pub behind: Vec<String>,
    pub interrupted: bool,
}

/// A run in progress.
struct Verification {
    checker: Checker,
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    feeds: JoinSet<()>,
    received: mpsc::Receiver<Message>,
    violation: Option<Violation>,
    failed: Option<String>,
}

/// Uses and checks a cluster until the time is over, `interrupted` resolves, or a contradiction is found.
pub async fn run(
    settings: &Settings,
    interrupted: impl Future<Output = ()>,
    remark: &mut dyn FnMut(Duration, &Checked),
) -> Result<Report, String> {
    let mut channels = Vec::with_capacity(settings.endpoints.len());
    for endpoint in &settings.endpoints {
        let channel = admin::channel(endpoint, None, None).await.map_err(|error| error.to_string())?;
        channels.push(channel);
    }
    let first = settings.endpoints.first().ok_or("no endpoint given")?;
    let revision = async { admin::Client::connect(first).await?.revision().await };
    let revision = revision.await.map_err(|error| error.to_string())?;
    let mut verification = Verification::begin(settings, &channels, revision);
    let is_interrupted = verification.observe(interrupted, remark).await;
    let target = verification.checker.newest();
    verification.drain(target).await;
    verification.feeds.shutdown().await;
    clean_up(&channels, &verification.shared.names).await;
    let Verification { checker, shared, violation, failed, .. } = verification;
    let behind = checker.behind(target);
    Ok(Report {
        seconds: shared.start.elapsed().as_secs_f64(),
        checked: checker.checked,
        violation,
        failed,
        undecided: checker.waiting_len(),
        behind: behind.into_iter().map(|place| settings.endpoints[place].to_string()).collect(),
        interrupted: is_interrupted,
    })
}

impl Report {
    /// Whether everything was checked and nothing contradicts.
    pub fn is_clean(&self) -> bool {
        self.violation.is_none() && self.failed.is_none() && self.undecided == 0
    }
}

impl Verification {
    fn begin(settings: &Settings, channels: &[admin::Channel], revision: i64) -> Self {
        let (messages, received) = mpsc::channel(MESSAGES_MAX);
        let start = Instant::now();
        let names = Names::new(format!("{}{:016x}/", settings.prefix, rand::random::<u64>()));
        let schedule = Schedule::new(u64::MAX / 2, Pace::AtMost(settings.rate), start);
        let mut feeds = JoinSet::new();
        for (watcher, channel) in channels.iter().enumerate() {
            let (channel, names, messages) = (channel.clone(), names.clone(), messages.clone());
            feeds.spawn(Feed { watcher, channel, names, received: revision, messages, start }.follow());
        }
        let shared = Arc::new(Shared {
            names,
            keys: settings.keys,
            request_timeout: settings.request_timeout,
            schedule: schedule.until(Some(start + settings.duration)),
            messages,
            start,
            operations: AtomicU64::new(0),
            values: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        });
        let (mut clients, seed) = (JoinSet::new(), rand::random());
        for number in 0..settings.clients {
            clients.spawn(Client::new(number, channels, shared.clone(), seed).run());
        }
        let checker = Checker::new(revision, channels.len());
        Self { checker, shared, clients, feeds, received, violation: None, failed: None }
    }

    /// Checks until the clients have ended; returns whether that was an interruption.
    async fn observe(
        &mut self,
        interrupted: impl Future<Output = ()>,
        remark: &mut dyn FnMut(Duration, &Checked),
    ) -> bool {
        let mut interrupted = std::pin::pin!(interrupted);
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
                () = &mut interrupted, if !is_interrupted => {
                    is_interrupted = true;
                    self.shared.schedule.close();
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
        while !self.is_over() && (self.checker.waiting_len() > 0 || !self.checker.behind(target).is_empty()) {
            match tokio::time::timeout_at(deadline.into(), self.received.recv()).await {
                Ok(Some(message)) => self.take(message),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.violation.is_some() || self.failed.is_some()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Failed(reason) => self.failed = Some(reason),
            Message::Input(input) => {
                if let Err(violation) = self.checker.take(input) {
                    self.violation = Some(*violation);
                }
                self.shared.waiting.store(self.checker.waiting_len(), Relaxed);
                if self.checker.unresolved_len() > UNRESOLVED_MAX {
                    self.failed = Some(format!("{UNRESOLVED_MAX} writes failed, and may be executed later"));
                }
            }
        }
    }
}

/// Deletes the keys of the run. A cluster that does not answer keeps them.
async fn clean_up(channels: &[admin::Channel], names: &Names) {
    let (key, range_end) = names.all();
    let delete = DeleteRangeRequest { key, range_end, ..Default::default() };
    for channel in channels {
        let mut client = KvClient::new(channel.clone());
        let deleted = client.delete_range(delete.clone());
        if tokio::time::timeout(CLEAN_UP, deleted).await.is_ok_and(|answer| answer.is_ok()) {
            return;
        }
    }
}
