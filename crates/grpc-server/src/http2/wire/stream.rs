//! The two halves of a stream: one reads the request, one sends the response.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http2::{EndOfBody, ErrorCode, HeaderBlock, SendResult, StreamEnded, StreamId, Varying};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::MutexGuard;

use super::super::account::Body as Counted;
use super::heads::RequestHead;
use super::state::{BegunRequest, Next, Wire, WireState};

/// Sends the response of a stream. Resets the stream if dropped before the response is complete.
pub(crate) struct StreamWriter {
    wire: Arc<Wire>,
    stream: StreamId,
    has_entry: bool,
    has_ended: bool,
}

impl StreamWriter {
    pub(super) fn new(wire: &Arc<Wire>, stream: StreamId, has_entry: bool) -> StreamWriter {
        StreamWriter { wire: Arc::clone(wire), stream, has_entry, has_ended: false }
    }

    /// Sends a whole response, if the client and the output buffer accept it immediately. Otherwise sends
    /// no bytes and returns false.
    pub(crate) fn send_at_once(
        &mut self,
        head: &HeaderBlock,
        body: &[u8],
        trailers: &HeaderBlock,
    ) -> Result<bool, StreamEnded> {
        let stream = self.stream;
        let sent = self.change(|state| state.connection.answer_at_once(stream, head, body, trailers))?;
        self.has_ended = sent;
        Ok(sent)
    }

    /// Sends the head of the response, which may complete it.
    pub(crate) fn send_head(&mut self, head: &HeaderBlock, end: EndOfBody) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended |= end == EndOfBody::Stream;
        self.change(|state| state.connection.send_head(stream, head, end))
    }

    /// Sends bytes, which are pending while the client takes none.
    pub(crate) fn send_data(&mut self, mut data: Bytes, end: EndOfBody) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended |= end == EndOfBody::Stream;
        let sent = self.change(|state| state.connection.send_data(stream, &mut data, end))?;
        assert!(sent == SendResult::Whole, "what waits is bounded by the account of the connection");
        Ok(())
    }

    /// Completes the response with trailers.
    pub(crate) fn send_trailers(&mut self, trailers: &HeaderBlock) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended = true;
        self.change(|state| state.connection.send_trailers(stream, trailers))
    }

    /// Resets the stream. Pending bytes are dropped.
    pub(crate) fn send_reset(&mut self, code: ErrorCode) {
        let stream = self.stream;
        self.has_ended = true;
        self.change(|state| state.connection.reset(stream, code));
    }

    /// Ready with the number of `wanted` bytes that the client takes immediately, at least one. Must be
    /// called after the head was sent. `wanted` is the rest of a message; short rests are served first.
    pub(crate) fn poll_room(
        &mut self,
        wanted: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, StreamEnded>> {
        let mut state = self.wire.state.lock();
        if !state.is_live(self.stream) {
            return Poll::Ready(Err(StreamEnded));
        }
        let window = state.connection.window_for(self.stream, wanted);
        // Another stream may be next.
        self.wire.hand_out(&mut state);
        match window {
            Ok(0) => {
                self.has_entry = true;
                state.wake_writer(self.stream, context);
                Poll::Pending
            }
            Ok(room) => Poll::Ready(Ok(room.min(wanted))),
            Err(StreamEnded) => Poll::Ready(Err(StreamEnded)),
        }
    }

    /// Ready when the client has reset the stream or the connection is closed.
    pub(crate) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.wire.state.lock();
        if !state.is_live(self.stream) {
            return Poll::Ready(());
        }
        self.has_entry = true;
        state.wake_writer(self.stream, context);
        Poll::Pending
    }

    /// Ready when the request is complete, the client has reset the stream or the connection is closed. For
    /// a request with a dropped reader.
    pub(crate) fn poll_request_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.wire.state.lock().poll_request_end(self.stream, context)
    }

    /// Reports whether the client has reset the stream. Costs an atomic load while no stream of the
    /// connection was reset.
    pub(crate) fn was_reset(&self) -> bool {
        self.wire.has_resets() && !self.wire.state.lock().is_live(self.stream)
    }

    fn change<T>(&self, change: impl FnOnce(&mut WireState) -> T) -> T {
        let mut state: MutexGuard<'_, WireState> = self.wire.state.lock();
        let changed = change(&mut state);
        self.wire.changed(&mut state);
        changed
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if self.has_ended && !self.has_entry {
            return;
        }
        let stream = self.stream;
        let has_ended = self.has_ended;
        self.change(|state| {
            if !has_ended {
                state.connection.reset(stream, ErrorCode::CANCEL);
            }
            state.drop_writer(stream);
        });
    }
}

/// The body of a request. Read bytes count against the client's window until they are released, or this is
/// dropped.
pub(crate) struct BodyReader(Body);

enum Body {
    Whole(Option<Bytes>),
    Arriving(Arriving),
}

struct Arriving {
    wire: Arc<Wire>,
    stream: StreamId,
    /// Bytes read and not released.
    unreleased: usize,
    /// Boxed, since trailers in requests are rare.
    trailers: Option<Box<HeaderMap>>,
    discards_rest: bool,
}

impl BodyReader {
    pub(super) fn whole(body: Bytes) -> BodyReader {
        BodyReader(Body::Whole(Some(body).filter(|body| !body.is_empty())))
    }

    fn arriving(wire: &Arc<Wire>, stream: StreamId) -> BodyReader {
        let wire = Arc::clone(wire);
        BodyReader(Body::Arriving(Arriving {
            wire,
            stream,
            unreleased: 0,
            trailers: None,
            discards_rest: false,
        }))
    }

    /// Returns the next bytes, in order; None after the last.
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StreamEnded>>> {
        let arriving = match &mut self.0 {
            Body::Whole(body) => return Poll::Ready(body.take().map(Ok)),
            Body::Arriving(arriving) => arriving,
        };
        let next = arriving.wire.state.lock().poll_body(arriving.stream, context);
        next.map(|next| match next {
            Next::Data(bytes) => {
                arriving.unreleased += bytes.len();
                Some(Ok(bytes))
            }
            Next::End(trailers) => {
                arriving.trailers = trailers.or(arriving.trailers.take());
                None
            }
            Next::Gone => Some(Err(StreamEnded)),
        })
    }

    /// Like [`BodyReader::poll_data`].
    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, StreamEnded>> {
        std::future::poll_fn(|context| self.poll_data(context)).await
    }

    /// Takes the trailers of a complete request.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.0 {
            Body::Whole(_) => None,
            Body::Arriving(arriving) => arriving.trailers.take().map(|trailers| *trailers),
        }
    }

    /// Reports whether the whole body was read.
    pub(crate) fn is_end(&self) -> bool {
        match &self.0 {
            Body::Whole(body) => body.is_none(),
            Body::Arriving(Arriving { wire, stream, trailers, .. }) => {
                trailers.is_none() && wire.state.lock().is_body_read(*stream)
            }
        }
    }

    /// Makes a drop of this discard further bytes, and keep the stream open after its response until the
    /// request is complete or its [`Writer`](super::StreamWriter) is dropped. Without this call it is reset
    /// after its response.
    pub(crate) fn discard_when_dropped(&mut self) {
        if let Body::Arriving(arriving) = &mut self.0 {
            arriving.discards_rest = true;
        }
    }

    /// Returns the windows of bytes that were read.
    pub(crate) fn release(&mut self, bytes: usize) {
        let Body::Arriving(arriving) = &mut self.0 else { return };
        arriving.unreleased = arriving.unreleased.saturating_sub(bytes);
        let mut state = arriving.wire.state.lock();
        state.connection.release(arriving.stream, bytes);
        arriving.wire.changed(&mut state);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut state = self.wire.state.lock();
        if self.discards_rest {
            state.discard_body(self.stream, self.unreleased);
        } else {
            state.drop_reader(self.stream, self.unreleased);
        }
        self.wire.changed(&mut state);
    }
}

impl BegunRequest {
    /// Returns the head, without the field in [`BegunRequest::varying`].
    pub(crate) fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Returns the value of the varying field, if it is not in the head.
    pub(crate) fn varying(&self) -> Option<&[u8]> {
        self.varying.as_ref().map(Varying::as_bytes)
    }

    /// Returns the head as it was sent, with the varying field under its name.
    pub(crate) fn whole_head(&self, varying: &'static str) -> Cow<'_, RequestHead> {
        match self.varying().and_then(|value| HeaderValue::from_bytes(value).ok()) {
            Some(value) => Cow::Owned(self.head.with(HeaderName::from_static(varying), value)),
            None => Cow::Borrowed(&self.head),
        }
    }

    /// Takes the guard that counts the head, for a method that holds the head.
    pub(crate) fn take_counted_head(&mut self) -> Option<Box<Counted>> {
        self.counted_head.take()
    }

    /// Returns the body, if it is complete.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        self.whole.as_ref()
    }

    /// Returns both halves of the stream.
    pub(crate) fn open(mut self, wire: &Arc<Wire>) -> (BodyReader, StreamWriter) {
        self.keep();
        let has_entry = self.whole.is_none();
        let reader = match self.whole {
            Some(whole) => BodyReader::whole(whole),
            None => BodyReader::arriving(wire, self.stream),
        };
        (reader, StreamWriter::new(wire, self.stream, has_entry))
    }
}
