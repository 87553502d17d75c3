//! A connection of the crate `http2`, guarded by one lock, and handles for the two halves of each stream.
//!
//! ```text
//!   socket ◀──▶ Driven ──▶ Wire (lock: state machine, what streams wait for) ◀── Reader, Writer
//!                 │                                                                  ▲
//!                 └──────────────── Begun: a request, in the order of their coming ──┘
//! ```
//!
//! * The task of the connection drives the socket. Handles are used in that task, or in separate tasks.
//! * A handle that has something to write wakes the connection's task, unless that task is running: it looks
//!   at the output once more before it sleeps.
//! * The lock is held for reads and writes of the socket, which do not wait, and never across an await.
//! * A request whose body came with its head needs nothing but its message: no entry is made for it.
//! * A stream whose `Writer` is dropped before its answer has ended is reset. One whose answer has ended
//!   stays open until its request has ended, or its `Reader` is dropped.
//!
//! Knows nothing of gRPC.

mod heads; // heads as the services expect them

mod state; // what the lock guards

mod stream; // both halves of a request

mod drive; // the socket

pub(super) use drive::{Turn, WireDriver};
pub(super) use heads::{RequestHead, response_block, trailers_block};
pub(super) use state::{BegunRequest, Wire};
pub(super) use stream::{BodyReader, StreamWriter};

#[cfg(test)]
pub(super) mod testing; // a connection for tests
