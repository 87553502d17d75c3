//! One HTTP/2 connection of a client, served by one task.
//!
//! ```text
//!                      ┌─ hot unary call ──▶ read one message ──▶ HotMethods::call ──▶ headers, message, trailers
//! accept a stream ─────┤      (a future inside this task: no task, no box per call)
//!                      ├─ messages both ways ─▶ StreamMethods::serve  (a future inside this task)
//!                      └─ anything else ───▶ relay to the gRPC services, a separate task per call
//! ```
//!
//! * A hot call never leaves the connection's task: its future is polled here, with the socket, so that the
//!   answers of one burst leave in one write. When one is ready and more are under way, the task steps back
//!   once, to the end of the runtime's queue: what completes meanwhile shares the write (half as many writes
//!   and an eighth less server time for linearizable ranges of 1000 clients).
//! * A call that waits for nothing is answered while its request is looked at: no future, no allocation.
//! * An answer that is large is made as it is sent ([`LongAnswer`]), so that none of it waits in memory for
//!   its client.
//! * A hot call is refused before its body is read further than the limit allows.
//! * A connection has at most [`ConnectionLimits::streams_max`] streams. Each holds at most one request of
//!   [`ConnectionLimits::message_bytes_max`]; what their messages and answers hold together is bounded in
//!   `account`.
//! * Floods of frames that ask for no answer are slowed down by `http2` and `meter`.
//! * A call whose client reset it ends at once: it is dropped while it waits.
//! * When the connection breaks, its hot calls are dropped with it. A proposal that was already made stays
//!   made: the client sees a broken call, as with any other server.
//!
//! Knows nothing of what a method means; [`HotMethods`] does.

mod meter; // when a connection is read

mod wire; // the state machine of a connection, its socket, and handles for streams

mod account; // bytes that clients make this process hold
mod shared; // limits, and what calls share

mod grpc; // frame, headers and trailers
mod methods; // how a hot call is found and answered

mod long; // one message out, made as it is sent
mod unary; // one message in, one message out

mod streaming; // messages in, messages out

mod relay; // the calls that other services answer

mod connection; // the task of a connection

pub use account::{Body as CountedBody, CallerTotals, PartRoom, Room, Totals};
pub use connection::{Methods, serve};
pub use grpc::{frame_prefix, framed, is_call};
pub use methods::{HotAnswer, HotMethods, LongAnswer, NoHot, Part, SendNow};
pub use relay::GrpcService;
pub use shared::{ConnectionLimits, ConnectionShared};
pub use streaming::{AnswerReader, NoStreams, Replies, Requests, StreamGone, StreamMethods, serve_stream};
