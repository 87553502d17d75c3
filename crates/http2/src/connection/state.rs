//! The state of a connection.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::cache::HeaderBlockCache;
use super::event::{Event, ResetOrigin, StreamId};
use super::flood::TokenBudget;
use crate::error::{ErrorCode, Violation};
use crate::flow::{ReceiveWindow, SendWindow};
use crate::frame;
use crate::hpack::{Decoder, Shape};
use crate::limits::{Limits, Rate, Tick};
use crate::settings::{self, PeerSettings};
use crate::stream::{CloseReason, Streams};

/// Progress of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// Waits for the client's 24 bytes.
    Preface,
    /// Waits for the client's first SETTINGS.
    Settings,
    Open,
    Failed(ErrorCode, &'static str),
}

/// Progress of a graceful shutdown (section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainPhase {
    No,
    /// GOAWAY without a limit was sent, and a ping after it: streams in progress are still served.
    Announced,
    /// GOAWAY with the last stream was sent: streams above `last` are ignored.
    Final {
        last: u32,
    },
}

/// A header block without END_HEADERS so far.
#[derive(Debug)]
pub(super) struct PartialBlock {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    pub(super) self_dependent: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) continuations: u32,
}

/// The server side of an HTTP/2 connection.
///
/// The owner reads into [`Connection::read_buffer`], calls [`Connection::process`], takes the events, sends
/// responses, and writes [`Connection::output`].
#[derive(Debug)]
pub struct Connection {
    pub(super) limits: Limits,
    pub(super) phase: ConnectionPhase,
    pub(super) drain: DrainPhase,
    pub(super) now: Tick,
    pub(super) opened: Tick,

    /// Bytes that do not yet form a frame.
    pub(super) input: BytesMut,
    /// Spare capacity for the next read, and the length of `input` at which the last read filled the
    /// buffer.
    pub(super) read_room: usize,
    pub(super) input_bytes_full: usize,
    /// Complete frames that the last round did not handle.
    pub(super) frames: Bytes,
    /// Start of the wait for the rest of a frame or header block.
    pub(super) partial_since: Option<Tick>,
    pub(super) events: VecDeque<Event>,
    /// Header list bytes decoded since the count was reset.
    pub(super) decoded_bytes: usize,

    pub(super) streams: Streams,
    /// The largest id that the client has used.
    pub(super) last_stream: u32,
    pub(super) decoder: Decoder,
    pub(super) cache: HeaderBlockCache,
    /// Shape of the last inspected block, kept to reuse its memory.
    pub(super) shape: Shape,
    pub(super) block: Option<PartialBlock>,
    pub(super) receive: ReceiveWindow,
    pub(super) budget: TokenBudget,
    pub(super) resets: Rate,
    pub(super) window_changes: Rate,

    pub(super) peer: PeerSettings,
    pub(super) settings_acknowledged: bool,
    /// The next header block has to start with a table size of 0.
    pub(super) size_update_due: bool,
    pub(super) send: SendWindow,
    pub(super) output: OutputBuffer,
    /// Pongs are held for [`Connection::send_pong`].
    pub(super) holds_pongs: bool,
    pub(super) held_pong: Option<[u8; 8]>,
    /// Tick of the last write to the socket, or of the first byte after the output was empty.
    pub(super) output_since: Tick,
    /// Streams with bytes to write and a window for them, served round-robin.
    pub(super) ready: VecDeque<u32>,
    /// Streams with an owner that waits for the connection's window or the output buffer, served
    /// round-robin.
    pub(super) window_wanted: VecDeque<u32>,
    /// Like `window_wanted`, for messages with few bytes remaining.
    pub(super) small_wanted: VecDeque<u32>,
    /// Bytes of small messages written since the last frame of a larger one.
    pub(super) overtaken: usize,
    /// Streams with an owner that waits for fewer pending bytes on the connection, served round-robin.
    pub(super) room_wanted: VecDeque<u32>,
    /// Streams for which one byte of the connection's window is reserved.
    pub(super) reserved: usize,
    /// Body bytes pending on all streams.
    pub(super) unsent: usize,
}

/// Read capacity of an idle connection: enough for the preface, or a call.
pub(super) const READ_ROOM_MIN: usize = 1024;

/// Ids of removed streams that a queue may hold beyond the number of live ones.
const REMOVED_IDS_MIN: usize = 16;

/// The window of a connection before any WINDOW_UPDATE, in both directions.
const WINDOW_INITIAL: u32 = 65_535;

impl Connection {
    /// Returns a connection accepted at `now`. Its output starts with the server's preface.
    pub fn new(limits: Limits, now: Tick) -> Connection {
        let limits = limits.in_range();
        let mut output = OutputBuffer::default();
        frame::settings(&mut output.bytes, &settings::announced(&limits));
        if limits.connection_window_bytes > WINDOW_INITIAL {
            frame::window_update(&mut output.bytes, 0, limits.connection_window_bytes - WINDOW_INITIAL);
        }
        Connection {
            phase: ConnectionPhase::Preface,
            drain: DrainPhase::No,
            now,
            opened: now,
            input: BytesMut::new(),
            read_room: READ_ROOM_MIN,
            input_bytes_full: READ_ROOM_MIN,
            frames: Bytes::new(),
            partial_since: None,
            events: VecDeque::new(),
            decoded_bytes: 0,
            streams: Streams::new(limits.reset_streams_remembered),
            last_stream: 0,
            decoder: Decoder::new(),
            cache: HeaderBlockCache::new(&limits),
            shape: Shape::default(),
            block: None,
            receive: ReceiveWindow::new(limits.connection_window_bytes),
            budget: TokenBudget::new(&limits, now),
            resets: Rate::new(limits.resets_max, limits.interval_ticks),
            window_changes: Rate::new(limits.window_changes_max, limits.interval_ticks),
            peer: PeerSettings::default(),
            settings_acknowledged: false,
            size_update_due: false,
            send: SendWindow::new(WINDOW_INITIAL),
            output,
            holds_pongs: false,
            held_pong: None,
            output_since: now,
            ready: VecDeque::new(),
            window_wanted: VecDeque::new(),
            small_wanted: VecDeque::new(),
            overtaken: 0,
            room_wanted: VecDeque::new(),
            reserved: 0,
            unsent: 0,
            limits,
        }
    }

    /// The next event. The owner takes all of them after each call of `process`.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Reports whether events are queued; calls of the owner may add some.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the number of streams that are open, or with a response not yet completely in the output
    /// buffer.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of body bytes that are pending on all streams.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Reports whether the client's preface and first SETTINGS have arrived, and no connection error
    /// occurred.
    pub fn is_open(&self) -> bool {
        self.phase == ConnectionPhase::Open
    }

    /// Reports whether a stream was never opened: an id of the server, or a future id.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        id.is_multiple_of(2) || id > self.last_stream
    }

    /// Resets a stream, or closes the connection.
    pub(super) fn violated(&mut self, violation: Violation) {
        match violation {
            Violation::Connection(code, reason) => self.fail(code, reason),
            Violation::Stream(id, code) => {
                self.resets.count(self.now);
                frame::rst_stream(&mut self.output.bytes, id, code);
                if self.remove(id, CloseReason::Reset) {
                    self.events.push_back(Event::Reset {
                        stream: StreamId(id),
                        code,
                        origin: ResetOrigin::Violation,
                    });
                } else {
                    self.streams.remember_reset(id);
                }
            }
        }
    }

    /// Sends GOAWAY and drops all streams. No further frame is handled.
    pub(super) fn fail(&mut self, code: ErrorCode, reason: &'static str) {
        let last = match self.drain {
            DrainPhase::Final { last } => last,
            DrainPhase::No | DrainPhase::Announced => self.last_stream,
        };
        frame::goaway(&mut self.output.bytes, last, code, reason);
        self.phase = ConnectionPhase::Failed(code, reason);
        self.streams = Streams::new(0);
        self.ready.clear();
        self.window_wanted.clear();
        self.small_wanted.clear();
        self.room_wanted.clear();
        self.reserved = 0;
        self.unsent = 0;
        self.block = None;
        self.held_pong = None;
        self.input = BytesMut::new();
        self.partial_since = None;
    }

    /// Removes a stream with its pending bytes. Returns false if it is not live.
    pub(super) fn remove(&mut self, id: u32, how: CloseReason) -> bool {
        let Some(stream) = self.streams.remove(id, how) else { return false };
        let pending = &stream.pending;
        if pending.queued || pending.window_queued || pending.room_queued {
            self.drop_removed();
        }
        self.unsent -= pending.bytes;
        self.reserved -= usize::from(pending.reserved);
        let had_turn = pending.notified || pending.reserved;
        if pending.bytes > 0 || had_turn {
            self.notify_room();
        }
        if had_turn {
            self.notify_window();
        }
        true
    }

    /// Removes ids of closed streams from a queue when they outnumber the live ones. The peer can block the
    /// front of a queue indefinitely, so they would accumulate.
    fn drop_removed(&mut self) {
        let streams = &mut self.streams;
        let ids_max = 2 * streams.len() + REMOVED_IDS_MIN;
        for queue in [&mut self.ready, &mut self.window_wanted, &mut self.small_wanted, &mut self.room_wanted]
        {
            if queue.len() > ids_max {
                queue.retain(|id| streams.get(*id).is_some());
            }
        }
    }
}

/// Bytes to write to the socket. A single buffer, so that the responses of a round leave in one write.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    pub(super) bytes: Vec<u8>,
    at: usize,
}

/// Capacity that a busy connection retains: the responses of a round, unless they are large.
const BUSY_BYTES_MAX: usize = 32 << 10;

impl OutputBuffer {
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn written(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.bytes.len());
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(BUSY_BYTES_MAX);
            self.at = 0;
        } else if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
    }

    pub(super) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }
}
