//! The messages of a client, read one after another.
//!
//! ```text
//!   wire ──DATA frames, on arrival──▶ Incoming (bytes, counted) ──one message at a time──▶ Requests
//! ```
//!
//! Frames are taken when they arrive, independent of the method's reads, and their bytes are joined, so all
//! received bytes are counted.
//!
//! Invariants:
//! - Unread bytes count against the limits of `account`.
//! - The window is returned for the first message only. So the bytes buffered after it never exceed the
//!   stream's window.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use telemetry::metrics::MessageCounter;
use tokio::time::{Sleep, sleep, timeout};
use tonic::Status;

use super::super::account::{Account, Unread};
use super::super::grpc::{self, PREFIX_BYTES, Prefix};
use super::super::shared::BODY_TIMEOUT;
use super::local::RequestSource;

/// Reads the requests of a stream.
pub struct Requests {
    incoming: Arc<Mutex<RequestStream>>,
    /// Runs while a message is incomplete.
    deadline: Option<Pin<Box<Sleep>>>,
    counter: Option<MessageCounter>,
}

/// The receiving half of a stream. Shared by the method and the server of its call; never contended, since
/// both run in one task.
pub(super) struct RequestStream {
    source: RequestSource,
    bytes_max: usize,
    bytes: BytesMut,
    unread: Unread,
    /// Number of leading bytes with a returned window.
    released: usize,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has sent its last message.
    Requests,
    /// The client reset the stream, or the connection broke.
    Gone,
}

impl RequestStream {
    pub(super) fn new(
        source: RequestSource,
        account: &Arc<Account>,
        bytes_max: usize,
    ) -> Arc<Mutex<RequestStream>> {
        let unread = Unread::new(account);
        let incoming =
            RequestStream { source, bytes_max, bytes: BytesMut::new(), unread, released: 0, end: None };
        Arc::new(Mutex::new(incoming))
    }

    /// Takes the received frames, and registers the task for more. Returns an error when the connection or
    /// the process holds too much: the call then has to fail.
    pub(super) fn take_frames(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        while self.end.is_none() {
            match &mut self.source {
                RequestSource::Wire(body) => match body.poll_data(context) {
                    Poll::Ready(Some(Ok(frame))) => self.bytes.extend_from_slice(&frame),
                    Poll::Ready(Some(Err(_))) => self.end = Some(End::Gone),
                    Poll::Ready(None) => {
                        self.end = Some(End::Requests);
                        // Methods do not read trailers, and the call may last long.
                        drop(body.take_trailers());
                    }
                    Poll::Pending => break,
                },
                RequestSource::Local(_) if !self.bytes.is_empty() => break,
                RequestSource::Local(messages) => match messages.poll_recv(context) {
                    Poll::Ready(Some(message)) => self.bytes.extend_from_slice(&message),
                    Poll::Ready(None) => self.end = Some(End::Requests),
                    Poll::Pending => break,
                },
            }
        }
        self.account()
    }

    /// Counts the buffered bytes, and returns the window of the first message.
    fn account(&mut self) -> Result<(), Status> {
        // A rejected message gets no window.
        let wanted = self.wanted().map_or(0, |wanted| wanted.unwrap_or(PREFIX_BYTES));
        let bytes = self.bytes.len();
        let target = wanted.min(bytes);
        if let Some(more @ 1..) = target.checked_sub(self.released) {
            if let RequestSource::Wire(body) = &mut self.source {
                body.release(more);
            }
            self.released = target;
        }
        let is_complete = bytes >= wanted;
        self.unread.set(bytes, if is_complete { bytes } else { 0 })
    }

    /// Returns the first message with its prefix, if it is complete.
    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(wanted) = self.wanted()?.filter(|wanted| *wanted <= self.bytes.len()) else {
            return Ok(None);
        };
        let whole = wanted == self.bytes.len();
        // Moves the buffer if it holds only this message, to free its spare capacity.
        let message = if whole { std::mem::take(&mut self.bytes) } else { self.bytes.split_to(wanted) };
        self.released = self.released.saturating_sub(wanted);
        self.account()?;
        Ok(Some(message.freeze()))
    }

    /// Returns the length of the first message, prefix included; None if its prefix is incomplete.
    fn wanted(&self) -> Result<Option<usize>, Status> {
        let Some(prefix) = Prefix::of(&self.bytes) else { return Ok(None) };
        Ok(Some(PREFIX_BYTES + grpc::accepted_length(prefix, self.bytes_max)?))
    }
}

impl Requests {
    pub(super) fn new(incoming: &Arc<Mutex<RequestStream>>) -> Requests {
        Requests { incoming: Arc::clone(incoming), deadline: None, counter: None }
    }

    /// Sets a counter for messages read after this call.
    pub fn counted_by(&mut self, counter: MessageCounter) {
        self.counter = Some(counter);
    }

    /// Returns the next message with its prefix, or None after the last. Cancellation safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns the single message of a call, without its prefix. It has [`BODY_TIMEOUT`] to start, and
    /// the same time to arrive.
    pub async fn only(&mut self) -> Result<Bytes, Status> {
        match timeout(BODY_TIMEOUT, self.next()).await {
            Ok(Some(message)) => message.map(|message| message.slice(PREFIX_BYTES..)),
            Ok(None) => Err(grpc_errors::no_message()),
            Err(_) => Err(grpc_errors::incomplete_too_long()),
        }
    }

    /// Returns an error if another message follows the single one of a call. Never completes otherwise: an
    /// incomplete one is ignored, as by grpc-go.
    pub async fn excess(&mut self) -> Status {
        match self.next().await {
            Some(Ok(_)) => grpc_errors::more_than_one_message(),
            Some(Err(_)) | None => std::future::pending().await,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let mut incoming = self.incoming.lock();
        let mut taken = incoming.take_message();
        if let Ok(None) = taken {
            taken = incoming.take_frames(context).and_then(|()| incoming.take_message());
        }
        match taken {
            Ok(Some(message)) => {
                self.deadline = None;
                if let Some(counter) = &self.counter {
                    counter.received(message.len() - PREFIX_BYTES);
                }
                return Poll::Ready(Some(Ok(message)));
            }
            Ok(None) => {}
            Err(status) => return Poll::Ready(Some(Err(status))),
        }
        match incoming.end {
            Some(End::Gone) => Poll::Ready(Some(Err(grpc_errors::cancelled()))),
            Some(End::Requests) if incoming.bytes.is_empty() => Poll::Ready(None),
            Some(End::Requests) => Poll::Ready(Some(Err(grpc_errors::cut_short()))),
            None if incoming.bytes.is_empty() => Poll::Pending,
            None => {
                let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
                ready!(deadline.as_mut().poll(context));
                Poll::Ready(Some(Err(grpc_errors::incomplete_too_long())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Request};
    use tokio::io::duplex;

    use super::super::super::wire::testing::first_call;
    use super::*;

    #[tokio::test]
    async fn one_message_at_a_time_is_taken_from_a_channel() {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let account = Arc::new(Account::new(Arc::default()));
        let incoming = RequestStream::new(RequestSource::Local(receiver), &account, 100);
        let mut requests = Requests::new(&incoming);
        for is_taken in [true, false] {
            sender.try_send(Bytes::from_static(&[0, 0, 0, 0, 1, 7])).unwrap();
            std::future::poll_fn(|context| Poll::Ready(incoming.lock().take_frames(context))).await.unwrap();
            assert_eq!(sender.try_reserve().is_ok(), is_taken);
        }
        drop(sender);
        for _ in 0..2 {
            assert_eq!(requests.next().await.unwrap().unwrap().len(), 6);
        }
        assert!(requests.next().await.is_none());
    }

    #[tokio::test]
    async fn trailers_of_the_client_are_not_kept() {
        let (ours, theirs) = duplex(1 << 16);
        let client = tokio::spawn(async {
            let (client, connection) = h2::client::handshake(theirs).await.unwrap();
            tokio::spawn(connection);
            let request = Request::post("http://localhost/").body(()).unwrap();
            let (_answer, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("large", "x".repeat(10_000).parse().unwrap());
            body.send_trailers(trailers).unwrap();
            std::future::pending::<()>().await;
        });
        let (reader, _writer) = first_call(ours).await;
        let incoming =
            RequestStream::new(RequestSource::Wire(reader), &Arc::new(Account::new(Arc::default())), 100);
        assert!(Requests::new(&incoming).next().await.is_none());
        let RequestSource::Wire(body) = &mut incoming.lock().source else { unreachable!() };
        assert!(body.take_trailers().is_none());
        client.abort();
    }
}
