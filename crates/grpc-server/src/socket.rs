//! The socket of a client: its first bytes can be inspected, and it fails when the client takes no data for
//! too long, or disconnects while the server does not read.
//!
//! Independent of the protocol.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep};

use super::request_rules::keep_fragments;
use transport::tls::Stream;

/// Time for a client to take some of the written data. Its window and the socket's buffers are full by
/// then, and the rest is in our memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between checks whether a client is still connected while the server does not read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of bytes that identify the protocol.
const FIRST_BYTES: usize = 4;

/// A connection that can detect a disconnect even while the server does not read.
pub trait Ends {
    fn has_ended(&self) -> bool;
}

impl Ends for Socket {
    fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }
}

impl Ends for DuplexStream {
    fn has_ended(&self) -> bool {
        false
    }
}

/// A socket that was accepted.
pub struct Socket {
    stream: Stream,
    first: [u8; FIRST_BYTES],
    /// Number of bytes of `first` that were read, and that were passed on.
    read: usize,
    handed: usize,
    /// Set for HTTP/1: whether a request line comes next.
    at_line: Option<Arc<AtomicBool>>,
    /// Runs while the client takes no data.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Checks for a disconnect, if enabled.
    looks: Option<Box<Interval>>,
    /// True if the last read returned pending: it wakes its task when the client disconnects, so polling is
    /// unnecessary.
    is_reading: bool,
    /// Dropped with the socket.
    open: Option<oneshot::Sender<Infallible>>,
}

impl Socket {
    pub fn new(stream: Stream) -> Socket {
        Socket {
            stream,
            first: [0; FIRST_BYTES],
            read: 0,
            handed: 0,
            at_line: None,
            deadline: None,
            looks: None,
            is_reading: false,
            open: None,
        }
    }

    /// Enables HTTP/1 parsing of request lines, to preserve fragments in paths. The next bytes are a
    /// request line. Must be set again before each request line.
    pub fn keep_fragments(&mut self) -> Arc<AtomicBool> {
        Arc::clone(self.at_line.insert(Arc::new(AtomicBool::new(true))))
    }

    /// Makes the socket fail when the client closes its sending side, even while the server does not read:
    /// a protocol with one request at a time does not read ahead. Its owner must flush whenever it is
    /// polled.
    pub fn watch_for_end(&mut self) {
        let mut looks = interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        self.looks = Some(Box::new(looks));
    }

    /// Reports whether a disconnect was detected.
    fn is_seen_ended(&mut self, context: &mut Context<'_>) -> bool {
        let Some(looks) = self.looks.as_mut().filter(|_| !std::mem::take(&mut self.is_reading)) else {
            return false;
        };
        let mut is_due = false;
        while looks.poll_tick(context).is_ready() {
            is_due = true;
        }
        is_due && self.stream.has_ended()
    }

    /// Returns when the last owner has dropped the socket.
    pub fn closed(&mut self) -> impl Future<Output = ()> + use<> {
        let (open, closed) = oneshot::channel();
        self.open = Some(open);
        async move { drop(closed.await) }
    }

    /// Reads until it is known whether the stream starts with `word`. The protocol reads these bytes again.
    pub async fn begins_with(&mut self, word: [u8; FIRST_BYTES]) -> io::Result<bool> {
        while self.read < FIRST_BYTES {
            let count = self.stream.read(&mut self.first[self.read..]).await?;
            self.read += count;
            if count == 0 || self.first[..self.read] != word[..self.read] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the outcome of a write, or an error if none has succeeded for too long.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begin = buffer.filled().len();
        let handed = (self.read - self.handed).min(buffer.remaining());
        buffer.put_slice(&self.first[self.handed..self.handed + handed]);
        self.handed += handed;
        if handed > 0 && self.at_line.is_none() {
            return Poll::Ready(Ok(()));
        }
        // The rest of a request line is read together with its start.
        let read = match buffer.remaining() {
            0 => Poll::Ready(Ok(())),
            _ => Pin::new(&mut self.stream).poll_read(context, buffer),
        };
        self.is_reading = read.is_pending();
        let read_now = &mut buffer.filled_mut()[begin..];
        if !read_now.is_empty() && self.at_line.as_ref().is_some_and(|at_line| at_line.swap(false, Relaxed)) {
            keep_fragments(read_now);
        }
        // The next read finds the failure again.
        if handed > 0 { Poll::Ready(Ok(())) } else { read }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_seen_ended(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
