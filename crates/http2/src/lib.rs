//! Server side of HTTP/2 (RFC 9113, RFC 7541) as a pure state machine: bytes in, events and bytes out.
//!
//! ```text
//!   socket ──bytes──▶ Connection::process ──▶ events ──▶ owner
//!   socket ◀──bytes── Connection::output  ◀─ responses ◀─ owner
//! ```
//!
//! * [`Connection`] has no socket, clock, thread or task. The owner moves bytes and passes time as ticks.
//! * The same bytes produce the same events, however they are split into reads.
//! * Input from the peer never panics. It yields an event, yields the error that the RFC names, or is
//!   ignored where the RFC requires that.
//! * Every resource that a peer can grow has a limit in [`Limits`], documented with its reason and its
//!   effect.
//! * A request with a header block seen before causes no allocation.
//!
//! Must not depend on gRPC, etcd or Raft.

#![forbid(unsafe_code)]

mod error; // error codes of the RFC
mod limits; // every limit, with its reason

mod frame; // frame headers, payloads, writing frames
mod head; // decoded request heads and their validation
mod hpack; // header compression
mod settings; // the settings of each side

mod flow; // one flow-control window
mod stream; // the streams of a connection

mod connection; // the state machine

pub use connection::{
    Connection, EndOfBody, Event, FrameWork, HeldMemory, PeerWait, ProcessResult, ResetOrigin, SendResult,
    StreamEnded, StreamId, Wait,
};
pub use error::ErrorCode;
pub use head::{Field, Head};
pub use hpack::{HeaderBlock, Varying};
pub use limits::{Limits, Tick};
