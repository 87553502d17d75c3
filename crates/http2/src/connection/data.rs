//! DATA and WINDOW_UPDATE (sections 6.1 and 6.9).

use std::ops::Range;

use bytes::Bytes;

use super::event::{Event, StreamId};
use super::flood::CHEAP_TOKENS;
use super::state::{Connection, ConnectionPhase};
use crate::error::{ErrorCode, Violation, frame_size, protocol};
use crate::flow::Overflow;
use crate::frame::{self, FrameHeader, Padding, flags, strip_padding, word};
use crate::stream::CloseReason;

impl Connection {
    pub(super) fn on_data(
        &mut self,
        header: FrameHeader,
        frames: &Bytes,
        range: Range<usize>,
    ) -> Result<(), Violation> {
        let id = header.stream;
        if self.is_idle(id) {
            return Err(protocol("DATA on a stream that is idle"));
        }
        let whole = range.len();
        let mut data = range;
        if header.has(flags::PADDED) {
            let stripped = strip_padding(&frames[data.clone()])
                .map_err(|Padding| protocol("the padding of DATA is as long as its payload"))?;
            data = data.start + 1..data.start + 1 + stripped.len();
        }
        // Padding counts (section 6.1). A frame length has at most 24 bits.
        if !self.receive.receive(whole as u32) {
            return Err(Violation::Connection(
                ErrorCode::FLOW_CONTROL_ERROR,
                "DATA exceeds the connection's window",
            ));
        }
        let end = header.has(flags::END_STREAM);
        if let Err(error) = self.accept_data(id, whole, data.len(), end) {
            self.release_connection(whole);
            return error.map_or(Ok(()), |code| Err(Violation::Stream(id, code)));
        }
        self.release(StreamId(id), whole - data.len());
        if end || !data.is_empty() {
            self.hand_over(StreamId(id), frames.slice(data), end);
        }
        if end {
            self.finish_answered(id);
        }
        Ok(())
    }

    /// Accounts for DATA on its stream. On error the bytes are not delivered: `Some` is the code to reset
    /// the stream with, `None` means that the frame is ignored.
    fn accept_data(
        &mut self,
        id: u32,
        whole: usize,
        data: usize,
        end: bool,
    ) -> Result<(), Option<ErrorCode>> {
        let Some(stream) = self.streams.get(id) else {
            self.budget.charge(CHEAP_TOKENS);
            return Err(match self.streams.closed(id) {
                CloseReason::Reset => None,
                CloseReason::Ended | CloseReason::Unknown => Some(ErrorCode::STREAM_CLOSED),
            });
        };
        if stream.remote_ended {
            return Err(Some(ErrorCode::STREAM_CLOSED));
        }
        if !stream.receive.receive(whole as u32) {
            return Err(Some(ErrorCode::FLOW_CONTROL_ERROR));
        }
        if let Some(left) = stream.content_left {
            let left = left.checked_sub(data as u64).ok_or(Some(ErrorCode::PROTOCOL_ERROR))?;
            if end && left > 0 {
                return Err(Some(ErrorCode::PROTOCOL_ERROR));
            }
            stream.content_left = Some(left);
        }
        stream.remote_ended = end;
        Ok(())
    }

    /// Closes the stream of a complete request if its response has been written already.
    pub(super) fn finish_answered(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(|stream| stream.answered) {
            self.finish(id);
        }
    }

    /// Delivers body bytes. They join the request's event if that is the last one, so a small call is one
    /// event.
    fn hand_over(&mut self, id: StreamId, data: Bytes, ends: bool) {
        if let Some(Event::Request { stream, body, end, .. }) = self.events.back_mut()
            && *stream == id
            && body.is_empty()
            && !*end
        {
            *body = data;
            *end = ends;
            return;
        }
        self.events.push_back(Event::Data { stream: id, bytes: data, end: ends });
    }

    /// Gives back the windows of body bytes that the owner no longer holds. Due for every byte handed over,
    /// for any outcome of the stream.
    pub fn release(&mut self, id: StreamId, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.release_connection(bytes);
        if let Some(stream) = self.streams.get(id.0)
            && !stream.remote_ended
            && let Some(increment) = stream.receive.release(bytes)
        {
            frame::window_update(&mut self.output.bytes, id.0, increment);
        }
    }

    fn release_connection(&mut self, bytes: usize) {
        if let Some(increment) = self.receive.release(bytes)
            && !matches!(self.phase, ConnectionPhase::Failed(..))
        {
            frame::window_update(&mut self.output.bytes, 0, increment);
        }
    }

    pub(super) fn on_window_update(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        let id = header.stream;
        let Some(increment) = word(payload).filter(|_| payload.len() == 4) else {
            return Err(frame_size("WINDOW_UPDATE has no four bytes"));
        };
        let increment = i64::from(increment & 0x7fff_ffff);
        if id == 0 {
            if increment == 0 {
                return Err(protocol("WINDOW_UPDATE of 0"));
            }
            self.send.change(increment).map_err(|Overflow| {
                Violation::Connection(ErrorCode::FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
            })?;
            self.pump();
            return Ok(());
        }
        if self.is_idle(id) {
            return Err(protocol("WINDOW_UPDATE on a stream that is idle"));
        }
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        if increment == 0 {
            return Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        stream
            .send
            .change(increment)
            .map_err(|Overflow| Violation::Stream(id, ErrorCode::FLOW_CONTROL_ERROR))?;
        self.make_ready(id);
        self.pump();
        Ok(())
    }
}
