//! Frames (RFC 9113, sections 4 and 6): headers, payloads, and writing them.
//!
//! This module handles the syntax of frames, not their meaning for a connection.

mod header; // the nine bytes before each payload, padding, priority
mod write; // appends frames to a buffer

pub(crate) use header::{
    FrameHeader, FrameKind, HEADER_BYTES, Padding, flags, strip_padding, strip_priority, word,
};
pub(crate) use write::{
    data_header, goaway, headers, ping, rst_stream, settings, settings_ack, window_update,
};
