//! The watch hub's thread: loop, start and stop.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raft_node::Fatal;
use tokio::sync::mpsc;
use watch::{HeldBytes, Hub, WatchLimits, WatchStreamId};

use super::review::Review;
use super::stream::{Content, MAILBOX_MAX, Mail, Outbox, StreamShared, Until, WatchRequest, Watching};
use admission::ClientId;
use auth::Caller;
use mvcc::Store;

/// Maximum number of requests between two delivery steps: about 100 µs.
const MAIL_PER_TURN: usize = 256;
/// Time after which a stream with unsent large responses is closed if other streams wait for memory: 1.5 MiB
/// at 400 kbit/s.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between checks of streams with unsent large responses.
const HELD_LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Interval between checks for free memory. A stream that drops a response does not wake the hub.
const ROOM_LOOK_AGAIN: Duration = Duration::from_millis(10);

pub(super) struct HubThread {
    hub: Hub,
    mail: mpsc::Receiver<Mail>,
    shared: Arc<StreamShared>,
    streams: HashMap<WatchStreamId, ReaderStream>,
    began: Instant,
    /// Streams with parcels to read; reused.
    ready: Vec<WatchStreamId>,
    /// Streams under review, one step each, round robin.
    reviews: VecDeque<WatchStreamId>,
    /// Time of the last check of streams with unsent large responses.
    held_seen: Duration,
    denied: Arc<str>,
}

struct ReaderStream {
    outbox: Arc<Outbox>,
    /// Request permits withheld until the client has read responses.
    places_kept: usize,
    /// Review in progress; the stream is then in [`HubThread::reviews`] once.
    review: Option<Review>,
    /// Large responses delivered to the stream, with the delivery time. May include one dropped response.
    held: Vec<(Duration, HeldBytes)>,
    /// Time at which the stream was first seen to be next for a large response without taking it, because its
    /// client has not read earlier data.
    turn_since: Option<Duration>,
}

/// Cancel reason of a watcher without permission; the text is etcd's.
const DENIED: &str = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";

impl HubThread {
    pub(super) fn new(hub: Hub, mail: mpsc::Receiver<Mail>, shared: Arc<StreamShared>) -> HubThread {
        HubThread {
            hub,
            mail,
            shared,
            streams: HashMap::new(),
            began: Instant::now(),
            ready: Vec::new(),
            reviews: VecDeque::new(),
            held_seen: Duration::ZERO,
            denied: DENIED.into(),
        }
    }

    /// Returns when the member stops. Fails if the store is corrupt.
    pub(super) fn run(&mut self) -> Result<(), Fatal> {
        let shared = Arc::clone(&self.shared);
        shared.waker.is_called_by_its_thread();
        let mut has_announced_sleep = false;
        while !shared.stops.load(SeqCst) {
            if self.turn()? {
                shared.waker.stay_awake();
                has_announced_sleep = false;
            } else if !has_announced_sleep {
                *shared.stats.lock() = self.hub.stats();
                let has_watchers = self.hub.stats().watchers > 0;
                shared.waker.announce_sleep(match has_watchers {
                    true => Until::RequestsAndEntries,
                    false => Until::Requests,
                });
                has_announced_sleep = true;
            } else {
                shared.waker.sleep(self.longest_sleep());
                has_announced_sleep = false;
            }
        }
        Ok(())
    }

    /// Processes requests, a delivery step and due timers. Returns true if there may be more work.
    fn turn(&mut self) -> Result<bool, Fatal> {
        let has_mail = self.take_mail();
        let has_listed = self.look_at_listed();
        self.review();
        let now = self.began.elapsed();
        let broken = |error: mvcc::Error| Fatal::caused("deliver events", error);
        let turn = self.hub.turn().map_err(broken)?;
        if self.hub.next_periodic().is_some_and(|due| due <= now) {
            self.hub.periodic(now);
        }
        let has_delivered = self.deliver();
        self.end_slow(now);
        if turn.more {
            *self.shared.stats.lock() = self.hub.stats();
        }
        Ok(has_mail || has_listed || has_delivered || turn.more || !self.reviews.is_empty())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let now = self.began.elapsed();
        let periodic = self.hub.next_periodic().map(|due| due.saturating_sub(now));
        match self.hub.waits_for_room() {
            true => Some(periodic.map_or(ROOM_LOOK_AGAIN, |periodic| periodic.min(ROOM_LOOK_AGAIN))),
            false => periodic,
        }
    }

    /// Closes streams that have held large responses, or the memory for one, for too long while other streams
    /// wait.
    fn end_slow(&mut self, now: Duration) {
        if !self.hub.waits_for_room() || now < self.held_seen + HELD_LOOK_AGAIN {
            return;
        }
        self.held_seen = now;
        for (id, stream) in &mut self.streams {
            stream.held.retain(|(_, held)| !held.is_dropped());
            let has_turn = self.hub.has_turn(*id);
            stream.turn_since = has_turn.then(|| stream.turn_since.unwrap_or(now));
            let held_since = stream.held.first().map(|(since, _)| *since);
            if held_since.into_iter().chain(stream.turn_since).any(|since| now >= since + HOLD_TIMEOUT) {
                stream.outbox.end();
            }
        }
    }

    fn take_mail(&mut self) -> bool {
        for taken in 0..MAIL_PER_TURN {
            let Ok(Mail { outbox, content }) = self.mail.try_recv() else { return taken > 0 };
            match content {
                Content::Open(client) => self.open(outbox, client),
                Content::Request(request) => self.request(&outbox, request),
                Content::Review(caller) => self.begin_review(&outbox, caller),
            }
        }
        true
    }

    fn open(&mut self, outbox: Arc<Outbox>, client: ClientId) {
        if outbox.is_closed.load(SeqCst) {
            return;
        }
        let id = self.hub.open_of(client, self.began.elapsed());
        outbox.id.set(id).expect("a stream is opened once");
        self.streams.insert(
            id,
            ReaderStream { outbox, places_kept: 0, review: None, held: Vec::new(), turn_since: None },
        );
    }

    fn request(&mut self, outbox: &Outbox, request: WatchRequest) {
        let Some((id, stream)) = outbox.id.get().and_then(|id| Some((*id, self.streams.get_mut(id)?))) else {
            return; // The stream was closed.
        };
        match request {
            WatchRequest::Create(request) => self.hub.create(id, request),
            WatchRequest::Refuse { reason } => self.hub.refuse(id, &reason),
            WatchRequest::Cancel { watch_id } => self.hub.cancel(id, watch_id),
            WatchRequest::Progress => self.hub.progress(id),
        }
        stream.places_kept += 1;
        stream.give_places_back(&self.hub, id);
    }

    fn begin_review(&mut self, outbox: &Outbox, caller: Caller) {
        let Some((id, stream)) = outbox.id.get().and_then(|id| Some((*id, self.streams.get_mut(id)?))) else {
            return; // The stream was closed.
        };
        match &mut stream.review {
            Some(under_way) => under_way.renew(caller),
            None => {
                stream.review = Some(Review::new(caller));
                self.reviews.push_back(id);
            }
        }
    }

    /// Performs a step of the next review.
    fn review(&mut self) {
        let Some(id) = self.reviews.pop_front() else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return }; // The stream was closed.
        let Some(review) = &mut stream.review else { return };
        let caller = &review.caller;
        let next = self.hub.review(id, review.next, &self.denied, |keys| caller.may_read_range(&keys));
        if review.goes_on(next) {
            self.reviews.push_back(id);
        } else {
            stream.review = None;
        }
    }

    /// Handles streams that were closed or are ready for more parcels.
    fn look_at_listed(&mut self) -> bool {
        let listed = std::mem::take(&mut *self.shared.listed.lock());
        for outbox in &listed {
            outbox.is_listed.store(false, SeqCst);
            let Some(id) = outbox.id.get() else { continue };
            if outbox.is_closed.load(SeqCst) {
                if self.streams.remove(id).is_some() {
                    self.hub.close(*id);
                }
            } else {
                self.hand(*id);
            }
        }
        !listed.is_empty()
    }

    fn deliver(&mut self) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(self.hub.ready());
        for id in &ready {
            self.hand(*id);
        }
        let has_delivered = !ready.is_empty();
        ready.clear();
        self.ready = ready;
        has_delivered
    }

    fn hand(&mut self, id: WatchStreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (hub, began) = (&mut self.hub, self.began);
        let mut held = Vec::new();
        stream.outbox.hand(|bytes_max, to| {
            held = hub.take(id, bytes_max, to);
            hub.has_parcels(id)
        });
        if !held.is_empty() {
            stream.held.retain(|(_, held)| !held.is_dropped());
            let now = began.elapsed();
            stream.held.extend(held.into_iter().map(|held| (now, held)));
        }
        stream.give_places_back(&self.hub, id);
    }
}

impl ReaderStream {
    /// Permits further requests, unless too many responses are queued.
    fn give_places_back(&mut self, hub: &Hub, id: WatchStreamId) {
        if self.places_kept > 0 && hub.accepts(id) {
            self.outbox.places.add_permits(std::mem::take(&mut self.places_kept));
        }
    }
}

/// Handle of the running thread. Dropping it leaves the thread running.
pub(crate) struct WatchThread {
    watching: Watching,
    thread: JoinHandle<()>,
}

impl WatchThread {
    /// Starts the thread. To be called before entries are applied, once per store. `on_fatal` is called at
    /// most once, from the thread, on an unrecoverable error.
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
            let panicked = || Err(Fatal::new("watch thread panicked"));
            if let Err(fatal) = ended.unwrap_or_else(|_| panicked()) {
                on_fatal(fatal);
            }
        })?;
        Ok(WatchThread { watching: Watching { mailbox, shared }, thread })
    }

    pub(crate) fn watching(&self) -> Watching {
        self.watching.clone()
    }

    /// Stops the thread. Blocks until its current step is finished.
    pub(crate) fn stop(self) {
        self.watching.shared.stops.store(true, SeqCst);
        self.watching.shared.waker.mail_arrived();
        if self.thread.join().is_err() {
            tracing::error!("watch thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use api::authpb::{Permission, Role, User};
    use mvcc::{MemoryBackend, StoreOptions};
    use state_machine::{AuthState, Session, UserGrants};
    use watch::{CreateRequest, WatchLimits};

    use super::*;

    /// Returns a user with read permission for the keys from a to c.
    fn reader_of_a_to_c() -> Caller {
        let key_permission = vec![Permission { perm_type: 0, key: "a".into(), range_end: "c".into() }];
        let role = Role { name: "role".into(), key_permission };
        let user = User { roles: vec!["role".to_owned()], ..User::default() };
        let state = AuthState {
            users: Arc::new([("u".to_owned(), Arc::new(user))].into()),
            roles: Arc::new([("role".to_owned(), Arc::new(role))].into()),
            ..AuthState::default()
        };
        let grants = Arc::new(UserGrants::resolve(&state, "u"));
        Caller::User { session: Arc::new(Session::of_user("u".to_owned())), revision: 1, grants }
    }

    /// Opens a stream that watches all keys from the first revision.
    fn reader(run: &mut HubThread, client: u64) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::new());
        run.open(Arc::clone(&outbox), ClientId::alone(client));
        let range_end = b"\0".as_slice().into();
        let request = CreateRequest { range_end, start_revision: 1, ..CreateRequest::default() };
        run.request(&outbox, WatchRequest::Create(request));
        while run.turn().unwrap() {}
        outbox
    }

    fn has_ended(outbox: &Outbox) -> bool {
        futures_util::FutureExt::now_or_never(outbox.ended()).is_some()
    }

    /// Starts a hub over a store with a pair as large as the limit for all responses together.
    fn over_a_large_pair(limits: WatchLimits) -> (mpsc::Sender<Mail>, HubThread) {
        let (mut writer, store, _) =
            mvcc::open(Box::new(MemoryBackend::default()), StoreOptions::default()).unwrap();
        writer.begin().put(b"k", &[7; 1 << 20], 0);
        writer.end_entry(mvcc::LogPosition::new(1, 1)).unwrap();
        let limits = WatchLimits { handed_bytes_max: 1 << 20, ..limits };
        let (mailbox, mail) = mpsc::channel(8);
        (mailbox, HubThread::new(Hub::new(store, limits), mail, Arc::default()))
    }

    #[test]
    fn a_stream_that_holds_a_large_response_ends_when_others_wait_for_long() {
        let (_mailbox, mut run) = over_a_large_pair(WatchLimits::default());
        let holder = reader(&mut run, 1);
        run.began -= 2 * HOLD_TIMEOUT;
        run.turn().unwrap();
        assert!(!has_ended(&holder), "none waits");
        let waiting = reader(&mut run, 2);
        run.began -= HELD_LOOK_AGAIN;
        run.turn().unwrap();
        assert!(has_ended(&holder) && !has_ended(&waiting));
        // The held response is dropped, and the other stream proceeds.
        while run.turn().unwrap() {}
        assert!(!run.hub.waits_for_room());
        let mut read = VecDeque::new();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.poll_read(&mut context, &mut read).is_ready());
        assert!(holder.poll_read(&mut context, &mut VecDeque::new()).is_pending(), "nothing after a gap");
        assert!(read.iter().map(watch::Parcel::bytes).sum::<usize>() > 1 << 20);
    }

    #[test]
    fn a_stream_that_reads_nothing_when_its_turn_has_come_ends_when_others_wait_for_long() {
        let limits = WatchLimits { bodies_bytes: 1 << 20, ..WatchLimits::default() };
        let (_mailbox, mut run) = over_a_large_pair(limits);
        let holder = reader(&mut run, 1);
        let silent = reader(&mut run, 2);
        // Its response evicts the first stream's response.
        let waiting = reader(&mut run, 3);
        for _ in 0..5000 {
            let request = CreateRequest { key: "other".into(), ..CreateRequest::default() };
            run.request(&silent, WatchRequest::Create(request));
        }
        while run.turn().unwrap() {}
        holder.end();
        while run.turn().unwrap() {}
        assert!(run.hub.waits_for_room(), "it is the turn of the one that reads nothing");
        for _ in 0..2 {
            run.began -= HOLD_TIMEOUT;
            run.turn().unwrap();
        }
        assert!(has_ended(&silent) && !has_ended(&waiting));
    }

    #[test]
    fn reviews_that_keep_coming_reach_every_watcher() {
        const WATCHERS: i64 = 5000; // A step covers 1024.
        let (_writer, store, _) =
            mvcc::open(Box::new(MemoryBackend::default()), StoreOptions::default()).unwrap();
        let (mailbox, mail) = mpsc::channel(8);
        let mut run = HubThread::new(Hub::new(store, WatchLimits::default()), mail, Arc::default());
        let outbox = Arc::new(Outbox::new());
        run.open(Arc::clone(&outbox), ClientId::alone(1));
        let mut create = |watch_id, key: &'static str| {
            let request = CreateRequest { key: key.into(), watch_id, ..CreateRequest::default() };
            run.request(&outbox, WatchRequest::Create(request));
        };
        (1..=WATCHERS).for_each(|id| create(id, "b"));
        [-7, WATCHERS + 1].into_iter().for_each(|id| create(id, "c"));
        for _ in 0..20 {
            let content = Content::Review(reader_of_a_to_c());
            assert!(mailbox.try_send(Mail { outbox: Arc::clone(&outbox), content }).is_ok());
            run.turn().unwrap();
        }
        assert_eq!(run.hub.stats().watchers, WATCHERS as usize, "those of c are canceled, no other");
        while !run.reviews.is_empty() {
            run.turn().unwrap();
        }
        assert_eq!(run.hub.stats().watchers, WATCHERS as usize);
    }
}
