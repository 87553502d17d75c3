//! The half of a stream that answers.

use std::sync::Arc;
use std::task::{Context, Poll};

use ::http2::{EndOfBody, ErrorCode, HeaderBlock, SendResult, StreamEnded, StreamId};
use bytes::Bytes;
use parking_lot::MutexGuard;

use super::state::{Wire, WireState};

/// Answers one stream. Dropped before its answer has ended, it resets the stream.
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

    /// Sends a whole answer, if the client and the output buffer take it at once. Otherwise false, and
    /// nothing was sent.
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

    /// Sends the head of the answer, which is all of it if it ends there.
    pub(crate) fn send_head(&mut self, head: &HeaderBlock, end: EndOfBody) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended |= end == EndOfBody::Stream;
        self.change(|state| state.connection.send_head(stream, head, end))
    }

    /// Sends bytes, which wait if the client takes none.
    pub(crate) fn send_data(&mut self, mut data: Bytes, end: EndOfBody) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended |= end == EndOfBody::Stream;
        let sent = self.change(|state| state.connection.send_data(stream, &mut data, end))?;
        assert!(sent == SendResult::Whole, "what waits is bounded by the account of the connection");
        Ok(())
    }

    /// Ends the answer.
    pub(crate) fn send_trailers(&mut self, trailers: &HeaderBlock) -> Result<(), StreamEnded> {
        let stream = self.stream;
        self.has_ended = true;
        self.change(|state| state.connection.send_trailers(stream, trailers))
    }

    /// Ends the stream. What was not written is dropped.
    pub(crate) fn send_reset(&mut self, code: ErrorCode) {
        let stream = self.stream;
        self.has_ended = true;
        self.change(|state| state.connection.reset(stream, code));
    }

    /// How many of `wanted` bytes the client takes at once, at least one. Not before the head was sent. What
    /// wants little goes before what wants more: `wanted` is all that is left of a message.
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
        // Another stream may have its turn.
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

    /// Ready when the client has reset the stream or the connection is gone.
    pub(crate) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.wire.state.lock();
        if !state.is_live(self.stream) {
            return Poll::Ready(());
        }
        self.has_entry = true;
        state.wake_writer(self.stream, context);
        Poll::Pending
    }

    /// Ready when the request has ended, the client has reset the stream or the connection is gone. For a
    /// request whose reader is dropped.
    pub(crate) fn poll_request_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.wire.state.lock().poll_request_end(self.stream, context)
    }

    /// Whether the client has reset the stream. Costs a load while no stream of the connection was reset.
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
