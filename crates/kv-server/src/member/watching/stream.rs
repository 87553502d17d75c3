//! One stream, between the hub's thread and its future, and what ends the sleep of that thread.

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
use watch::{CreateRequest, Parcel, Stats, StreamId};

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
    fn is_to_be_listed(&self) -> bool {
        !self.is_listed.swap(true, SeqCst)
    }
}

const AWAKE: u8 = 0;
/// Entries do not matter: there are no watchers.
const IDLE: u8 = 1;
/// Entries matter.
const FOLLOWING: u8 = 2;

/// What ends a sleep besides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Requests,
    RequestsAndEntries,
}

/// The state of the thread.
///
/// The thread announces its sleep, looks for work once more, and then parks. What arrives after the
/// announcement changes the state back, so that the thread does not park. Both sides write first and read
/// then, with a full fence between: one of them sees the other.
#[derive(Debug, Default)]
pub(super) struct Waker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Waker {
    /// To be called by the thread before its first sleep.
    pub(super) fn is_called_by_its_thread(&self) {
        self.thread.set(std::thread::current()).expect("one thread");
    }

    /// The store has published a revision. Wait-free; one fence and one load while the thread is awake or has
    /// no watchers.
    pub(super) fn entry_ended(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) == FOLLOWING {
            self.wake();
        }
    }

    /// A request was put down.
    pub(super) fn mail_arrived(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) != AWAKE {
            self.wake();
        }
    }

    fn wake(&self) {
        // The thread that changes the state unparks, once for each sleep.
        if self.state.swap(AWAKE, SeqCst) != AWAKE
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Announces a sleep. The thread has to look for work once more.
    pub(super) fn announce_sleep(&self, until: Until) {
        let state = match until {
            Until::Requests => IDLE,
            Until::RequestsAndEntries => FOLLOWING,
        };
        self.state.store(state, SeqCst);
        fence(SeqCst);
    }

    /// Sleeps, unless something has arrived since the announcement.
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

    /// There was work after the announcement.
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
