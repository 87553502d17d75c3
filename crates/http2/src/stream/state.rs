//! One stream that is open or half-closed (RFC 9113, section 5.1).
//!
//! The two sides close independently. A stream is removed when both are closed, or when it is reset.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::flow::{ReceiveWindow, SendWindow};
use crate::hpack::HeaderBlock;
use crate::limits::Tick;

/// State of the server's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalState {
    /// No head was sent.
    Waiting,
    /// The head was sent; DATA or trailers may follow.
    Answering,
    /// The owner has sent everything; some of it may still be pending.
    Ended,
}

/// The continuation after the last pending byte.
#[derive(Debug)]
pub(crate) enum PendingEnd {
    /// The owner will send more.
    Open,
    EndStream,
    Trailers(HeaderBlock),
}

/// Body bytes that are pending for a window or for the output buffer.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) chunks: VecDeque<Bytes>,
    pub(crate) bytes: usize,
    pub(crate) end: PendingEnd,
    /// Tick of the last progress, or of the first pending byte.
    pub(crate) since: Tick,
    /// The id is in the queue of writable streams.
    pub(crate) queued: bool,
    /// The owner retained a part and waits for an event.
    pub(crate) room_wanted: bool,
    /// The id is in the queue of streams with owners that wait for unsent bytes to drop.
    pub(crate) room_queued: bool,
    /// The owner waits for the windows before it produces more.
    pub(crate) window_wanted: bool,
    /// The message is short enough to be sent before larger ones.
    pub(crate) is_small: bool,
    /// The id is in the queue of streams with owners that wait for the connection's window.
    pub(crate) window_queued: bool,
    /// The owner was notified and has not returned. Other owners are notified after it.
    pub(crate) notified: bool,
    /// The owner has returned, and one byte of the connection's window is reserved for it until it sends.
    pub(crate) reserved: bool,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && matches!(self.end, PendingEnd::Open)
    }
}

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) id: u32,
    /// The peer has sent END_STREAM.
    pub(crate) remote_ended: bool,
    pub(crate) local: LocalState,
    /// The stream stays open after its response until the request is complete.
    pub(crate) kept_open: bool,
    /// END_STREAM of the response is in the output buffer.
    pub(crate) answered: bool,
    pub(crate) receive: ReceiveWindow,
    pub(crate) send: SendWindow,
    /// Remaining body bytes according to `content-length`.
    pub(crate) content_left: Option<u64>,
    pub(crate) pending: Pending,
    pub(crate) opened: Tick,
}

impl StreamState {
    pub(crate) fn new(id: u32, receive: u32, send: u32, now: Tick) -> StreamState {
        StreamState {
            id,
            remote_ended: false,
            local: LocalState::Waiting,
            kept_open: false,
            answered: false,
            receive: ReceiveWindow::new(receive),
            send: SendWindow::new(send),
            content_left: None,
            pending: Pending {
                chunks: VecDeque::new(),
                bytes: 0,
                end: PendingEnd::Open,
                since: now,
                queued: false,
                room_wanted: false,
                room_queued: false,
                window_wanted: false,
                is_small: false,
                window_queued: false,
                notified: false,
                reserved: false,
            },
            opened: now,
        }
    }

    /// Reports whether the stream has something to write that its window allows.
    pub(crate) fn can_write(&self) -> bool {
        !self.pending.is_empty() && (self.pending.bytes == 0 || self.send.room() > 0)
    }

    /// Reports whether the stream has no pending bytes, and its owner waits for the connection's window
    /// only.
    pub(crate) fn wants_window(&self) -> bool {
        self.pending.is_empty() && self.pending.window_wanted && self.send.room() > 0
    }
}
