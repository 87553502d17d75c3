//! What a stream's future holds: the way to the hub and back.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use watch::{CreateRequest, Parcel, Stats};

use super::outbox::{Outbox, ReadResult};
use super::waker::Waker;
use admission::ClientId;
use auth::Caller;

/// Requests that wait for the hub: some milliseconds of its work. A stream that finds the mailbox full waits.
pub(super) const MAILBOX_MAX: usize = 4096;

/// The hub ended: the member stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchStopped;

/// What a client asks of its stream.
#[derive(Clone, Debug)]
pub(crate) enum WatchRequest {
    Create(CreateRequest),
    /// Answered with the reason; no watcher is made.
    Refuse {
        reason: String,
    },
    Cancel {
        watch_id: i64,
    },
    Progress,
}

/// A request of a stream, on its way to the hub.
pub(super) struct Mail {
    pub(super) outbox: Arc<Outbox>,
    pub(super) content: Content,
}

pub(super) enum Content {
    /// Of this client.
    Open(ClientId),
    Request(WatchRequest),
    /// Cancels the watchers whose keys this caller may not read.
    Review(Caller),
}

/// What the hub's thread shares with all streams.
#[derive(Default)]
pub(super) struct StreamShared {
    pub(super) waker: Waker,
    /// Streams that were closed, or have read all that they were handed while there is more. Each is here
    /// once, so streams bound it.
    pub(super) listed: Mutex<Vec<Arc<Outbox>>>,
    pub(super) stats: Mutex<Stats>,
    pub(super) stops: AtomicBool,
}

impl StreamShared {
    /// Has the hub look at a stream.
    fn list(&self, outbox: &Arc<Outbox>) {
        if outbox.is_to_be_listed() {
            self.listed.lock().push(Arc::clone(outbox));
            self.waker.mail_arrived();
        }
    }
}

/// The way to the hub. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watching {
    pub(super) mailbox: mpsc::Sender<Mail>,
    pub(super) shared: Arc<StreamShared>,
}

impl Watching {
    /// A new stream of a client. Dropping it frees its watchers.
    pub(crate) async fn open(&self, client: ClientId) -> Result<WatchStream, WatchStopped> {
        let stream = WatchStream { outbox: Arc::new(Outbox::new()), watching: self.clone() };
        stream.send(Content::Open(client)).await?;
        Ok(stream)
    }

    /// Counters and sizes, of the end of the hub's last turn.
    pub(crate) fn stats(&self) -> Stats {
        *self.shared.stats.lock()
    }
}

/// One stream of a client.
pub(crate) struct WatchStream {
    outbox: Arc<Outbox>,
    watching: Watching,
}

impl WatchStream {
    async fn send(&self, content: Content) -> Result<(), WatchStopped> {
        let mail = Mail { outbox: Arc::clone(&self.outbox), content };
        self.watching.mailbox.send(mail).await.map_err(|_| WatchStopped)?;
        self.watching.shared.waker.mail_arrived();
        Ok(())
    }

    /// Returns when the hub takes another request of this stream. To be awaited before a request is read.
    pub(crate) async fn place(&self) {
        let place = self.outbox.places.acquire().await.expect("it is never closed");
        // The hub gives it back.
        place.forget();
    }

    /// Hands a request in, after `place`. Requests are carried out in order.
    pub(crate) async fn request(&self, request: WatchRequest) -> Result<(), WatchStopped> {
        self.send(Content::Request(request)).await
    }

    /// Has the watchers of the requests before looked at again: those whose keys this caller may not read are
    /// canceled. Waits for the hub's thread alone, not for the client: it needs no `place`.
    pub(crate) async fn review(&self, caller: Caller) -> Result<(), WatchStopped> {
        self.send(Content::Review(caller)).await
    }

    /// Returns when the stream has to end: it holds large responses for too long, and others wait.
    pub(crate) async fn ended(&self) {
        self.outbox.ended().await;
    }

    /// As the hub does with a stream that holds large responses for too long.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.outbox.end();
    }

    /// Waits for something to send, and appends it.
    pub(crate) async fn read(&self, to: &mut VecDeque<Parcel>) {
        if poll_fn(|context| self.outbox.poll_read(context, to)).await == ReadResult::Some {
            self.watching.shared.list(&self.outbox);
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.outbox.is_closed.store(true, SeqCst);
        self.watching.shared.list(&self.outbox);
    }
}
