//! Responses of the owner.
//!
//! Header blocks go to the output buffer immediately. Body bytes are pending until the peer's windows and
//! the buffer admit them. A stream is closed when its last byte is in the output buffer.

use bytes::Bytes;

use super::event::{Event, ResetOrigin, StreamId};
use super::state::Connection;
use crate::error::ErrorCode;
use crate::frame;
use crate::hpack::HeaderBlock;
use crate::stream::{CloseReason, LocalState, PendingEnd};

/// Whether something follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfBody {
    More,
    Stream,
}

/// How much of a body was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    Whole,
    /// The limits on unsent bytes are reached. [`crate::Event::Writable`] follows when capacity is
    /// available again.
    Part,
}

/// The stream was reset or closed, or the call does not fit its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct StreamEnded;

/// Body bytes of a response that may be written immediately, ahead of waiting streams. Larger ones are sent
/// by the calls that let the owner pace them.
const AT_ONCE_BYTES_MAX: usize = 16 << 10;

impl Connection {
    /// Sends a whole response: head, body, trailers. A body that fits into the windows is copied only once.
    ///
    /// [`SendResult::Part`] means that the body exceeds the limits on unsent bytes: only the head was sent,
    /// and the owner should immediately continue with the calls below.
    pub fn answer(
        &mut self,
        id: StreamId,
        head: &HeaderBlock,
        body: &[u8],
        trailers: &HeaderBlock,
    ) -> Result<SendResult, StreamEnded> {
        if self.answer_at_once(id, head, body, trailers)? {
            return Ok(SendResult::Whole);
        }
        self.answer_in_parts(id, head, body, trailers)
    }

    /// Sends a whole response if its body has at most 16 KiB and fits into one frame, the windows and the
    /// rest of the output buffer. Otherwise sends no bytes and returns false.
    pub fn answer_at_once(
        &mut self,
        id: StreamId,
        head: &HeaderBlock,
        body: &[u8],
        trailers: &HeaderBlock,
    ) -> Result<bool, StreamEnded> {
        let output_room = self.output_room(id.0, body.len());
        let frame_bytes_max = AT_ONCE_BYTES_MAX.min(self.peer.frame_bytes_max as usize);
        let room = self.send.room().min(frame_bytes_max);
        let stream =
            self.streams.get(id.0).filter(|stream| stream.local == LocalState::Waiting).ok_or(StreamEnded)?;
        let room = room.min(stream.send.room());
        if output_room == 0 || body.len() > room.min(output_room) {
            return Ok(false);
        }
        self.overtaken += body.len();
        stream.local = LocalState::Ended;
        stream.send.sent(body.len());
        self.send.sent(body.len());
        self.write_headers(id.0, head, false);
        frame::data_header(&mut self.output.bytes, id.0, body.len(), false);
        self.output.bytes.extend_from_slice(body);
        self.write_headers(id.0, trailers, true);
        self.finish(id.0);
        Ok(true)
    }

    fn answer_in_parts(
        &mut self,
        id: StreamId,
        head: &HeaderBlock,
        body: &[u8],
        trailers: &HeaderBlock,
    ) -> Result<SendResult, StreamEnded> {
        self.send_head(id, head, EndOfBody::More)?;
        if body.len() > self.room(id.0) {
            return Ok(SendResult::Part);
        }
        self.send_data(id, &mut Bytes::copy_from_slice(body), EndOfBody::More)?;
        self.send_trailers(id, trailers)?;
        Ok(SendResult::Whole)
    }

    /// Sends the head of a response. Allowed once per stream.
    pub fn send_head(&mut self, id: StreamId, head: &HeaderBlock, end: EndOfBody) -> Result<(), StreamEnded> {
        let stream =
            self.streams.get(id.0).filter(|stream| stream.local == LocalState::Waiting).ok_or(StreamEnded)?;
        stream.local = if end == EndOfBody::Stream { LocalState::Ended } else { LocalState::Answering };
        self.write_headers(id.0, head, end == EndOfBody::Stream);
        if end == EndOfBody::Stream {
            self.finish(id.0);
        }
        Ok(())
    }

    /// Sends body bytes after the head. Takes as much off `data` as the limits on unsent bytes allow.
    pub fn send_data(
        &mut self,
        id: StreamId,
        data: &mut Bytes,
        end: EndOfBody,
    ) -> Result<SendResult, StreamEnded> {
        self.answering(id.0)?;
        loop {
            let room = self.room(id.0);
            if room == 0 && !data.is_empty() {
                self.want_room(id.0);
                return Ok(SendResult::Part);
            }
            let taken = data.split_to(data.len().min(room));
            let whole = data.is_empty();
            self.push(id, taken, whole && end == EndOfBody::Stream);
            if whole {
                self.pass_turn(id.0);
                return Ok(SendResult::Whole);
            }
        }
    }

    /// Returns the number of body bytes that would go to the output buffer immediately. If it is 0, because
    /// bytes are pending or a window or the buffer is full, [`crate::Event::Writable`] follows. For owners
    /// that produce a response at the peer's pace and leave no bytes pending.
    pub fn window(&mut self, id: StreamId) -> Result<usize, StreamEnded> {
        self.window_for(id, usize::MAX)
    }

    /// Like [`Connection::window`], for a message with `left` bytes remaining: a short rest goes before
    /// larger messages.
    pub fn window_for(&mut self, id: StreamId, left: usize) -> Result<usize, StreamEnded> {
        let connection = self.send.room().min(self.output_room(id.0, left));
        let stream = self.answering(id.0)?;
        let room = if stream.pending.is_empty() { connection.min(stream.send.room()) } else { 0 };
        stream.pending.window_wanted = room == 0;
        if room == 0 {
            self.want_window(id.0);
        } else {
            self.reserve_byte(id.0);
        }
        Ok(room)
    }

    /// Reports whether the stream is open, or its response not yet completely in the output buffer.
    pub fn is_live(&mut self, id: StreamId) -> bool {
        self.streams.get(id.0).is_some()
    }

    /// Adds pending bytes, and writes the part that can be written.
    fn push(&mut self, id: StreamId, bytes: Bytes, end: bool) {
        let now = self.now;
        let Some(stream) = self.streams.get(id.0) else { return };
        if stream.pending.is_empty() {
            stream.pending.since = now;
        }
        if end {
            stream.local = LocalState::Ended;
            if bytes.is_empty() && stream.pending.bytes == 0 {
                frame::data_header(&mut self.output.bytes, id.0, 0, true);
                return self.finish(id.0);
            }
            stream.pending.end = PendingEnd::EndStream;
        }
        stream.pending.bytes += bytes.len();
        self.unsent += bytes.len();
        if !bytes.is_empty() {
            stream.pending.chunks.push_back(bytes);
        }
        if stream.pending.is_small {
            self.pump_one(id.0);
        } else {
            self.make_ready(id.0);
        }
        self.pump();
    }

    /// Completes the response with trailers.
    pub fn send_trailers(&mut self, id: StreamId, trailers: &HeaderBlock) -> Result<(), StreamEnded> {
        let stream = self.answering(id.0)?;
        stream.local = LocalState::Ended;
        if stream.pending.bytes == 0 {
            // Trailers need no window, so they overtake streams that wait for it.
            self.write_headers(id.0, trailers, true);
            self.finish(id.0);
            return Ok(());
        }
        stream.pending.end = PendingEnd::Trailers(trailers.clone());
        self.make_ready(id.0);
        self.pump();
        // The owner does not return, and the pending bytes may wait for their windows.
        self.pass_turn(id.0);
        Ok(())
    }

    /// Closes a stream with RST_STREAM. Pending bytes are dropped.
    pub fn reset(&mut self, id: StreamId, code: ErrorCode) {
        if self.remove(id.0, CloseReason::Reset) {
            frame::rst_stream(&mut self.output.bytes, id.0, code);
        }
    }

    /// Like [`Connection::reset`], for a violation by the client: counts against the limit on resets.
    pub fn refuse(&mut self, id: StreamId, code: ErrorCode) {
        self.resets.count(self.now);
        self.reset(id, code);
    }

    /// Like [`Connection::reset`], with an event: for a reset that the stream's owner did not decide, such
    /// as a deadline.
    pub fn cancel(&mut self, id: StreamId, code: ErrorCode) {
        if self.streams.get(id.0).is_some() {
            self.reset(id, code);
            self.events.push_back(Event::Reset { stream: id, code, origin: ResetOrigin::Deadline });
        }
    }

    /// Returns the bytes to write to the socket.
    pub fn output(&self) -> &[u8] {
        self.output.unwritten()
    }

    /// Records that the socket has accepted `bytes` of [`Connection::output`]. Pending bodies move up,
    /// which may cause events.
    pub fn written(&mut self, bytes: usize) {
        self.output.written(bytes);
        self.budget.note_written(bytes);
        self.output_since = self.now;
        self.pump();
    }

    fn answering(&mut self, id: u32) -> Result<&mut crate::stream::StreamState, StreamEnded> {
        self.streams.get(id).filter(|stream| stream.local == LocalState::Answering).ok_or(StreamEnded)
    }

    fn room(&mut self, id: u32) -> usize {
        let connection = self.limits.connection_unsent_bytes_max.saturating_sub(self.unsent);
        let stream_max = self.limits.stream_unsent_bytes_max;
        let pending = self.streams.get(id).map_or(0, |stream| stream.pending.bytes);
        stream_max.saturating_sub(pending).min(connection)
    }

    pub(super) fn write_headers(&mut self, id: u32, block: &HeaderBlock, end: bool) {
        // 001 00000: the table's size is 0 from here on.
        let update: &[u8] = if std::mem::take(&mut self.size_update_due) { &[0x20] } else { &[] };
        let frame_bytes_max = self.peer.frame_bytes_max as usize;
        frame::headers(&mut self.output.bytes, id, update, block.bytes(), end, frame_bytes_max);
    }

    /// Handles END_STREAM entering the output buffer. An incomplete request is then cancelled (section
    /// 8.1), unless the owner keeps it open.
    pub(super) fn finish(&mut self, id: u32) {
        self.pass_turn(id);
        let Some(stream) = self.streams.get(id) else { return };
        stream.answered = true;
        if stream.remote_ended {
            self.remove(id, CloseReason::Ended);
        } else if !stream.kept_open {
            frame::rst_stream(&mut self.output.bytes, id, ErrorCode::NO_ERROR);
            self.remove(id, CloseReason::Reset);
        }
    }

    /// Sets whether a stream with a complete response waits for the rest of its request. Otherwise the
    /// stream is reset with NO_ERROR, which some clients treat as a failure. The owner bounds the wait and
    /// cancels it with a second call.
    pub fn keep_open(&mut self, id: StreamId, keep: bool) {
        let Some(stream) = self.streams.get(id.0) else { return };
        stream.kept_open = keep;
        if stream.answered {
            self.finish(id.0);
        }
    }
}
