//! The loop of the store thread, which runs one task at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mvcc::{BytesWritten, CompactProgress, Export, LogPosition, Maintainer, Store};
use raft_node::Fatal;
use tokio::sync::{oneshot, watch};

use super::requests::{CheckpointerShared, Install, Listener};
use telemetry::metrics::{Metrics, UnderWay, WritePurpose};

/// Keys visited in one compaction step, as in etcd. The lock is held well under a millisecond.
const COMPACT_KEYS_MAX: usize = 1000;
/// Pause between two compaction steps that leaves the machine to reads and writes, as in etcd.
const COMPACT_PAUSE: Duration = Duration::from_millis(10);
/// Time without new entries before a checkpoint. The checkpoint then delays no request, and the next start
/// has no entries to replay.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// Maximum time between two checkpoints while entries keep arriving slowly.
const TRICKLE: Duration = Duration::from_secs(60);

/// State owned by the thread.
pub(super) struct Checkpointer {
    maintainer: Maintainer,
    store: Store,
    metrics: Arc<Metrics>,
    announce: watch::Sender<i64>,
    listener: Option<Listener>,
    /// Applied position that is durable.
    durable: LogPosition,
    /// Last observed applied position, and the time when it was reached.
    seen: (LogPosition, Instant),
    last_checkpoint: Instant,
    /// True if a compaction may be unfinished; true at the start, since a crash may have interrupted one.
    compacting: bool,
    /// True if the last step made no progress: a read in progress needs the history it would drop.
    is_held_up: bool,
    /// True if removed files are still to be closed.
    is_closing: bool,
    /// Defragment calls waiting for pending steps, which run without pauses for them.
    defragments: Vec<oneshot::Sender<()>>,
    /// Start of the current compaction's first step.
    compacting_since: Option<Instant>,
    /// Bytes written as last counted.
    written: BytesWritten,
    /// Records dropped as last counted.
    dropped_records: u64,
}

/// Tasks found by one wait.
struct Turn {
    checkpoint: bool,
    stop: bool,
    install: Option<Install>,
    exports: Vec<oneshot::Sender<Export>>,
    defragments: Vec<oneshot::Sender<()>>,
}

impl Checkpointer {
    pub fn new(
        maintainer: Maintainer,
        store: Store,
        metrics: Arc<Metrics>,
        announce: watch::Sender<i64>,
    ) -> Checkpointer {
        Checkpointer {
            maintainer,
            durable: store.applied(),
            seen: (store.applied(), Instant::now()),
            store,
            metrics,
            announce,
            listener: None,
            compacting: true,
            is_held_up: false,
            is_closing: false,
            defragments: Vec::new(),
            compacting_since: None,
            last_checkpoint: Instant::now(),
            written: BytesWritten::default(),
            dropped_records: 0,
        }
    }

    pub fn run(&mut self, shared: &CheckpointerShared) -> Result<(), Fatal> {
        loop {
            let turn = self.wait(shared);
            if let Some(install) = turn.install {
                self.install(install, shared)?;
            }
            for answer in turn.exports {
                // The caller may have disconnected.
                let _gone = answer.send(self.maintainer.export());
            }
            // A Defragment starts with a checkpoint, so that the space it frees is not needed by the
            // previous one.
            let is_asked = turn.checkpoint || turn.stop || !turn.defragments.is_empty();
            if is_asked || self.resting() {
                self.checkpoint(shared)?;
            }
            self.compacting |= !turn.defragments.is_empty();
            self.defragments.extend(turn.defragments);
            if turn.stop {
                return Ok(());
            }
            if self.compacting {
                self.compact()?;
            }
            self.is_closing = self.maintainer.close_removed_files();
        }
    }

    fn wait(&mut self, shared: &CheckpointerShared) -> Turn {
        let mut wanted = shared.wanted.lock();
        if !wanted.is_anything() {
            let patience = match (self.compacting, self.defragments.is_empty()) {
                (false, _) if !self.is_closing => IDLE,
                (true, false) if !self.is_held_up => Duration::ZERO,
                _ => COMPACT_PAUSE,
            };
            shared.wake.wait_for(&mut wanted, patience);
        }
        self.compacting |= std::mem::take(&mut wanted.compaction);
        if let Some(listener) = wanted.listener.take() {
            listener(self.durable);
            self.listener = Some(listener);
        }
        Turn {
            checkpoint: std::mem::take(&mut wanted.checkpoint),
            stop: wanted.stop,
            install: wanted.install.take(),
            exports: std::mem::take(&mut wanted.exports),
            defragments: std::mem::take(&mut wanted.defragments),
        }
    }

    /// Reports whether changes are unpersisted and either no entry arrived for [`IDLE`] or the last
    /// checkpoint is older than [`TRICKLE`]. Also applies during a compaction, which may wait for a reader
    /// indefinitely.
    fn resting(&mut self) -> bool {
        let applied = self.store.applied();
        if self.seen.0 != applied {
            self.seen = (applied, Instant::now());
        }
        let is_idle = self.seen.1.elapsed() >= IDLE;
        applied != self.durable && (is_idle || self.last_checkpoint.elapsed() >= TRICKLE)
    }

    fn checkpoint(&mut self, shared: &CheckpointerShared) -> Result<(), Fatal> {
        let began = Instant::now();
        let persisted = self.maintainer.persist().map_err(failed("persist the store"))?;
        self.metrics.disk.backend_commit_seconds.observe(began.elapsed().as_secs_f64());
        self.last_checkpoint = Instant::now();
        tracing::debug!(
            applied = persisted.applied.index.0,
            revision = persisted.revision,
            bytes = persisted.bytes_written,
            took = ?began.elapsed(),
            "checkpoint"
        );
        self.is_durable(persisted.applied, shared);
        Ok(())
    }

    /// Records that the store holds all entries up to `applied` durably.
    fn is_durable(&mut self, applied: LogPosition, shared: &CheckpointerShared) {
        self.durable = applied;
        shared.counted_from.fetch_max(applied.index.0, Ordering::Relaxed);
        self.count_written();
        if let Some(listener) = &self.listener {
            listener(applied);
        }
        shared.wanted.lock().finished += 1;
        shared.done.notify_all();
    }

    fn install(&mut self, install: Install, shared: &CheckpointerShared) -> Result<(), Fatal> {
        let began = Instant::now();
        let installing = UnderWay::new(&self.metrics.snapshots.installing);
        let installed = self.maintainer.install_over(install.staged, install.present);
        let applied = installed.map_err(failed("install a received snapshot"))?;
        drop(installing);
        tracing::info!(
            applied = applied.index.0,
            revision = self.store.revision(),
            took = ?began.elapsed(),
            "installed a snapshot"
        );
        // The received store may contain a different unfinished compaction.
        self.compacting = true;
        self.compacting_since = None;
        self.is_durable(applied, shared);
        let _gone = install.done.send(());
        Ok(())
    }

    /// Runs one compaction step. Pending tasks run between two steps, checkpoints first: a Defragment
    /// delays a writer waiting for a checkpoint by at most one step.
    fn compact(&mut self) -> Result<(), Fatal> {
        let step = match self.defragments.is_empty() {
            true => Maintainer::compact_step,
            false => Maintainer::reclaim_step,
        };
        let (began, asked) = (Instant::now(), self.store.compact_revision());
        let progress = step(&mut self.maintainer, COMPACT_KEYS_MAX).map_err(failed("compact the store"))?;
        let milliseconds = |since: Instant| since.elapsed().as_secs_f64() * 1000.0;
        let figures = &self.metrics.disk;
        if matches!(progress, CompactProgress::More | CompactProgress::Finished { .. }) {
            figures.compaction_step_milliseconds.observe(milliseconds(began));
            figures.index_compaction_step_milliseconds.observe(milliseconds(began));
            self.compacting_since.get_or_insert(began);
        }
        self.is_held_up = progress == CompactProgress::Waiting;
        match progress {
            CompactProgress::More | CompactProgress::Waiting => {}
            CompactProgress::Idle => {
                self.compacting = false;
                // An installed store may already have completed the compaction that was requested for its
                // predecessor.
                if *self.announce.borrow() < asked {
                    self.announce.send_replace(asked);
                }
                for answer in self.defragments.drain(..) {
                    let _gone = answer.send(());
                }
            }
            CompactProgress::Finished { revision } => {
                if let Some(since) = self.compacting_since.take() {
                    figures.compaction_milliseconds.observe(milliseconds(since));
                }
                figures.compaction_last.set(unix_seconds());
                tracing::info!(compact_revision = revision, "finished scheduled compaction");
                self.announce.send_replace(revision);
            }
        }
        self.count_written();
        Ok(())
    }

    /// Adds the store's counters since the last call to the metrics.
    fn count_written(&mut self) {
        let new = self.maintainer.written();
        let old = std::mem::replace(&mut self.written, new);
        let parts = [
            ("checkpoint", old.checkpoints, new.checkpoints),
            ("compaction", old.compaction, new.compaction),
            ("catalogue", old.catalogue, new.catalogue),
            ("snapshot", old.installed, new.installed),
        ];
        let family = &self.metrics.disk.store_written_bytes;
        for (purpose, old, new) in parts {
            family.get_or_create(&WritePurpose { purpose }).inc_by(new.saturating_sub(old));
        }
        self.metrics.disk.record_bytes.inc_by(new.records.saturating_sub(old.records));
        let dropped = self.maintainer.dropped_records();
        self.metrics.disk.compacted_records.inc_by(dropped.saturating_sub(self.dropped_records));
        self.dropped_records = dropped;
    }
}

fn failed(attempt: &'static str) -> impl Fn(mvcc::Error) -> Fatal {
    move |error| Fatal::caused(attempt, error)
}

fn unix_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}
