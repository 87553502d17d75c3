//! The messages of a client, read one after another.
//!
//! Invariants:
//! - At most one message that is incomplete is in memory, and at most one DATA frame of complete ones.
//! - What has arrived of an incomplete message counts against the bounds of `account`.
//! - Bytes that are not read stay in h2, whose windows bound them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::super::account::{Account, Body};
use super::super::grpc::PREFIX_BYTES;
use super::super::unary::BODY_WITHIN;
use super::observer::MessageObserver;
use crate::errors;

/// Reads the requests of one stream.
pub struct Requests {
    body: RecvStream,
    account: Arc<Account>,
    bytes_max: usize,
    /// The unread rest of the newest DATA frame.
    frame: Bytes,
    /// The message that is incomplete.
    partial: Option<Partial>,
    observer: Option<Arc<dyn MessageObserver>>,
}

/// A message that has arrived in part.
struct Partial {
    bytes: BytesMut,
    counted: Body,
    deadline: Pin<Box<Sleep>>,
}

impl Requests {
    pub(in super::super) fn new(body: RecvStream, account: &Arc<Account>, bytes_max: usize) -> Requests {
        let (account, frame) = (Arc::clone(account), Bytes::new());
        Requests { body, account, bytes_max, frame, partial: None, observer: None }
    }

    /// Has messages counted from now on.
    pub fn observed_by(&mut self, observer: Arc<dyn MessageObserver>) {
        self.observer = Some(observer);
    }

    /// The next message with its prefix, or None after the last. To be awaited again after a cancelled wait:
    /// nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Requests::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            match self.take_message() {
                Ok(Some(message)) => {
                    if let Some(observer) = &self.observer {
                        observer.received(message.len() - PREFIX_BYTES);
                    }
                    return Poll::Ready(Some(Ok(message)));
                }
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            match self.body.poll_data(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Only fails when the stream is closed, which the next read reports with its reason.
                    drop(self.body.flow_control().release_capacity(frame.len()));
                    self.frame = frame;
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(errors::cancelled()))),
                Poll::Ready(None) if self.partial.is_some() => {
                    self.partial = None;
                    return Poll::Ready(Some(Err(errors::cut_short())));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    let Some(partial) = &mut self.partial else { return Poll::Pending };
                    ready!(partial.deadline.as_mut().poll(context));
                    return Poll::Ready(Some(Err(errors::incomplete_too_long())));
                }
            }
        }
    }

    /// A complete message, if there is one. Otherwise the frame has been moved to `partial`.
    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if self.partial.is_none() {
            if self.frame.is_empty() {
                return Ok(None);
            }
            if let Some(wanted) = self.wanted(&self.frame)?
                && wanted <= self.frame.len()
            {
                return Ok(Some(self.frame.split_to(wanted)));
            }
        }
        let (account, frame) = (&self.account, &mut self.frame);
        let partial = self.partial.get_or_insert_with(|| Partial {
            bytes: BytesMut::new(),
            counted: Body::new(account),
            deadline: Box::pin(sleep(BODY_WITHIN)),
        });
        // First the prefix, which says how much belongs to this message.
        partial.take(frame, PREFIX_BYTES)?;
        let Some(wanted) = wanted(&partial.bytes, self.bytes_max)? else { return Ok(None) };
        partial.take(frame, wanted)?;
        if partial.bytes.len() < wanted {
            return Ok(None);
        }
        let message = self.partial.take().map(|partial| partial.bytes.freeze());
        Ok(message)
    }

    fn wanted(&self, prefixed: &[u8]) -> Result<Option<usize>, Status> {
        wanted(prefixed, self.bytes_max)
    }
}

impl Partial {
    /// Moves bytes from `frame` until there are `wanted`.
    fn take(&mut self, frame: &mut Bytes, wanted: usize) -> Result<(), Status> {
        let taken = frame.split_to(wanted.saturating_sub(self.bytes.len()).min(frame.len()));
        self.counted.add(taken.len())?;
        self.bytes.extend_from_slice(&taken);
        Ok(())
    }
}

/// The length of the message that begins `prefixed`, prefix included; None if the prefix is incomplete.
fn wanted(prefixed: &[u8], bytes_max: usize) -> Result<Option<usize>, Status> {
    let Some(&[is_compressed, b1, b2, b3, b4]) = prefixed.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    if is_compressed != 0 {
        return Err(errors::compressed_unannounced());
    }
    let length = u32::from_be_bytes([b1, b2, b3, b4]) as usize;
    if length > bytes_max {
        return Err(errors::too_large(length, bytes_max));
    }
    Ok(Some(PREFIX_BYTES + length))
}
