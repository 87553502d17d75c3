//! One call with a stream of requests or responses, in the task of its connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http2::{EndOfBody, ErrorCode};
use bytes::Bytes;
use parking_lot::Mutex;
use telemetry::metrics::MessageCounter;
use tokio::time::{Instant, timeout};
use tonic::Status;

use super::super::account::{Account, LOOK_AGAIN, OpenStream, PartRoom, Room, counted};
use super::super::grpc::{
    HEADERS, PREFIX_BYTES, Prefix, send_deadline, send_status, send_status_after_headers,
};
use super::super::shared::ConnectionShared;
use super::super::wire::{BodyReader, StreamWriter};
use super::local::{AnswerSink, RequestSource, StreamEnds};
use super::requests::{RequestStream, Requests};

/// Serves one call with `serve`. Its stream is counted until then.
pub(crate) async fn serve<F: Future<Output = Status>>(
    serve: impl FnOnce(Requests, Replies) -> F,
    (body, writer, _open): (BodyReader, StreamWriter, OpenStream),
    shared: &ConnectionShared,
) {
    let stream = StreamEnds { source: RequestSource::Wire(body), sink: AnswerSink::Wire(writer) };
    serve_stream(serve, stream, shared).await;
}

/// Serves one call, which may use another transport than HTTP/2.
pub async fn serve_stream<F: Future<Output = Status>>(
    serve: impl FnOnce(Requests, Replies) -> F,
    StreamEnds { source, sink }: StreamEnds,
    shared: &ConnectionShared,
) {
    let incoming = RequestStream::new(source, &shared.account, shared.limits.message_bytes_max);
    let requests = Requests::new(&incoming);
    let is_local = matches!(sink, AnswerSink::Local(_));
    let outgoing = Outgoing::new(sink);
    let replies = Replies::new(&outgoing, &shared.account);
    let ended = {
        let mut serving = pin!(serve(requests, replies));
        let mut stopped = pin!(shared.stopped());
        poll_fn(|context| {
            if is_local {
                shared.account.begin_turn(); // There is no connection task that resets it.
            }
            if outgoing.lock().poll_reset(context).is_ready() {
                return Poll::Ready(None);
            }
            if stopped.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(grpc_errors::stopped()));
            }
            // Also while the method does not read, since it may be waiting for its client to take
            // responses.
            if let Err(status) = incoming.lock().take_frames(context) {
                return Poll::Ready(Some(status));
            }
            serving.as_mut().poll(context).map(Some)
        })
        .await
    };
    if let Some(status) = ended {
        outgoing.lock().end(status);
    }
}

/// The client reset the stream, or the connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGone;

/// Sends the responses of a stream. The headers leave with the first.
pub struct Replies {
    outgoing: Arc<Mutex<Outgoing>>,
    account: Arc<Account>,
    counter: Option<MessageCounter>,
}

/// The sending half of a stream. Shared by the method and the code that completes its call; never
/// contended, since both run in one task.
pub(super) struct Outgoing {
    sink: AnswerSink,
    /// The headers were sent.
    is_open: bool,
    borders: Borders,
}

impl Outgoing {
    pub(super) fn new(sink: AnswerSink) -> Arc<Mutex<Outgoing>> {
        Arc::new(Mutex::new(Outgoing { sink, is_open: false, borders: Borders::default() }))
    }

    fn opened(&mut self) -> Result<&mut AnswerSink, StreamGone> {
        if !self.is_open {
            if let AnswerSink::Wire(writer) = &mut self.sink {
                writer.send_head(&HEADERS, EndOfBody::More).map_err(|_| StreamGone)?;
            }
            self.is_open = true;
        }
        Ok(&mut self.sink)
    }

    /// Ready with the number of `wanted` bytes that the client takes.
    fn poll_room(&mut self, wanted: usize, context: &mut Context<'_>) -> Poll<Result<usize, StreamGone>> {
        match self.opened()? {
            AnswerSink::Wire(writer) => writer.poll_room(wanted, context).map_err(|_| StreamGone),
            AnswerSink::Local(writer) => writer.poll_room(wanted, context).map(Ok),
        }
    }

    /// Ready when the client has reset the stream or the connection is broken.
    pub(super) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.sink {
            AnswerSink::Wire(writer) => writer.poll_reset(context),
            AnswerSink::Local(_) => Poll::Pending, // Its caller drops the call.
        }
    }

    /// Resets the stream of a client that is too slow.
    fn give_up(&mut self) {
        if let AnswerSink::Wire(writer) = &mut self.sink {
            writer.send_reset(ErrorCode::CANCEL);
        }
    }

    fn send(&mut self, part: Bytes) -> Result<(), StreamGone> {
        match self.opened()? {
            AnswerSink::Wire(writer) => writer.send_data(part, EndOfBody::More).map_err(|_| StreamGone),
            AnswerSink::Local(writer) => {
                writer.send(part);
                Ok(())
            }
        }
    }

    /// Completes the call. A status cannot follow an incomplete message, so the stream is reset then;
    /// clients interpret REFUSED_STREAM as UNAVAILABLE.
    pub(super) fn end(&mut self, status: Status) {
        let writer = match &mut self.sink {
            AnswerSink::Wire(writer) => writer,
            AnswerSink::Local(writer) => return writer.end(status),
        };
        // A send error means that the client disconnected, so it is not reported.
        if !self.is_open {
            let _client_is_gone = send_status(writer, status);
        } else if self.borders.is_inside() {
            writer.send_reset(ErrorCode::REFUSED_STREAM);
        } else {
            let _client_is_gone = send_status_after_headers(writer, status);
        }
    }
}

impl Replies {
    pub(super) fn new(outgoing: &Arc<Mutex<Outgoing>>, account: &Arc<Account>) -> Replies {
        Replies { outgoing: Arc::clone(outgoing), account: Arc::clone(account), counter: None }
    }

    /// Sets a counter for messages sent after this call.
    pub fn counted_by(&mut self, counter: MessageCounter) {
        self.counter = Some(counter);
    }

    /// Sends the headers, which otherwise leave with the first message.
    pub fn open(&mut self) -> Result<(), StreamGone> {
        self.outgoing.lock().opened().map(drop)
    }

    /// Returns the accounting of the connection's responses.
    pub fn for_parts(&self) -> PartRoom {
        Room(&self.account).for_parts()
    }

    /// Returns when the client has taken enough of the connection's responses. Must be awaited before a
    /// message that may be large is built.
    pub async fn ready(&self) {
        Room(&self.account).wait().await;
    }

    /// Waits until the client takes bytes, the process may hold more of them, and other connections had a
    /// chance to run. Returns the number of bytes it takes, at most `wanted`.
    pub async fn room(&mut self, wanted: usize) -> Result<usize, StreamGone> {
        Room(&self.account).wait_for_others().await;
        self.window(wanted).await
    }

    async fn window(&mut self, wanted: usize) -> Result<usize, StreamGone> {
        while self.account.is_turn_used() {
            tokio::task::yield_now().await;
        }
        poll_fn(|context| self.outgoing.lock().poll_room(wanted, context)).await
    }

    /// Sends bytes of messages, each with its prefix, at the client's pace. They may be split anywhere.
    ///
    /// Cancelling it loses bytes, so it must only be cancelled with the call.
    pub async fn send(&mut self, mut data: Bytes) -> Result<(), StreamGone> {
        while !data.is_empty() {
            let granted = self.room(data.len()).await?;
            let part = counted(&self.account, data.split_to(granted));
            self.send_part(part)?;
        }
        Ok(())
    }

    /// Sends a whole message, accounted for until it is sent. The stream of a client that is too slow is
    /// reset; the gateway has a separate limit.
    pub async fn send_in_time(&mut self, message: Bytes) -> Result<(), StreamGone> {
        let is_local = matches!(self.outgoing.lock().sink, AnswerSink::Local(_));
        let (began, bytes) = (Instant::now(), message.len());
        let mut message = counted(&self.account, message);
        while !message.is_empty() {
            if !is_local && Instant::now() > send_deadline(began, bytes, &self.account) {
                self.outgoing.lock().give_up();
                return Err(StreamGone);
            }
            if let Ok(granted) = timeout(LOOK_AGAIN, self.window(message.len())).await {
                self.send_part(message.split_to(granted?))?;
            }
        }
        Ok(())
    }

    fn send_part(&self, part: Bytes) -> Result<(), StreamGone> {
        self.account.note_sent_in_turn(part.len());
        let mut outgoing = self.outgoing.lock();
        let (messages, bytes) = outgoing.borders.pass(&part);
        outgoing.send(part)?;
        drop(outgoing);
        if let Some(counter) = &self.counter {
            counter.sent(messages, bytes);
        }
        Ok(())
    }
}

/// Finds the boundaries of messages in a stream of bytes.
#[derive(Default)]
struct Borders {
    prefix: [u8; PREFIX_BYTES],
    /// Number of known prefix bytes, if the prefix is incomplete.
    known: usize,
    /// Remaining bytes of the message.
    left: usize,
}

impl Borders {
    /// Reports whether the last message is incomplete.
    fn is_inside(&self) -> bool {
        self.known > 0 || self.left > 0
    }

    /// Returns the number of messages that start in `bytes`, and the number of bytes that belong to
    /// messages rather than prefixes.
    fn pass(&mut self, mut bytes: &[u8]) -> (usize, usize) {
        let (mut begun, mut payload) = (0, 0);
        while !bytes.is_empty() {
            let (taken, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= taken.len();
            payload += taken.len();
            let (prefix, rest) = rest.split_at((PREFIX_BYTES - self.known).min(rest.len()));
            if self.left > 0 || prefix.is_empty() {
                return (begun, payload);
            }
            self.prefix[self.known..][..prefix.len()].copy_from_slice(prefix);
            self.known += prefix.len();
            if let Some(prefix) = Prefix::of(&self.prefix[..self.known]) {
                (self.known, self.left) = (0, prefix.message_bytes);
                begun += 1;
            }
            bytes = rest;
        }
        (begun, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_they_are_cut() {
        let messages: Vec<u8> = [0u8, 1, 100, 0, 7]
            .iter()
            .flat_map(|length| [vec![0, 0, 0, 0, *length], vec![9; usize::from(*length)]].concat())
            .collect();
        for step in 1..=messages.len() {
            let mut borders = Borders::default();
            let passed = messages.chunks(step).map(|part| borders.pass(part));
            let (begun, payload) = passed.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
            assert_eq!((begun, payload, borders.is_inside()), (5, 108, false), "by {step}");
            for end in [3, 6, 12, 100] {
                let mut cut = Borders::default();
                for part in messages[..end].chunks(step) {
                    cut.pass(part);
                }
                assert!(cut.is_inside(), "{end} bytes by {step}");
            }
        }
    }
}
