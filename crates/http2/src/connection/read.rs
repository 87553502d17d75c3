//! Parses bytes into frames.
//!
//! A frame is handled once it is complete, so the boundaries of reads make no difference. All complete
//! frames of a read are taken from the receive buffer together; their payloads are slices of it.

use std::mem;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use super::event::ProcessResult;
use super::flood::FrameWork;
use super::state::{Connection, ConnectionPhase};
use crate::error::{Violation, frame_size, protocol};
use crate::frame::{FrameHeader, FrameKind, HEADER_BYTES, flags};
use crate::limits::Tick;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Events queued before `process` returns. A frame adds one at most, so this bounds their memory.
const EVENTS_MAX: usize = 1024;

impl Connection {
    /// Returns the buffer for the next read, with spare capacity: little on an idle connection, more after
    /// each read that filled it.
    pub fn read_buffer(&mut self) -> &mut BytesMut {
        self.input.reserve(self.read_room);
        self.input_bytes_full = self.input.capacity();
        &mut self.input
    }

    /// Reports whether [`Connection::read_buffer`] has memory. An idle connection has none, and neither has
    /// a connection before its first request: the owner reads the first bytes elsewhere and calls
    /// [`Connection::receive`].
    pub fn has_read_buffer(&self) -> bool {
        self.input.capacity() > 0
    }

    /// Appends bytes that were read elsewhere. Allocates the read buffer only after the first request: many
    /// clients may connect at the same time, and memory that each needs briefly is slow to return to the
    /// system.
    pub fn receive(&mut self, bytes: &[u8]) {
        if matches!(self.phase, ConnectionPhase::Failed(..)) {
            return;
        }
        if self.input.is_empty() && self.last_stream == 0 {
            self.input = BytesMut::from(bytes);
            return;
        }
        if !self.has_read_buffer() {
            self.read_buffer();
        }
        self.input.extend_from_slice(bytes);
    }

    /// Handles what has been read, for one round.
    pub fn process(&mut self, now: Tick) -> ProcessResult {
        self.tick(now);
        if self.input.len() >= self.input_bytes_full {
            self.read_room = (4 * self.read_room).min(self.limits.read_bytes);
        }
        let mut frames = mem::take(&mut self.frames);
        let (mut at, mut work, mut handled) = (0, 0, false);
        let progress = loop {
            if let Some(progress) = self.stop(work) {
                break progress;
            }
            if at == frames.len() {
                // The buffer can be reused only when all slices of it are dropped.
                drop(mem::take(&mut frames));
                at = 0;
                match self.whole_frames() {
                    Ok(whole) if whole.is_empty() => match self.budget.paused_until(self.now) {
                        Some(until) => break ProcessResult::Paused { until },
                        None => break ProcessResult::NeedBytes,
                    },
                    Ok(whole) => frames = whole,
                    Err(violation) => {
                        self.violated(violation);
                        continue;
                    }
                }
            }
            let header =
                FrameHeader::read(&frames[at..]).expect("only whole frames are taken from the input");
            let payload = at + HEADER_BYTES..at + HEADER_BYTES + header.length;
            at = payload.end;
            work += HEADER_BYTES + header.length;
            handled = true;
            self.budget.count(header);
            if let Err(violation) = self.handle(header, &frames, payload) {
                self.violated(violation);
            }
            work += mem::take(&mut self.decoded_bytes);
        };
        if at < frames.len() && !matches!(progress, ProcessResult::Failed { .. }) {
            frames.advance(at);
            self.frames = frames;
        }
        self.note_partial(handled);
        progress
    }

    /// Returns the work handled since the last call, for an owner that shares its time among connections.
    pub fn take_work(&mut self) -> FrameWork {
        self.budget.take_work()
    }

    fn stop(&mut self, work: usize) -> Option<ProcessResult> {
        if let ConnectionPhase::Failed(code, reason) = self.phase {
            return Some(ProcessResult::Failed { code, reason });
        }
        if self.output.len() > self.limits.output_bytes_max {
            return Some(ProcessResult::OutputFull);
        }
        let now = self.now;
        let rates = [&mut self.resets, &mut self.window_changes];
        if let Some(until) = rates.into_iter().find_map(|rate| rate.paused_until(now)) {
            return Some(ProcessResult::Paused { until });
        }
        (work >= self.limits.round_bytes_max || self.events.len() >= EVENTS_MAX)
            .then_some(ProcessResult::More)
    }

    /// Takes all complete frames off the input. An error in a later frame is reported after the frames
    /// before it are handled.
    fn whole_frames(&mut self) -> Result<Bytes, Violation> {
        if self.phase == ConnectionPhase::Preface {
            let length = self.input.len().min(PREFACE.len());
            if self.input[..length] != PREFACE[..length] {
                return Err(protocol("the connection does not begin with the preface of HTTP/2"));
            }
            if length < PREFACE.len() {
                return Ok(Bytes::new());
            }
            self.input.advance(length);
            self.phase = ConnectionPhase::Settings;
        }
        let mut end = 0;
        while let Some(header) = FrameHeader::read(&self.input[end..]) {
            if header.length > self.limits.frame_bytes_max as usize {
                if end == 0 {
                    return Err(frame_size("a frame exceeds MAX_FRAME_SIZE"));
                }
                break;
            }
            if self.input.len() - end - HEADER_BYTES < header.length {
                break;
            }
            end += HEADER_BYTES + header.length;
        }
        if end == 0 {
            return Ok(Bytes::new());
        }
        Ok(self.input.split_to(end).freeze())
    }

    fn handle(&mut self, header: FrameHeader, frames: &Bytes, range: Range<usize>) -> Result<(), Violation> {
        if self.phase == ConnectionPhase::Settings {
            if header.kind != FrameKind::Settings || header.has(flags::ACK) {
                return Err(protocol("the first frame is not SETTINGS"));
            }
            self.phase = ConnectionPhase::Open;
        }
        if let Some(block) = &self.block
            && (header.kind != FrameKind::Continuation || header.stream != block.stream)
        {
            return Err(protocol("a header block is interrupted by another frame"));
        }
        let payload = &frames[range.clone()];
        match header.kind {
            FrameKind::Headers => self.on_headers(header, payload),
            FrameKind::Continuation => self.on_continuation(header, payload),
            FrameKind::Data => self.on_data(header, frames, range),
            FrameKind::WindowUpdate => self.on_window_update(header, payload),
            FrameKind::Settings => self.on_settings(header, payload),
            FrameKind::Ping => self.on_ping(header, payload),
            FrameKind::RstStream => self.on_rst_stream(header, payload),
            FrameKind::Priority => self.on_priority(header, payload),
            FrameKind::GoAway => self.on_goaway(header, payload),
            FrameKind::PushPromise => Err(protocol("a client sent PUSH_PROMISE")),
            FrameKind::Unknown => Ok(()),
        }
    }

    /// Records the start of the wait for the rest of an incomplete frame or header block.
    fn note_partial(&mut self, handled: bool) {
        let waits = !self.input.is_empty() || self.block.is_some();
        self.partial_since = match self.partial_since {
            _ if !waits || !self.frames.is_empty() => None,
            // All fragments of a block share one wait, so that a slow block times out.
            Some(since) if !handled || self.block.is_some() => Some(since),
            _ => Some(self.now),
        };
    }

    /// Advances the clock, as `process` does. Called before sending responses that do not follow a read.
    pub fn tick(&mut self, now: Tick) {
        self.now = now;
        if self.output.len() == 0 {
            self.output_since = now;
        }
        // A notified owner may have dropped its stream without passing on the notification.
        self.notify_window();
        self.notify_room();
    }
}
