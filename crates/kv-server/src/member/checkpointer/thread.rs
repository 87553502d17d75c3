//! Start and stop of the store thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use mvcc::{Maintainer, Store};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::watch;

use super::checkpoints::Checkpoints;
use super::requests::CheckpointerShared;
use super::run::Checkpointer;
use telemetry::metrics::Metrics;

/// The store thread. Dropping this leaves it running.
pub struct StoreThread {
    checkpoints: Checkpoints,
    thread: JoinHandle<()>,
}

impl StoreThread {
    /// Starts the thread. A checkpoint is written at the latest once `entries_max` entries are not in a
    /// checkpoint. `on_fatal` is called at most once, from the thread, on an unrecoverable error.
    pub fn start(
        maintainer: Maintainer,
        store: Store,
        entries_max: u64,
        metrics: Arc<Metrics>,
        on_fatal: impl FnOnce(Fatal) + Send + 'static,
    ) -> std::io::Result<StoreThread> {
        assert!(entries_max > 0, "a checkpoint for every entry at the most");
        let shared = Arc::new(CheckpointerShared {
            wanted: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            counted_from: AtomicU64::new(store.applied().index.0),
            entries_max,
        });
        let (announce, compacted) = watch::channel(-1);
        let mut checkpointer = Checkpointer::new(maintainer, store, metrics, announce);
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| checkpointer.run(&theirs)));
            let panicked = || Err(Fatal::new("store thread panicked"));
            theirs.end(ended.unwrap_or_else(|_| panicked()), on_fatal);
        })?;
        Ok(StoreThread { checkpoints: Checkpoints { shared, compacted }, thread })
    }

    pub fn checkpoints(&self) -> Checkpoints {
        self.checkpoints.clone()
    }

    /// Makes the store durable and stops the thread. Blocks until it has exited.
    pub fn stop(self) {
        self.checkpoints.ask(|wanted| wanted.stop = true);
        if self.thread.join().is_err() {
            tracing::error!("store thread panicked");
        }
    }
}
