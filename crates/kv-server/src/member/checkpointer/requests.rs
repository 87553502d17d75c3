//! Requests to the store thread, and its progress.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

use mvcc::{Export, LogPosition, Present, StagedStore};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::oneshot;

/// Callback for every checkpoint that becomes durable.
pub(super) type Listener = Box<dyn Fn(LogPosition) + Send>;

pub(super) struct CheckpointerShared {
    pub(super) wanted: Mutex<CheckpointRequests>,
    /// Wakes the thread: there is a request.
    pub(super) wake: Condvar,
    /// Wakes the apply loop: a checkpoint is finished.
    pub(super) done: Condvar,
    /// Index at which the entry count starts: that of the last checkpoint started or requested.
    pub(super) counted_from: AtomicU64,
    /// Number of applied entries outside a checkpoint at which a checkpoint is requested.
    pub(super) entries_max: u64,
}

#[derive(Default)]
pub(super) struct CheckpointRequests {
    pub(super) checkpoint: bool,
    pub(super) compaction: bool,
    pub(super) stop: bool,
    pub(super) listener: Option<Listener>,
    pub(super) install: Option<Install>,
    /// At most one per peer: a sender requests another export only after the previous one.
    pub(super) exports: Vec<oneshot::Sender<Export>>,
    /// One per running Defragment call; bounded like these calls.
    pub(super) defragments: Vec<oneshot::Sender<()>>,
    /// Number of finished checkpoints.
    pub(super) finished: u64,
    /// True once the thread has exited. Later requests find their channel closed.
    pub(super) ended: bool,
}

/// A received store to install, and the waiting caller's channel.
pub(super) struct Install {
    pub(super) staged: StagedStore,
    /// The state that it replaces.
    pub(super) present: Present,
    pub(super) done: mpsc::SyncSender<()>,
}

impl CheckpointerShared {
    /// Marks the thread as exited. Its error is reported before waiting callers are woken: the first report
    /// has the cause, while a waiting caller reports only that the thread has exited.
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
