//! The connection: bytes in, events and bytes out.
//!
//! `state` holds what a connection knows. The files after it change it: `read` takes frames apart and hands
//! each to `headers`, `data` or `control`; `send` takes answers from the owner; `pump` writes what had to
//! wait.
//!
//! Invariants:
//! * A stream error resets its stream and nothing else. A connection error writes GOAWAY, and nothing is
//!   handled later.
//! * Each body byte that was handed over is released once by the owner, and no window exceeds its size.
//! * No DATA frame exceeds the windows or the frame size of the peer.

mod cache; // decoded heads by the bytes of their blocks
mod event; // what the owner gets
mod flood; // what frames cost

mod control; // the other frames
mod data; // DATA and WINDOW_UPDATE
mod headers; // header blocks
mod pump; // answers that wait for a window or the output buffer
mod read; // bytes to frames
mod send; // answers of the owner
mod state; // everything a connection knows
mod waits; // what the connection waits for, and what it holds

pub use event::{Event, ProcessResult, ResetOrigin, StreamId};
pub use flood::FrameWork;
pub use send::{EndOfBody, SendResult, StreamEnded};
pub use state::Connection;
pub use waits::{Memory, PeerWait, Wait};
