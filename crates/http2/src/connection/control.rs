//! SETTINGS, PING, RST_STREAM, PRIORITY and GOAWAY (sections 6.3 to 6.8), and graceful shutdown.

use super::event::{Event, ResetOrigin, StreamId};
use super::pump::queue;
use super::state::{Connection, ConnectionPhase, DrainPhase};
use crate::error::{ErrorCode, Violation, frame_size, protocol};
use crate::flow::Overflow;
use crate::frame::{self, FrameHeader, flags, strip_priority, word};
use crate::stream::CloseReason;

/// The ping that follows the first GOAWAY; its acknowledgement proves that the client has read the GOAWAY.
const DRAIN_PING: [u8; 8] = *b"draining";

impl Connection {
    pub(super) fn on_settings(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(protocol("SETTINGS on a stream"));
        }
        if header.has(flags::ACK) {
            if !payload.is_empty() {
                return Err(frame_size("SETTINGS with ACK has a payload"));
            }
            if std::mem::replace(&mut self.settings_acknowledged, true) {
                return Err(protocol("SETTINGS that were not sent are acknowledged"));
            }
            self.decoder.acknowledged(self.limits.header_table_bytes_max as usize);
            return Ok(());
        }
        if !payload.len().is_multiple_of(6) {
            return Err(frame_size("the length of SETTINGS is not a multiple of six"));
        }
        let before = self.peer;
        self.peer.apply(payload)?;
        if self.peer.header_table_bytes_min < 4096 && before.header_table_bytes_min == 4096 {
            self.size_update_due = true;
        }
        let change = i64::from(self.peer.initial_window) - i64::from(before.initial_window);
        frame::settings_ack(&mut self.output.bytes);
        if change != 0 {
            self.change_send_windows(change)?;
        }
        Ok(())
    }

    /// Section 6.9.2: the change applies to all streams, and may make a window negative.
    fn change_send_windows(&mut self, change: i64) -> Result<(), Violation> {
        self.window_changes.count_many(self.streams.len(), self.now);
        for stream in self.streams.iter_mut() {
            stream.send.change(change).map_err(|Overflow| {
                Violation::Connection(ErrorCode::FLOW_CONTROL_ERROR, "a stream's window exceeds 2^31-1")
            })?;
            queue(stream, &mut self.ready, &mut self.small_wanted, &mut self.window_wanted);
        }
        self.pump();
        Ok(())
    }

    pub(super) fn on_ping(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(protocol("PING on a stream"));
        }
        let payload: [u8; 8] = payload.try_into().map_err(|_| frame_size("PING has no eight bytes"))?;
        if !header.has(flags::ACK) {
            // At most one pong is held.
            self.send_pong();
            self.held_pong = Some(payload);
            if !self.holds_pongs {
                self.send_pong();
            }
        } else if payload == DRAIN_PING && self.drain == DrainPhase::Announced {
            self.end_drain();
        } else {
            self.events.push_back(Event::Pong { payload });
        }
        Ok(())
    }

    pub(super) fn on_rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        let id = header.stream;
        if self.is_idle(id) {
            return Err(protocol("RST_STREAM on a stream that is idle"));
        }
        let Some(code) = word(payload).filter(|_| payload.len() == 4) else {
            return Err(frame_size("RST_STREAM has no four bytes"));
        };
        if self.remove(id, CloseReason::Ended) {
            self.resets.count(self.now);
            let code = ErrorCode(code);
            self.events.push_back(Event::Reset { stream: StreamId(id), code, origin: ResetOrigin::Peer });
        }
        Ok(())
    }

    /// Validates a PRIORITY frame and ignores its content. RFC 7540, 5.3.1: a stream cannot depend on
    /// itself.
    pub(super) fn on_priority(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        let id = header.stream;
        if id == 0 {
            return Err(protocol("PRIORITY without a stream"));
        }
        match strip_priority(payload) {
            Some((priority, [])) if priority.dependency != id => Ok(()),
            // RST_STREAM must not be sent for a stream that is idle.
            Some((_, [])) if self.is_idle(id) => Err(protocol("a stream depends on itself")),
            Some((_, [])) => Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR)),
            _ if self.is_idle(id) => Err(frame_size("PRIORITY has no five bytes")),
            _ => Err(Violation::Stream(id, ErrorCode::FRAME_SIZE_ERROR)),
        }
    }

    pub(super) fn on_goaway(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(protocol("GOAWAY on a stream"));
        }
        let Some(code) = payload.get(4..).and_then(word) else {
            return Err(frame_size("GOAWAY has no eight bytes"));
        };
        self.events.push_back(Event::GoAway { code: ErrorCode(code) });
        Ok(())
    }

    /// Sets whether a pong is held until the owner sends it or the next PING arrives, so that it can leave
    /// with other output. The default is to output it immediately; section 6.7 gives pongs priority.
    pub fn hold_pongs(&mut self, hold: bool) {
        self.holds_pongs = hold;
    }

    /// Reports whether a pong is held for [`Connection::send_pong`].
    pub fn has_held_pong(&self) -> bool {
        self.held_pong.is_some()
    }

    /// Outputs the held pong, if any.
    pub fn send_pong(&mut self) {
        if let Some(payload) = self.held_pong.take() {
            frame::ping(&mut self.output.bytes, payload, true);
        }
    }

    /// Sends a ping. [`Event::Pong`] reports its acknowledgement.
    pub fn ping(&mut self, payload: [u8; 8]) {
        if !matches!(self.phase, ConnectionPhase::Failed(..)) {
            frame::ping(&mut self.output.bytes, payload, false);
        }
    }

    /// Starts a graceful shutdown: the client should open no more streams. Streams in progress are served;
    /// later ones are ignored.
    pub fn shut_down(&mut self) {
        if self.drain == DrainPhase::No && !matches!(self.phase, ConnectionPhase::Failed(..)) {
            self.drain = DrainPhase::Announced;
            let all = crate::flow::WINDOW_MAX as u32;
            frame::goaway(&mut self.output.bytes, all, ErrorCode::NO_ERROR, "");
            frame::ping(&mut self.output.bytes, DRAIN_PING, false);
        }
    }

    /// Proceeds to the final GOAWAY without the client's acknowledgement, for example after a timeout.
    pub fn end_drain(&mut self) {
        if self.drain == DrainPhase::Announced && !matches!(self.phase, ConnectionPhase::Failed(..)) {
            self.drain = DrainPhase::Final { last: self.last_stream };
            frame::goaway(&mut self.output.bytes, self.last_stream, ErrorCode::NO_ERROR, "");
        }
    }

    /// The shutdown is complete: no stream is left and everything was written.
    pub fn is_drained(&self) -> bool {
        matches!(self.drain, DrainPhase::Final { .. }) && self.streams.len() == 0 && self.output.len() == 0
    }

    /// Closes the connection with an error chosen by the owner, such as a missed deadline.
    pub fn close(&mut self, code: ErrorCode, reason: &'static str) {
        if !matches!(self.phase, ConnectionPhase::Failed(..)) {
            self.fail(code, reason);
        }
    }
}
