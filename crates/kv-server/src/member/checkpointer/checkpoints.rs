//! Handle of the store's thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use mvcc::{Export, LogIndex, LogPosition, Present, Pressure, StagedStore};
use raft_node::Fatal;
use tokio::sync::{oneshot, watch};

use super::requests::{CheckpointRequests, CheckpointerShared, Install};

/// Sends requests to the store thread. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    pub(super) shared: Arc<CheckpointerShared>,
    pub(super) compacted: watch::Receiver<i64>,
}

impl Checkpoints {
    /// Reports an applied entry with the store's memory pressure. Blocks while the store is full.
    pub fn entry_ended(&self, pressure: Pressure, applied: LogIndex) -> Result<(), Fatal> {
        let counted_from = LogIndex(self.shared.counted_from.load(Ordering::Relaxed));
        let is_counted = applied.entries_since(counted_from) >= self.shared.entries_max;
        match pressure {
            Pressure::Full if !base::mutant("apply-past-a-full-store") => return self.wait_for_checkpoint(),
            Pressure::Calm if !is_counted => return Ok(()),
            Pressure::Calm | Pressure::Due | Pressure::Full => {}
        }
        self.shared.counted_from.store(applied.0, Ordering::Relaxed);
        self.request_checkpoint();
        Ok(())
    }

    /// Requests a checkpoint.
    pub fn request_checkpoint(&self) {
        self.ask(|wanted| wanted.checkpoint = true);
    }

    /// Requests physical compaction, after a compaction was applied.
    pub fn compaction_began(&self) {
        self.ask(|wanted| wanted.compaction = true);
    }

    /// Returns the revision up to which history has been physically removed.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.compacted.clone()
    }

    /// Calls `listener` with every durable checkpoint, the current one first.
    pub fn on_checkpoint(&self, listener: impl Fn(LogPosition) + Send + 'static) {
        self.ask(|wanted| wanted.listener = Some(Box::new(listener)));
    }

    /// Pins the latest durable checkpoint. `None` if the thread has exited.
    pub async fn export(&self) -> Option<Export> {
        let (answer, export) = oneshot::channel();
        self.ask(|wanted| wanted.exports.push(answer));
        export.await.ok()
    }

    /// Completes all pending work. False if the thread has exited.
    pub async fn defragment(&self) -> bool {
        let (answer, done) = oneshot::channel();
        self.ask(|wanted| wanted.defragments.push(answer));
        done.await.is_ok()
    }

    /// Replaces the current store with a received one. Blocks until done. Called only by the apply loop,
    /// which alone changes the state.
    pub fn install(&self, staged: StagedStore, present: Present) -> Result<(), Fatal> {
        let (done, installed) = mpsc::sync_channel(1);
        self.ask(|wanted| {
            assert!(wanted.install.is_none(), "the apply loop waits for each install");
            wanted.install = Some(Install { staged, present, done });
        });
        // The thread reports its own errors and exits, so a closed channel needs no report here.
        installed
            .recv()
            .map_err(|_| Fatal::new("wait for the install of a snapshot: the store thread exited"))
    }

    pub(super) fn ask(&self, what: impl FnOnce(&mut CheckpointRequests)) {
        let mut wanted = self.shared.wanted.lock();
        what(&mut wanted);
        if wanted.ended {
            wanted.give_up();
        }
        self.shared.wake.notify_one();
    }

    pub(super) fn wait_for_checkpoint(&self) -> Result<(), Fatal> {
        let mut wanted = self.shared.wanted.lock();
        let seen = wanted.finished;
        wanted.checkpoint = true;
        self.shared.wake.notify_one();
        while wanted.finished == seen && !wanted.ended {
            self.shared.done.wait(&mut wanted);
        }
        if wanted.finished == seen {
            Err(Fatal::new("wait for a checkpoint: its thread exited"))
        } else {
            Ok(())
        }
    }
}
