//! Waits for the peer, which the owner times out, and the memory of a connection.

use super::event::StreamId;
use super::state::{Connection, ConnectionPhase, READ_ROOM_MIN};
use crate::frame::{FrameHeader, FrameKind};
use crate::hpack::Shape;
use crate::limits::Tick;
use crate::stream::{LocalState, StreamState};

/// Something that the peer has yet to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerWait {
    /// The client's preface and its first SETTINGS.
    Preface,
    /// The acknowledgement of this side's SETTINGS.
    SettingsAck,
    /// The rest of a frame or of a header block.
    Frame,
    /// The rest of a request, timed from its start.
    Body(StreamId),
    /// Window capacity for a response, timed from the last progress.
    Window(StreamId),
    /// The socket accepting output, timed from the last write.
    Output,
}

/// A wait and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub waiting: PeerWait,
    pub since: Tick,
}

/// Bytes that a connection holds. Buffers count with their capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// Receive buffer and unhandled frames. Body slices that the owner holds are not counted.
    pub input: usize,
    pub output: usize,
    /// Body bytes pending for a window.
    pub unsent: usize,
    /// Dynamic table, incomplete header block and remembered heads.
    pub headers: usize,
    /// Streams and events.
    pub streams: usize,
}

impl HeldMemory {
    pub fn total(&self) -> usize {
        self.input + self.output + self.unsent + self.headers + self.streams
    }
}

impl Connection {
    /// Returns all current waits. The owner polls them, applies its deadlines with [`Connection::reset`] or
    /// [`Connection::close`], and decides which streams may stay open.
    pub fn waits(&self) -> impl Iterator<Item = Wait> {
        let preface = matches!(self.phase, ConnectionPhase::Preface | ConnectionPhase::Settings);
        let settings = self.phase == ConnectionPhase::Open && !self.settings_acknowledged;
        let connection = [
            preface.then_some(Wait { waiting: PeerWait::Preface, since: self.opened }),
            settings.then_some(Wait { waiting: PeerWait::SettingsAck, since: self.opened }),
            self.partial_since.map(|since| Wait { waiting: PeerWait::Frame, since }),
            (self.output.len() > 0).then_some(Wait { waiting: PeerWait::Output, since: self.output_since }),
        ];
        connection.into_iter().flatten().chain(self.streams.iter().flat_map(stream_waits))
    }

    /// Reports whether stream owners wait for a notification. The owner must then call [`Connection::tick`]
    /// periodically, since a notified owner may have dropped its stream.
    pub fn has_waiting_owners(&self) -> bool {
        ![&self.window_wanted, &self.small_wanted, &self.room_wanted].iter().all(|queue| queue.is_empty())
    }

    /// Reports whether a header block is incomplete.
    pub fn is_in_headers(&self) -> bool {
        let is_of_block =
            |header: FrameHeader| matches!(header.kind, FrameKind::Headers | FrameKind::Continuation);
        self.block.is_some() || FrameHeader::read(&self.input).is_some_and(is_of_block)
    }

    pub fn memory(&self) -> HeldMemory {
        let queues = [&self.ready, &self.window_wanted, &self.small_wanted, &self.room_wanted];
        let queues = queues.map(|queue| queue.capacity() * size_of::<u32>()).iter().sum::<usize>();
        let events = self.events.capacity() * size_of::<super::event::Event>();
        let chunk_bytes = size_of::<bytes::Bytes>();
        let chunks =
            self.streams.iter().map(|stream| stream.pending.chunks.capacity() * chunk_bytes).sum::<usize>();
        HeldMemory {
            input: self.input.capacity() + self.frames.len(),
            output: self.output.bytes.capacity(),
            unsent: self.unsent,
            headers: self.decoder.bytes()
                + self.cache.bytes()
                + self.shape.fields.capacity() * size_of::<u64>()
                + self.block.as_ref().map_or(0, |block| block.bytes.capacity()),
            streams: self.streams.bytes() + queues + events + chunks,
        }
    }

    /// Gives back memory that an idle connection does not need: buffers and queues that grew in a busy time.
    pub fn shrink(&mut self) {
        if self.input.is_empty() {
            self.input = bytes::BytesMut::new();
            (self.read_room, self.input_bytes_full) = (READ_ROOM_MIN, READ_ROOM_MIN);
        }
        self.output.shrink();
        self.decoder.shrink();
        self.cache.clear();
        self.shape = Shape::default();
        self.events.shrink_to_fit();
        self.ready.shrink_to_fit();
        self.window_wanted.shrink_to_fit();
        self.small_wanted.shrink_to_fit();
        self.room_wanted.shrink_to_fit();
        self.streams.shrink();
    }
}

fn stream_waits(stream: &StreamState) -> impl Iterator<Item = Wait> + use<> {
    let id = StreamId(stream.id);
    let body = !stream.remote_ended && stream.local != LocalState::Ended;
    let window = !stream.pending.is_empty();
    [
        body.then_some(Wait { waiting: PeerWait::Body(id), since: stream.opened }),
        window.then_some(Wait { waiting: PeerWait::Window(id), since: stream.pending.since }),
    ]
    .into_iter()
    .flatten()
}
