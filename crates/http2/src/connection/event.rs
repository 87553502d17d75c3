//! Events for the owner of a connection.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::ErrorCode;
use crate::head::{Field, Head};
use crate::hpack::Varying;
use crate::limits::Tick;

/// A stream that the client opened. Never used twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// The number on the wire: odd and ascending.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Something that happened. Body bytes are slices of the receive buffer: an owner that keeps them for long
/// should copy them, since they pin the whole buffer. Each must be released with
/// [`crate::Connection::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new request. `body` holds the first DATA frame if it arrived in the same round; `end` marks a
    /// complete request. `varying` is the value of [`crate::Limits::varying_field`], if the head lacks it.
    Request { stream: StreamId, head: Arc<Head>, varying: Option<Varying>, body: Bytes, end: bool },
    /// More of a body, one frame at a time.
    Data { stream: StreamId, bytes: Bytes, end: bool },
    /// The trailers that complete a request.
    Trailers { stream: StreamId, fields: Vec<Field> },
    /// The stream was closed; sending to it fails.
    Reset { stream: StreamId, code: ErrorCode, origin: ResetOrigin },
    /// Capacity is available again after [`crate::SendResult::Part`].
    Writable { stream: StreamId },
    /// The acknowledgement of a ping sent by the owner.
    Pong { payload: [u8; 8] },
    /// The client opens no more streams.
    GoAway { code: ErrorCode },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetOrigin {
    /// The client sent RST_STREAM.
    Peer,
    /// The client violated the protocol, and this side sent RST_STREAM.
    Violation,
    /// The stream waited too long, and this side sent RST_STREAM.
    Deadline,
}

/// Why [`crate::Connection::process`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessResult {
    /// All frames were handled.
    NeedBytes,
    /// The work limit of the round is reached. Call again after serving other connections.
    More,
    /// The output buffer is full: write it first.
    OutputFull,
    /// Too many frames without a request, or resets: call again at this tick.
    Paused { until: Tick },
    /// A connection error was sent. Write the output and close the socket.
    Failed { code: ErrorCode, reason: &'static str },
}
