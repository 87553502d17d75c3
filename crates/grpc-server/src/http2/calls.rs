//! The interface between a connection and the methods of the API.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

use super::account::Room;
use super::streaming::{Replies, Requests};
use admission::{Holder, Pass};
use auth::Connection;

/// Serves the calls of one connection, inside its task.
pub trait CallHandler: Clone + Send + Sync + 'static {
    /// One call: its method and the parameters from its headers. Stored once per open call.
    type Call: Send;
    /// Type of responses that are produced in parts; `Infallible` if there are none.
    type Long: LongAnswer;

    /// Returns the handler for one connection. It records the use of the connection in `holder`.
    fn of(&self, connection: &Connection, holder: &Arc<Holder>) -> Self;

    /// Starts the call for a path such as `/etcdserverpb.KV/Put`, or rejects it by its headers. `timeout`
    /// is a `grpc-timeout` that was removed from them.
    fn begin(
        &self,
        path: &str,
        headers: &HeaderMap,
        timeout: Option<&[u8]>,
    ) -> Result<BegunCall<Self::Call>, Status>;

    /// Returns the deadline of the call.
    fn deadline(call: &Self::Call) -> Option<Instant>;

    /// Returns the authenticated user of the call, as a key for quotas.
    fn user(call: &Self::Call) -> Option<u64>;

    /// Serves a unary call that does not have to wait: `send` takes the response, prefix included, and
    /// returns whether it was sent. On false the call has to be made by [`CallHandler::unary`], and has not
    /// been counted.
    ///
    /// `message` is a slice of the receive buffer, so it must not be retained.
    fn answer_now(&self, call: &Self::Call, message: &Bytes, send: &mut SendNow<'_>) -> bool;

    /// Serves a call with one encoded message, and returns the response. A method with large responses
    /// waits for `room` before it builds one.
    fn unary(
        &self,
        call: Self::Call,
        message: Bytes,
        room: Room<'_>,
    ) -> impl Future<Output = Result<Answer<Self::Long>, Status>> + Send;

    /// Serves a call with a stream of requests or responses until it completes with this status. The
    /// future is dropped when the client disconnects or the member stops.
    fn stream(
        &self,
        call: Self::Call,
        requests: Requests,
        replies: Replies,
    ) -> impl Future<Output = Status> + Send;
}

/// A call after its headers.
#[derive(Debug)]
pub enum BegunCall<C> {
    Unary(C),
    /// Any other kind.
    Stream(C),
}

/// Sends a response if the client and the output buffer accept it immediately.
pub type SendNow<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// The response of a unary call.
#[derive(Debug)]
pub enum Answer<L> {
    /// The message, with gRPC's five-byte prefix.
    Whole(Bytes),
    /// Header fields, and the message with its prefix.
    WithMetadata(Box<HeaderMap>, Bytes),
    /// A response that is produced while it is sent. Boxed to keep the enum small.
    Long(Box<L>),
}

/// A response message that is too large to be held in memory. The methods have no defaults, because a
/// wrapper type could inherit them by mistake.
pub trait LongAnswer: Send + Sync + 'static {
    /// Prepares the first byte and returns the length of the message, prefix included. Called once, before
    /// the other methods.
    fn begin(&mut self) -> impl Future<Output = Result<u64, Status>> + Send;

    /// Returns at least one byte starting at `position`. Must be repeatable: bytes that a client did not
    /// take in time are dropped, and requested again.
    fn part(&mut self, position: u64) -> impl Future<Output = Result<Part, Status>> + Send;

    /// Returns when the connection may hold more bytes that are not written yet.
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// Counts bytes of a part until they were written.
    fn counted(&self, sent: Bytes) -> Bytes;

    /// Reports whether other calls wait for the memory held between two parts.
    fn is_wanted(&self) -> bool;

    /// Records that the message was aborted because the client did not read.
    fn unread(&mut self);
}

/// Some bytes of a message, and the permit to hold them: where memory is short, other calls wait for it.
#[derive(Debug)]
pub struct Part {
    /// The bytes in pieces, each of which is freed once it was sent.
    pub pieces: VecDeque<Bytes>,
    pub turn: Option<Pass>,
}

impl Part {
    /// Returns the number of bytes left.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Reports whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl LongAnswer for Infallible {
    async fn begin(&mut self) -> Result<u64, Status> {
        match *self {}
    }

    async fn part(&mut self, _position: u64) -> Result<Part, Status> {
        match *self {}
    }

    async fn room(&self) {
        match *self {}
    }

    fn counted(&self, _sent: Bytes) -> Bytes {
        match *self {}
    }

    fn is_wanted(&self) -> bool {
        match *self {}
    }

    fn unread(&mut self) {
        match *self {}
    }
}
