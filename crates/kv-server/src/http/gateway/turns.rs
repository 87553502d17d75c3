//! A socket with a reader that yields to other tasks.
//!
//! A reader of small frames finds the following one in its buffer, or reads more: if its client sends fast
//! enough, it never waits, and starves other clients. Here a read yields after each [`TURN_BYTES`].

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read before yielding to other tasks: 2,700 empty frames, about 200 µs.
pub(super) const TURN_BYTES: usize = 16 << 10;

/// A wrapper of `io` that yields.
pub(super) struct BoundedIo<I> {
    io: I,
    /// Remaining bytes before the next yield.
    left: usize,
}

impl<I> BoundedIo<I> {
    pub fn new(io: I) -> BoundedIo<I> {
        BoundedIo { io, left: TURN_BYTES }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for BoundedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if self.left == 0 {
            self.left = TURN_BYTES;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(context, buffer));
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for BoundedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_reader_waits_after_each_turn_and_reads_all() {
        let mut io = BoundedIo::new(&[7; 3 * TURN_BYTES][..]);
        let mut read = [0; 1 << 10];
        for turn in 0..3 {
            let now = || io.read(&mut read).now_or_never();
            assert_eq!(std::iter::from_fn(now).count(), TURN_BYTES / read.len(), "turn {turn}");
        }
        assert_eq!(io.read(&mut read).now_or_never().map(Result::unwrap), Some(0));
    }
}
