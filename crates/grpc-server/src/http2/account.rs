//! Bytes that clients make this process hold: request bodies, requests of streams that wait to be read, and
//! answers that are not taken.
//!
//! All are counted per connection and for the whole process. Past a bound a body is refused, a stream with
//! requests that wait is ended, and a connection with answers that its client does not take accepts no
//! further call. See decisions 0026 and 0021.
//!
//! A body counts until its call ends: a complete message waits in memory as well, at a gate or for room.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use bytes::Bytes;
use tokio::sync::Notify;
use tonic::Status;

use super::meter::Seen;
use admission::{MemoryLimit, SMALL_GRANT_BYTES};

/// Bodies of one connection: 32 requests of etcd's default maximum, 1.5 MiB.
const BODY_BYTES_MAX: usize = 48 << 20;
/// And of the process. A connection leaves at least as much of it free as it holds.
const BODY_BYTES_TOTAL: usize = 128 << 20;
/// Answers of one connection that its client has not taken.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// And of the process. Past it a connection is stopped from [`UNSENT_BYTES_SHARE`] on.
const UNSENT_BYTES_TOTAL: usize = 128 << 20;
/// What a connection may hold while little of `--memory-limit` is left.
const UNSENT_BYTES_IF_SHORT: usize = 16 << 10;
/// An honest client takes this in a moment.
const UNSENT_BYTES_SHARE: usize = 256 << 10;
/// Requests of streams that have arrived and were not read, in the process. A connection leaves at least as
/// much of it free as it holds. 40,000 requests that create watchers are some 1.5 MiB.
const UNREAD_BYTES_TOTAL: usize = 32 << 20;
/// What a connection may hold of it in any case.
const UNREAD_BYTES_ALWAYS: usize = 16 << 10;
/// Bytes that the streams of a connection send before the tasks of other connections have their turn: some
/// 100 µs of work.
const TURN_BYTES_MAX: usize = 256 << 10;
/// A smaller answer is not counted: 1000 streams of it are a megabyte, and counting costs an allocation.
const COUNTED_BYTES_MIN: usize = 1 << 10;

/// Bytes held for all connections.
#[derive(Debug, Default)]
pub struct Totals {
    memory: Arc<MemoryLimit>,
    bodies: AtomicUsize,
    unread: AtomicUsize,
    unsent: AtomicUsize,
}

impl Totals {
    pub fn under(memory: Arc<MemoryLimit>) -> Totals {
        Totals { memory, ..Totals::default() }
    }
}

/// Bytes held for one connection, and its calls outside of its task.
pub struct Account {
    totals: Arc<Totals>,
    bodies: AtomicUsize,
    unread: AtomicUsize,
    unsent: AtomicUsize,
    relayed: AtomicUsize,
    /// Bytes that streams have sent in this turn of the connection's task.
    sent_in_turn: AtomicUsize,
    /// A call waits for `room`, or the connection to accept one.
    has_waiting: AtomicBool,
    room: Notify,
    /// Calls that wait for `room`.
    waiting: AtomicUsize,
    pub(super) seen: Arc<Seen>,
}

impl Account {
    pub(super) fn new(totals: Arc<Totals>) -> Account {
        Account {
            totals,
            bodies: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            relayed: AtomicUsize::new(0),
            sent_in_turn: AtomicUsize::new(0),
            has_waiting: AtomicBool::new(false),
            room: Notify::new(),
            waiting: AtomicUsize::new(0),
            seen: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn totals(&self) -> Arc<Totals> {
        Arc::clone(&self.totals)
    }

    /// Whether its client has to take answers before the connection accepts another call.
    pub(super) fn is_full(&self) -> bool {
        let unsent = self.unsent.load(Relaxed);
        unsent > UNSENT_BYTES_MAX
            || (unsent > UNSENT_BYTES_SHARE && self.totals.unsent.load(Relaxed) > UNSENT_BYTES_TOTAL)
            || (unsent > UNSENT_BYTES_IF_SHORT && self.totals.memory.is_short())
    }

    /// Returns when the client has taken enough for another call to begin.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            // Before it looks: room that is made meanwhile is for this call.
            let _waiting = WaitingCall::new(&self.waiting);
            self.note_waiting();
            if !self.is_full() {
                return;
            }
            room.await;
        }
    }

    pub(super) fn note_waiting(&self) {
        self.has_waiting.store(true, SeqCst);
    }

    /// Whether something may wait for room.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_waiting.load(SeqCst)
    }

    /// Lets calls begin that wait for `room`, if there is some: as many as it serves if their answers have
    /// [`UNSENT_BYTES_SHARE`]. The others are looked at with the next event, when those have answered.
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

    /// Bytes of answers that were not written yet.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.load(Relaxed)
    }

    /// Replaces a part of the bytes that were not written: what the socket did not take.
    pub(super) fn change_unsent(&self, before: usize, after: usize) {
        changed(&self.unsent, before, after);
        changed(&self.totals.unsent, before, after);
        if after < before {
            self.look_again();
        }
    }

    /// Whether unsent answers take much of the memory that all connections have for them.
    pub(super) fn is_short(&self) -> bool {
        self.totals.unsent.load(Relaxed) > UNSENT_BYTES_TOTAL / 2
    }

    /// To be called when the connection's task begins a turn.
    pub(super) fn begin_turn(&self) {
        self.sent_in_turn.store(0, Relaxed);
    }

    pub(super) fn note_sent_in_turn(&self, bytes: usize) {
        self.sent_in_turn.fetch_add(bytes, Relaxed);
    }

    /// Whether streams have to let the tasks of other connections run first.
    pub(super) fn is_turn_used(&self) -> bool {
        self.sent_in_turn.load(Relaxed) >= TURN_BYTES_MAX
    }

    pub(super) fn relayed(&self) -> usize {
        self.relayed.load(Relaxed)
    }
}

/// A call that waits, while it does.
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

/// Room for one more answer of a connection.
#[derive(Clone, Copy)]
pub struct Room<'a>(pub(super) &'a Arc<Account>);

impl Room<'_> {
    /// Returns when the client has taken enough of the answers before. To be awaited before a read that may
    /// be large is made, and never while something is held that others wait for.
    pub async fn wait(self) {
        if self.0.is_full() {
            Box::pin(self.0.room()).await;
        }
    }

    /// The same for the parts of a large answer.
    pub fn for_parts(self) -> PartRoom {
        PartRoom(Arc::clone(self.0))
    }
}

/// Room for the parts of a large answer, which is sent long after it was asked for.
pub struct PartRoom(Arc<Account>);

impl PartRoom {
    /// As [`Room::wait`]. May be awaited with a turn that is given up when it is wanted.
    pub async fn wait(&self) {
        Room(&self.0).wait().await;
    }

    /// Counts what is sent of a part, until it is in the output buffer.
    pub fn counted(&self, sent: Bytes) -> Bytes {
        counted(&self.0, sent)
    }
}

/// The part of one body that has arrived. What it counted is given back when it is dropped.
pub(super) struct Body {
    account: Arc<Account>,
    bytes: usize,
}

impl Body {
    pub(super) fn new(account: &Arc<Account>) -> Body {
        Body { account: Arc::clone(account), bytes: 0 }
    }

    /// Counts `bytes` more, or refuses the body.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Status> {
        self.bytes += bytes;
        let ours = self.account.bodies.fetch_add(bytes, Relaxed) + bytes;
        let total = self.account.totals.bodies.fetch_add(bytes, Relaxed) + bytes;
        if ours > BODY_BYTES_MAX || total + ours > BODY_BYTES_TOTAL {
            return Err(grpc_errors::too_many_request_bytes());
        }
        // The first bytes of many small requests are left to what is kept above the line.
        let memory = &self.account.totals.memory;
        if !memory.grant(bytes as u64) || (self.bytes as u64 > SMALL_GRANT_BYTES && memory.is_short()) {
            memory.note_refused();
            return Err(grpc_errors::too_many_request_bytes());
        }
        Ok(())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.account.bodies.fetch_sub(self.bytes, Relaxed);
        self.account.totals.bodies.fetch_sub(self.bytes, Relaxed);
    }
}

/// What has arrived of the requests of one stream and was not read. Given back when it is dropped.
pub(super) struct Unread {
    account: Arc<Account>,
    bytes: usize,
    waiting: usize,
}

impl Unread {
    pub(super) fn new(account: &Arc<Account>) -> Unread {
        Unread { account: Arc::clone(account), bytes: 0, waiting: 0 }
    }

    /// There are so many bytes. Of them so many wait to be read, rather than for the rest of their message.
    /// An error when there are too many.
    pub(super) fn set(&mut self, bytes: usize, waiting: usize) -> Result<(), Status> {
        let Account { unread, totals, seen, .. } = &*self.account;
        let ours = changed(unread, self.bytes, bytes);
        let total = changed(&totals.unread, self.bytes, bytes);
        seen.change_waiting(self.waiting, waiting);
        let has_grown = bytes > self.bytes;
        (self.bytes, self.waiting) = (bytes, waiting);
        if has_grown && ours > UNREAD_BYTES_ALWAYS && total + ours > UNREAD_BYTES_TOTAL {
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

/// Counts an answer until it is in the output buffer of its connection, or dropped with its stream.
pub(super) fn counted(account: &Arc<Account>, bytes: Bytes) -> Bytes {
    if bytes.len() < COUNTED_BYTES_MIN {
        return bytes;
    }
    account.unsent.fetch_add(bytes.len(), Relaxed);
    account.totals.unsent.fetch_add(bytes.len(), Relaxed);
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
        self.account.unsent.fetch_sub(bytes, Relaxed);
        self.account.totals.unsent.fetch_sub(bytes, Relaxed);
        self.account.look_again();
    }
}

/// One call outside of the connection's task.
pub(super) struct Relayed(Arc<Account>);

impl Relayed {
    pub(super) fn new(account: &Arc<Account>) -> Relayed {
        account.relayed.fetch_add(1, Relaxed);
        Relayed(Arc::clone(account))
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.0.relayed.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_connection_leaves_as_much_for_requests_that_wait_as_it_holds() {
        let totals = Arc::new(Totals::default());
        let mut held = Vec::new();
        let fill = |_| {
            let mut unread = Unread::new(&Arc::new(Account::new(Arc::clone(&totals))));
            let taken = (1..).take_while(|steps| unread.set(steps << 20, 0).is_ok()).count();
            drop(unread.set(taken << 20, 0));
            held.push(unread);
            taken
        };
        assert_eq!((0..5).map(fill).collect::<Vec<_>>(), [16, 8, 4, 2, 1], "MiB");
        let mut last = Unread::new(&Arc::new(Account::new(Arc::clone(&totals))));
        assert!(last.set(1 << 20, 0).is_err() && last.set(16 << 10, 0).is_ok(), "a little is always given");
        drop((held, last));
        assert_eq!(totals.unread.load(Relaxed), 0);
    }

    /// Polls all, and returns how many still wait.
    fn poll_all<F: Future<Output = ()>>(calls: &mut Vec<Pin<Box<F>>>) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        calls.retain_mut(|call| call.as_mut().poll(&mut context).is_pending());
        calls.len()
    }

    #[test]
    fn as_many_calls_go_on_as_what_was_taken_serves_and_all_in_the_end() {
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
}
