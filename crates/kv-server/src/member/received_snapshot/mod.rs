//! Receives the store that a leader sends, stages it next to the current one, and holds it until Raft
//! installs or discards the snapshot.
//!
//! ```text
//!            begin            finish             take             installed
//!   empty ─────────▶ partial ────────▶ received ───────▶ taken ──────────────▶ empty
//!     ▲                 │ aborted         │ Raft does not want it
//!     └── wiped ◀───────┴─────────────────┘
//! ```
//!
//! * One store at a time: a new stream of the leader replaces the previous stream, but never a store that
//!   Raft may be installing. [`raft_node::ReceiveSlot`] implements this, for the simulator as well.
//! * The writer of the staging directory holds a key, so that the directory is not removed during a write.
//! * Memory is bounded by a few chunks. A separate thread writes to the disk, so that the threads that serve
//!   messages do not block.
//! * A disk error stops the process: a follower that needs a snapshot but has no disk space for it can
//!   neither acknowledge entries nor serve reads, so the cluster loses no capacity, and the exit makes the
//!   problem visible. Corrupt data only aborts its stream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mvcc::{Backend, SledBackend, StagedStore, Staging};
use parking_lot::Mutex;
use raft_node::{Fatal, LogPosition, NodeId, ReceiveSlot, StreamNumber};
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};

use process::runtime::yield_to_others;
use process::shutdown::{self, Stop, Stopper};
use telemetry::metrics::Metrics;

/// Capacity of the channel between network and disk. Two chunks allow both to work concurrently; more would
/// only use memory.
const CHUNKS_MAX: usize = 2;

/// Location where a store is received.
pub trait StagingPlace: Send + Sync + 'static {
    /// Creates an empty staging area and removes previous contents.
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>>;
    fn wipe(&self) -> mvcc::Result<()>;
    /// Returns the free bytes of its disk.
    fn room(&self) -> u64;
}

/// Upper limit of the reserve: a quarter of the free space, but at most this, remains free. The limit is
/// several times the growth of the log and the store while a stream arrives.
const RESERVED_MAX: u64 = 2 << 30;

/// A staging directory next to the store, by path.
#[derive(Debug)]
pub struct StagingDirectory(pub PathBuf);

impl StagingPlace for StagingDirectory {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        Ok(Box::new(SledBackend::incoming(&self.0)?))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        mvcc::discard_staged(&self.0)
    }

    /// Returns `u64::MAX` if the free space is unknown: the write fails if the disk is full.
    fn room(&self) -> u64 {
        let parent = self.0.parent().unwrap_or(&self.0);
        rustix::fs::statvfs(parent).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

type OnFatal = Arc<dyn Fn(Fatal) + Send + Sync>;

/// The single slot for a received store. Cheap to clone.
#[derive(Clone)]
pub struct ReceivePlace {
    shared: Arc<PlaceShared>,
}

struct PlaceShared {
    place: Box<dyn StagingPlace>,
    /// Held by the writer of the staging directory.
    key: Arc<tokio::sync::Mutex<()>>,
    slot: Mutex<ReceiveSlot<Stopper, ReceivedSnapshot>>,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
}

/// A complete store, with the key of its staging directory.
pub struct ReceivedSnapshot {
    staged: StagedStore,
    key: PlaceKey,
}

/// Exclusive permission to write to the staging directory.
pub type PlaceKey = OwnedMutexGuard<()>;

impl ReceivedSnapshot {
    /// Returns the store and its key. The key must be held until the store is installed.
    pub fn into_parts(self) -> (StagedStore, PlaceKey) {
        (self.staged, self.key)
    }

    fn position(&self) -> LogPosition {
        self.staged.applied()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("a received snapshot is waiting to be installed, or the sender is not a known leader")]
    Busy,
    #[error("superseded by another snapshot")]
    Replaced,
    #[error("the received store differs from the sent one")]
    Damaged(#[source] mvcc::Error),
    #[error("the member is stopping")]
    Stopping,
    #[error("the stream exceeds the {0} bytes available on the disk")]
    TooLong(u64),
    #[error("the stream is slower than {0} bytes per second")]
    TooSlow(u64),
}

/// A stream being written to disk. If dropped without [`Reception::finish`], its data is removed.
pub struct Reception {
    stream: CurrentStream,
    chunks: mpsc::Sender<Bytes>,
    written: oneshot::Receiver<Result<ReceivedSnapshot, ReceiveError>>,
    finish: Option<oneshot::Sender<()>>,
    replaced: Stop,
}

/// The stream in the slot, until it is replaced. Frees the slot when dropped.
struct CurrentStream {
    shared: Arc<PlaceShared>,
    number: StreamNumber,
}

impl Drop for CurrentStream {
    fn drop(&mut self) {
        self.shared.slot.lock().end(self.number);
    }
}

impl ReceivePlace {
    pub fn new(place: Box<dyn StagingPlace>, metrics: Arc<Metrics>, on_fatal: OnFatal) -> ReceivePlace {
        let shared = PlaceShared { place, key: Arc::default(), slot: Mutex::default(), metrics, on_fatal };
        ReceivePlace { shared: Arc::new(shared) }
    }

    /// Accepts a new stream of member `from` if that is the leader. A previous stream is aborted and wiped
    /// first.
    pub async fn begin(&self, from: NodeId, leader: Option<NodeId>) -> Result<Reception, ReceiveError> {
        let (stopper, replaced) = shutdown::stop();
        let begun = self.shared.slot.lock().begin(from, leader, stopper);
        let (number, older) = begun.ok_or(ReceiveError::Busy)?;
        // Before the first await: the caller may be dropped while it waits.
        let stream = CurrentStream { shared: Arc::clone(&self.shared), number };
        older.into_iter().for_each(|older| older.stop());
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
            tracing::warn!(%error, "cannot start a thread to receive a snapshot");
            return Err(ReceiveError::Stopping);
        }
        Ok(Reception { stream, chunks, written, finish: Some(finish), replaced })
    }

    /// Returns the maximum bytes for a stream that starts now; the log and the current store need the rest.
    pub fn bytes_max(&self) -> u64 {
        let room = self.shared.place.room();
        room - (room / 4).min(RESERVED_MAX)
    }

    /// Takes the received store with exactly this last entry, to install it.
    pub fn take(&self, at: LogPosition) -> Option<ReceivedSnapshot> {
        self.shared.slot.lock().take(at)
    }

    /// Reports whether the store with this last entry is in the slot.
    pub fn holds(&self, at: LogPosition) -> bool {
        self.shared.slot.lock().holds(at)
    }

    /// Discards the store with this last entry, if it is in the slot.
    pub fn discard_soon(&self, at: LogPosition) {
        if let Some(received) = self.take(at) {
            self.shared.wipe_soon(received);
        }
    }
}

impl Reception {
    /// Returns once another stream has replaced this one.
    pub async fn replaced(&self) {
        self.replaced.stopped().await;
    }

    /// Sends the next chunk to the writer; waits for a slow disk.
    pub async fn add(&mut self, chunk: Bytes) -> Result<(), ReceiveError> {
        tokio::select! {
            biased; // A replaced stream accepts no chunk, even if there is capacity.
            () = self.replaced.stopped() => Err(ReceiveError::Replaced),
            sent = self.chunks.send(chunk) => match sent {
                Ok(()) => Ok(()),
                // The writer failed; its result has the cause.
                Err(_) => Err(self.failure().await),
            },
        }
    }

    /// Completes the stream after its last chunk. Returns the position of the last entry in the store, once
    /// the store is verified, durable and ready to be installed.
    pub async fn finish(mut self) -> Result<LogPosition, ReceiveError> {
        let _writer_ended = self.finish.take().expect("a stream ends once").send(());
        let (sender, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut self.chunks, sender));
        let received = match (&mut self.written).await {
            Ok(received) => received?,
            Err(_) => return Err(ReceiveError::Stopping),
        };
        let at = received.position();
        let CurrentStream { shared, number } = &self.stream;
        let finished = shared.slot.lock().finish(*number, at, received);
        match finished {
            Ok(()) => Ok(at),
            Err(received) => {
                shared.wipe_soon(received);
                Err(ReceiveError::Replaced)
            }
        }
    }

    async fn failure(&mut self) -> ReceiveError {
        match (&mut self.written).await {
            Ok(Err(error)) => error,
            Ok(Ok(_)) | Err(_) => ReceiveError::Stopping,
        }
    }
}

impl PlaceShared {
    /// Body of the writer thread: writes chunks to a durable store, or wipes them.
    fn write(
        &self,
        mut chunks: mpsc::Receiver<Bytes>,
        mut is_finished: oneshot::Receiver<()>,
        key: PlaceKey,
        answer: oneshot::Sender<Result<ReceivedSnapshot, ReceiveError>>,
    ) {
        let began = Instant::now();
        let mut staging = match self
            .place
            .begin()
            .and_then(|place| Staging::begin(place, &mvcc::StoreOptions::default()))
        {
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
            self.wipe_place(); // The stream was aborted. The key is released after the wipe.
            return;
        }
        let syncing = Instant::now();
        match staging.finish() {
            Ok(staged) => {
                let figures = &self.metrics.snapshots;
                figures.sync_seconds.observe(syncing.elapsed().as_secs_f64());
                figures.save_seconds.observe(began.elapsed().as_secs_f64());
                if let Err(Ok(unwanted)) = answer.send(Ok(ReceivedSnapshot { staged, key })) {
                    self.wipe(unwanted);
                }
            }
            Err(error) => self.refused(error, answer),
        }
    }

    /// Handles an error of the writer: corrupt data fails the stream, any other error stops the process.
    fn refused(&self, error: mvcc::Error, answer: oneshot::Sender<Result<ReceivedSnapshot, ReceiveError>>) {
        if let mvcc::Error::Corrupt { .. } = error {
            self.wipe_place();
            drop(answer.send(Err(ReceiveError::Damaged(error))));
        } else {
            (self.on_fatal)(Fatal::caused("receive a snapshot", error));
        }
    }

    /// Wipes a store on a separate thread, since the disk may be slow.
    fn wipe_soon(self: &Arc<Self>, received: ReceivedSnapshot) {
        let shared = Arc::clone(self);
        let wiping = std::thread::Builder::new().name("snapshot-wipe".to_owned());
        if let Err(error) = wiping.spawn(move || shared.wipe(received)) {
            tracing::warn!(%error, "cannot start a thread to remove a received snapshot; retrying later");
        }
    }

    fn wipe(&self, ReceivedSnapshot { staged, key }: ReceivedSnapshot) {
        drop(staged);
        self.wipe_place();
        drop(key);
    }

    fn wipe_place(&self) {
        if let Err(error) = self.place.wipe() {
            (self.on_fatal)(Fatal::caused("remove a received snapshot", error));
        }
    }
}

#[cfg(test)]
mod tests;
