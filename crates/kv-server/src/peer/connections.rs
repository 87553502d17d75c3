//! Open connections of the peer port. A connection is a stranger until its hello is accepted, then it belongs
//! to a member.
//!
//! ```text
//!   accept ──▶ stranger ──hello accepted──▶ connection of a member
//!                 └── HELLO_TIMEOUT passed, or evicted ──▶ closed
//! ```
//!
//! Invariants:
//! - Strangers and members have separate limits: strangers cannot exhaust the connections that members need.
//! - At the limit, the oldest stranger of the address with the most strangers is evicted, so that no address
//!   can lock out members at other addresses.
//! - At the limit per member, its oldest connection is closed. A member that reconnects after a network
//!   failure is admitted although its old connections are still open here.
//! - At most [`STRANGER_BYTES_MAX`] bytes are read from a stranger.
//!
//! The hello itself is checked by `server`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use admission::{Holder, Place, Places};
use auth::caller_of;
use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Fraction of connections available to strangers: 96 of 256. A hello needs two round trips, so a member is
/// admitted as long as fewer strangers than this limit connect from its address in that time.
const STRANGERS_PART: (usize, usize) = (3, 8);
/// Maximum connections per member: two lanes, a snapshot stream, and as many again that are not yet detected
/// as dead.
const MEMBER_CONNECTIONS_MAX: usize = 8;
/// Timeout from accept to an accepted hello. A member sends its hello with its first request.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes read from a stranger. Preface, settings, headers and hello take less than a kilobyte; later
/// bytes stay in the socket buffer until the hello is accepted.
const STRANGER_BYTES_MAX: usize = 64 << 10;

/// All open connections of the peer port. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connections {
    strangers: Arc<Places>,
    members: Arc<Mutex<MemberConnections>>,
}

#[derive(Default)]
struct MemberConnections {
    next_number: u64,
    /// Connections per member, by number: the first is the oldest.
    open: HashMap<u64, BTreeMap<u64, Arc<SocketShared>>>,
}

/// State shared by the connection's task, its reader and its requests.
struct SocketShared {
    has_greeted: AtomicBool,
    /// Permit of a stranger.
    place: Mutex<Option<Place>>,
    stranger: Arc<Holder>,
    /// Notified when newer connections of the member displace this one.
    displaced: Notify,
    reader: AtomicWaker,
}

/// An open connection, counted until it is dropped.
pub(super) struct PeerSocket {
    all: Connections,
    number: u64,
    shared: Arc<SocketShared>,
    source: Option<IpAddr>,
}

/// Reports an accepted hello to its connection.
#[derive(Clone)]
pub(super) struct Greeter {
    all: Connections,
    number: u64,
    shared: Arc<SocketShared>,
    source: Option<IpAddr>,
}

impl Connections {
    /// Creates the limits from the accept loop's limit.
    pub(super) fn new(connections_max: u32) -> Connections {
        let (part, of) = STRANGERS_PART;
        let strangers_max = (connections_max as usize * part / of).max(1);
        Connections { strangers: Places::new(strangers_max), members: Arc::default() }
    }

    /// Registers a stranger, and evicts another one at the limit.
    pub(super) fn open(&self, source: Option<IpAddr>) -> PeerSocket {
        let stranger = Holder::new();
        let place = Mutex::new(self.strangers.take(caller_of(source), &stranger));
        let (has_greeted, displaced, reader) = Default::default();
        let shared = Arc::new(SocketShared { has_greeted, place, stranger, displaced, reader });
        let mut members = self.members.lock();
        let number = members.next_number;
        members.next_number += 1;
        drop(members);
        PeerSocket { all: self.clone(), number, shared, source }
    }
}

impl PeerSocket {
    pub(super) fn greeter(&self) -> Greeter {
        let PeerSocket { all, number, shared, source } = self;
        Greeter { all: all.clone(), number: *number, shared: Arc::clone(shared), source: *source }
    }

    /// Wraps the socket to limit how much is read before the hello is accepted.
    pub(super) fn gate<I>(&self, io: I) -> Gate<I> {
        Gate { io, shared: Arc::clone(&self.shared), stranger_bytes: 0 }
    }

    /// Completes when the connection must be closed: evicted, or no hello in time.
    pub(super) async fn must_close(&self) {
        let greeting = async {
            tokio::time::sleep(HELLO_TIMEOUT).await;
            if self.shared.has_greeted.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = greeting => {}
            () = self.shared.stranger.displaced() => {}
            () = self.shared.displaced.notified() => {}
        }
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let mut members = self.all.members.lock();
        if self.shared.place.lock().take().is_none() {
            members.open.retain(|_, connections| {
                connections.remove(&self.number);
                !connections.is_empty()
            });
        }
    }
}

impl Greeter {
    /// Remote address; None for a Unix socket.
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Assigns the connection to `member`. Only the first call has an effect.
    pub(super) fn greeted(&self, member: u64) {
        let mut members = self.all.members.lock();
        let was_stranger = self.shared.place.lock().take().is_some();
        // Keep a concurrent eviction.
        if !was_stranger || self.shared.stranger.displaced().now_or_never().is_some() {
            return;
        }
        let connections = members.open.entry(member).or_default();
        connections.insert(self.number, Arc::clone(&self.shared));
        if connections.len() > MEMBER_CONNECTIONS_MAX
            && let Some((_, oldest)) = connections.pop_first()
        {
            oldest.displaced.notify_one();
        }
        self.shared.has_greeted.store(true, Ordering::Release);
        self.shared.reader.wake();
    }
}

/// A socket that delivers no more than [`STRANGER_BYTES_MAX`] bytes before the hello is accepted.
pub(super) struct Gate<I> {
    io: I,
    shared: Arc<SocketShared>,
    stranger_bytes: usize,
}

impl<I: AsyncRead + Unpin> AsyncRead for Gate<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.shared.has_greeted.load(Ordering::Acquire) {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        if self.stranger_bytes >= STRANGER_BYTES_MAX {
            self.shared.reader.register(context.waker());
            // Check again: the hello may have been accepted before the waker was registered.
            if !self.shared.has_greeted.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        self.stranger_bytes += buffer.filled().len() - before;
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Gate<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_connects_without_end_keeps_no_member_at_another_out() {
        let connections = Connections::new(16);
        let at = |text: &str| connections.open(Some(text.parse().unwrap()));
        let is_open = |socket: &PeerSocket| socket.must_close().now_or_never().is_none();
        let member = at("10.0.0.1");
        let flood: Vec<PeerSocket> = (0..100).map(|_| at("10.0.0.9")).collect();
        assert!(is_open(&member));
        assert_eq!(flood.iter().filter(|socket| is_open(socket)).count(), 5);
        let returned = at("10.0.0.2");
        assert!(is_open(&member) && is_open(&returned));
        // Addresses of one IPv6 network count as one.
        let _of_network: Vec<PeerSocket> = (0..100).map(|host| at(&format!("fd00::{host:x}"))).collect();
        assert!(is_open(&member) && is_open(&returned));
        let greeted = || {
            let socket = at("10.0.0.2");
            socket.greeter().greeted(2);
            socket
        };
        returned.greeter().greeted(2);
        let newer: Vec<PeerSocket> = (0..MEMBER_CONNECTIONS_MAX).map(|_| greeted()).collect();
        assert!(!is_open(&returned) && newer.iter().all(is_open));
        drop((newer, returned));
        assert!(connections.members.lock().open.is_empty());
    }
}
