//! Calls with a stream of requests, responses or both: client and server send messages until either of them
//! completes the call.
//!
//! ```text
//!   DATA frames ──▶ Requests ──one message at a time──▶ CallHandler::stream ──▶ Replies ──▶ DATA frames
//! ```
//!
//! * A stream may be idle for any time. The stream limit of the connection bounds the number of idle
//!   streams. An incomplete message has a deadline.
//! * The last request does not complete the call.
//! * A client's reset cancels the call immediately, and drops its state.
//! * When the member stops, the call fails immediately with UNAVAILABLE.
//! * Requests that the method does not read are counted. A small number of them slows down reading the
//!   connection (`meter`); beyond the limits of `account` the call fails with RESOURCE_EXHAUSTED.
//! * Messages are sent only if the client's window admits them. A client that does not read costs the
//!   memory of [`CallHandler::stream`](super::CallHandler::stream), and no unsent bytes. A method that holds
//!   memory until a message is taken sends it with [`Replies::send_in_time`].

mod local; // messages from other protocols than HTTP/2
mod requests; // messages in
mod serve; // one call

pub use local::AnswerReader;
pub use requests::Requests;
pub(super) use serve::serve;
pub use serve::{Replies, StreamGone, serve_stream};

#[cfg(test)]
mod tests;
