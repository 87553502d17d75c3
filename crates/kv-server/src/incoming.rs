//! The store that a leader sends: received beside the present one, and kept until Raft says what becomes of it.
//!
//! ```text
//!            begin            finish             take             installed
//!   nothing ───────▶ partial ────────▶ received ───────▶ taken ──────────────▶ nothing
//!      ▲                │ broken off,     │ Raft does not want it
//!      └── wiped ◀──────┴─────────────────┘
//! ```
//!
//! * One store at a time: a new stream ends the one before it, but never touches one that Raft may be installing.
//! * Whoever works in the place holds its key, so that nothing is wiped under anybody's hands.
//! * Memory is bounded by a few chunks; the disk is written by a thread of its own, away from everybody's messages.
//! * A disk that refuses ends the process, here as everywhere: a follower that needs a snapshot and has no room for it can neither
//!   acknowledge entries nor serve reads, so it takes nothing from its cluster by stopping, and says what is wrong by doing so.
//!   Bytes that are not what was sent only end their stream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mvcc::{Backend, SledBackend, Staged, Staging};
use parking_lot::Mutex;
use raft_node::Fatal;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};

use crate::log::causes;
use crate::metrics::Metrics;
use crate::runtime::yield_to_others;
use crate::shutdown::{self, Stop, Stopper};

/// Chunks between the network and the disk. Two let both work at the same time; more would only be memory.
const CHUNKS_MAX: usize = 2;

/// Where a store can be received.
pub trait Place: Send + Sync + 'static {
    /// An empty place. What was there before is gone.
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>>;
    /// Removes what was received.
    fn wipe(&self) -> mvcc::Result<()>;
}

/// Beside the store in this directory.
#[derive(Debug)]
pub struct BesideStore(pub PathBuf);

impl Place for BesideStore {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        Ok(Box::new(SledBackend::incoming(&self.0)?))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        mvcc::discard_staged(&self.0)
    }
}

type OnFatal = Arc<dyn Fn(Fatal) + Send + Sync>;

/// The one place for a received store. Cheap to clone.
#[derive(Clone)]
pub struct Incoming {
    shared: Arc<Shared>,
}

struct Shared {
    place: Box<dyn Place>,
    /// Held by whoever works in the place.
    key: Arc<tokio::sync::Mutex<()>>,
    slot: Mutex<Slot>,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
}

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    /// A stream is being written; its end can be asked for.
    Partial(Stopper),
    Received(Received),
}

/// A whole store, and the key to its place.
pub struct Received {
    staged: Staged,
    key: Key,
}

/// While somebody holds it, nobody else works in the place.
pub type Key = OwnedMutexGuard<()>;

impl Received {
    /// The key is to be kept until the store was installed.
    pub fn into_parts(self) -> (Staged, Key) {
        (self.staged, self.key)
    }
}

/// Why a stream came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("a received snapshot waits to be installed")]
    Busy,
    #[error("another snapshot began to arrive")]
    Replaced,
    #[error("the received store is not what was sent")]
    Damaged(#[source] mvcc::Error),
    #[error("the member is stopping")]
    Stopping,
}

/// A stream's way to the disk. Dropped without [`Reception::finish`], it leaves nothing behind.
pub struct Reception {
    incoming: Incoming,
    chunks: mpsc::Sender<Bytes>,
    written: oneshot::Receiver<Result<Received, ReceiveError>>,
    finish: Option<oneshot::Sender<()>>,
    replaced: Stop,
}

impl Incoming {
    pub fn new(place: Box<dyn Place>, metrics: Arc<Metrics>, on_fatal: OnFatal) -> Incoming {
        let shared = Shared { place, key: Arc::default(), slot: Mutex::default(), metrics, on_fatal };
        Incoming { shared: Arc::new(shared) }
    }

    /// Makes room for a new stream: an older one is ended and wiped first.
    pub async fn begin(&self) -> Result<Reception, ReceiveError> {
        let (stopper, replaced) = shutdown::stop();
        {
            let mut slot = self.shared.slot.lock();
            if let Slot::Received(_) = *slot {
                return Err(ReceiveError::Busy);
            }
            if let Slot::Partial(older) = std::mem::replace(&mut *slot, Slot::Partial(stopper)) {
                older.stop();
            }
        }
        let key = tokio::select! {
            key = Arc::clone(&self.shared.key).lock_owned() => key,
            () = replaced.stopped() => return Err(ReceiveError::Replaced),
        };
        let (chunks, from_network) = mpsc::channel(CHUNKS_MAX);
        let (finish, is_finished) = oneshot::channel();
        let (answer, written) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let write = move || {
            yield_to_others();
            shared.write(from_network, is_finished, key, answer);
        };
        let thread = std::thread::Builder::new().name("snapshot-in".to_owned()).spawn(write);
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to receive a snapshot with");
            return Err(ReceiveError::Stopping);
        }
        Ok(Reception { incoming: self.clone(), chunks, written, finish: Some(finish), replaced })
    }

    /// The received store that reaches exactly `index`, to be installed.
    pub fn take(&self, index: u64) -> Option<Received> {
        let mut slot = self.shared.slot.lock();
        match std::mem::take(&mut *slot) {
            Slot::Received(received) if received.staged.applied().index == index => Some(received),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Whether the store that reaches `index` still waits.
    pub fn holds(&self, index: u64) -> bool {
        matches!(&*self.shared.slot.lock(), Slot::Received(received) if received.staged.applied().index == index)
    }

    /// Nobody will install the store that reaches `index`. It is removed by a thread of its own: that takes as long as the disk wants.
    pub fn discard_soon(&self, index: u64) {
        let Some(received) = self.take(index) else { return };
        let shared = Arc::clone(&self.shared);
        let wiping = std::thread::Builder::new().name("snapshot-wipe".to_owned());
        if let Err(error) = wiping.spawn(move || shared.wipe(received)) {
            tracing::warn!(%error, "no thread to remove a received snapshot with; the next one or the next start does it");
        }
    }
}

impl Reception {
    /// Hands over the next chunk; waits while the disk is behind.
    pub async fn add(&mut self, chunk: Bytes) -> Result<(), ReceiveError> {
        tokio::select! {
            biased; // A stream that was replaced takes nothing more, even if there is room.
            () = self.replaced.stopped() => Err(ReceiveError::Replaced),
            sent = self.chunks.send(chunk) => match sent {
                Ok(()) => Ok(()),
                // The writer ended before the stream did, and says why.
                Err(_) => Err(self.failure().await),
            },
        }
    }

    /// After the last chunk: returns when the store is checked, durable and ready to be installed. The result is the index of
    /// the last entry in it.
    pub async fn finish(mut self) -> Result<u64, ReceiveError> {
        let _writer_ended = self.finish.take().expect("a stream ends once").send(());
        let (sender, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut self.chunks, sender));
        let received = match (&mut self.written).await {
            Ok(received) => received?,
            Err(_) => return Err(ReceiveError::Stopping),
        };
        let index = received.staged.applied().index;
        let mut slot = self.incoming.shared.slot.lock();
        if self.replaced.is_stopped() {
            drop(slot);
            self.incoming.shared.wipe(received);
            return Err(ReceiveError::Replaced);
        }
        *slot = Slot::Received(received);
        Ok(index)
    }

    async fn failure(&mut self) -> ReceiveError {
        match (&mut self.written).await {
            Ok(Err(error)) => error,
            Ok(Ok(_)) | Err(_) => ReceiveError::Stopping,
        }
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let mut slot = self.incoming.shared.slot.lock();
        if matches!(*slot, Slot::Partial(_)) && !self.replaced.is_stopped() {
            *slot = Slot::Empty;
        }
    }
}

impl Shared {
    /// The writer's thread: from the first chunk to a durable store, or to nothing.
    fn write(
        &self,
        mut chunks: mpsc::Receiver<Bytes>,
        mut is_finished: oneshot::Receiver<()>,
        key: Key,
        answer: oneshot::Sender<Result<Received, ReceiveError>>,
    ) {
        let began = Instant::now();
        let mut staging =
            match self.place.begin().and_then(|place| Staging::begin(place, &mvcc::Options::default())) {
                Ok(staging) => staging,
                Err(error) => return self.refused(error, answer),
            };
        while let Some(chunk) = chunks.blocking_recv() {
            if let Err(error) = staging.add(&chunk) {
                drop(staging);
                return self.refused(error, answer);
            }
        }
        if is_finished.try_recv().is_err() {
            drop(staging);
            self.wipe_place(); // The stream broke off. The key is let go only after this.
            return;
        }
        let syncing = Instant::now();
        match staging.finish() {
            Ok(staged) => {
                let figures = &self.metrics.snapshots;
                figures.sync_seconds.observe(syncing.elapsed().as_secs_f64());
                figures.save_seconds.observe(began.elapsed().as_secs_f64());
                if let Err(Ok(unwanted)) = answer.send(Ok(Received { staged, key })) {
                    self.wipe(unwanted);
                }
            }
            Err(error) => self.refused(error, answer),
        }
    }

    /// Damage ends the stream; anything else the disk did, and the process with it.
    fn refused(&self, error: mvcc::Error, answer: oneshot::Sender<Result<Received, ReceiveError>>) {
        if let mvcc::Error::Corrupt { .. } = error {
            self.wipe_place();
            drop(answer.send(Err(ReceiveError::Damaged(error))));
        } else {
            (self.on_fatal)(Fatal::new(format!("receive a snapshot: {}", causes(&error))));
        }
    }

    fn wipe(&self, Received { staged, key }: Received) {
        drop(staged);
        self.wipe_place();
        drop(key);
    }

    fn wipe_place(&self) {
        if let Err(error) = self.place.wipe() {
            (self.on_fatal)(Fatal::new(format!("remove a received snapshot: {}", causes(&error))));
        }
    }
}

#[cfg(test)]
mod tests;
