//! Limits on memory held for clients: request bodies, large heads, unread requests of streams, unsent
//! responses; and on the number of open streams.
//!
//! All are counted per connection, per caller and for the whole process. Past a limit a body is rejected, a
//! stream with unread requests is closed, and a connection with unsent responses accepts no further call.
//! See decisions 0026 and 0021.
//!
//! Shared amounts follow the rule of [`base::Shares`]. Bodies of authenticated users have a reserve, so
//! that requests without a token cannot exhaust it. An incomplete body is rejected when its caller exceeds
//! its share.
//!
//! A body counts until its call completes: a complete message stays in memory as well, while it waits at a
//! gate or for response memory.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::ShareUse;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::meter::ReaderFlags;
use admission::{MemoryLimit, SMALL_GRANT_BYTES};

/// Limit for bodies per connection: 32 requests of etcd's default maximum, 1.5 MiB.
const BODY_BYTES_MAX: usize = 48 << 20;
/// Limit for bodies of the process.
const BODY_BYTES_TOTAL: usize = 128 << 20;
/// Additional reserve for bodies of users that do not fit into the total.
const USER_BODY_BYTES: usize = 32 << 20;
/// Interval between checks whether the caller of an incomplete body is over its share.
const SHARE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks of the limits and the client's deadline while it takes no data.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Limit for unsent responses per connection.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// Limit for unsent responses of the process. Above it, connections above [`UNSENT_BYTES_SHARE`] stop.
const UNSENT_BYTES_TOTAL: usize = 128 << 20;
/// Limit for unsent responses of a caller. Above it, its connections above [`UNSENT_BYTES_IF_SHORT`] stop.
const UNSENT_BYTES_OF_CALLER: usize = UNSENT_BYTES_TOTAL / 4 * 3;
/// Limit for unsent responses per connection while memory under `--memory-limit` is short.
const UNSENT_BYTES_IF_SHORT: usize = 16 << 10;
/// An honest client takes this in a moment.
const UNSENT_BYTES_SHARE: usize = 256 << 10;
/// Limit for unread stream requests of the process. 40,000 requests that create watchers are about 1.5 MiB.
const UNREAD_BYTES_TOTAL: usize = 32 << 20;
/// Part of it that each connection may always use.
const UNREAD_BYTES_ALWAYS: usize = 16 << 10;
/// Bytes that the streams of a connection send before the task yields to other connections: about 100 µs of
/// work.
const TURN_BYTES_MAX: usize = 256 << 10;
/// Number of calls on a connection up to which it accepts more while its large responses exceed
/// [`UNSENT_BYTES_MAX`]: reads wait before they create theirs, and other kinds of calls should not wait for
/// them.
const CALLS_IF_FULL: usize = 64;
/// Open streams and plain requests of the process. A million watchers need no more than a few thousand.
const STREAMS_TOTAL: usize = 256 << 10;
/// Number of streams that a connection may have in any case.
const STREAMS_ALWAYS: usize = 16;
/// Memory of an idle stream, and the part of `--memory-limit` that all of them may take.
const STREAM_BYTES: u64 = 4 << 10;
const STREAMS_MEMORY_PART: u64 = 8;
/// A smaller head is not counted: 1000 of them are 4 MiB, and etcd's clients send some hundred bytes.
const COUNTED_HEAD_BYTES_MIN: usize = 4 << 10;
/// Smaller responses are not counted: 1000 streams of them are a megabyte, and counting costs an
/// allocation.
const COUNTED_BYTES_MIN: usize = 1 << 10;

/// Bytes held for all connections.
#[derive(Debug, Default)]
pub struct Totals {
    memory: Arc<MemoryLimit>,
    bodies: AtomicUsize,
    /// Number of callers with bodies.
    body_callers: AtomicUsize,
    user_bodies: AtomicUsize,
    unread: AtomicUsize,
    unsent: AtomicUsize,
    streams: AtomicUsize,
    /// Callers with connections or bodies.
    callers: Mutex<HashMap<u64, Weak<CallerTotals>>>,
}

/// Bytes held for all connections of a caller.
#[derive(Debug, Default)]
pub struct CallerTotals {
    all: Arc<Totals>,
    caller: u64,
    bodies: AtomicUsize,
    unread: AtomicUsize,
    unsent: AtomicUsize,
    streams: AtomicUsize,
}

impl Totals {
    pub fn under(memory: Arc<MemoryLimit>) -> Totals {
        Totals { memory, ..Totals::default() }
    }

    fn streams_max(&self) -> u64 {
        (self.memory.part(STREAMS_MEMORY_PART) / STREAM_BYTES).min(STREAMS_TOTAL as u64)
    }

    /// Returns the totals of a caller.
    pub fn of(self: &Arc<Self>, caller: u64) -> Arc<CallerTotals> {
        let mut callers = self.callers.lock();
        if let Some(known) = callers.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        let known = Arc::new(CallerTotals {
            all: Arc::clone(self),
            caller,
            bodies: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
        });
        callers.insert(caller, Arc::downgrade(&known));
        known
    }
}

impl Drop for CallerTotals {
    fn drop(&mut self) {
        let mut callers = self.all.callers.lock();
        // A new entry may have replaced this one.
        if callers.get(&self.caller).is_some_and(|known| known.strong_count() == 0) {
            callers.remove(&self.caller);
        }
    }
}

impl CallerTotals {
    #[cfg(test)]
    pub(super) fn all(&self) -> &Arc<Totals> {
        &self.all
    }

    /// Counts the bytes of bodies. Returns the sums of all callers, and of this one.
    fn change_bodies(&self, before: usize, after: usize) -> (usize, usize) {
        let own = changed(&self.bodies, before, after);
        let had = own + before - after;
        match (had, own) {
            (0, 1..) => drop(self.all.body_callers.fetch_add(1, Relaxed)),
            (1.., 0) => drop(self.all.body_callers.fetch_sub(1, Relaxed)),
            (0, 0) | (1.., 1..) => {}
        }
        (changed(&self.all.bodies, before, after), own)
    }
}

/// Bytes held for one connection, and its requests outside of its task.
#[derive(Debug)]
pub struct Account {
    caller: Arc<CallerTotals>,
    bodies: AtomicUsize,
    unread: AtomicUsize,
    unsent: AtomicUsize,
    streams: AtomicUsize,
    plain_requests: AtomicUsize,
    /// Bytes that streams have sent in this poll of the connection's task.
    sent_in_turn: AtomicUsize,
    /// A call waits for `room`, or the connection waits to accept one.
    has_waiting: AtomicBool,
    room: Notify,
    /// Number of calls that wait for `room`.
    waiting: AtomicUsize,
    pub(super) seen: ReaderFlags,
}

impl Account {
    pub(super) fn new(caller: Arc<CallerTotals>) -> Account {
        Account {
            caller,
            bodies: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            plain_requests: AtomicUsize::new(0),
            sent_in_turn: AtomicUsize::new(0),
            has_waiting: AtomicBool::new(false),
            room: Notify::new(),
            waiting: AtomicUsize::new(0),
            seen: ReaderFlags::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn totals(&self) -> Arc<CallerTotals> {
        Arc::clone(&self.caller)
    }

    fn all(&self) -> &Totals {
        &self.caller.all
    }

    /// Reports whether incomplete bodies of the caller should be rejected because more callers arrived.
    fn is_over_share(&self) -> bool {
        let (total, caller) = (self.all().bodies.load(Relaxed), self.caller.bodies.load(Relaxed));
        let held = ShareUse { total: total as u64, caller: caller as u64, connection: 0 };
        held.is_over(BODY_BYTES_TOTAL as u64, self.all().body_callers.load(Relaxed))
    }

    /// Reports whether the client has to take responses before the connection creates another large one.
    pub(super) fn is_full(&self) -> bool {
        self.unsent.load(Relaxed) > UNSENT_BYTES_MAX || self.is_over_share_of_unsent()
    }

    /// Reports whether the client has to take responses before the connection accepts another call. While
    /// it only waits for large responses to leave, a few calls are still accepted, as they may be small.
    /// `calls` is the number of calls in its task.
    pub(super) fn is_full_for(&self, calls: usize) -> bool {
        let calls = calls + self.plain_requests();
        if calls < CALLS_IF_FULL { self.is_over_share_of_unsent() } else { self.is_full() }
    }

    /// Reports whether other connections need the memory of its responses.
    fn is_over_share_of_unsent(&self) -> bool {
        let unsent = self.unsent.load(Relaxed);
        (unsent > UNSENT_BYTES_SHARE && self.all().unsent.load(Relaxed) > UNSENT_BYTES_TOTAL)
            || (unsent > UNSENT_BYTES_IF_SHORT && self.all().memory.is_short())
            || (unsent > UNSENT_BYTES_IF_SHORT && self.caller.unsent.load(Relaxed) > UNSENT_BYTES_OF_CALLER)
    }

    /// Returns when incomplete bodies of the caller should be rejected.
    pub(super) async fn over_share(&self) {
        loop {
            sleep(SHARE_CHECK_INTERVAL).await;
            if self.is_over_share() {
                return;
            }
        }
    }

    /// Returns when the client has taken enough for another call to start. Memory released by other
    /// connections is noticed at the next check, since the calls of a gateway have no task that checks.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            // Registered before the check, so that capacity released in between wakes this call.
            let _waiting = WaitingCall::new(&self.waiting);
            self.note_waiting();
            if !self.is_full() {
                return;
            }
            drop(timeout(LOOK_AGAIN, room).await);
        }
    }

    pub(super) fn note_waiting(&self) {
        self.has_waiting.store(true, SeqCst);
    }

    /// Reports whether a call may wait for capacity.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_waiting.load(SeqCst)
    }

    /// Wakes calls that wait for `room`, if there is capacity: as many as fit if each response takes
    /// [`UNSENT_BYTES_SHARE`]. The remaining ones are checked with the next event.
    pub(super) fn look_again(&self) {
        if !self.has_waiting() || self.is_full() {
            return;
        }
        let free = UNSENT_BYTES_MAX.saturating_sub(self.unsent.load(Relaxed));
        let served = (free / UNSENT_BYTES_SHARE).max(1).min(self.waiting.load(SeqCst));
        if self.waiting.load(SeqCst) <= served {
            self.has_waiting.store(false, SeqCst);
        }
        (0..served).for_each(|_| self.room.notify_one());
    }

    /// Returns the response bytes that were not written yet.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.load(Relaxed)
    }

    /// Updates the number of bytes that the socket has not accepted.
    pub(super) fn change_unsent(&self, before: usize, after: usize) {
        changed(&self.unsent, before, after);
        changed(&self.caller.unsent, before, after);
        changed(&self.all().unsent, before, after);
        if after < before {
            self.look_again();
        }
    }

    /// Reports whether unsent responses take much of the memory that all connections have for them.
    pub(super) fn is_short(&self) -> bool {
        self.all().unsent.load(Relaxed) > UNSENT_BYTES_TOTAL / 2
    }

    /// Resets the counter of sent bytes. Called at the start of a poll of the connection's task.
    pub(super) fn begin_turn(&self) {
        self.sent_in_turn.store(0, Relaxed);
    }

    pub(super) fn note_sent_in_turn(&self, bytes: usize) {
        self.sent_in_turn.fetch_add(bytes, Relaxed);
    }

    /// Reports whether streams have to yield to other connections.
    pub(super) fn is_turn_used(&self) -> bool {
        self.sent_in_turn.load(Relaxed) >= TURN_BYTES_MAX
    }

    /// Returns the number of open requests that are not gRPC calls.
    pub(super) fn plain_requests(&self) -> usize {
        self.plain_requests.load(Relaxed)
    }
}

/// A waiting call, counted until dropped.
struct WaitingCall<'a>(&'a AtomicUsize);

impl<'a> WaitingCall<'a> {
    fn new(waiting: &'a AtomicUsize) -> WaitingCall<'a> {
        waiting.fetch_add(1, SeqCst);
        WaitingCall(waiting)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Memory accounting for one more response of a connection.
#[derive(Clone, Copy)]
pub struct Room<'a>(pub(super) &'a Arc<Account>);

impl Room<'_> {
    /// Returns when the client has taken enough of the previous responses. Must be awaited before a read
    /// that may be large, and never while holding resources that other calls wait for.
    pub async fn wait(self) {
        if self.0.is_full() {
            Box::pin(self.0.room()).await;
        }
    }

    /// Like [`Room::wait`], for responses that leave no bytes pending: waits only if other connections need
    /// the memory.
    pub(super) async fn wait_for_others(self) {
        if self.0.is_over_share_of_unsent() {
            Box::pin(self.0.room()).await;
        }
    }

    /// Returns the accounting for the parts of a large response.
    pub fn for_parts(self) -> PartRoom {
        PartRoom(Arc::clone(self.0))
    }
}

/// Accounting for the parts of a large response, which is sent long after its request. It outlives the call
/// that has started the response.
#[derive(Clone, Debug)]
pub struct PartRoom(Arc<Account>);

impl PartRoom {
    /// Returns the accounting for a whole response.
    pub fn for_whole(&self) -> Room<'_> {
        Room(&self.0)
    }

    /// Like [`Room::wait`]. May be awaited with a permit that is released on demand.
    pub async fn wait(&self) {
        Room(&self.0).wait().await;
    }

    /// Counts the sent bytes of a part until they are in the output buffer.
    pub fn counted(&self, sent: Bytes) -> Bytes {
        counted(&self.0, sent)
    }
}

/// The received part of a body. Its bytes are uncounted on drop.
pub struct Body {
    account: Arc<Account>,
    bytes: usize,
    /// Set if the bytes are counted in the reserve for users, because they did not fit into the total.
    of_user: Option<Arc<CallerTotals>>,
}

impl Body {
    pub(super) fn new(account: &Arc<Account>) -> Body {
        Body { account: Arc::clone(account), bytes: 0, of_user: None }
    }

    /// Counts the head of a request like a body, as it waits like one. `None` of a small one.
    pub(super) fn of_head(account: &Arc<Account>, bytes: usize) -> Result<Option<Box<Body>>, Status> {
        if bytes < COUNTED_HEAD_BYTES_MIN {
            return Ok(None);
        }
        let mut head = Body::new(account);
        head.add(bytes, None).map(|()| Some(Box::new(head)))
    }

    /// Counts `bytes` more, or rejects the body. `user` is the caller of a request with a valid token.
    pub(super) fn add(&mut self, bytes: usize, user: Option<u64>) -> Result<(), Status> {
        let before = self.bytes;
        self.bytes += bytes;
        let ours = self.account.bodies.fetch_add(bytes, Relaxed) + bytes;
        let fits = match &self.of_user {
            None => {
                let (total, caller) = self.account.caller.change_bodies(before, self.bytes);
                let held = ShareUse { total: total as u64, caller: caller as u64, connection: ours as u64 };
                held.leaves_enough(BODY_BYTES_TOTAL as u64)
                    || user.is_some_and(|user| self.move_to_user(user))
            }
            Some(user) => self.fits_users(user, before),
        };
        if ours > BODY_BYTES_MAX || !fits {
            return Err(grpc_errors::too_many_request_bytes());
        }
        // The first bytes of many small requests are covered by the memory above the line.
        let memory = &self.account.all().memory;
        if !memory.grant(bytes as u64) || (self.bytes as u64 > SMALL_GRANT_BYTES && memory.is_short()) {
            memory.note_refused();
            return Err(grpc_errors::too_many_request_bytes());
        }
        Ok(())
    }

    #[cfg(test)]
    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Moves the body to the reserve for users. Returns whether it fits.
    fn move_to_user(&mut self, user: u64) -> bool {
        self.account.caller.change_bodies(self.bytes, 0);
        let user = self.account.caller.all.of(user);
        let fits = self.fits_users(&user, 0);
        self.of_user = Some(user);
        fits
    }

    /// Counts the bytes received since `before`. Returns whether they fit.
    fn fits_users(&self, user: &CallerTotals, before: usize) -> bool {
        let caller = changed(&user.bodies, before, self.bytes);
        let total = changed(&user.all.user_bodies, before, self.bytes);
        let held = ShareUse { total: total as u64, caller: caller as u64, connection: 0 };
        held.leaves_enough(USER_BODY_BYTES as u64)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.account.bodies.fetch_sub(self.bytes, Relaxed);
        match &self.of_user {
            None => drop(self.account.caller.change_bodies(self.bytes, 0)),
            Some(user) => {
                user.bodies.fetch_sub(self.bytes, Relaxed);
                user.all.user_bodies.fetch_sub(self.bytes, Relaxed);
            }
        }
    }
}

/// The received, unread requests of a stream. Uncounted on drop.
pub(super) struct Unread {
    account: Arc<Account>,
    bytes: usize,
    waiting: usize,
}

impl Unread {
    pub(super) fn new(account: &Arc<Account>) -> Unread {
        Unread { account: Arc::clone(account), bytes: 0, waiting: 0 }
    }

    /// Sets the number of received bytes, and the part of it that is ready to be read. Returns an error if
    /// there are too many.
    pub(super) fn set(&mut self, bytes: usize, waiting: usize) -> Result<(), Status> {
        let Account { unread, caller, seen, .. } = &*self.account;
        let ours = changed(unread, self.bytes, bytes);
        let of_caller = changed(&caller.unread, self.bytes, bytes);
        let total = changed(&caller.all.unread, self.bytes, bytes);
        seen.change_waiting(self.waiting, waiting);
        let has_grown = bytes > self.bytes;
        (self.bytes, self.waiting) = (bytes, waiting);
        let held = ShareUse { total: total as u64, caller: of_caller as u64, connection: ours as u64 };
        if has_grown && ours > UNREAD_BYTES_ALWAYS && !held.leaves_enough(UNREAD_BYTES_TOTAL as u64) {
            return Err(grpc_errors::too_many_request_bytes());
        }
        Ok(())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.set(0, 0).expect("nothing is not too much");
    }
}

/// Replaces a part of a sum, and returns the new sum.
fn changed(sum: &AtomicUsize, before: usize, after: usize) -> usize {
    if after >= before {
        sum.fetch_add(after - before, Relaxed) + (after - before)
    } else {
        sum.fetch_sub(before - after, Relaxed) - (before - after)
    }
}

/// Bytes that are counted as unsent until the last slice of them is dropped.
struct Unsent {
    bytes: Bytes,
    account: Arc<Account>,
}

/// Counts a response until it is in the output buffer of its connection, or dropped with its stream.
pub(super) fn counted(account: &Arc<Account>, bytes: Bytes) -> Bytes {
    if bytes.len() < COUNTED_BYTES_MIN {
        return bytes;
    }
    changed(&account.unsent, 0, bytes.len());
    changed(&account.caller.unsent, 0, bytes.len());
    changed(&account.all().unsent, 0, bytes.len());
    Bytes::from_owner(Unsent { bytes, account: Arc::clone(account) })
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let bytes = self.bytes.len();
        changed(&self.account.unsent, bytes, 0);
        changed(&self.account.caller.unsent, bytes, 0);
        changed(&self.account.all().unsent, bytes, 0);
        self.account.look_again();
    }
}

/// The stream of a call that may stay open for long; counted until it is dropped.
pub(super) struct OpenStream(Arc<Account>);

impl OpenStream {
    /// Counts a stream of the connection, or rejects it.
    pub(super) fn new(account: &Arc<Account>) -> Result<OpenStream, Status> {
        let caller = &account.caller;
        let ours = changed(&account.streams, 0, 1);
        let of_caller = changed(&caller.streams, 0, 1);
        let total = changed(&caller.all.streams, 0, 1);
        let stream = OpenStream(Arc::clone(account));
        let held = ShareUse { total: total as u64, caller: of_caller as u64, connection: ours as u64 };
        if ours > STREAMS_ALWAYS && !held.leaves_enough(caller.all.streams_max()) {
            return Err(grpc_errors::refused(api::Error::TooManyRequests));
        }
        Ok(stream)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        changed(&self.0.streams, 1, 0);
        changed(&self.0.caller.streams, 1, 0);
        changed(&self.0.all().streams, 1, 0);
    }
}

/// A request that is not a gRPC call, in a separate task.
pub(super) struct PlainRequest(OpenStream);

impl PlainRequest {
    /// Counts a request, or rejects it.
    pub(super) fn new(account: &Arc<Account>) -> Result<PlainRequest, Status> {
        let stream = OpenStream::new(account)?;
        account.plain_requests.fetch_add(1, Relaxed);
        Ok(PlainRequest(stream))
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.0.0
    }
}

impl Drop for PlainRequest {
    fn drop(&mut self) {
        self.account().plain_requests.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_connection_leaves_as_much_for_requests_that_wait_as_it_holds() {
        let totals = Arc::new(Totals::default());
        let mut held = Vec::new();
        let fill = |caller| {
            let mut unread = Unread::new(&Arc::new(Account::new(totals.of(caller))));
            let taken = (1..).take_while(|steps| unread.set(steps << 20, 0).is_ok()).count();
            drop(unread.set(taken << 20, 0));
            held.push(unread);
            taken
        };
        assert_eq!((0..5).map(fill).collect::<Vec<_>>(), [16, 8, 4, 2, 1], "MiB");
        let mut last = Unread::new(&Arc::new(Account::new(totals.of(9))));
        assert!(last.set(1 << 20, 0).is_err() && last.set(16 << 10, 0).is_ok(), "a little is always given");
        drop((held, last));
        assert_eq!(totals.unread.load(Relaxed), 0);
        assert!(totals.callers.lock().is_empty());
    }

    /// Bodies of 1 MiB of so many connections, as many as are accepted.
    fn bodies(totals: &Arc<Totals>, caller: u64, connections: usize) -> Vec<Body> {
        let connection = |_| {
            let account = Arc::new(Account::new(totals.of(caller)));
            std::iter::from_fn(move || {
                let mut body = Body::new(&account);
                body.add(1 << 20, None).ok().map(|()| body)
            })
        };
        (0..connections).flat_map(connection).collect()
    }

    #[test]
    fn incomplete_bodies_of_one_address_leave_room_to_others_and_to_users() {
        let totals = Arc::new(Totals::default());
        let held = bodies(&totals, 1, 1000);
        assert!((90..=96).contains(&held.len()), "three quarters: {}", held.len());
        assert_eq!(bodies(&totals, 2, 1).len(), 16);
        let mut user = Body::new(&Arc::new(Account::new(totals.of(1))));
        assert!(user.add(2 << 20, None).is_err() && user.add(2 << 20, Some(7)).is_ok());
        assert_eq!(totals.user_bodies.load(Relaxed), 4 << 20);
        drop((held, user));
        assert_eq!((totals.user_bodies.load(Relaxed), totals.body_callers.load(Relaxed)), (0, 0));
        assert!(totals.callers.lock().is_empty());
    }

    #[test]
    fn a_share_of_bodies_shrinks_as_addresses_come() {
        let totals = Arc::new(Totals::default());
        let mut held: Vec<Vec<Body>> = (0..100).map(|caller| bodies(&totals, caller, 10)).collect();
        assert!(bodies(&totals, 100, 1).is_empty(), "nothing is left");
        // As each does that looks.
        for bodies in &mut held {
            while bodies.last().is_some_and(|body| body.account().is_over_share()) {
                bodies.pop();
            }
        }
        assert!(held[0].len() < 80 && bodies(&totals, 100, 1).len() >= 8);
    }

    #[test]
    fn open_streams_leave_some_to_others_and_each_connection_has_a_few() {
        let memory = Arc::new(MemoryLimit::new(Some(512 << 20)));
        let totals = Arc::new(Totals::under(memory));
        let streams_max = totals.streams_max() as usize;
        assert_eq!(streams_max, (448 << 20) / 8 / (4 << 10), "seven eighths of the limit are granted");
        let open = |caller| {
            let account = Arc::new(Account::new(totals.of(caller)));
            (0..1000).map_while(|_| OpenStream::new(&account).ok()).collect::<Vec<_>>()
        };
        let hoard: Vec<_> = (0..100).map(|_| open(1)).collect();
        let held: usize = hoard.iter().map(Vec::len).sum();
        assert!(held <= streams_max * 3 / 4 + 100 * STREAMS_ALWAYS, "{held}");
        assert_eq!(open(2).len(), 1000, "of another caller");
        let hoards: Vec<_> = (10..500).map(open).collect();
        let held: usize = hoards.iter().chain(&hoard).map(Vec::len).sum();
        assert!(held <= streams_max + 600 * STREAMS_ALWAYS, "{held}");
        assert_eq!(open(2).len(), STREAMS_ALWAYS);
        drop((hoard, hoards));
        assert_eq!(totals.streams.load(Relaxed), 0);
        assert_eq!(Totals::default().streams_max(), STREAMS_TOTAL as u64, "without a limit");
    }

    /// Polls all, and returns how many still wait.
    fn poll_all<F: Future<Output = ()>>(calls: &mut Vec<Pin<Box<F>>>) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        calls.retain_mut(|call| call.as_mut().poll(&mut context).is_pending());
        calls.len()
    }

    #[tokio::test(start_paused = true)]
    async fn what_leaves_nothing_pending_waits_if_others_need_the_memory_only() {
        let account = Arc::new(Account::new(Arc::default()));
        let waiting = |account: &Arc<Account>| {
            let mut large = vec![Box::pin(Room(account).wait())];
            let mut small = vec![Box::pin(Room(account).wait_for_others())];
            (poll_all(&mut large), poll_all(&mut small))
        };
        assert_eq!(waiting(&account), (0, 0));
        account.change_unsent(0, UNSENT_BYTES_MAX + 1);
        assert_eq!(waiting(&account), (1, 0));
        assert!(!account.is_full_for(CALLS_IF_FULL - 1) && account.is_full_for(CALLS_IF_FULL));
        Account::new(account.totals()).change_unsent(0, UNSENT_BYTES_TOTAL);
        assert_eq!(waiting(&account), (1, 1));
        assert!(account.is_full_for(0));
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_calls_go_on_as_what_was_taken_serves_and_all_in_the_end() {
        const CALLS: usize = 1000;
        let account = Account::new(Arc::default());
        account.change_unsent(0, UNSENT_BYTES_MAX + 1);
        let mut calls: Vec<_> = (0..CALLS).map(|_| Box::pin(account.room())).collect();
        assert_eq!(poll_all(&mut calls), CALLS);
        account.change_unsent(UNSENT_BYTES_MAX + 1, UNSENT_BYTES_MAX - (1 << 20));
        assert_eq!(poll_all(&mut calls), CALLS - 4, "a mebibyte serves four");
        assert!(account.has_waiting());
        account.change_unsent(UNSENT_BYTES_MAX - (1 << 20), 0);
        assert_eq!(poll_all(&mut calls), CALLS - 4 - 64);
        while account.has_waiting() {
            account.look_again();
            poll_all(&mut calls);
        }
        assert!(calls.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_sees_what_other_connections_give_back_without_an_event_of_its_connection() {
        const LONG: Duration = Duration::from_secs(60);
        let account = Account::new(Arc::default());
        let other = Account::new(account.totals());
        account.change_unsent(0, UNSENT_BYTES_SHARE + 1);
        other.change_unsent(0, UNSENT_BYTES_TOTAL);
        let mut room = pin!(account.room());
        assert!(timeout(LONG, &mut room).await.is_err());
        other.change_unsent(UNSENT_BYTES_TOTAL, 0);
        timeout(LONG, room).await.expect("others need the memory no more");
    }
}
