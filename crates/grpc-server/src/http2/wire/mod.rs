//! A connection of the crate `http2`, guarded by one lock, and handles for the two halves of each stream.
//!
//! ```text
//!   socket ◀──▶ Driven ──▶ Wire (lock: state machine, wakers of streams) ◀── Reader, Writer
//!                 │                                                                  ▲
//!                 └──────────────── requests, in the order of arrival ──────────────┘
//! ```
//!
//! * The task of the connection drives the socket. Handles are used in that task, or in separate tasks.
//! * A handle with bytes to write wakes the connection's task, unless that task is running, since it checks
//!   the output again before it sleeps.
//! * The lock is held for reads and writes of the socket, which do not wait, and never across an await.
//! * A request that arrived with its complete body needs only its message, and gets no stream entry.
//! * A stream is reset if its `Writer` is dropped before the response is complete. After a complete
//!   response it stays open until its request is complete, or its `Reader` is dropped.
//!
//! Independent of gRPC.

mod heads; // conversion of heads to `http` types

mod state; // the state guarded by the lock

mod stream; // both halves of a request

mod drive; // the socket

pub(super) use drive::{Turn, WireDriver};
pub(super) use heads::{RequestHead, response_block, trailers_block};
pub(super) use state::{BegunRequest, Wire};
pub(super) use stream::{BodyReader, StreamWriter};

#[cfg(test)]
pub(super) mod testing; // a connection for tests
