//! One HTTP/2 connection of a client, served by one task.
//!
//! ```text
//!                      ┌─ unary call ──▶ read one message ──▶ CallHandler::unary ──▶ response
//! accept a stream ─────┤      (a future inside this task: no task per call)
//!                      ├─ stream of requests or responses ──▶ CallHandler::stream   (also inside this task)
//!                      └─ no gRPC call ──▶ HTTP service, a separate task per request
//! ```
//!
//! * A call stays in the connection's task: its future is polled there, with the socket, so that the
//!   responses of a burst leave in one write. When a response is ready and more calls are in flight, the
//!   task yields once to the runtime's queue, so that calls completing in the meantime share the write
//!   (half as many writes and an eighth less server time for linearizable ranges of 1000 clients).
//! * A call that does not wait is served while its request is parsed, without a future or an allocation.
//! * A large response is produced as it is sent ([`LongAnswer`]), so that it does not wait in memory for
//!   its client.
//! * A call is rejected before more of its body is read than the limit allows.
//! * A connection has at most [`ConnectionLimits::streams_max`] streams. Each holds at most one request of
//!   [`ConnectionLimits::message_bytes_max`]; `account` bounds the total of requests and responses.
//! * Floods of frames without a response are slowed down by `http2` and `meter`.
//! * A waiting call is dropped as soon as its client resets it.
//! * When the connection breaks, its calls are dropped. Proposals already made are still applied: the
//!   client sees a broken call, as with any other server.
//!
//! The semantics of methods are left to [`CallHandler`].

mod meter; // read pacing

mod wire; // the state machine of a connection, its socket, and handles for streams

mod account; // memory held on behalf of clients
mod shared; // limits, and state shared by calls

mod calls; // the interface to the methods
mod grpc; // frame, headers and trailers

mod long; // one message out, produced as it is sent
mod unary; // one message in, one message out

mod streaming; // messages in, messages out

mod plain; // requests that are not gRPC calls

mod connection; // the task of a connection

pub use account::{Body as CountedBody, CallerTotals, PartRoom, Room, Totals};
pub use calls::{Answer, BegunCall, CallHandler, LongAnswer, Part, SendNow};
pub use connection::{Services, serve};
pub use grpc::{frame_prefix, framed, is_call};
pub use plain::HttpService;
pub use shared::{ConnectionLimits, ConnectionShared};
pub use streaming::{AnswerReader, Replies, Requests, StreamGone, serve_stream};
