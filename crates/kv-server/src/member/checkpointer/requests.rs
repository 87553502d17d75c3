//! What is asked of the store's thread, and what it has finished.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

use mvcc::{Export, LogPosition, Present, StagedStore};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::oneshot;

/// Notified of every checkpoint that became durable.
pub(super) type Listener = Box<dyn Fn(LogPosition) + Send>;

pub(super) struct CheckpointerShared {
    pub(super) wanted: Mutex<CheckpointRequests>,
    /// For the thread: something is wanted.
    pub(super) wake: Condvar,
    /// For the apply loop: a checkpoint is done.
    pub(super) done: Condvar,
    /// Index of the last checkpoint that was begun or asked for by count.
    pub(super) counted_from: AtomicU64,
    /// Applied entries outside a checkpoint after which the next one is asked for.
    pub(super) entries_max: u64,
}

#[derive(Default)]
pub(super) struct CheckpointRequests {
    pub(super) checkpoint: bool,
    pub(super) compaction: bool,
    pub(super) stop: bool,
    pub(super) listener: Option<Listener>,
    pub(super) install: Option<Install>,
    /// One per peer at most: a sender asks again only after its answer.
    pub(super) exports: Vec<oneshot::Sender<Export>>,
    /// One per Defragment call that runs; bounded as the calls are.
    pub(super) defragments: Vec<oneshot::Sender<()>>,
    /// Checkpoints finished so far.
    pub(super) finished: u64,
    /// The thread has ended. A later request is answered by a closed channel.
    pub(super) ended: bool,
}

/// A received store, and who waits for it.
pub(super) struct Install {
    pub(super) staged: StagedStore,
    /// The state that it replaces.
    pub(super) present: Present,
    pub(super) done: mpsc::SyncSender<()>,
}

impl CheckpointerShared {
    /// The thread ends. Its error is reported before waiting callers are woken: the first report names the
    /// cause, and a waiting caller reports only that the thread has ended.
    pub(super) fn end(&self, ended: Result<(), Fatal>, on_fatal: impl FnOnce(Fatal)) {
        if let Err(fatal) = ended {
            on_fatal(fatal);
        }
        let mut wanted = self.wanted.lock();
        wanted.ended = true;
        wanted.give_up();
        drop(wanted);
        self.done.notify_all();
    }
}

impl CheckpointRequests {
    /// Drops requests that will not be carried out. Waiting callers see a closed channel.
    pub(super) fn give_up(&mut self) {
        self.install = None;
        self.exports.clear();
        self.defragments.clear();
    }

    pub(super) fn is_anything(&self) -> bool {
        self.checkpoint
            || self.compaction
            || self.stop
            || self.listener.is_some()
            || self.install.is_some()
            || !self.exports.is_empty()
            || !self.defragments.is_empty()
    }
}
