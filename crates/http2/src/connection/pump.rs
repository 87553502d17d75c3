//! Moves pending body bytes to the output buffer, one frame per stream round-robin, and notifies waiting
//! owners.
//!
//! Large bodies fill half of the output buffer. The other half is for small ones, so a small body is queued
//! after at most that many bytes, for any number of large bodies in progress. Small bodies overtake large
//! ones by the same amount at most; then a frame of a large body is next.
//!
//! The work per frame of the peer is bounded by the bytes that the frame allows to send, not by the number
//! of waiting streams.

use std::collections::VecDeque;
use std::mem;

use bytes::Buf;

use super::event::{Event, StreamId};
use super::state::Connection;
use crate::frame;
use crate::stream::{LocalState, PendingEnd, StreamState};

/// Body bytes of one frame: the size that a peer accepts by default, and a fair share of the socket.
const FRAME_BYTES: usize = 16 << 10;

/// Remaining bytes below which a message overtakes larger ones.
const SMALL_BYTES_MAX: usize = FRAME_BYTES;

impl Connection {
    /// Queues a stream that has bytes to write and a window for them, or with an owner that waits for the
    /// connection's window only.
    pub(super) fn make_ready(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(id) {
            queue(stream, &mut self.ready, &mut self.small_wanted, &mut self.window_wanted);
        }
    }

    /// Returns the fill level of the output buffer up to which large bodies are moved there.
    fn large_bytes_max(&self) -> usize {
        self.limits.output_bytes_max / 2
    }

    /// Returns the capacity of the output buffer for a message with `left` bytes remaining. Small messages
    /// get the whole buffer until they have overtaken larger ones by too much; all other messages get half.
    /// A notified owner may use one frame of the other half.
    pub(super) fn output_room(&mut self, id: u32, left: usize) -> usize {
        let waits = !self.ready.is_empty() || !self.window_wanted.is_empty();
        let is_small = left <= SMALL_BYTES_MAX && !(waits && self.overtaken >= self.large_bytes_max());
        let large = self.large_bytes_max().saturating_sub(self.output.len());
        let small = self.limits.output_bytes_max.saturating_sub(self.output.len());
        let Some(stream) = self.streams.get(id) else { return 0 };
        stream.pending.is_small = is_small;
        let has_turn = stream.pending.notified || stream.pending.reserved;
        match (is_small, has_turn) {
            (true, _) => small,
            (false, true) => large.max(small.min(FRAME_BYTES)),
            (false, false) => large,
        }
    }

    /// Writes until the output buffer is full, the connection's window is used up, or no stream is ready.
    /// The rest of the window is offered to a waiting owner.
    pub(super) fn pump(&mut self) {
        // The second quarter is reserved for waiting owners.
        let share = if self.window_wanted.is_empty() { 1 } else { 2 };
        while self.output.len() <= self.large_bytes_max() / share {
            let Some(id) = self.ready.pop_front() else { break };
            let unsent = self.unsent;
            if !self.pump_one(id) {
                break;
            }
            if self.unsent < unsent {
                self.notify_room();
            }
        }
        self.notify_window();
    }

    /// Writes one frame of a stream. Returns false if the connection's window is used up.
    pub(super) fn pump_one(&mut self, id: u32) -> bool {
        let window = self.send.room();
        let Some(stream) = self.streams.get(id) else { return true };
        stream.pending.queued = false;
        if !stream.can_write() {
            return true;
        }
        if window == 0 && stream.pending.bytes > 0 {
            stream.pending.queued = true;
            self.ready.push_front(id);
            return false;
        }
        let length = stream.pending.bytes.min(window).min(stream.send.room()).min(FRAME_BYTES);
        stream.pending.bytes -= length;
        stream.pending.since = self.now;
        stream.send.sent(length);
        self.send.sent(length);
        self.unsent -= length;
        self.overtaken = if stream.pending.is_small { self.overtaken + length } else { 0 };
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
        if stream.pending.room_wanted && stream.pending.bytes <= self.limits.stream_unsent_bytes_max / 2 {
            queue_for_room(stream, &mut self.room_wanted);
        }
        if !last {
            self.make_ready(id);
            return true;
        }
        match mem::replace(&mut stream.pending.end, PendingEnd::Open) {
            PendingEnd::Open => self.make_ready(id),
            PendingEnd::EndStream => self.finish(id),
            PendingEnd::Trailers(block) => {
                self.write_headers(id, &block, true);
                self.finish(id);
            }
        }
        true
    }

    /// Registers the owner of a stream for [`Event::Writable`] when the windows have capacity. A notified
    /// owner that finds the capacity used up goes to the front of the queue.
    pub(super) fn want_window(&mut self, id: u32) {
        let was_notified = self.end_turn(id);
        let Some(stream) = self.streams.get(id) else { return };
        if was_notified && stream.wants_window() && !stream.pending.window_queued {
            stream.pending.window_queued = true;
            let is_small = stream.pending.is_small;
            if is_small { &mut self.small_wanted } else { &mut self.window_wanted }.push_front(id);
        } else {
            self.make_ready(id);
        }
        if was_notified {
            self.notify_next();
        }
    }

    /// Registers the owner of a stream for [`Event::Writable`] when the limits on unsent bytes allow more.
    /// That requires half of the stream's limit to be free, to amortize the notification, and capacity on
    /// the connection.
    pub(super) fn want_room(&mut self, id: u32) {
        let was_notified = self.end_turn(id);
        let Some(stream) = self.streams.get(id) else { return };
        stream.pending.room_wanted = true;
        let is_worth_it = stream.pending.bytes <= self.limits.stream_unsent_bytes_max / 2;
        if is_worth_it && was_notified && !stream.pending.room_queued {
            stream.pending.room_queued = true;
            self.room_wanted.push_front(id);
        } else if is_worth_it {
            queue_for_room(stream, &mut self.room_wanted);
        }
        if was_notified {
            self.notify_next();
        }
    }

    /// Records that a notified owner has returned, and notifies the next if capacity remains.
    pub(super) fn pass_turn(&mut self, id: u32) {
        if self.end_turn(id) {
            self.notify_next();
        }
    }

    /// Reserves one byte of the window for a notified owner that has returned and prepares its message, so
    /// that one byte activates one owner. Notifies the next owner if the window has more.
    pub(super) fn reserve_byte(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(id)
            && mem::take(&mut stream.pending.notified)
        {
            self.reserved += usize::from(!mem::replace(&mut stream.pending.reserved, true));
            self.notify_next();
        }
    }

    /// Clears the notification of a stream. Returns false if it had none.
    fn end_turn(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get(id) else { return false };
        let was_reserved = mem::take(&mut stream.pending.reserved);
        self.reserved -= usize::from(was_reserved);
        mem::take(&mut stream.pending.notified) || was_reserved
    }

    /// Notifies the next owner of both queues: an owner notified from one of them may have returned for the
    /// other.
    fn notify_next(&mut self) {
        self.notify_window();
        self.notify_room();
    }

    /// Notifies one owner that waits for the connection's window, if any.
    ///
    /// Only one, since a window of one byte serves one. The next is notified when it has returned and left
    /// capacity, so a WINDOW_UPDATE costs the same with one stream and with thousands.
    pub(super) fn notify_window(&mut self) {
        while self.send.room() > self.reserved {
            let (large_bytes_max, waits) = (self.large_bytes_max(), !self.window_wanted.is_empty());
            let may_overtake = !(waits && self.overtaken >= large_bytes_max);
            let (queue, bytes_max) = match may_overtake && !self.small_wanted.is_empty() {
                true => (&mut self.small_wanted, self.limits.output_bytes_max),
                false => (&mut self.window_wanted, large_bytes_max),
            };
            if self.output.len() >= bytes_max {
                return;
            }
            let Some(id) = queue.pop_front() else { return };
            let Some(stream) = self.streams.get(id) else { continue };
            stream.pending.window_queued = false;
            if stream.wants_window() {
                stream.pending.window_wanted = false;
                stream.pending.notified = true;
                self.events.push_back(Event::Writable { stream: StreamId(id) });
                return;
            }
        }
    }

    /// Notifies one owner that waits for fewer pending bytes on the connection, if the limit allows it.
    pub(super) fn notify_room(&mut self) {
        if self.unsent >= self.limits.connection_unsent_bytes_max {
            return;
        }
        while let Some(id) = self.room_wanted.pop_front() {
            let Some(stream) = self.streams.get(id) else { continue };
            stream.pending.room_queued = false;
            // An owner that has completed its response does not return.
            if stream.pending.room_wanted && stream.local == LocalState::Answering {
                stream.pending.room_wanted = false;
                stream.pending.notified = true;
                self.events.push_back(Event::Writable { stream: StreamId(id) });
                return;
            }
        }
    }
}

/// Puts a stream into the queue for its state, unless it is queued already.
pub(super) fn queue(
    stream: &mut StreamState,
    ready: &mut VecDeque<u32>,
    small_wanted: &mut VecDeque<u32>,
    window_wanted: &mut VecDeque<u32>,
) {
    if stream.can_write() && !mem::replace(&mut stream.pending.queued, true) {
        ready.push_back(stream.id);
    }
    if stream.wants_window() && !mem::replace(&mut stream.pending.window_queued, true) {
        if stream.pending.is_small { small_wanted } else { window_wanted }.push_back(stream.id);
    }
}

fn queue_for_room(stream: &mut StreamState, room_wanted: &mut VecDeque<u32>) {
    if !mem::replace(&mut stream.pending.room_queued, true) {
        room_wanted.push_back(stream.id);
    }
}
