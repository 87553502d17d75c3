//! Starts and ends the thread of the hub.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;

use mvcc::Store;
use raft_node::Fatal;
use tokio::sync::mpsc;
use watch::{Hub, WatchLimits};

use super::run::HubThread;
use super::stream::{MAILBOX_MAX, StreamShared, Watching};

/// The thread itself; dropping it leaves it running.
pub(crate) struct WatchThread {
    watching: Watching,
    thread: JoinHandle<()>,
}

impl WatchThread {
    /// Starts the thread. To be called before entries are applied, once for each store. `on_fatal` is called
    /// at most once, from the thread, when it cannot go on.
    pub(crate) fn start(
        store: Store,
        limits: WatchLimits,
        on_fatal: impl FnOnce(Fatal) + Send + 'static,
    ) -> std::io::Result<WatchThread> {
        let shared = Arc::new(StreamShared::default());
        let (mailbox, mail) = mpsc::channel(MAILBOX_MAX);
        let to_wake = Arc::clone(&shared);
        let is_first = store.wake_with(Arc::new(move || to_wake.waker.entry_ended()));
        assert!(is_first, "one hub for each store");
        let mut run = HubThread::new(Hub::new(store, limits), mail, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| run.run()));
            let panicked = || Err(Fatal::new("the watch thread panicked"));
            if let Err(fatal) = ended.unwrap_or_else(|_| panicked()) {
                on_fatal(fatal);
            }
        })?;
        Ok(WatchThread { watching: Watching { mailbox, shared }, thread })
    }

    pub(crate) fn watching(&self) -> Watching {
        self.watching.clone()
    }

    /// Ends the thread. Blocks until its turn has ended.
    pub(crate) fn stop(self) {
        self.watching.shared.stops.store(true, SeqCst);
        self.watching.shared.waker.mail_arrived();
        if self.thread.join().is_err() {
            tracing::error!("the watch thread panicked");
        }
    }
}
