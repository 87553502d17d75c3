//! The thread behind the store: checkpoints, physical compaction and whole stores that come and go, away from every request.
//!
//! ```text
//!   apply ──Due, or too many entries──▶ persist ──▶ wake those who found the store Full; tell Raft how far it reaches
//!         ──compacted──▶ step, pause, step, … ──▶ announce the finished revision
//!         ──install──▶ the received store takes the place of the present one
//!   sender of snapshots ──export──▶ the newest checkpoint, pinned
//!   Defragment ──▶ persist, and every step that is pending without a pause
//!   idle for a while with something unpersisted ──▶ persist
//!   stop ──▶ persist once more, end
//! ```
//!
//! * Only this thread writes the durable form of the store.
//! * Nothing waits for it but an apply loop that found the store Full or has a snapshot to install, and clients who asked for a
//!   physical compaction or a Defragment.
//! * A failed write or sync is fatal: nothing is tried again.

mod keeper; // what the thread does

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use mvcc::{Applied, Export, Maintainer, Pressure, Staged, Store};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::{oneshot, watch};

use crate::metrics::Metrics;
use keeper::Keeper;

/// Told of every checkpoint that became durable.
type Listener = Box<dyn Fn(Applied) + Send>;

/// How others talk to the thread. Cheap to clone.
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
    /// Index of the last checkpoint that was begun or asked for by count.
    counted_from: AtomicU64,
    /// Applied entries outside a checkpoint after which the next one is asked for.
    entries_max: u64,
}

#[derive(Default)]
struct Wanted {
    checkpoint: bool,
    compaction: bool,
    stop: bool,
    listener: Option<Listener>,
    install: Option<Install>,
    /// One per peer at most: a sender asks again only after its answer.
    exports: Vec<oneshot::Sender<Export>>,
    /// One per Defragment call that runs; bounded as the calls are.
    defragments: Vec<oneshot::Sender<()>>,
    /// Checkpoints finished so far.
    finished: u64,
    /// The thread ended, well or badly: nobody may wait for it.
    ended: bool,
}

/// A received store, and who waits for it.
struct Install {
    staged: Staged,
    done: mpsc::SyncSender<()>,
}

impl Checkpoints {
    /// The end of an entry: how the store stands, and how far it has applied. Returns when applying may go on.
    pub fn entry_ended(&self, pressure: Pressure, applied: u64) -> Result<(), Fatal> {
        let counted_from = self.shared.counted_from.load(Ordering::Relaxed);
        let is_counted = applied.saturating_sub(counted_from) >= self.shared.entries_max;
        match pressure {
            Pressure::Full => return self.wait_for_checkpoint(),
            Pressure::Calm if !is_counted => return Ok(()),
            Pressure::Calm | Pressure::Due => {}
        }
        self.shared.counted_from.store(applied, Ordering::Relaxed);
        self.wish();
        Ok(())
    }

    /// A checkpoint as soon as may be.
    pub fn wish(&self) {
        self.ask(|wanted| wanted.checkpoint = true);
    }

    /// A compaction was applied; its history may go.
    pub fn compaction_began(&self) {
        self.ask(|wanted| wanted.compaction = true);
    }

    /// The revision of the last compaction whose history is physically gone.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.compacted.clone()
    }

    /// From now on `listener` hears of every durable checkpoint, the present one first.
    pub fn tell(&self, listener: impl Fn(Applied) + Send + 'static) {
        self.ask(|wanted| wanted.listener = Some(Box::new(listener)));
    }

    /// The newest durable checkpoint, pinned; `None` when the thread has ended.
    pub async fn export(&self) -> Option<Export> {
        let (answer, export) = oneshot::channel();
        self.ask(|wanted| wanted.exports.push(answer));
        export.await.ok()
    }

    /// Everything that is pending, done now. False when the thread has ended.
    pub async fn defragment(&self) -> bool {
        let (answer, done) = oneshot::channel();
        self.ask(|wanted| wanted.defragments.push(answer));
        done.await.is_ok()
    }

    /// Puts a received store in the place of the present one, and waits until that is done. For the apply loop, which is the
    /// only one that changes the state.
    pub fn install(&self, staged: Staged) -> Result<(), Fatal> {
        let (done, installed) = mpsc::sync_channel(1);
        self.ask(|wanted| {
            assert!(wanted.install.is_none(), "the apply loop waits for each install");
            wanted.install = Some(Install { staged, done });
        });
        // An error was reported by the thread itself, which has ended with it.
        installed
            .recv()
            .map_err(|_| Fatal::new("wait for the install of a snapshot: the store's thread has ended"))
    }

    fn ask(&self, what: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.shared.wanted.lock();
        what(&mut wanted);
        if wanted.ended {
            wanted.give_up();
        }
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

impl Wanted {
    /// Nobody will do it any more: whoever waits learns so by a closed channel.
    fn give_up(&mut self) {
        self.install = None;
        self.exports.clear();
        self.defragments.clear();
    }
}

impl StoreThread {
    /// Starts the thread. A checkpoint is written at the latest when `entries_max` entries are in none. `on_fatal` is called at
    /// most once, from the thread, when it cannot go on.
    pub fn start(
        maintainer: Maintainer,
        store: Store,
        entries_max: u64,
        metrics: Arc<Metrics>,
        on_fatal: impl FnOnce(Fatal) + Send + 'static,
    ) -> std::io::Result<StoreThread> {
        assert!(entries_max > 0, "a checkpoint for every entry at the most");
        let shared = Arc::new(Shared {
            wanted: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            counted_from: AtomicU64::new(store.applied().index),
            entries_max,
        });
        let (announce, compacted) = watch::channel(-1);
        let mut keeper = Keeper::new(maintainer, store, metrics, announce);
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(move || {
            let ended = keeper.run(&theirs);
            let mut wanted = theirs.wanted.lock();
            wanted.ended = true;
            wanted.give_up();
            drop(wanted);
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
