//! Server side of HTTP/2 (RFC 9113, RFC 7541) as a pure state machine: bytes in, events and bytes out.
//!
//! ```text
//!   socket ──bytes──▶ Connection::process ──▶ events ──▶ owner
//!   socket ◀──bytes── Connection::output  ◀── answers ◀── owner
//! ```
//!
//! * [`Connection`] has no socket, clock, thread or task. The owner moves bytes and passes time as ticks.
//! * The same bytes give the same events, wherever they are cut into reads.
//! * Bytes of the peer never panic. They end in an event, in the error that the RFC names, or are ignored
//!   where the RFC says so.
//! * Everything that a peer can make grow has a limit in [`Limits`], with its reason and what happens there.
//! * A call whose header block was seen before allocates nothing.
//!
//! Must not depend on gRPC, etcd or Raft.

#![forbid(unsafe_code)]

mod error; // error codes of the RFC
mod limits; // every limit, with its reason

mod frame; // frame headers, payloads, writing frames
mod head; // a decoded request head, and what makes it malformed
mod hpack; // header compression
mod settings; // what each side announces

mod flow; // one flow-control window
mod stream; // the streams of a connection

mod connection; // the state machine

pub use connection::{
    Connection, EndOfBody, Event, FrameWork, Memory, PeerWait, ProcessResult, ResetOrigin, SendResult,
    StreamEnded, StreamId, Wait,
};
pub use error::ErrorCode;
pub use head::{Field, Head};
pub use hpack::{HeaderBlock, Varying};
pub use limits::{Limits, Tick};
