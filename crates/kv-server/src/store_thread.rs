//! The thread behind the store: checkpoints and physical compaction, away from every request.
//!
//! ```text
//!   apply ──Due──▶ persist ──▶ wake those who found the store Full
//!         ──compacted──▶ step, pause, step, … ──▶ announce the finished revision
//!   idle for a while with something unpersisted ──▶ persist
//!   stop ──▶ persist once more, end
//! ```
//!
//! * Only this thread writes the durable form of the store.
//! * Nothing waits for it but an apply loop that found the store Full, and a client who asked for a physical
//!   compaction.
//! * A failed write or sync is fatal: nothing is tried again.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mvcc::{CompactProgress, Maintainer, Pressure, Store};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::watch;

use crate::log::causes;
use crate::metrics::{Metrics, Purpose};

/// Keys visited in one step of a compaction: a lock hold well under a millisecond. etcd's batch is as large.
const COMPACT_KEYS_MAX: usize = 1000;
/// Between two steps reads and writes have the machine to themselves; etcd pauses as long.
const COMPACT_PAUSE: Duration = Duration::from_millis(10);
/// After so long without a new entry a checkpoint disturbs nobody, and the next start has nothing to replay.
const IDLE: Duration = Duration::from_secs(5);
/// Even a trickle of entries that never rests is checkpointed this often.
const TRICKLE: Duration = Duration::from_secs(60);

const CHECKPOINT: Purpose = Purpose { purpose: "checkpoint" };

/// How the apply loop talks to the thread. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    shared: Arc<Shared>,
    compacted: watch::Receiver<i64>,
}

/// The thread itself; dropping it leaves it running.
pub struct StoreThread {
    checkpoints: Checkpoints,
    thread: JoinHandle<()>,
}

struct Shared {
    wanted: Mutex<Wanted>,
    /// For the thread: something is wanted.
    wake: Condvar,
    /// For the apply loop: a checkpoint is done.
    done: Condvar,
}

#[derive(Default)]
struct Wanted {
    checkpoint: bool,
    compaction: bool,
    stop: bool,
    /// Checkpoints finished so far.
    finished: u64,
    /// The thread ended, well or badly: nobody may wait for it.
    ended: bool,
}

impl Checkpoints {
    /// What the end of an entry found out about the store. Returns when applying may go on.
    pub fn pressed(&self, pressure: Pressure) -> Result<(), Fatal> {
        match pressure {
            Pressure::Calm => Ok(()),
            Pressure::Due => {
                self.ask(|wanted| wanted.checkpoint = true);
                Ok(())
            }
            Pressure::Full => self.wait_for_checkpoint(),
        }
    }

    /// A compaction was applied; its history may go.
    pub fn compaction_began(&self) {
        self.ask(|wanted| wanted.compaction = true);
    }

    /// The revision of the last compaction whose history is physically gone.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.compacted.clone()
    }

    fn ask(&self, what: impl FnOnce(&mut Wanted)) {
        what(&mut self.shared.wanted.lock());
        self.shared.wake.notify_one();
    }

    fn wait_for_checkpoint(&self) -> Result<(), Fatal> {
        let mut wanted = self.shared.wanted.lock();
        let seen = wanted.finished;
        wanted.checkpoint = true;
        self.shared.wake.notify_one();
        while wanted.finished == seen && !wanted.ended {
            self.shared.done.wait(&mut wanted);
        }
        if wanted.finished == seen {
            Err(Fatal::new("wait for a checkpoint: its thread has ended"))
        } else {
            Ok(())
        }
    }
}

impl StoreThread {
    /// Starts the thread. `on_fatal` is called at most once, from the thread, when it cannot go on.
    pub fn start(
        maintainer: Maintainer,
        store: Store,
        metrics: Arc<Metrics>,
        on_fatal: impl FnOnce(Fatal) + Send + 'static,
    ) -> std::io::Result<StoreThread> {
        let shared =
            Arc::new(Shared { wanted: Mutex::default(), wake: Condvar::new(), done: Condvar::new() });
        let (announce, compacted) = watch::channel(-1);
        let mut keeper = Keeper {
            maintainer,
            durable: store.applied(),
            seen: store.applied(),
            store,
            metrics,
            announce,
            compacting: true,
            compacting_since: None,
            last_checkpoint: Instant::now(),
        };
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(move || {
            let ended = keeper.run(&theirs);
            theirs.wanted.lock().ended = true;
            theirs.done.notify_all();
            if let Err(fatal) = ended {
                on_fatal(fatal);
            }
        })?;
        Ok(StoreThread { checkpoints: Checkpoints { shared, compacted }, thread })
    }

    pub fn checkpoints(&self) -> Checkpoints {
        self.checkpoints.clone()
    }

    /// Makes everything durable and ends the thread. Blocks until then.
    pub fn stop(self) {
        self.checkpoints.ask(|wanted| wanted.stop = true);
        if self.thread.join().is_err() {
            tracing::error!("the store thread panicked");
        }
    }
}

/// What the thread owns.
struct Keeper {
    maintainer: Maintainer,
    store: Store,
    metrics: Arc<Metrics>,
    announce: watch::Sender<i64>,
    /// Applied position that is durable.
    durable: mvcc::Applied,
    /// Applied position when last looked at: unchanged means idle.
    seen: mvcc::Applied,
    last_checkpoint: Instant,
    /// A compaction may be under way; true at the start, since one may have been cut short.
    compacting: bool,
    /// When the first step of the present compaction began.
    compacting_since: Option<Instant>,
}

/// What one wait ended with.
struct Turn {
    checkpoint: bool,
    stop: bool,
    timed_out: bool,
}

impl Keeper {
    fn run(&mut self, shared: &Shared) -> Result<(), Fatal> {
        loop {
            let turn = self.wait(shared);
            if turn.checkpoint || turn.stop || (turn.timed_out && self.resting()) {
                self.checkpoint(shared)?;
            }
            if turn.stop {
                return Ok(());
            }
            if self.compacting {
                self.compact()?;
            }
        }
    }

    fn wait(&mut self, shared: &Shared) -> Turn {
        let mut wanted = shared.wanted.lock();
        let mut timed_out = false;
        if !wanted.checkpoint && !wanted.stop && !wanted.compaction {
            let patience = if self.compacting { COMPACT_PAUSE } else { IDLE };
            timed_out = shared.wake.wait_for(&mut wanted, patience).timed_out();
        }
        self.compacting |= std::mem::take(&mut wanted.compaction);
        Turn {
            checkpoint: std::mem::take(&mut wanted.checkpoint),
            stop: wanted.stop,
            timed_out: timed_out && !self.compacting,
        }
    }

    /// Something is unpersisted, and either nothing came for a while or the last checkpoint is long ago.
    fn resting(&mut self) -> bool {
        let applied = self.store.applied();
        let idle = std::mem::replace(&mut self.seen, applied) == applied;
        applied != self.durable && (idle || self.last_checkpoint.elapsed() >= TRICKLE)
    }

    fn checkpoint(&mut self, shared: &Shared) -> Result<(), Fatal> {
        let began = Instant::now();
        let persisted = self
            .maintainer
            .persist()
            .map_err(|error| Fatal::new(format!("persist the store: {}", causes(&error))))?;
        let disk = &self.metrics.disk;
        disk.backend_commit_seconds.observe(began.elapsed().as_secs_f64());
        disk.store_written_bytes.get_or_create(&CHECKPOINT).inc_by(persisted.bytes_written);
        self.durable = persisted.applied;
        self.last_checkpoint = Instant::now();
        tracing::debug!(
            applied = persisted.applied.index,
            revision = persisted.revision,
            bytes = persisted.bytes_written,
            took = ?began.elapsed(),
            "checkpoint"
        );
        shared.wanted.lock().finished += 1;
        shared.done.notify_all();
        Ok(())
    }

    fn compact(&mut self) -> Result<(), Fatal> {
        let began = Instant::now();
        let progress = self
            .maintainer
            .compact_step(COMPACT_KEYS_MAX)
            .map_err(|error| Fatal::new(format!("compact the store: {}", causes(&error))))?;
        let milliseconds = |since: Instant| since.elapsed().as_secs_f64() * 1000.0;
        let figures = &self.metrics.disk.compaction;
        if progress != CompactProgress::Idle {
            figures.step_milliseconds.observe(milliseconds(began));
            self.compacting_since.get_or_insert(began);
        }
        match progress {
            CompactProgress::More => {}
            CompactProgress::Idle => self.compacting = false,
            CompactProgress::Finished { revision } => {
                if let Some(since) = self.compacting_since.take() {
                    figures.total_milliseconds.observe(milliseconds(since));
                }
                figures.last.set(unix_seconds());
                tracing::info!(compact_revision = revision, "finished scheduled compaction");
                self.announce.send_replace(revision);
            }
        }
        Ok(())
    }
}

fn unix_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}
