//! State shared by the hub thread and a stream's future, and the hub thread's wakeups.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::Duration;

use admission::ClientId;
use auth::Caller;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use watch::{CreateRequest, Parcel, Stats, WatchStreamId};

/// Capacity of the hub's mailbox: some milliseconds of work. Streams wait while it is full.
pub(super) const MAILBOX_MAX: usize = 4096;

/// The hub has stopped, since the member is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchStopped;

#[derive(Clone, Debug)]
pub(crate) enum WatchRequest {
    Create(CreateRequest),
    /// Responds with the reason, without creating a watcher.
    Refuse {
        reason: String,
    },
    Cancel {
        watch_id: i64,
    },
    Progress,
}

pub(super) struct Mail {
    pub(super) outbox: Arc<Outbox>,
    pub(super) content: Content,
}

pub(super) enum Content {
    /// Opens the stream of this client.
    Open(ClientId),
    Request(WatchRequest),
    /// Cancels the watchers with keys that this caller may not read.
    Review(Caller),
}

/// State shared by the hub thread and all streams.
#[derive(Default)]
pub(super) struct StreamShared {
    pub(super) waker: Waker,
    /// Streams that were closed, or that have read everything delivered while the hub has more. Each appears
    /// at most once, which bounds the list.
    pub(super) listed: Mutex<Vec<Arc<Outbox>>>,
    pub(super) stats: Mutex<Stats>,
    pub(super) stops: AtomicBool,
}

impl StreamShared {
    /// Schedules a stream for the hub.
    fn list(&self, outbox: &Arc<Outbox>) {
        if outbox.is_to_be_listed() {
            self.listed.lock().push(Arc::clone(outbox));
            self.waker.mail_arrived();
        }
    }
}

/// Handle of the hub thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watching {
    pub(super) mailbox: mpsc::Sender<Mail>,
    pub(super) shared: Arc<StreamShared>,
}

impl Watching {
    /// Opens a stream of a client. Dropping it removes its watchers.
    pub(crate) async fn open(&self, client: ClientId) -> Result<WatchStream, WatchStopped> {
        let stream = WatchStream { outbox: Arc::new(Outbox::new()), watching: self.clone() };
        stream.send(Content::Open(client)).await?;
        Ok(stream)
    }

    /// Returns counters and sizes as of the hub's last step.
    pub(crate) fn stats(&self) -> Stats {
        *self.shared.stats.lock()
    }
}

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

    /// Acquires a request permit from the hub. To be awaited before a request is read.
    pub(crate) async fn place(&self) {
        let place = self.outbox.places.acquire().await.expect("it is never closed");
        // The hub returns the permit.
        place.forget();
    }

    /// Sends a request to the hub, after `place`. Requests are processed in order.
    pub(crate) async fn request(&self, request: WatchRequest) -> Result<(), WatchStopped> {
        self.send(Content::Request(request)).await
    }

    /// Cancels the watchers of earlier requests with keys that this caller may not read. Needs no `place`: it
    /// waits only for the hub thread, not for the client.
    pub(crate) async fn review(&self, caller: Caller) -> Result<(), WatchStopped> {
        self.send(Content::Review(caller)).await
    }

    /// Returns once the hub closes the stream, because it has held large responses for too long while other
    /// streams wait.
    pub(crate) async fn ended(&self) {
        self.outbox.ended().await;
    }

    /// Closes the stream like the hub does after holding large responses for too long.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.outbox.end();
    }

    /// Waits for parcels, and appends them.
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

/// Maximum bytes that the hub delivers to a stream ahead of its reads. This bounds the memory of streams that
/// do not read, outside the hub's limits: 16 MiB for 1000 streams. A stream that reads requests more each
/// time.
pub(super) const HANDED_BYTES_MAX: usize = 16 << 10;
/// Maximum number of pending requests per stream. A stream at the limit reads no further request, so that
/// many streams share the mailbox.
pub(super) const REQUESTS_MAX: usize = 32;

/// State shared by the hub and a stream's future.
pub(super) struct Outbox {
    /// Set when the hub has opened the stream.
    pub(super) id: OnceLock<WatchStreamId>,
    handed: Mutex<HandedParcels>,
    reader: AtomicWaker,
    /// A permit per request in flight to the hub. The hub withholds permits while too many responses are
    /// queued.
    pub(super) places: Semaphore,
    /// True while the stream is in the hub's list.
    pub(super) is_listed: AtomicBool,
    pub(super) is_closed: AtomicBool,
    /// Notified once, when the hub closes the stream.
    ended: Notify,
}

#[derive(Default)]
struct HandedParcels {
    parcels: VecDeque<Parcel>,
    /// True if the hub has more than was delivered.
    has_more: bool,
    /// True once the hub has closed the stream: parcels were dropped, so later ones would leave a gap.
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// The hub has no more parcels for the stream.
    All,
    /// The hub has more, and must be notified to deliver them.
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

    /// Delivers parcels, on the hub thread. `take` moves parcels up to a number of bytes and returns whether
    /// there are more. It is not called while the reader has [`HANDED_BYTES_MAX`] unread bytes.
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

    /// Moves the delivered parcels to the reader.
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

    /// Closes the stream from the hub's side. Unread parcels are dropped.
    pub(super) fn end(&self) {
        let mut handed = self.handed.lock();
        handed.parcels.clear();
        handed.has_ended = true;
        drop(handed);
        self.ended.notify_one();
    }

    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Marks the stream as listed. Returns true if the caller must add it to the list.
    fn is_to_be_listed(&self) -> bool {
        !self.is_listed.swap(true, SeqCst)
    }
}

const AWAKE: u8 = 0;
/// Parked without watchers: entries do not wake the thread.
const IDLE: u8 = 1;
/// Parked with watchers: entries wake the thread.
const FOLLOWING: u8 = 2;

/// Events that end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Requests,
    RequestsAndEntries,
}

/// Sleep state of the hub thread.
///
/// The thread announces its sleep, checks for work once more, and then parks. Work that arrives after the
/// announcement resets the state, so that the thread does not park. Both sides write first and then read,
/// with a full fence in between, so at least one sees the other's write.
#[derive(Debug, Default)]
pub(super) struct Waker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Waker {
    /// Registers the calling thread, before its first sleep.
    pub(super) fn is_called_by_its_thread(&self) {
        self.thread.set(std::thread::current()).expect("one thread");
    }

    /// Called after the store has published a revision. Wait-free; a fence and a load while the thread is
    /// awake or has no watchers.
    pub(super) fn entry_ended(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) == FOLLOWING {
            self.wake();
        }
    }

    /// Called after a message was queued.
    pub(super) fn mail_arrived(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) != AWAKE {
            self.wake();
        }
    }

    fn wake(&self) {
        // Only the thread that changes the state unparks, once per sleep.
        if self.state.swap(AWAKE, SeqCst) != AWAKE
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Announces a sleep. The thread must then check for work once more.
    pub(super) fn announce_sleep(&self, until: Until) {
        let state = match until {
            Until::Requests => IDLE,
            Until::RequestsAndEntries => FOLLOWING,
        };
        self.state.store(state, SeqCst);
        fence(SeqCst);
    }

    /// Sleeps, unless work has arrived since the announcement.
    pub(super) fn sleep(&self, longest: Option<Duration>) {
        while self.state.load(SeqCst) != AWAKE {
            match longest {
                Some(longest) => {
                    std::thread::park_timeout(longest);
                    break;
                }
                None => std::thread::park(),
            }
        }
        self.state.store(AWAKE, SeqCst);
    }

    /// Cancels the announcement, since there was work after it.
    pub(super) fn stay_awake(&self) {
        self.state.store(AWAKE, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn each_sleep_ends_by_what_it_waits_for() {
        let waker = Arc::new(Waker::default());
        let (slept, sleeps) = mpsc::channel();
        let (go, going) = mpsc::channel();
        let theirs = Arc::clone(&waker);
        let thread = std::thread::spawn(move || {
            theirs.is_called_by_its_thread();
            for until in going {
                theirs.announce_sleep(until);
                slept.send("announced").unwrap();
                theirs.sleep(None);
                slept.send("woken").unwrap();
            }
        });
        for (until, wakes) in [
            (Until::Requests, Waker::mail_arrived as fn(&Waker)),
            (Until::RequestsAndEntries, Waker::mail_arrived),
            (Until::RequestsAndEntries, Waker::entry_ended),
        ] {
            go.send(until).unwrap();
            assert_eq!(sleeps.recv().unwrap(), "announced");
            if until == Until::Requests {
                waker.entry_ended();
                assert_eq!(waker.state.load(SeqCst), IDLE, "entries do not matter without watchers");
            }
            wakes(&waker);
            assert_eq!(sleeps.recv().unwrap(), "woken");
        }
        drop(go);
        thread.join().unwrap();
    }
}
