//! Sends the latest checkpoint to a follower that needs truncated log entries.
//!
//! ```text
//!   offer ─▶ permit (STREAMS_MAX) ─▶ export ─▶ message, chunk, chunk, … ─one stream─▶ response ─▶ report
//! ```
//!
//! * Each peer has at most one stream: a new offer cancels the previous one.
//! * A state that is known to be corrupt is not sent. A leader with one transfers its leadership.
//! * A stream has its own thread and connection: requests do not wait for block reads, nor messages for
//!   chunks.
//! * Memory usage is a chunk and the connection's flow control window.
//! * `pacing` limits the rate by the latency of log syncs: the stream shares disks and network with the
//!   members' logs, and writes must not wait for the catch-up of a follower, unless it would never finish.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::peer::{Hello, SnapshotPart};
use bytes::Bytes;
use futures_util::stream;
use mvcc::{Export, LogPosition};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_stream::Stream;

use super::context::Context;
use super::link::{dial_with, reason_of};
use super::pacing::{LogTotals, Pace};
use crate::member::Checkpoints;
use process::log::causes;
use process::runtime::yield_to_others;
use process::shutdown::{self, Stop, Stopper};
use raft_node::{HOLD_BYTES_MAX, Inbox, SnapshotOutcome};
use telemetry::metrics::{Metrics, To, UnderWay};

/// Maximum number of concurrent streams. A second peer does not wait for a slow first one; a third stream
/// would only slow down all of them.
const STREAMS_MAX: usize = 2;
/// Chunk size: a block or two, half a millisecond of gigabit Ethernet. Handling one at either end does not
/// noticeably delay a put.
const CHUNK_BYTES: usize = 64 << 10;
/// Flow control window per peer: 100 MiB/s at a round trip of 10 ms.
const WINDOW_BYTES: u32 = 1 << 20;
/// Time without progress after which a stream is aborted. The last wait is for the receiver's sync of the
/// whole store.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Delay before a failure is reported: Raft would offer the snapshot again immediately.
const FAILED_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 2 });

/// Builds the Raft message of a checkpoint at this position.
pub type BuildMessage = Box<dyn FnOnce(LogPosition) -> Bytes + Send>;

/// Outgoing snapshot streams.
pub struct Senders {
    context: Context,
    checkpoints: Checkpoints,
    turns: Arc<Semaphore>,
    /// Running stream of each peer, to be cancelled by the next one.
    running: Mutex<HashMap<u64, Stopper>>,
}

/// One snapshot stream.
struct SnapshotSend {
    context: Context,
    checkpoints: Checkpoints,
    turns: Arc<Semaphore>,
    to: u64,
    urls: Vec<String>,
    message: BuildMessage,
    /// Log size at which Raft truncates the entries after the offer.
    log_bytes_max: u64,
}

impl Senders {
    pub fn new(context: Context, checkpoints: Checkpoints) -> Senders {
        Senders {
            context,
            checkpoints,
            turns: Arc::new(Semaphore::new(STREAMS_MAX)),
            running: Mutex::default(),
        }
    }

    /// Starts a stream without blocking. Reports its outcome to `inbox`, unless a newer stream replaces it.
    pub fn send(
        &self,
        to: u64,
        urls: Vec<String>,
        message: BuildMessage,
        inbox: &Arc<dyn Inbox>,
        stop: &Stop,
    ) {
        let (stopper, replaced) = shutdown::stop();
        if let Some(older) = self.running.lock().insert(to, stopper) {
            older.stop();
        }
        let send = SnapshotSend {
            context: self.context.clone(),
            checkpoints: self.checkpoints.clone(),
            turns: Arc::clone(&self.turns),
            to,
            urls,
            message,
            log_bytes_max: log_totals(&self.context.metrics).bytes + HOLD_BYTES_MAX,
        };
        let (reporter, stop) = (Arc::clone(inbox), stop.clone());
        let body = move || {
            yield_to_others();
            let run = || send.run(&*reporter, &replaced, &stop);
            // Always report: Raft sends this peer no messages until then.
            if catch_unwind(AssertUnwindSafe(run)).is_err() && !replaced.is_stopped() {
                tracing::error!(peer = format!("{to:x}"), "snapshot sender panicked");
                reporter.report_snapshot(to, SnapshotOutcome::Failed);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("snapshot-out".to_owned()).spawn(body) {
            tracing::warn!(%error, "cannot start a thread to send a snapshot");
            inbox.report_snapshot(to, SnapshotOutcome::Failed);
        }
    }
}

impl SnapshotSend {
    /// Runs the stream on its thread, and reports the outcome.
    fn run(self, inbox: &dyn Inbox, replaced: &Stop, stop: &Stop) {
        let (to, labels) = (self.to, To { To: self.context.label(self.to) });
        let metrics = Arc::clone(&self.context.metrics);
        let _under_way = UnderWay::new(&metrics.snapshots.sending.get_or_create(&labels).clone());
        let began = Instant::now();
        let fence = Arc::clone(&self.context.fence);
        let ended = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(async {
                let carried = async {
                    let ended = tokio::select! {
                        biased;
                        () = fence.state_wrong() => Err("the state of this member is corrupt".to_owned()),
                        ended = self.carry() => ended,
                    };
                    if ended.is_err() {
                        tokio::time::sleep(FAILED_PAUSE).await;
                    }
                    ended
                };
                tokio::select! {
                    ended = carried => Some(ended),
                    () = replaced.stopped() => None,
                    () = stop.stopped() => None,
                }
            }),
            Err(error) => Some(Err(format!("start a runtime: {error}"))),
        };
        let figures = &metrics.snapshots;
        match ended {
            Some(Ok((applied, bytes))) => {
                figures.sent.get_or_create(&labels).inc();
                figures.send_seconds.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
                tracing::info!(peer = labels.To, applied = applied.index.0, bytes, took = ?began.elapsed(), "sent a snapshot");
                inbox.report_snapshot(to, SnapshotOutcome::Sent);
            }
            Some(Err(error)) => {
                figures.send_failures.get_or_create(&labels).inc();
                tracing::warn!(peer = labels.To, error, "sending a snapshot failed");
                inbox.report_snapshot(to, SnapshotOutcome::Failed);
            }
            None => tracing::info!(peer = labels.To, "snapshot transfer aborted"),
        }
    }

    async fn carry(self) -> Result<(LogPosition, u64), String> {
        let _turn = self.turns.acquire().await.map_err(|error| error.to_string())?;
        let export = self.checkpoints.export().await.ok_or("the store thread exited")?;
        let (applied, bytes) = (export.applied(), export.bytes());
        let hello = self.context.hello(self.to);
        tracing::info!(
            peer = format!("{:x}", self.to),
            applied = applied.index.0,
            bytes,
            "sending a snapshot"
        );
        let mut client = self.dial().await?;
        let message = (self.message)(applied);
        let began = Instant::now();
        let progress = Arc::new(FollowerProgress::default());
        let metrics = Arc::clone(&self.context.metrics);
        let pace = Pace::new(Instant::now(), log_totals(&metrics), bytes, self.log_bytes_max);
        let streaming = client.snapshot(parts(export, hello, message, Arc::clone(&progress), metrics, pace));
        let ended = tokio::select! {
            ended = streaming => ended.map(drop).map_err(|status| reason_of(&status)),
            () = progress.stalled() => Err(format!("the peer took nothing for {STALL_TIMEOUT:?}")),
        };
        if let Some(error) = progress.error.lock().take() {
            if matches!(error, mvcc::Error::Released) {
                return Err("the disk space of its block files was needed".to_owned());
            }
            if base::mutant("damage-ends-the-stream-only") {
                return Err(causes(&error));
            }
            // An unreadable block means that this member's store is corrupt. It must not be sent.
            shutdown::die(&format!("read the store to send it: {}", causes(&error)));
        }
        self.context.metrics.disk.backend_snapshot_seconds.observe(began.elapsed().as_secs_f64());
        ended.map(|()| (applied, bytes))
    }

    async fn dial(&self) -> Result<super::link::PeerConnection, String> {
        let mut last = Err("the peer has no address".to_owned());
        for url in &self.urls {
            last = dial_with(&self.context.dialer, url, WINDOW_BYTES).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

/// Progress that the stream's reader shares with its owner.
#[derive(Default)]
struct FollowerProgress {
    chunks: AtomicU64,
    error: Mutex<Option<mvcc::Error>>,
}

impl FollowerProgress {
    /// Completes when no chunk was sent for [`STALL_TIMEOUT`].
    async fn stalled(&self) {
        loop {
            let before = self.chunks.load(Ordering::Relaxed);
            tokio::time::sleep(STALL_TIMEOUT).await;
            if self.chunks.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// Streams the message, then chunks at the pace. An unreadable or released block ends the stream early. The
/// receiver detects this by the missing end, the sender by `progress.error`.
fn parts(
    export: Export,
    hello: Hello,
    message: Bytes,
    progress: Arc<FollowerProgress>,
    metrics: Arc<Metrics>,
    pace: Pace,
) -> impl Stream<Item = SnapshotPart> + Send + 'static {
    let first = SnapshotPart { hello: Some(hello), message, chunk: Bytes::new(), bytes: export.bytes() };
    let from = (export, pace, progress, metrics);
    let chunks = stream::unfold(from, |(mut export, mut pace, progress, metrics)| async move {
        tokio::time::sleep_until(pace.due().into()).await;
        let chunk = match export.next(CHUNK_BYTES) {
            Ok(chunk) => chunk?,
            Err(error) => {
                *progress.error.lock() = Some(error);
                return None;
            }
        };
        progress.chunks.fetch_add(1, Ordering::Relaxed);
        pace.sent(chunk.len(), Instant::now(), log_totals(&metrics));
        let part = SnapshotPart { chunk, ..SnapshotPart::default() };
        Some((part, (export, pace, progress, metrics)))
    });
    stream::StreamExt::chain(stream::iter([first]), chunks)
}

fn log_totals(metrics: &Metrics) -> LogTotals {
    let [syncs, microseconds] =
        [&metrics.syncs, &metrics.syncs_us].map(|total| total.load(Ordering::Relaxed));
    let bytes = metrics.disk.wal_bytes.get().unsigned_abs();
    LogTotals { syncs, took: Duration::from_micros(microseconds), bytes }
}
