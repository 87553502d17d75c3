//! One stream, between the hub's thread and the stream's future.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use watch::{Parcel, StreamId};

/// Bytes that the hub hands to a stream ahead of its reading. A stream that does not read costs no more
/// outside of the hub's own bounds: 1000 of them, 16 MiB. One that reads asks again for each of them.
pub(super) const HANDED_BYTES_MAX: usize = 16 << 10;
/// Requests of one stream that wait for the hub. The stream reads no further one meanwhile, so that many
/// streams share the mailbox.
pub(super) const REQUESTS_MAX: usize = 32;

/// What the hub and a stream's future share.
pub(super) struct Outbox {
    /// Known when the hub has opened the stream.
    pub(super) id: OnceLock<StreamId>,
    handed: Mutex<HandedParcels>,
    reader: AtomicWaker,
    /// A place for each request on its way to the hub. The hub keeps a place while too many answers wait.
    pub(super) places: Semaphore,
    /// Whether it is in the list of streams that the hub has to look at.
    pub(super) is_listed: AtomicBool,
    pub(super) is_closed: AtomicBool,
    /// Notified once, when the stream has to end.
    ended: Notify,
}

#[derive(Default)]
struct HandedParcels {
    parcels: VecDeque<Parcel>,
    /// The hub has more than was handed over.
    has_more: bool,
    /// Nothing is handed over any more: something is missing.
    has_ended: bool,
}

/// What the hub did for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// Everything that the hub had for it.
    All,
    /// The hub has more, and has to be asked for it.
    Some,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            id: OnceLock::new(),
            handed: Mutex::default(),
            reader: AtomicWaker::new(),
            places: Semaphore::new(REQUESTS_MAX),
            is_listed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    /// The hub's side: `take` moves parcels of so many bytes at the most and says whether there are more.
    /// Nothing is moved while the reader has not read what it was handed.
    pub(super) fn hand(&self, take: impl FnOnce(usize, &mut VecDeque<Parcel>) -> bool) {
        let mut handed = self.handed.lock();
        if handed.has_ended {
            return;
        }
        let bytes: usize = handed.parcels.iter().map(Parcel::bytes).sum();
        if bytes >= HANDED_BYTES_MAX {
            handed.has_more = true;
            return;
        }
        let before = handed.parcels.len();
        handed.has_more = take(HANDED_BYTES_MAX - bytes, &mut handed.parcels);
        let has_new = handed.parcels.len() > before;
        drop(handed);
        if has_new {
            self.reader.wake();
        }
    }

    /// The reader's side: moves what was handed over.
    pub(super) fn poll_read(&self, context: &mut Context<'_>, to: &mut VecDeque<Parcel>) -> Poll<ReadResult> {
        self.reader.register(context.waker());
        let mut handed = self.handed.lock();
        if handed.parcels.is_empty() {
            return Poll::Pending;
        }
        to.append(&mut handed.parcels);
        let has_more = std::mem::take(&mut handed.has_more);
        Poll::Ready(if has_more { ReadResult::Some } else { ReadResult::All })
    }

    /// Ends the stream from the hub's side. What it was handed and has not read is dropped.
    pub(super) fn end(&self) {
        let mut handed = self.handed.lock();
        handed.parcels.clear();
        handed.has_ended = true;
        drop(handed);
        self.ended.notify_one();
    }

    /// Returns when the hub has ended the stream.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Notes that the hub has to look at the stream. True if the caller has to list it.
    pub(super) fn is_to_be_listed(&self) -> bool {
        !self.is_listed.swap(true, SeqCst)
    }
}
