//! Open connections of the peer port: strangers until a hello is accepted, connections of a member
//! afterwards.
//!
//! ```text
//!   accept ──▶ stranger ──hello accepted──▶ connection of a member
//!                 └── GREET_WITHIN passed, or enough others ──▶ closed
//! ```
//!
//! Invariants:
//! - Strangers and members have separate limits: strangers cannot use up the connections that members need.
//! - Too many strangers close the oldest one of the address that has most: no address keeps members at
//!   others out.
//! - Too many connections of a member close its oldest, never the newest. A member that comes back after a
//!   network failure is admitted while its old connections are still open here.
//! - A stranger's connection reads at most [`STRANGER_BYTES_MAX`] bytes.
//!
//! Does not know what a hello contains; `server` checks it.

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

/// Connections that have not greeted, as a part of all: 96 of 256. One that greets needs two round trips, so
/// a member is admitted as long as fewer than this many strangers connect from its address in that time.
const STRANGERS_PART: (usize, usize) = (3, 8);
/// Connections of one member: two lanes, a snapshot stream, and as many again that are about to be found
/// dead.
const MEMBER_CONNECTIONS_MAX: usize = 8;
/// Time from accept to an accepted hello. A member sends its hello with its first request.
pub(super) const GREET_WITHIN: Duration = Duration::from_secs(5);
/// Preface, settings, headers and hello take less than a kilobyte. What comes after them waits in the socket
/// until the hello is accepted.
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
    /// By number, so that the first is the oldest.
    open: HashMap<u64, BTreeMap<u64, Arc<SocketShared>>>,
}

/// What the connection's task, its reader and its requests share.
struct SocketShared {
    has_greeted: AtomicBool,
    /// While it is a stranger's.
    place: Mutex<Option<Place>>,
    stranger: Arc<Holder>,
    /// By newer connections of its member.
    displaced: Notify,
    reader: AtomicWaker,
}

/// One open connection; counted until it is dropped.
pub(super) struct PeerSocket {
    all: Connections,
    number: u64,
    shared: Arc<SocketShared>,
    source: Option<IpAddr>,
}

/// Passes an accepted hello to the connection that it came from.
#[derive(Clone)]
pub(super) struct Greeter {
    all: Connections,
    number: u64,
    shared: Arc<SocketShared>,
    source: Option<IpAddr>,
}

impl Connections {
    /// `connections_max`: how many the accept loop lets in.
    pub(super) fn new(connections_max: u32) -> Connections {
        let (part, of) = STRANGERS_PART;
        let strangers_max = (connections_max as usize * part / of).max(1);
        Connections { strangers: Places::new(strangers_max), members: Arc::default() }
    }

    /// Counts a new stranger and closes another one if there are too many.
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

    /// The socket as HTTP/2 may read it.
    pub(super) fn gate<I>(&self, io: I) -> Gate<I> {
        Gate { io, shared: Arc::clone(&self.shared), stranger_bytes: 0 }
    }

    /// Returns when the connection must be closed: displaced by others, or no hello in time.
    pub(super) async fn must_close(&self) {
        let greeting = async {
            tokio::time::sleep(GREET_WITHIN).await;
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
    /// The address that the connection comes from; none of a Unix socket.
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The connection belongs to `member` from now on. The first hello of a connection decides.
    pub(super) fn greeted(&self, member: u64) {
        let mut members = self.all.members.lock();
        let was_stranger = self.shared.place.lock().take().is_some();
        // A connection that was displaced meanwhile stays displaced.
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
            // Again: the hello may have been accepted before the waker was registered.
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
        // Those of one network are of one address.
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
