//! The store that a leader sends: staged next to the present one, and kept until Raft accepts or ignores the
//! snapshot.
//!
//! ```text
//!            begin            finish             take             installed
//!   nothing ───────▶ partial ────────▶ received ───────▶ taken ──────────────▶ nothing
//!      ▲                │ broken off,     │ Raft does not want it
//!      └── wiped ◀──────┴─────────────────┘
//! ```
//!
//! * One store at a time: a new stream of the leader ends the one before it, but never touches one that Raft
//!   may be installing. What has the place is decided by [`raft_node::ReceiveSlot`], as in the simulator.
//! * A writer of the staging directory holds its key, so that nothing is removed while it is written.
//! * Memory is bounded by a few chunks; the disk is written by a separate thread, apart from those that serve
//!   messages.
//! * A disk that refuses ends the process, here as everywhere: a follower that needs a snapshot and has no
//!   room for it can neither acknowledge entries nor serve reads, so it takes nothing from its cluster by
//!   stopping, and says what is wrong by doing so. Bytes that are not what was sent only end their stream.

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

/// Chunks between the network and the disk. Two let both work at the same time; more would only be memory.
const CHUNKS_MAX: usize = 2;

/// Where a store can be received.
pub trait StagingPlace: Send + Sync + 'static {
    /// An empty place. What was there before is gone.
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>>;
    /// Removes what was received.
    fn wipe(&self) -> mvcc::Result<()>;
    /// Bytes that its disk has room for.
    fn room(&self) -> u64;
}

/// Of the free space, a quarter stays free, and no more than this: some times what the log and the store
/// grow by while a stream that fits arrives.
const RESERVED_MAX: u64 = 2 << 30;

/// Stages in a directory next to the store, whose path this is.
#[derive(Debug)]
pub struct StagingDirectory(pub PathBuf);

impl StagingPlace for StagingDirectory {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        Ok(Box::new(SledBackend::incoming(&self.0)?))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        mvcc::discard_staged(&self.0)
    }

    /// A disk whose free space is unknown counts as one with room: the write fails if it is full.
    fn room(&self) -> u64 {
        let parent = self.0.parent().unwrap_or(&self.0);
        rustix::fs::statvfs(parent).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

type OnFatal = Arc<dyn Fn(Fatal) + Send + Sync>;

/// The one place for a received store. Cheap to clone.
#[derive(Clone)]
pub struct ReceivePlace {
    shared: Arc<PlaceShared>,
}

struct PlaceShared {
    place: Box<dyn StagingPlace>,
    /// Held by the writer of the staging directory.
    key: Arc<tokio::sync::Mutex<()>>,
    /// The stream or the store that has the place.
    slot: Mutex<ReceiveSlot<Stopper, ReceivedSnapshot>>,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
}

/// A whole store, and the key to its place.
pub struct ReceivedSnapshot {
    staged: StagedStore,
    key: PlaceKey,
}

/// Only its holder writes to the staging directory.
pub type PlaceKey = OwnedMutexGuard<()>;

impl ReceivedSnapshot {
    /// The key is to be kept until the store was installed.
    pub fn into_parts(self) -> (StagedStore, PlaceKey) {
        (self.staged, self.key)
    }

    fn position(&self) -> LogPosition {
        self.staged.applied()
    }
}

/// Why a stream came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("a received snapshot waits to be installed, or the sender is not known to lead")]
    Busy,
    #[error("another snapshot began to arrive")]
    Replaced,
    #[error("the received store is not what was sent")]
    Damaged(#[source] mvcc::Error),
    #[error("the member is stopping")]
    Stopping,
    #[error("the stream is longer than the {0} bytes that the disk has room for")]
    TooLong(u64),
    #[error("the stream delivers less than {0} bytes per second")]
    TooSlow(u64),
}

/// A stream's way to the disk. Dropped without [`Reception::finish`], it leaves nothing on the disk.
pub struct Reception {
    stream: CurrentStream,
    chunks: mpsc::Sender<Bytes>,
    written: oneshot::Receiver<Result<ReceivedSnapshot, ReceiveError>>,
    finish: Option<oneshot::Sender<()>>,
    replaced: Stop,
}

/// A stream that has the place, until another replaces it. Dropped, it leaves the place.
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

    /// Makes room for a new stream of member `from`, if it is the leader: an older one is ended and wiped
    /// first.
    pub async fn begin(&self, from: NodeId, leader: Option<NodeId>) -> Result<Reception, ReceiveError> {
        let (stopper, replaced) = shutdown::stop();
        let begun = self.shared.slot.lock().begin(from, leader, stopper);
        let (number, older) = begun.ok_or(ReceiveError::Busy)?;
        // From here on: the caller may leave while it waits.
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
            tracing::warn!(%error, "no thread to receive a snapshot with");
            return Err(ReceiveError::Stopping);
        }
        Ok(Reception { stream, chunks, written, finish: Some(finish), replaced })
    }

    /// What a stream that begins now may take: the log and the present store need the rest.
    pub fn bytes_max(&self) -> u64 {
        let room = self.shared.place.room();
        room - (room / 4).min(RESERVED_MAX)
    }

    /// The received store that reaches exactly this entry, to be installed.
    pub fn take(&self, at: LogPosition) -> Option<ReceivedSnapshot> {
        self.shared.slot.lock().take(at)
    }

    /// Whether the store that reaches this entry still waits.
    pub fn holds(&self, at: LogPosition) -> bool {
        self.shared.slot.lock().holds(at)
    }

    /// The store that reaches this entry will not be installed.
    pub fn discard_soon(&self, at: LogPosition) {
        if let Some(received) = self.take(at) {
            self.shared.wipe_soon(received);
        }
    }
}

impl Reception {
    /// Waits until another stream has taken the place.
    pub async fn replaced(&self) {
        self.replaced.stopped().await;
    }

    /// Hands over the next chunk; waits for a slow disk.
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

    /// After the last chunk: returns when the store is checked, durable and ready to be installed. The result
    /// is the last entry in it.
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
    /// The writer's thread: from the first chunk to a durable store, or to nothing.
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
            self.wipe_place(); // The stream broke off. The key is let go only after this.
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

    /// Damage ends the stream; anything else the disk did, and the process with it.
    fn refused(&self, error: mvcc::Error, answer: oneshot::Sender<Result<ReceivedSnapshot, ReceiveError>>) {
        if let mvcc::Error::Corrupt { .. } = error {
            self.wipe_place();
            drop(answer.send(Err(ReceiveError::Damaged(error))));
        } else {
            (self.on_fatal)(Fatal::caused("receive a snapshot", error));
        }
    }

    /// On a separate thread: that takes as long as the disk wants.
    fn wipe_soon(self: &Arc<Self>, received: ReceivedSnapshot) {
        let shared = Arc::clone(self);
        let wiping = std::thread::Builder::new().name("snapshot-wipe".to_owned());
        if let Err(error) = wiping.spawn(move || shared.wipe(received)) {
            tracing::warn!(%error, "no thread to remove a received snapshot with; the next one or the next start does it");
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
