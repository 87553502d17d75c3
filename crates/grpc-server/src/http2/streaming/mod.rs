//! Calls whose requests and answers are streams: the client and the server send messages until one of them
//! ends the call.
//!
//! ```text
//!   DATA frames ──▶ Requests ──one message at a time──▶ StreamMethods::serve ──▶ Replies ──▶ DATA frames
//! ```
//!
//! * A stream may be idle for any time. The number of idle streams is bounded by the stream limit of the
//!   connection. A message that has begun to arrive has to arrive in its time.
//! * The end of the requests does not end the call.
//! * A client's reset ends the call at once, and everything that it holds is dropped.
//! * When the member stops, the call ends with UNAVAILABLE at once.
//! * Requests that the method does not read are counted. Beyond a little of them the connection is read
//!   slowly (`meter`); beyond the bounds of `account` the call ends with RESOURCE_EXHAUSTED.
//! * Nothing is sent before the client's window has room for it. A client that does not read costs
//!   what [`StreamMethods::serve`] holds, and no unsent bytes.

mod local; // messages that do not come by HTTP/2
mod requests; // messages in
mod serve; // one call

pub use local::AnswerReader;
pub use requests::Requests;
pub(super) use serve::serve;
pub use serve::{NoStreams, Replies, StreamGone, StreamMethods, serve_stream};

#[cfg(test)]
mod tests;
