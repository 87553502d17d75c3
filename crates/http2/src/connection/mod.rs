//! The connection: bytes in, events and bytes out.
//!
//! `state` holds the state of a connection. The other files change it: `read` parses frames and passes each
//! to `headers`, `data` or `control`; `send` accepts responses from the owner; `pump` writes pending bytes.
//!
//! Invariants:
//! * A stream error resets only its stream. After a connection error, GOAWAY is written and no further
//!   frame is handled.
//! * The owner releases each delivered body byte once, and no window exceeds its size.
//! * No DATA frame exceeds the windows or the frame size of the peer.

mod cache; // decoded heads by the bytes of their blocks
mod event; // events for the owner
mod flood; // the cost of frames

mod control; // the other frames
mod data; // DATA and WINDOW_UPDATE
mod headers; // header blocks
mod pump; // pending responses
mod read; // bytes to frames
mod send; // responses of the owner
mod state; // the state of a connection
mod waits; // waits for the peer, and memory use

pub use event::{Event, ProcessResult, ResetOrigin, StreamId};
pub use flood::FrameWork;
pub use send::{EndOfBody, SendResult, StreamEnded};
pub use state::Connection;
pub use waits::{HeldMemory, PeerWait, Wait};
