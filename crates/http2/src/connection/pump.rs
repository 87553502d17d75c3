//! Moves pending body bytes to the output buffer, a frame of each stream in turn.

use bytes::Buf;

use super::event::{Event, StreamId};
use super::state::Connection;
use crate::frame;
use crate::stream::PendingEnd;

/// Body bytes of one frame: what a peer accepts without announcing more, and a fair share of the socket.
const FRAME_BYTES: usize = 16 << 10;

impl Connection {
    /// Queues a stream that has something to write and a window for it.
    pub(super) fn make_ready(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(id)
            && !stream.pending.queued
            && stream.can_write()
        {
            stream.pending.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Writes until the output buffer is full, the connection's window is used up, or nothing is ready.
    pub(super) fn pump(&mut self) {
        let mut moved = false;
        while self.output.len() <= self.limits.output_bytes_max {
            let Some(id) = self.ready.pop_front() else { break };
            if !self.pump_one(id) {
                break;
            }
            moved = true;
        }
        if moved {
            self.wake_room_wanted();
        }
    }

    /// Writes one frame of a stream. False if the connection's window is used up.
    fn pump_one(&mut self, id: u32) -> bool {
        let window = self.send.room();
        let Some(stream) = self.streams.get(id) else { return true };
        stream.pending.queued = false;
        if !stream.can_write() {
            return true;
        }
        let asks = stream.pending.is_empty();
        if window == 0 && (asks || stream.pending.bytes > 0) {
            stream.pending.queued = true;
            self.ready.push_front(id);
            return false;
        }
        if asks {
            stream.pending.window_wanted = false;
            self.events.push_back(Event::Writable { stream: StreamId(id) });
            return true;
        }
        let length = stream.pending.bytes.min(window).min(stream.send.room()).min(FRAME_BYTES);
        stream.pending.bytes -= length;
        stream.pending.since = self.now;
        stream.send.sent(length);
        self.send.sent(length);
        self.unsent -= length;
        let last = stream.pending.bytes == 0;
        let end = last && matches!(stream.pending.end, PendingEnd::EndStream);
        if length > 0 || end {
            frame::data_header(&mut self.output.bytes, id, length, end);
        }
        let mut left = length;
        while left > 0 {
            let chunk = stream.pending.chunks.front_mut().expect("the chunks add up to the pending bytes");
            let part = left.min(chunk.len());
            self.output.bytes.extend_from_slice(&chunk[..part]);
            chunk.advance(part);
            left -= part;
            if chunk.is_empty() {
                stream.pending.chunks.pop_front();
            }
        }
        if !last {
            self.make_ready(id);
            return true;
        }
        match std::mem::replace(&mut stream.pending.end, PendingEnd::Open) {
            PendingEnd::Open => self.make_ready(id),
            PendingEnd::EndStream => self.finish(id),
            PendingEnd::Trailers(block) => {
                self.write_headers(id, &block, true);
                self.finish(id);
            }
        }
        true
    }

    /// Notifies the owner of streams that have room again: half of what a stream may hold, so that it is
    /// worth it.
    pub(super) fn wake_room_wanted(&mut self) {
        let stream_max = self.limits.stream_unsent_bytes_max / 2;
        let connection_max = self.limits.connection_unsent_bytes_max;
        if self.unsent >= connection_max {
            return;
        }
        for _ in 0..self.room_wanted.len() {
            let Some(id) = self.room_wanted.pop_front() else { break };
            let Some(stream) = self.streams.get(id) else { continue };
            if stream.pending.bytes <= stream_max {
                stream.pending.room_wanted = false;
                self.events.push_back(Event::Writable { stream: StreamId(id) });
            } else {
                self.room_wanted.push_back(id);
            }
        }
    }
}
