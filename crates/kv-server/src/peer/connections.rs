//! Open connections of the peer port: strangers until a hello is accepted, connections of a member
//! afterwards.
//!
//! ```text
//!   accept ──▶ stranger ──hello accepted──▶ connection of a member
//!                 └── GREET_WITHIN passed, or enough newer ones ──▶ closed
//! ```
//!
//! Invariants:
//! - Strangers and members have separate limits: strangers cannot use up the connections that members need.
//! - A full limit closes the oldest connection of its kind, never the newest. A member that comes back after
//!   a network failure is admitted while its old connections are still open here.
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

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Connections that have not greeted, as a part of all: 96 of 256. One that greets needs two round trips, so
/// a member is admitted as long as fewer than this many strangers connect in that time.
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
pub(super) struct Connections(Arc<Mutex<OpenConnection>>);

#[derive(Default)]
struct OpenConnection {
    strangers_max: usize,
    next_number: u64,
    /// By number, so that the first is the oldest.
    strangers: BTreeMap<u64, Arc<SocketShared>>,
    members: HashMap<u64, BTreeMap<u64, Arc<SocketShared>>>,
}

/// What the connection's task, its reader and its requests share.
#[derive(Default)]
struct SocketShared {
    has_greeted: AtomicBool,
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
        Connections(Arc::new(Mutex::new(OpenConnection { strangers_max, ..OpenConnection::default() })))
    }

    /// Counts a new stranger and closes the oldest one if there are too many.
    pub(super) fn open(&self, source: Option<IpAddr>) -> PeerSocket {
        let shared = Arc::new(SocketShared::default());
        let mut open = self.0.lock();
        let number = open.next_number;
        open.next_number += 1;
        open.strangers.insert(number, Arc::clone(&shared));
        let strangers_max = open.strangers_max;
        displace_oldest(&mut open.strangers, strangers_max);
        PeerSocket { all: self.clone(), number, shared, source }
    }
}

fn displace_oldest(connections: &mut BTreeMap<u64, Arc<SocketShared>>, count_max: usize) {
    if connections.len() > count_max
        && let Some((_, oldest)) = connections.pop_first()
    {
        oldest.displaced.notify_one();
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

    /// Returns when the connection must be closed: displaced by newer ones, or no hello in time.
    pub(super) async fn must_close(&self) {
        let greeting = async {
            tokio::time::sleep(GREET_WITHIN).await;
            if self.shared.has_greeted.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = greeting => {}
            () = self.shared.displaced.notified() => {}
        }
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let mut open = self.all.0.lock();
        if open.strangers.remove(&self.number).is_none() {
            open.members.retain(|_, connections| {
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
        let mut open = self.all.0.lock();
        // A connection that was displaced meanwhile stays displaced.
        let Some(shared) = open.strangers.remove(&self.number) else { return };
        let connections = open.members.entry(member).or_default();
        connections.insert(self.number, shared);
        displace_oldest(connections, MEMBER_CONNECTIONS_MAX);
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
